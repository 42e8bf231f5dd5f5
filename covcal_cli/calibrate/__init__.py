"""``covcal calibrate``, ``estimate``, ``calibrate-labelled``: temperatures, what they rest on."""
