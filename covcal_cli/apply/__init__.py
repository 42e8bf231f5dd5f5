"""``covcal apply``: write calibrated probabilities of rows."""
