"""Draws of target rows to be labelled: their design, and the draws in memory and in a file.

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

**The design** has a fixed number of rows, exact inclusion probabilities, well spread rows. Let s_i
be the score of row i, the probability that the classifier is right. The number of right rows is
estimated by the difference estimator sum_i s_i + sum_{drawn} (right_i - s_i) / pi_i (Cassel,
Särndal & Wretman 1976). If s is right, the variance of this estimate is smallest on average for
pi_i in proportion to sqrt(s_i (1 - s_i)), the standard deviation of right_i (Isaki & Fuller 1982;
Särndal, Swensson & Wretman 1992, section 12.2). So rows whose outcome is nearly certain are rarely
drawn. This is active testing (Kossen et al. 2021) with a fixed number of rows.

Because s may be wrong, a share `FLOOR` of the draw is uniform over all rows. So every pi_i is above
0 and every weight is below N / (n FLOOR). The estimate is unbiased for any s.

Rows are drawn by ordered pivotal sampling (Deville & Tillé 1998). The rows are put in an order and
placed one after the other on a line, each with length pi_i. One row is drawn from every unit of
length, so the sample is spread along the whole order. Its variance is never above that of a draw
with replacement (Chauvet 2012; Chauvet & Ruiz-Gazen 2017), so intervals by the usual formula of
Hansen & Hurwitz (1943) are valid. For systematic draws, which use a single random number, no
formula is valid.

Both steps process the rows in parts, so that arrays of all rows need not be in memory.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
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
from covcal_cli.maths.acceptance import OUTSIDE

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
            f"{missing} of the rows that covcal pick drew have no label yet. The labelled rows "
            "are assumed to be a random part of their batch, but nothing checks this",
        )

    def right(self, logits: Floats) -> Float64s:
        """Return 1 for rows where the classifier is right and 0 for its errors, shape (m,).

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
    """Return the values of a dataset of ``/marked``."""
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


FLOOR = 0.2  # share of the draw that is uniform over all rows
_ROUNDING = 1e-9  # rounding of sums of lengths
_SIGMAS = 6.0  # the largest error of an estimated population, in standard errors
_BANDS = 5  # number of bands of the score
_CHUNK = 1 << 18  # rows processed at a time


def inclusion_probabilities(scores: Float64s, n: int) -> Float64s:
    """Return pi, shape (N,): above 0, at most 1, and with sum n; see `inclusion_rule`."""
    return inclusion_rule(lambda: (scores,), n)(scores)


def inclusion_rule(
    parts: Callable[[], Iterable[Float64s]], n: int
) -> Callable[[Float64s], Float64s]:
    """Return the function that maps scores to pi, which is above 0, at most 1, and has sum n.

    - `parts`: returns the scores of all N rows, in [0, 1], in parts; it is called several times.
    - `n`: number of rows to draw, from 1 to N.
    """
    total, N = 0.0, 0
    for scores in parts():
        total, N = total + float(_spread(scores).sum()), N + len(scores)

    def size(scores: Float64s) -> Float64s:
        if total == 0:
            return np.full(len(scores), 1 / N)
        return np.asarray((1 - FLOOR) * _spread(scores) / total + FLOOR * (1 / N))

    # A row with a length above 1 is drawn with certainty. The other rows share the rest of the
    # draw, which may make more rows certain. Each round stores the rest of the draw and the length
    # of the other rows.
    rounds: list[tuple[int, float]] = []

    def is_certain(sizes: Float64s) -> Booleans:
        certain = np.zeros(len(sizes), dtype=np.bool_)
        for left, length in rounds:
            certain |= left * sizes / length >= 1
        return certain

    while True:
        certain, rest = 0, 0.0
        for scores in parts():
            sizes = size(scores)
            is_out = is_certain(sizes)
            certain, rest = certain + int(is_out.sum()), rest + float(sizes[~is_out].sum())
        if rounds and certain == n - rounds[-1][0]:
            break
        rounds.append((n - certain, max(rest, 1e-300)))

    def probabilities(scores: Float64s) -> Float64s:
        sizes, (left, length) = size(scores), rounds[-1]
        return np.where(is_certain(sizes), 1.0, left * sizes / length)

    return probabilities


def is_possible(inclusion: Float64s, population: int, *, for_decision: bool) -> bool:
    """Return whether inclusion probabilities, shape (n,), can be those of n drawn rows.

    Each is at least the uniform share of the draw. The sum of their inverses estimates the
    population, within the noise of a draw with replacement (Hansen & Hurwitz 1943). A draw for a
    decision has few or no rows outside its region, so `decide` checks it instead.
    """
    n, N = len(inclusion), population
    floor = OUTSIDE if for_decision else FLOOR
    possible = n <= N and bool(((inclusion >= floor * n / N * (1 - 1e-6)) & (inclusion <= 1)).all())
    if not possible or for_decision:
        return possible
    certain = inclusion == 1
    left, rest = N - int(certain.sum()), 1 / inclusion[~certain]
    spread = float(rest.std(ddof=1)) if len(rest) > 1 else float(rest.sum())
    # The floor limits every weight, so a few missing rows cannot cause a large error.
    noise = _SIGMAS * spread * math.sqrt(len(rest)) + (N / FLOOR / n if len(rest) else 0.0)
    return abs(float(rest.sum()) - left) <= noise + 1e-6 * N


def _spread(scores: Float64s) -> Float64s:
    return np.asarray(np.sqrt(scores * (1 - scores)))


def order_of_likeness(scores: Floats, predictions: AnyArray) -> Iterator[Integers]:
    """Yield row numbers, in parts, in an order with similar neighbours.

    A part is a band of the score. Within a band, rows are sorted by predicted class and then by
    score. Every second band is reversed, so that neighbours in different bands are similar too.
    Among rows with equal scores, the first rows belong to the lower band.

    - `scores`, (N,): any increasing function of the scores.
    - `predictions`, (N,): predicted classes, of a signed type.
    """
    n = len(scores)
    ranks = [-(-band * n // _BANDS) for band in range(_BANDS + 1)]
    cuts = [rank for rank in ranks if rank < n]
    values = dict(zip(cuts, np.partition(scores, cuts)[cuts].tolist(), strict=True))
    reached = np.ones(n, dtype=np.bool_)
    for band, rank in enumerate(ranks[1:]):
        following = np.zeros(n, dtype=np.bool_)
        if rank < n:
            following = _from_rank(scores, rank, values[rank])
        reached &= ~following
        places: Integers = np.flatnonzero(reached).astype(np.int32 if n < 1 << 31 else np.int64)
        reached = following
        forth = -1 if band % 2 else 1
        yield places[np.lexsort((forth * scores[places], forth * predictions[places]))]


def _from_rank(scores: Floats, rank: int, value: float) -> Booleans:
    """Return which rows have at least this rank; `value` is the score at the rank."""
    above: Booleans = scores > value
    skipped = rank - int(np.count_nonzero(scores < value))
    for start in range(0, len(scores), _CHUNK):
        ties = start + np.flatnonzero(scores[start : start + _CHUNK] == value)
        above[ties[skipped:]] = True
        skipped = max(0, skipped - len(ties))
    return above


def drawn(probabilities: Float64s, rng: np.random.Generator) -> Integers:
    """Draw rows; return their numbers, ascending, shape (n,) int64; see `drawn_along`."""
    return drawn_along([(np.arange(len(probabilities)), probabilities)], rng)


def drawn_along(parts: Iterable[tuple[Integers, Float64s]], rng: np.random.Generator) -> Integers:
    """Draw rows; return their numbers in their order along the line, shape (n,) int64.

    - `parts`: row numbers in order, and their pi, which sum to n over all parts.
    """
    # The place in the order and the number of each drawn row.
    certain: list[tuple[int, int]] = []
    winners: list[tuple[int, int]] = []
    # The rows that no stratum has used yet, with their start and end on the line.
    rows: list[Integers] = [np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)]
    edges, first = np.zeros(1), 0
    # A row that was not drawn in its first stratum goes on with its remaining length.
    carried: tuple[int, int] | None = None

    def row(index: int) -> tuple[int, int]:
        place, number = rows
        return int(place[index]), int(number[index])

    def draw_one(last: int) -> None:
        """Draw one row from the next stratum; the row `last` extends beyond its end."""
        nonlocal carried, first
        stratum = len(winners)
        inside = edges[last] - stratum
        # Draw one of the rows inside in proportion to their lengths; this row represents all of
        # them.
        point = stratum + rng.random() * inside
        winner = carried
        if point >= edges[first]:
            index = int(np.searchsorted(edges, point, "right")) - 1
            winner = row(index) if index >= 0 else None
        # Then draw either this row or the last row; the other row goes on.
        reaching = edges[last + 1] - edges[last]
        loses = winner is None or rng.random() * (2 - inside - reaching) < 1 - inside
        if winner is None or loses:
            winners.append(row(last))
            carried = winner
        else:
            winners.append(winner)
            carried = row(last)
        first = last + 1

    start = 0
    for numbers, probabilities in parts:
        is_certain = probabilities == 1
        places = np.flatnonzero(is_certain)
        certain += zip((start + places).tolist(), numbers[places].tolist(), strict=True)
        others = np.flatnonzero(~is_certain)
        rows = [
            np.concatenate([old[first:], new])
            for old, new in zip(rows, (start + others, numbers[others]), strict=True)
        ]
        edges = np.concatenate([edges[first:], edges[-1] + np.cumsum(probabilities[others])])
        start, first = start + len(numbers), 0
        while (last := _reaching(edges, len(winners))) < len(rows[0]):
            draw_one(last)
    # Rounding may leave the last stratum short.
    for _ in range(len(winners), round(float(edges[-1]))):
        draw_one(len(rows[0]) - 1)
    return np.array([number for _, number in sorted(certain + winners)], dtype=np.int64)


def _reaching(edges: Float64s, stratum: int) -> int:
    """Return the row that extends beyond the end of a stratum."""
    return int(np.searchsorted(edges[1:], stratum + 1 - _ROUNDING))
