"""``covcal apply``: calibrated probabilities of rows; ``rowfiles/`` has a module per format."""
