"""``covcal run``: run all steps in one folder."""
