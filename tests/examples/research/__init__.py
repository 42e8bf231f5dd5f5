"""Tests of the benchmark, the paper's tables and the measurements in ``examples/research/``."""
