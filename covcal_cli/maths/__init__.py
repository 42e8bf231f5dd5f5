"""Mathematics: arrays in, numbers out, nothing else of covcal below it but the arrays' names."""
