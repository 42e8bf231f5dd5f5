"""The share of one labeller, where several people label the rows of a draw.

The lines of a draw are in an order of chance. All labellers get its first lines, which tell how far
they agree. The other lines are dealt to them in turn.
"""

import re
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Integers

_TEXT = re.compile(r"([1-9]\d{0,2})of([1-9]\d{0,2})with(\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class Share:
    """The lines of a draw that one of several labellers gets."""

    labeller: int  # from 0
    labellers: int
    overlap: int  # lines that all labellers get

    def places(self, drawn: int) -> Integers:
        """Return the places of its lines in a draw of `drawn` lines, ascending."""
        everybody = np.arange(min(self.overlap, drawn))
        own = np.arange(self.overlap + self.labeller, drawn, self.labellers)
        return np.concatenate([everybody, own]).astype(np.int64)

    def __str__(self) -> str:
        """Return the share as `parse` reads it."""
        return f"{self.labeller + 1}of{self.labellers}with{self.overlap}"

    @classmethod
    def parse(cls, text: str) -> "Share | None":
        """Return the share that a text describes, or None."""
        parts = _TEXT.fullmatch(text)
        if parts is None or int(parts[1]) > int(parts[2]):
            return None
        return cls(int(parts[1]) - 1, int(parts[2]), int(parts[3]))
