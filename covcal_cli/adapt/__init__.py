"""Unsupervised domain adaptation on stored features: the only part of covcal that trains.

Importing this package or ``settings`` loads no torch.
"""
