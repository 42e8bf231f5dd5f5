"""Unsupervised domain adaptation on stored features. No other package of covcal trains networks."""
