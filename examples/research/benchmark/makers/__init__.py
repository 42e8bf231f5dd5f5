"""Make shifts: train a small classifier, and return a source and a target with its logits.

There is one module per kind of data. A maker is a function that makes one shift. It reads the data
folder, scikit-learn, or the wheel of an optional package, and downloads nothing.
"""
