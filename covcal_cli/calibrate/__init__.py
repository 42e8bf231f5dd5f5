"""``covcal calibrate`` and ``estimate``: temperatures, estimates and their checks."""
