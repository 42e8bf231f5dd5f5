"""``covcal evaluate``: calibrations on labelled target rows, and the gates on what was found."""
