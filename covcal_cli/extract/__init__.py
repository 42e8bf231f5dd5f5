"""From a classifier and two domains to features.h5, whole or part by part."""
