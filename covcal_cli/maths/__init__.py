"""Mathematics: arrays in, numbers out; of covcal it knows the arrays' names alone."""
