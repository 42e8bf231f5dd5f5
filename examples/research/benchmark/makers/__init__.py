"""Makers of shifts: each returns a source and a target as one small trained classifier sees them.

A module per kind of data. What a maker reads lies in the data folder, in scikit-learn, or in the
wheel of an optional package; nothing is downloaded when it runs.
"""
