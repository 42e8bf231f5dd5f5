"""``covcal calibrate`` and ``estimate``: temperatures, and what they rest on."""
