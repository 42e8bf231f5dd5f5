"""Labelled target rows that a fit may use, and by which design they were drawn.

Two readers make one: `picked_labels`, of rows that a person labelled for calibration, and
`target_labels`, of rows whose label ``evaluate`` would judge by, for who asks for some of those.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

from covcal_cli.arrays import Float64s, Integers, Labels, Rows
from covcal_cli.formats.calibration import LabelledRows
from covcal_cli.formats.features import Domain

Design = Literal["random", "marked"]
MAX_FRAME = 50_000


@dataclass(frozen=True)
class LabelledDraw:
    """n labelled rows, drawn from a frame of N by known probabilities; see `draws`."""

    population: int  # N
    frame: Rows  # ascending: all N, or `MAX_FRAME` random ones that stand for them
    rows: Rows  # (n,), ascending, of the N
    labels: Labels  # (n,), 0 .. K-1
    inclusion: Float64s  # (n,), of being drawn by its batch from what earlier ones left
    batch: Integers  # (n,), 0 .. B-1
    design: Design  # N rows at random, or those that were marked
    seed: int  # of the first batch
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def recorded(self, target: Domain) -> LabelledRows:
        """Return what cal.json says of the rows."""
        ids = sorted(target.ids(self.rows))
        sha256 = hashlib.sha256("\n".join(ids).encode("utf-8")).hexdigest()
        batches = tuple(int((self.batch == one).sum()) for one in range(self.batch.max() + 1))
        return LabelledRows(
            len(ids), self.seed, sha256, tuple(ids), self.design, self.population, batches
        )
