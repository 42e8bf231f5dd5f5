"""Seconds per stage of ``covcal adapt``, from its progress reports."""

import time
from typing import Protocol

STAGES = {"align": "alignment", "discriminators": "discriminators"}


class Report(Protocol):
    """Any progress report of covcal."""

    @property
    def stage(self) -> str:
        """What is being done."""


class Stopwatch:
    """A progress callback that adds the time since the last report to the stage reported.

    Reports come when a piece of work is done, so the time before the first one (loading torch and
    the rows) and the writing of the file are counted as ``other``.
    """

    def __init__(self) -> None:
        self._last = time.perf_counter(), time.process_time()
        self._spent: dict[str, list[float]] = {}

    def __call__(self, progress: Report) -> None:
        """Take a report."""
        now = time.perf_counter(), time.process_time()
        spent = self._spent.setdefault(STAGES.get(progress.stage, "other"), [0.0, 0.0])
        for clock in (0, 1):
            spent[clock] += now[clock] - self._last[clock]
        self._last = now

    def seconds(self) -> dict[str, dict[str, float]]:
        """Return wall-clock and CPU seconds by stage."""
        return {name: {"wall": wall, "cpu": cpu} for name, (wall, cpu) in self._spent.items()}
