"""Metrics of how honest a confidence is: arrays in, numbers out; no files and no words.

``metrics.py`` collects all of them block by block, the further errors of calibration have a module
each, ``bootstrap.py`` says how sure they are.
"""
