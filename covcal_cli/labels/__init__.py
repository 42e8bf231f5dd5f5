"""Draw rows for a person to label, read the labels, and estimate the accuracy from the labels."""
