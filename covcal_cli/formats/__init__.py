"""Covcal's own files: features, adapted files and calibrations. README.md specifies them."""
