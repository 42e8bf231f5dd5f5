"""Unsupervised domain adaptation on stored features: the only package that trains networks.

Importing it, or ``settings``, does not load torch.
"""
