"""Seconds by stage of a run."""

import time
from dataclasses import dataclass

from covcal_cli.progress import Progress


@dataclass(frozen=True)
class Duration:
    """Seconds that something took."""

    wall: float
    cpu: float  # of the processor, by this process


class Stopwatch:
    """The time between two looks, added to the stage that the second one names.

    It is a progress callback too: reports come when a piece of work is done.
    """

    def __init__(self) -> None:
        self.spent: dict[str, Duration] = {}  # by stage
        self.start()

    def start(self) -> None:
        """Begin to count now."""
        self._last = time.perf_counter(), time.process_time()

    def stop(self, stage: str) -> None:
        """Add what went by to a stage, and begin anew."""
        (wall, cpu), before = self._last, self.spent.get(stage, Duration(0.0, 0.0))
        self.start()
        self.spent[stage] = Duration(
            before.wall + self._last[0] - wall, before.cpu + self._last[1] - cpu
        )

    def __call__(self, progress: Progress) -> None:
        """Take a report."""
        self.stop(progress.stage)
