"""Make features.h5 from a classifier and two domains, in one run or in parts."""
