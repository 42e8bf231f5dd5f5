"""``covcal run``: all steps in one folder."""
