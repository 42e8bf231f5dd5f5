"""``covcal apply``: calibrated probabilities of rows."""
