"""How often watch alarms by ``examples/research/benchmark_watch.py``, in few years."""

import benchmark_watch
import pytest


@pytest.fixture(autouse=True)
def a_network_that_learns_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps are enough to be watched."""
    monkeypatch.setattr(benchmark_watch, "TOLERANCE", 0.05)


def test_without_drift_and_with_it() -> None:
    """No false alarm in two years; sudden noise raises the alarm when it begins."""
    usual = benchmark_watch.years(250, 2, None)
    assert [one["covcal"] for one in usual] == [None, None]
    (drifted,) = benchmark_watch.years(250, 1, "sudden noise")
    first = drifted["covcal"]
    assert first is not None
    assert first >= benchmark_watch.START
    assert benchmark_watch.delay([drifted], "covcal") == f"{first - benchmark_watch.START}"
