"""``covcal compare``: compare methods on several shifts, with several seeds."""
