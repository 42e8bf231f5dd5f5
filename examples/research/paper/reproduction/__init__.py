"""Repeat the experiments of Park et al. 2020 with covcal."""
