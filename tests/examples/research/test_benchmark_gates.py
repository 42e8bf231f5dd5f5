"""How often the gates fail by ``examples/research/benchmark_gates.py``, on few nights."""

import benchmark_gates
import pytest


def test_without_drift() -> None:
    """At most 5 %, and two standard errors of 20 nights."""
    shares = benchmark_gates.failures(250, benchmark_gates.HONEST, 20, 100)
    assert shares[1] <= 0.15
    assert shares[3] <= 0.15
    assert shares[2] > 0.2  # what values as found do


def test_with_drift() -> None:
    """A drift that matters is seen with a thousand rows."""
    shares = benchmark_gates.failures(1000, benchmark_gates.DRIFTS["strong"], 4, 100)
    assert shares.tolist() == [1, 1, 1, 1]


def test_the_true_ece() -> None:
    assert benchmark_gates.true_ece(benchmark_gates.HONEST) == pytest.approx(0.024, abs=1e-3)
