"""Covcal's own files, which README.md specifies."""
