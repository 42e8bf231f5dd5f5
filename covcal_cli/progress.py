"""Signs of life from long work; the library reports, only the command line shows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """One sign of life."""

    stage: str  # what is being done, such as "source" or "align"
    step: int  # work done, in rows or steps
    total: int  # the most there can be; a stage may end early
    # Numbers worth watching, by name; a text is shown as it is.
    losses: Mapping[str, float | str] = field(default_factory=dict)


ProgressCallback = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Take a `Progress` and do nothing with it."""
