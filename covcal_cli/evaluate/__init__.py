"""``covcal evaluate``: measure calibrations on labelled target rows, and apply gates."""
