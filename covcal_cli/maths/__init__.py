"""Mathematics on arrays. These modules import nothing of covcal but array types."""
