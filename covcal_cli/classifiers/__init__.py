"""Classifiers from elsewhere: opened, their last linear layer found and proved, run in batches."""
