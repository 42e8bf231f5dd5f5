"""Mathematics on arrays. These modules import only array types from covcal."""
