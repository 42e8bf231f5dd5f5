"""Preprocess images for a classifier."""
