"""How often watch alarms by ``examples/research/benchmark_watch.py``, in few years."""

from pathlib import Path

import benchmark_watch
import pytest


@pytest.fixture(autouse=True)
def a_network_that_learns_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps are enough to be watched."""
    monkeypatch.setattr(benchmark_watch, "TOLERANCE", 0.05)


def test_without_drift_and_with_it() -> None:
    """No false alarm in two years; sudden noise is seen once it is there."""
    usual = benchmark_watch.years(250, 2, None)
    assert [one["covcal"] for one in usual] == [None, None]
    (drifted,) = benchmark_watch.years(250, 1, "sudden noise")
    first = drifted["covcal"]
    assert first is not None
    assert first >= benchmark_watch.START
    assert benchmark_watch.delay([drifted], "covcal") == f"{first - benchmark_watch.START}"


def test_flights_are_cut_by_their_dates(tmp_path: Path) -> None:
    """A made table of the same columns, of two weeks after those that are learnt."""
    pd = pytest.importorskip("pandas")
    days = [(month, day) for month in (1, 2, 3, 4) for day in range(1, 28)]
    days += [(5, day) for day in range(6, 20)]
    rows = [(2013, *one, hour) for one in days for hour in range(6, 22)]
    table = pd.DataFrame(rows, columns=["year", "month", "day", "hour"])
    table["dep_delay"] = (table.index * 37 % 61 - 20).astype(float)
    table["arr_delay"] = table["dep_delay"] + table.index * 13 % 9 - 4
    table["carrier"], table["origin"] = "UA", "EWR"
    table["distance"] = 500 + table.index * 7 % 100
    table.to_csv(tmp_path / "flights.csv", index=False)
    shown = benchmark_watch.flights(tmp_path / "flights.csv", tmp_path, 100)
    weeks = [line.split(" | ")[0] for line in shown.splitlines()[2:]]
    assert weeks == ["| 2013-W19", "| 2013-W20"]
