"""Marks: the target rows that `covcal pick` drew to be labelled, and by which design.

Rows are drawn in batches, each from the rows that the earlier ones left, with known probabilities.
They are kept in ``/marked`` of a features or adapted file once ``covcal label`` has put labels in,
apart from ``/target/labels``: those are ``evaluate``'s. What the labels are is not told here but by
`picked_labels`, which nothing imports that was not asked for them.

**What a batch says.** Let U be the N rows of the splits that are drawn from, and U_b those that the
batches before b left. Batch b drew n_b of U_b, row i with probability pi_i, so that for any numbers
t_i of rows, such as whether the classifier is right, or by how much a forecast of that is wrong,

    t(earlier batches) + sum_{i in batch b} t_i / pi_i

is an unbiased estimate of their sum over U, given the earlier batches (Raj 1956; within a batch
Horvitz & Thompson 1952). So is any mean of these with weights that no label decides, such as in
proportion to n_b: that is how batches are combined, and each may lean on what the earlier taught.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covcal_cli.arrays import AnyArray, Booleans, Float64s, Integers, Labels, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import SPLITS, UNMARKED_SHA256, Domain, FeatureFile
from covcal_cli.formats.writer import HDF5Writer, utf8
from covcal_cli.hdf5 import Dataset, Group

MARKED = "marked"  # the group
LABELS = f"{MARKED}/labels"  # (m,) int64: of a row drawn, -1 until it has one
_OWN_ATTRIBUTES = ("schema", "complete")
_AGAIN = "put the labels in again with covcal label"
# Kind of number of each dataset; those of rows have shape (m,), those of batches (B,).
_OF_ROWS = {"rows": "iu", "labels": "iu", "inclusion": "f", "batch": "iu", "stratum": "iu"}
_OF_BATCHES = {"drawn": "iu", "population": "iu", "seed": "iu", "splits": "S", "score": "S"}


@dataclass(frozen=True)
class Batch:
    """One draw of rows, and how it was made."""

    drawn: int  # n_b, how many rows
    population: int  # N_b, how many it was drawn from: what the earlier batches left
    seed: int
    splits: tuple[str, ...]  # whose rows it was drawn from, the same for all batches of a file
    score: str  # in words: the forecast of being right that the probabilities follow


@dataclass(frozen=True)
class Marks:
    """The rows that were drawn, ascending, with and without a label yet."""

    rows: Rows  # (m,), in the target
    # (m,), above 0, at most 1: with which its batch drew the row from those that were left.
    inclusion: Float64s
    batch: Integers  # (m,), index into `batches`
    # (m,), 0 .. n_b - 1: rows lie in order of the score within their batch, and one was drawn of
    # every stratum (certain rows, of inclusion 1, included): neighbouring strata are alike.
    stratum: Integers
    labelled: Booleans  # (m,)
    batches: tuple[Batch, ...]  # in the order in which they were drawn

    def left(self, target: Domain, batch: int) -> Rows:
        """Return U_b, the rows that a batch was drawn from, ascending, shape (N_b,) int64."""
        frame = frame_rows(target, self.batches[batch].splits)
        return np.setdiff1d(frame, self.rows[self.batch < batch], assume_unique=True)


NO_MARKS = Marks(
    rows=np.empty(0, dtype=np.int64),
    inclusion=np.empty(0),
    batch=np.empty(0, dtype=np.int64),
    stratum=np.empty(0, dtype=np.int64),
    labelled=np.empty(0, dtype=np.bool_),
    batches=(),
)


def frame_rows(target: Domain, splits: tuple[str, ...]) -> Rows:
    """Return U, the rows of some splits, ascending, shape (N,) int64."""
    wanted = [SPLITS.index(name) for name in splits]
    return np.flatnonzero(np.isin(target.split, wanted)).astype(np.int64)


def read_marks(file: FeatureFile) -> Marks:
    """Return the marks of a file, `NO_MARKS` where there are none.

    Raises
    ------
    CovcalError
        If they are damaged.
    """
    if MARKED not in file.handle:
        return NO_MARKS
    if not isinstance(file.handle[MARKED], Group):
        raise _damaged(file, "are no group")
    values = {name: _values(file, name, kinds) for name, kinds in _OF_ROWS.items()}
    of_batches = {
        name: _values(file, f"batches/{name}", kinds) for name, kinds in _OF_BATCHES.items()
    }
    counts = {len(entry) for entry in values.values()}, {len(one) for one in of_batches.values()}
    if any(len(sizes) > 1 for sizes in counts):
        raise _damaged(file, "have not one entry per row and batch")
    batches = tuple(
        Batch(drawn, population, seed, tuple(_text(splits).split("+")), _text(score))
        for drawn, population, seed, splits, score in zip(
            *(one.tolist() for one in of_batches.values()), strict=True
        )
    )
    marks = Marks(
        rows=values["rows"].astype(np.int64),
        inclusion=values["inclusion"].astype(np.float64),
        batch=values["batch"].astype(np.int64),
        stratum=values["stratum"].astype(np.int64),
        labelled=values["labels"] >= 0,
        batches=batches,
    )
    fault = _fault(marks, file.require_target())
    if fault is not None:
        raise _damaged(file, fault)
    return marks


def write_marked(partial: Path, file: FeatureFile, marks: Marks, labels: Labels) -> None:
    """Write a copy of `file` with these marks in place of its own to `partial`.

    `labels` are of the marked rows, shape (m,), -1 where there is none yet. The copy remembers the
    sha256 of the file that had no marks, which what was made from that one goes by.
    """
    kept = {name: file.attributes[name] for name in file.attributes if name not in _OWN_ATTRIBUTES}
    kept[UNMARKED_SHA256] = file.sha256()
    with HDF5Writer(partial, schema=file.schema, classes=file.classes, attributes=kept) as writer:
        for place, dataset in file.handle.datasets.items():
            if place != "classes" and not place.startswith(f"{MARKED}/"):
                dataset.copy_to(writer.handle, place)
        write_marks(writer, marks, labels)
        writer.complete()


def write_marks(writer: HDF5Writer, marks: Marks, labels: Labels) -> None:
    """Write marks and the labels of their rows, shape (m,), into a file that is being written."""
    for name in ("rows", "inclusion", "batch", "stratum"):
        writer.write(f"{MARKED}/{name}", getattr(marks, name))
    writer.write(LABELS, labels)
    for name in ("drawn", "population", "seed"):
        numbers = [getattr(batch, name) for batch in marks.batches]
        writer.write(f"{MARKED}/batches/{name}", np.array(numbers, dtype=np.int64))
    writer.write(f"{MARKED}/batches/splits", utf8(["+".join(one.splits) for one in marks.batches]))
    writer.write(f"{MARKED}/batches/score", utf8([batch.score for batch in marks.batches]))


def _values(file: FeatureFile, name: str, kinds: str) -> AnyArray:
    """Return the values of one of the datasets of ``/marked``."""
    found = file.handle[MARKED].get(name)
    if not isinstance(found, Dataset) or found.dtype.kind not in kinds or found.ndim != 1:
        raise _damaged(file, f"lack {name}")
    return found[:]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _fault(marks: Marks, target: Domain) -> str | None:
    """Return what no marks can be like."""
    rows, m = marks.rows, len(marks.rows)
    if m and not (rows[0] >= 0 and rows[-1] < target.n and (np.diff(rows) > 0).all()):
        return "are of rows that the target does not have, or of one twice"
    if not ((marks.inclusion > 0) & (marks.inclusion <= 1)).all():
        return "hold an inclusion probability that is none"
    if not ((marks.batch >= 0) & (marks.batch < len(marks.batches))).all():
        return "are of a batch that is not there"
    for number, batch in enumerate(marks.batches):
        if not set(batch.splits) <= set(SPLITS) or batch.splits != marks.batches[0].splits:
            return "are of other splits than there are"
        if batch.population != target.count(*batch.splits) - int((marks.batch < number).sum()):
            return "are of another number of rows than there are"
        strata = np.sort(marks.stratum[marks.batch == number])
        if batch.drawn != len(strata) or (strata != np.arange(len(strata))).any():
            return "are not of all rows of a batch"
    return None


def _damaged(file: FeatureFile, what: str) -> CovcalError:
    return CovcalError(f"{file.path}: its marks (/{MARKED}) {what}: {_AGAIN}")
