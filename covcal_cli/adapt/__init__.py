"""Unsupervised domain adaptation on stored features: the only package that trains networks."""
