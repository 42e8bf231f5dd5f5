"""``covcal run``: all steps in one folder; ``journal.py`` knows which results still stand."""
