"""Draws of target rows to be labelled, in memory and in a file.

`covcal pick` draws rows in batches, with known probabilities. Each batch is drawn from the rows
that no earlier batch drew. `covcal label` stores the draw in the group ``/marked`` of a features or
adapted file, apart from ``/target/labels``, which are for ``evaluate``. `read_draw` hides the
labels. Only the module `picked_labels` returns them, and few modules import it.

**The estimate from a batch.** Let U be the N rows of the splits, and U_b the rows of U that no
batch before b drew. Batch b drew n_b rows of U_b, row i with probability pi_i. Let t_i be any
number for each row, for example whether the classifier is right, or the error of a forecast. Then

    t(earlier batches) + sum_{i in batch b} t_i / pi_i

is an unbiased estimate of the sum of t over U, given the earlier batches (Raj 1956; within a batch
Horvitz & Thompson 1952). A mean of these estimates is unbiased too if its weights do not depend on
labels. Batches get weights in proportion to n_b, so the design of a later batch may depend on the
labels of earlier batches.
"""

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from covcal_cli.arrays import (
    UNKNOWN_LABEL,
    AnyArray,
    Booleans,
    Float64s,
    Floats,
    Integers,
    Labels,
    Rows,
)
from covcal_cli.errors import CovcalError
from covcal_cli.formats.calibration import LabelledRows
from covcal_cli.formats.features import SPLITS, UNMARKED_SHA256, Domain, FeatureFile
from covcal_cli.formats.writer import HDF5Writer, utf8
from covcal_cli.hdf5 import Dataset, Group

MAX_FRAME = 50_000
# The number in place of a label that `read_draw` hides; no class has this number.
HIDDEN_LABEL = int(np.iinfo(np.int64).max)
MARKED = "marked"  # the group
LABELS = f"{MARKED}/labels"  # (m,) int64: class of each drawn row, -1 if it has no label yet
_OWN_ATTRIBUTES = ("schema", "complete")
_AGAIN = "put the labels in again with covcal label"
# The number type of each dataset; datasets of rows have shape (m,), of batches (B,).
_OF_ROWS = {"rows": "iu", "labels": "iu", "inclusion": "f", "batch": "iu", "stratum": "iu"}
_OF_BATCHES = {"drawn": "iu", "population": "iu", "seed": "iu", "splits": "S", "score": "S"}
_NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Batch:
    """One draw of rows, and how it was made."""

    drawn: int  # n_b, the number of drawn rows
    # N_b, the number of rows that it could draw, without the rows of earlier batches.
    population: int
    seed: int
    # splits of the rows that it could draw, the same for all batches of a file
    splits: tuple[str, ...]
    score: str  # the score from which the inclusion probabilities were computed, in words


@dataclass(frozen=True, eq=False)
class Draw:
    """Target rows that were drawn in batches, m rows in ascending order, with their labels."""

    rows: Rows  # (m,), row numbers in the target
    # (m,), above 0, at most 1: the probability with which the row's batch drew it.
    inclusion: Float64s
    batch: Integers  # (m,), index into `batches`
    # (m,), 0 .. n_b - 1: the position of the row's stratum in the order of the design. One row was
    # drawn from each stratum, and neighbouring strata are similar. A row with inclusion 1 is a
    # stratum too.
    stratum: Integers
    labels: Labels  # (m,), 0 .. K-1; `UNKNOWN_LABEL` for a row without a label, or `HIDDEN_LABEL`
    batches: tuple[Batch, ...]  # the batches in the order in which they were drawn
    # The rows that could be drawn, ascending, or `MAX_FRAME` random rows of these. Empty in a draw
    # that was read without its labels.
    frame: Rows = field(default_factory=lambda: _NO_ROWS)
    # "marked": drawn by ``covcal pick``. "random": drawn from the rows whose labels are in the
    # file.
    design: Literal["marked", "random"] = "marked"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labelled(self) -> Booleans:
        """Whether each row has a label, shape (m,)."""
        return np.asarray(self.labels != UNKNOWN_LABEL)

    @property
    def population(self) -> int:
        """Return N, the number of rows that the first batch could draw."""
        return self.batches[0].population

    @property
    def seed(self) -> int:
        """Return the seed of the first batch with rows in this draw."""
        return self.batches[int(self.batch.min())].seed

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a note if drawn rows are missing because they have no label."""
        missing = sum(batch.drawn for batch in self.batches) - len(self)
        if not missing:
            return ()
        return (
            f"{missing} of the rows that covcal pick drew have no label yet: the rows you labelled "
            "are assumed to be a random part of their batch, which nothing checks",
        )

    def right(self, logits: Floats) -> Float64s:
        """Return 1 where the classifier is right and 0 where it errs, shape (m,).

        `logits` are the classifier's logits of these rows, shape (m, K).
        """
        return np.asarray(logits.argmax(axis=1) == self.labels, dtype=np.float64)

    @property
    def weights(self) -> Float64s:
        """Return the number of frame rows that each row represents, (m,); the sum is N on average.

        Batches are weighted by their sizes. In the estimate of a later batch, an earlier row
        represents only itself.
        """
        shares = self._shares
        later = shares.sum() - np.cumsum(shares)
        return np.asarray(shares[self.batch] / self.inclusion + later[self.batch])

    @property
    def variances(self) -> Float64s:
        """Return the factor from each row's variance to its part of the sum's variance, (m,)."""
        share = self._shares[self.batch]
        return np.asarray(share**2 * (1 - self.inclusion) / self.inclusion**2)

    @property
    def _shares(self) -> Float64s:
        return np.bincount(self.batch) / max(len(self), 1)

    def without(self, out: Booleans) -> "Draw":
        """Return the draw without the rows that are not `kept`.

        The inclusion probabilities are multiplied by the remaining share of the batch.
        """
        left = ~out
        before = np.bincount(self.batch)
        share = np.bincount(self.batch[left], minlength=len(before)) / np.maximum(before, 1)
        batch = self.batch[left]
        return replace(
            self,
            rows=self.rows[left],
            inclusion=self.inclusion[left] * share[batch],
            batch=batch,
            stratum=self.stratum[left],
            labels=self.labels[left],
        )

    def recorded(self, target: Domain) -> LabelledRows:
        """Return the description of the rows for cal.json and estimate.json."""
        ids = sorted(target.ids(self.rows))
        sha256 = hashlib.sha256("\n".join(ids).encode("utf-8")).hexdigest()
        sizes = np.bincount(self.batch)
        return LabelledRows(
            len(ids),
            self.seed,
            sha256,
            tuple(ids),
            self.design,
            self.population,
            tuple(sizes[sizes > 0].tolist()),
        )


NO_DRAW = Draw(_NO_ROWS, np.empty(0), _NO_ROWS, _NO_ROWS, _NO_ROWS, ())


def frame_rows(target: Domain, splits: tuple[str, ...]) -> Rows:
    """Return U, the rows of some splits, ascending, shape (N,) int64."""
    wanted = [SPLITS.index(name) for name in splits]
    return np.flatnonzero(np.isin(target.split, wanted)).astype(np.int64)


def read_draw(file: FeatureFile) -> Draw:
    """Return the draw in a file, with its labels hidden, or `NO_DRAW`.

    Raises `CovcalError` if the draw is damaged.
    """
    if MARKED not in file.handle:
        return NO_DRAW
    if not isinstance(file.handle[MARKED], Group):
        raise _damaged(file, "are no group")
    values = {name: _values(file, name, kinds) for name, kinds in _OF_ROWS.items()}
    of_batches = {
        name: _values(file, f"batches/{name}", kinds) for name, kinds in _OF_BATCHES.items()
    }
    for columns in (values, of_batches):
        if len({len(column) for column in columns.values()}) > 1:
            raise _damaged(file, "do not have one entry per row and batch")
    batches = tuple(
        Batch(drawn, population, seed, tuple(_text(splits).split("+")), _text(score))
        for drawn, population, seed, splits, score in zip(
            *(column.tolist() for column in of_batches.values()), strict=True
        )
    )
    draw = Draw(
        rows=values["rows"].astype(np.int64),
        inclusion=values["inclusion"].astype(np.float64),
        batch=values["batch"].astype(np.int64),
        stratum=values["stratum"].astype(np.int64),
        labels=np.where(values["labels"] >= 0, HIDDEN_LABEL, UNKNOWN_LABEL),
        batches=batches,
    )
    fault = _fault(draw, file.require_target())
    if fault is not None:
        raise _damaged(file, fault)
    return draw


def write_copy(partial: Path, file: FeatureFile, draw: Draw) -> None:
    """Write a copy of `file` to `partial`, with this draw in place of the draw in the file.

    The copy stores the sha256 of the file without any draw, so that calibrations and adapted files
    recognise it.
    """
    attributes = {
        name: file.attributes[name] for name in file.attributes if name not in _OWN_ATTRIBUTES
    }
    attributes[UNMARKED_SHA256] = file.sha256()
    with HDF5Writer(
        partial, schema=file.schema, classes=file.classes, attributes=attributes
    ) as writer:
        for place, dataset in file.handle.datasets.items():
            if place != "classes" and not place.startswith(f"{MARKED}/"):
                writer.copy(place, dataset)
        write_draw(writer, draw)
        writer.complete()


def write_draw(writer: HDF5Writer, draw: Draw) -> None:
    """Write a draw and its labels into an open file.

    Raises `ValueError` if its labels are hidden, because they would be lost.
    """
    if (draw.labels == HIDDEN_LABEL).any():
        raise ValueError("the labels of the draw are hidden: read it with picked_labels")
    for name in ("rows", "inclusion", "batch", "stratum"):
        writer.write(f"{MARKED}/{name}", getattr(draw, name))
    writer.write(LABELS, draw.labels)
    for name in ("drawn", "population", "seed"):
        numbers = [getattr(batch, name) for batch in draw.batches]
        writer.write(f"{MARKED}/batches/{name}", np.array(numbers, dtype=np.int64))
    splits = ["+".join(batch.splits) for batch in draw.batches]
    writer.write(f"{MARKED}/batches/splits", utf8(splits))
    writer.write(f"{MARKED}/batches/score", utf8([batch.score for batch in draw.batches]))


def _values(file: FeatureFile, name: str, kinds: str) -> AnyArray:
    """Return the values of one of the datasets of ``/marked``."""
    dataset = file.handle[MARKED].get(name)
    if not isinstance(dataset, Dataset) or dataset.dtype.kind not in kinds or dataset.ndim != 1:
        raise _damaged(file, f"lack {name}")
    return dataset[:]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _fault(draw: Draw, target: Domain) -> str | None:
    """Return the fault of a stored draw, or None."""
    rows = draw.rows
    if len(rows) and not (rows[0] >= 0 and rows[-1] < target.n and (np.diff(rows) > 0).all()):
        return "name a row that the target does not have, or a row twice"
    if not ((draw.inclusion > 0) & (draw.inclusion <= 1)).all():
        return "have an inclusion probability that is not above 0 and at most 1"
    if not ((draw.batch >= 0) & (draw.batch < len(draw.batches))).all():
        return "name a batch that does not exist"
    for number, batch in enumerate(draw.batches):
        if not set(batch.splits) <= set(SPLITS) or batch.splits != draw.batches[0].splits:
            return "name a split that does not exist"
        if batch.population != target.count(*batch.splits) - int((draw.batch < number).sum()):
            return "were drawn from a number of rows that the target does not have"
        strata = np.sort(draw.stratum[draw.batch == number])
        if batch.drawn != len(strata) or (strata != np.arange(len(strata))).any():
            return "lack rows of a batch"
    return None


def _damaged(file: FeatureFile, what: str) -> CovcalError:
    return CovcalError(f"{file.path}: its marks (/{MARKED}) {what}: {_AGAIN}")
