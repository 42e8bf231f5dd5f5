"""From a classifier and two domains to features.h5, in one run or in parts."""
