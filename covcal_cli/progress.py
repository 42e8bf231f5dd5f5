"""What long work tells its caller; the library reports, only the command line shows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """One sign of life.

    Attributes
    ----------
    stage : str
        What is being done, such as ``"source"`` or ``"align"``.
    step, total : int
        Work done and the most there can be, in rows or steps. A stage may end early.
    losses : mapping of str to float
        Numbers worth watching, as far as they are known.
    """

    stage: str
    step: int
    total: int
    losses: Mapping[str, float] = field(default_factory=dict)


ProgressCallback = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Take a `Progress` and do nothing with it."""
