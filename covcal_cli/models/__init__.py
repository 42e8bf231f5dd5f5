"""Classifiers from elsewhere: opened, their last linear layer found and proved, run in batches.

``classifier.py`` says what every kind of classifier offers and picks the module for a file. Only
the modules for one kind import its framework, so importing this package is cheap.
"""
