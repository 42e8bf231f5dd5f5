"""``covcal calibrate`` and ``estimate``: fit temperatures, and estimate the accuracy."""
