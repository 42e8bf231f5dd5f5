"""``covcal pick``: which target rows a person should label, drawn by a known design."""
