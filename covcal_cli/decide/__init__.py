"""Choose rows to accept, with an estimate or a promise of their error, and sets of classes."""
