"""Mathematics: arrays in, numbers out. It imports nothing of covcal but the array types."""
