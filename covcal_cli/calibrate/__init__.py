"""``covcal calibrate``, ``estimate`` and ``calibrate-labelled``: temperatures and what they rest on."""
