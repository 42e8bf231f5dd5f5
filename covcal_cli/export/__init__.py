"""``covcal export``: write the same model with calibrated probabilities."""
