"""``covcal export``: the same model with calibrated probabilities inside."""
