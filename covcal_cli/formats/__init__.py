"""Covcal's own files: features, calibrations, the networks they name; README.md specifies them."""
