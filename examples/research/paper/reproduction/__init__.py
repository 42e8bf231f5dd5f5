"""Repeat the experiments of Park et al. 2020 with covcal: data, shifts, runs, tables, figures."""
