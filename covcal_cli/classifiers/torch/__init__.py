"""Classifiers in torch files, or from a function of the user."""
