"""Watched periods in the order of time, and by the calibration that each was held against."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from covcal_cli.watch.period import Period


@dataclass(frozen=True)
class Timeline:
    """The periods to draw, the latest of a history."""

    periods: Sequence[Period]
    earlier: int = 0  # periods that are not drawn

    @cached_property
    def names(self) -> list[str]:
        """The periods' names in order; one may be held against several calibrations."""
        return list(dict.fromkeys(one.measured.period for one in self.periods))

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of every name."""
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def calibrations(self) -> dict[str, list[Period]]:
        """The periods of every calibration by its sha256, in order."""
        found: dict[str, list[Period]] = {}
        for one in sorted(self.periods, key=lambda one: self.places[one.measured.period]):
            found.setdefault(one.calibration.sha256, []).append(one)
        return found

    def x(self, one: Period) -> float:
        """Return where a period stands, in percent of the width."""
        return self.at(self.places[one.measured.period] + 0.5)

    def at(self, place: float) -> float:
        """Return a place in percent of the width."""
        return 100 * place / len(self.names)

    def runs(self, has: Callable[[Period], object]) -> Iterator[list[Period]]:
        """Yield periods of one calibration that follow each other and have a value."""
        for periods in self.calibrations.values():
            run: list[Period] = []
            for one in periods:
                place = self.places[one.measured.period]
                follows = run and place == self.places[run[-1].measured.period] + 1
                if run and (has(one) is None or not follows):
                    yield run
                    run = []
                if has(one) is not None:
                    run.append(one)
            if run:
                yield run

    def shares(self) -> tuple[float, float]:
        """Return the limits of the axis of shares, whole tenths."""
        shown: list[float] = []
        for one in (period.measured for period in self.periods):
            shown += [one.confidence, one.confidence_before]
            for known in (one.estimate, one.measured):
                shown += [] if known is None else [known.low, known.high, known.accuracy]
        low = math.floor(10 * min(shown) + 1e-9) / 10
        high = math.ceil(10 * max(shown) - 1e-9) / 10
        return max(0.0, low - 0.1 * (low == high)), min(1.0, max(high, low + 0.1))
