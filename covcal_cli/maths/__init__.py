"""Mathematics: arrays in, numbers out. It imports nothing of covcal except the array types."""
