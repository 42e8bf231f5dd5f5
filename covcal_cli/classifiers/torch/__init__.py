"""Classifiers in torch files, or made by a function."""
