"""Progress reports from the library to the command line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """One progress report."""

    stage: str  # Current part of the work, such as "source".
    step: int  # Number of finished rows or training steps.
    total: int  # Total number of rows or steps.
    losses: Mapping[str, float | str] = field(default_factory=dict)


ProgressCallback = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Ignore a `Progress`."""
