"""``covcal pick``: which rows to label, and the page to label them on."""
