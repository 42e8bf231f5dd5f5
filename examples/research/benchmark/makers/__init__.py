"""Makers of shifts: each trains a small classifier and returns a source and a target with logits.

There is one module per kind of data. A maker reads the data folder, scikit-learn, or the wheel of
an optional package. It downloads nothing.
"""
