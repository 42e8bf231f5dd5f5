"""``covcal compare``: methods against each other on several shifts and seeds."""
