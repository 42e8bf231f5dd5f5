"""``covcal pick`` and ``covcal label``."""
