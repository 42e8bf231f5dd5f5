"""Reports on the progress of long work, from the library to the command line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """One progress report."""

    stage: str  # the current part of the work, such as "source" or "align"
    step: int  # number of rows or training steps that are done
    total: int  # number of rows or steps of the whole stage; some stages end earlier
    # Numbers to show, by name; a text is shown unchanged.
    losses: Mapping[str, float | str] = field(default_factory=dict)


ProgressCallback = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Ignore a `Progress`."""
