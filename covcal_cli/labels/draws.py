"""Draw a random sample of target rows with known probabilities, and store it in a file.

`covcal pick` draws rows in batches. Each batch is drawn from the rows that no earlier batch drew.
`covcal label` stores all batches (a draw) in the group ``/marked`` of a features or adapted file.
`read_draw` hides the labels. Only the module `picked_labels` returns labels. A test lists the
modules that import `picked_labels`.

**The estimate from a batch.** Batch b draws n_b rows. Row i is drawn with probability pi_i. Let t_i
be a value of row i, such as 1 if the classifier is right, else 0. The sum of all t_i is estimated
by

    sum_{i in earlier batches} t_i + sum_{i in batch b} t_i / pi_i.

The estimate is unbiased, given the earlier batches (Raj 1956; within a batch Horvitz & Thompson
1952). The estimates of several batches are averaged in proportion to n_b, which does not depend on
labels. So a later batch may be drawn with the help of earlier labels.

**The probabilities.** Let s_i be the score of row i: an estimate of the probability that the
classifier is right. The number of right rows is estimated by the difference estimator

    sum_i s_i + sum_{drawn} (right_i - s_i) / pi_i

(Cassel, Särndal & Wretman 1976). If the scores are right, the best probabilities pi_i are in
proportion to sqrt(s_i (1 - s_i)) (Isaki & Fuller 1982; Särndal, Swensson & Wretman 1992, section
12.2). So a row is rarely drawn if it is nearly certain to be right or wrong. Such a draw is called
active testing (Kossen et al. 2021).

The estimate is unbiased for any scores. Every row has at least the probability n FLOOR / N, which
limits the weights 1 / pi_i.

**The design** is ordered pivotal sampling (Deville & Tillé 1998). Rows are sorted so that
neighbouring rows are similar, and placed on a line. Row i has the length pi_i. The line is divided
into strata of length 1, and one row is drawn from each stratum. The variance of an estimate is
never above that of a draw with replacement (Chauvet 2012; Chauvet & Ruiz-Gazen 2017). So the
formula of Hansen & Hurwitz (1943) gives valid intervals.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

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
from covcal_cli.formats.features import ALL, SPLITS, UNMARKED_SHA256, Domain, FeatureFile
from covcal_cli.formats.writer import HDF5Writer, utf8
from covcal_cli.hdf5 import Dataset, Group
from covcal_cli.labels.score import region_of
from covcal_cli.maths.acceptance import MOST_GROUPS, NEAR, OUTSIDE, inclusions
from covcal_cli.multilabel import SCHEMA

MAX_FRAME = 50_000
HIDDEN_LABEL = int(np.iinfo(np.int64).max)  # Stands for a label that `read_draw` hides.
FOR_DECISION = "labels were picked for a decision"  # In notes of fits that do not use them.
MARKED = "marked"  # The HDF5 group of a draw.
LABELS = f"{MARKED}/labels"  # (m,) int64: class of each drawn row, -1 if it has no label yet.
FOR_EVALUATE = ("test",)  # Splits of a batch whose labels only ``covcal evaluate`` reads.
TARGET_LABELS = "target/labels"  # (n,) int64: class of each target row, -1 if it is not known.
_OWN_ATTRIBUTES = ("schema", "complete")
# Suffixes of dataset names in files with several labels.
_OF_EACH_LABEL = ("/logits", "/labels")
_AGAIN = "add the labels again with covcal label"
# Allowed dtype kinds of the datasets for rows, (m,), and for batches, (B,).
_OF_ROWS = {"rows": "iu", "inclusion": "f", "batch": "iu", "stratum": "iu", "labels": "iu"}
_OF_BATCHES = {"drawn": "iu", "population": "iu", "seed": "iu", "splits": "S", "score": "S"}
_NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Batch:
    """A batch of drawn rows."""

    drawn: int  # n_b, the number of drawn rows.
    population: int  # N_b, the number of rows from which the batch was drawn.
    seed: int
    splits: tuple[str, ...]  # The splits from which rows are drawn; equal for all batches.
    score: str

    @property
    def are_for_decision(self) -> set[bool]:
        """Whether rows were drawn for a decision, for each part of a joined batch."""
        regions = map(region_of, self.score.split("; "))
        return {region is not None and region >= 0 for region in regions}

    @property
    def is_for_evaluate(self) -> bool:
        """Whether only ``covcal evaluate`` reads the labels."""
        return self.splits == FOR_EVALUATE


@dataclass(frozen=True, eq=False)
class Draw:
    """Drawn target rows, ascending, with their labels."""

    rows: Rows  # (m,), row numbers in the target.
    inclusion: Float64s  # (m,), the inclusion probability of each row, above 0.
    batch: Integers  # (m,), index of each row's batch in `batches`.
    # (m,), the stratum from which each row was drawn, from 0 to n_b - 1.
    stratum: Integers
    labels: Labels  # (m,), class number of each row, `UNKNOWN_LABEL` or `HIDDEN_LABEL`.
    batches: tuple[Batch, ...]  # The batches in order.
    # All rows that could be drawn (the frame), or a sample of them, ascending. Empty if labels are
    # hidden.
    frame: Rows = field(default_factory=lambda: _NO_ROWS)
    # "marked" for rows from `covcal pick`, "random" for rows from ``--labels N``.
    design: Literal["marked", "random"] = "marked"
    # Whether batches for a decision only add known rows to the estimates of the other batches.
    avoids_decisions: bool = False
    left_out: int = 0  # Number of labelled rows that `for_all_rows` left out.

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labelled(self) -> Booleans:
        """Whether each row has a label, (m,)."""
        return np.asarray(self.labels != UNKNOWN_LABEL)

    @property
    def is_for_decision(self) -> bool:
        """Whether all labelled rows were picked for a decision with a limited error."""
        return self._are_for_decision() == {True}

    @property
    def has_rows_for_decision(self) -> bool:
        """Whether some labelled rows were picked for a decision with a limited error."""
        return True in self._are_for_decision()

    def _are_for_decision(self) -> set[bool]:
        """Return True for labelled batches that were drawn for a decision, False for others."""
        batches = np.unique(self.batch[self.labelled])
        return set().union(*(self.batches[i].are_for_decision for i in batches))

    def for_all_rows(self) -> "Draw":
        """Return the draw that estimates on all rows should use.

        Batches for a decision give poor estimates on all rows. If there are other batches, earlier
        batches for a decision only add known rows (`avoids_decisions`). Later batches for a
        decision are left out.
        """
        if self._are_for_decision() != {True, False}:
            return self
        others = [i for i, batch in enumerate(self.batches) if True not in batch.are_for_decision]
        last = max(others, default=len(self.batches) - 1)
        draw = self.taken(self.batch <= last)
        return replace(
            draw,
            batches=self.batches[: last + 1],
            avoids_decisions=bool(others),
            left_out=len(self) - len(draw),
        )

    @property
    def population(self) -> int:
        """Return N, the number of rows that could be drawn."""
        return self.batches[0].population

    @property
    def seed(self) -> int:
        """Return the seed of the first batch that has rows in this draw."""
        return self.batches[int(self.batch.min())].seed

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes if some drawn rows are left out."""
        missing, notes = sum(batch.drawn for batch in self.batches) - len(self), []
        if missing:
            notes.append(
                f"{missing} of the rows that covcal pick drew have no label yet. covcal assumes "
                "that the labelled rows are a random sample of their batch"
            )
        if self.left_out:
            notes.append(
                f"{self.left_out} {FOR_DECISION}, so only covcal decide uses these labels. To use "
                "them in this command too, pass --labels marked"
            )
        return tuple(notes)

    def right(self, logits: Floats) -> Float64s:
        """Return 1 for each row that the classifier predicts correctly, else 0, (m,).

        `logits` are the classifier's logits of the drawn rows, shape (m, K).
        """
        return np.asarray(logits.argmax(axis=1) == self.labels, dtype=np.float64)

    @property
    def weights(self) -> Float64s:
        """Return the weights of the drawn rows, (m,), whose sum is N on average.

        Larger batches have larger weights. With `avoids_decisions`, batches for a decision have no
        weight.
        """
        shares = self._shares
        later = shares.sum() - np.cumsum(shares)
        return np.asarray(shares[self.batch] / self.inclusion + later[self.batch])

    @property
    def exponents(self) -> Float64s:
        """Return the exponents of the rows in a likelihood, (m,)."""
        weights = self.weights
        return np.asarray(weights * (weights.sum() / max(float(weights @ weights), 1e-300)))

    @property
    def variances(self) -> Float64s:
        """Return v, (m,). An estimated sum of values t_i has the variance sum of v_i var(t_i)."""
        share = self._shares[self.batch]
        return np.asarray(share**2 * (1 - self.inclusion) / self.inclusion**2)

    @property
    def _shares(self) -> Float64s:
        counts = np.bincount(self.batch, minlength=len(self.batches))
        if self.avoids_decisions:
            others = counts * [True not in batch.are_for_decision for batch in self.batches]
            counts = others if others.any() else counts
        return counts / max(int(counts.sum()), 1)

    @classmethod
    def joined(cls, parts: Sequence["Draw"], batches: tuple[Batch, ...]) -> "Draw":
        """Join draws to one draw, with the rows in ascending order."""
        order = np.argsort(np.concatenate([part.rows for part in parts]))
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])[order]
            for name in _OF_ROWS
        }
        return cls(**columns, batches=batches)

    def taken(self, chosen: Booleans) -> "Draw":
        """Return the draw with only the chosen rows. `chosen` has shape (m,)."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in _OF_ROWS})

    def without(self, out: Booleans) -> "Draw":
        """Return the draw without the rows `out`, (m,), and reduce the inclusion probabilities."""
        left, before = self.taken(~out), np.bincount(self.batch)
        share = np.bincount(left.batch, minlength=len(before)) / np.maximum(before, 1)
        return replace(left, inclusion=left.inclusion * share[left.batch])

    def recorded(self, target: Domain) -> LabelledRows:
        """Return the record of this draw for cal.json and estimate.json."""
        by_id = sorted(zip(target.ids(self.rows), target.hashes(self.rows).tolist(), strict=True))
        ids = [row_id for row_id, _ in by_id]
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
            tuple(f"{of_logits:016x}" for _, of_logits in by_id),
        )


NO_DRAW = Draw(_NO_ROWS, np.empty(0), _NO_ROWS, _NO_ROWS, _NO_ROWS, ())


def rows_of_fit(target: Domain, rows: Rows, fitted: LabelledRows) -> Booleans:
    """Return which of `rows` were used to fit a calibration, shape (m,).

    Rows are compared by id. If most fitted ids have different logits in this file, the ids may be
    row numbers, so rows with equal logits also count as used.
    """
    ids = np.array([row_id.encode() for row_id in fitted.ids])
    every_row, places = target.rows(ALL), [np.zeros(0, dtype=np.int64)]
    # Search all rows of the file, because `rows` may contain none of the fitted rows.
    for block in target.blocks(every_row, "logits"):
        of_block = target.id_bytes(block)
        place = np.minimum(np.searchsorted(ids, of_block), len(ids) - 1)
        places.append(np.where(ids[place] == of_block, place, -1))
    place = np.concatenate(places)
    has_id = place >= 0
    by_id: Booleans = has_id[rows]
    if not fitted.logits:
        return by_id
    hashes = np.array([int(text, 16) for text in fitted.logits], dtype=np.uint64)
    is_same = target.hashes(every_row[has_id]) == hashes[place[has_id]]
    if 2 * int(is_same.sum()) > len(is_same):
        return by_id
    of_rows = target.hashes(rows)
    values, counts = np.unique(hashes, return_counts=True)
    near = np.minimum(np.searchsorted(values, of_rows), len(values) - 1)
    by_logits: Booleans = values[near] == of_rows
    counts_of_rows = np.bincount(near[by_logits], minlength=len(values))
    return np.asarray(by_id | (by_logits & (counts_of_rows <= counts)[near]))


def frame_rows(target: Domain, splits: tuple[str, ...]) -> Rows:
    """Return the row numbers of some splits, ascending, shape (N,) int64."""
    return np.flatnonzero(np.isin(SPLITS, splits)[target.split]).astype(np.int64)


def read_draw(file: FeatureFile) -> Draw:
    """Return the draw in a file, with its labels hidden. Return `NO_DRAW` if the file has no draw.

    Raises `CovcalError` if the draw is damaged.
    """
    if MARKED not in file.handle:
        return NO_DRAW
    if not isinstance(file.handle[MARKED], Group):
        raise _damaged(file, "they are not a group")
    values = {name: _values(file, name, kinds) for name, kinds in _OF_ROWS.items()}
    of_batches = {
        name: _values(file, f"batches/{name}", kinds) for name, kinds in _OF_BATCHES.items()
    }
    for columns in (values, of_batches):
        if len({len(column) for column in columns.values()}) > 1:
            raise _damaged(file, "an array does not have one entry per row or batch")
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


def write_copy(partial: Path, parts: Sequence[tuple[FeatureFile, Draw]]) -> None:
    """Write a copy of a file to `partial`, with new labels.

    A draw for ``covcal evaluate`` only changes the target labels. Any other draw is stored, and
    replaces the earlier draw.

    `parts` has one pair of file and draw. If rows can have several labels, `parts` has a pair for
    each label. The copy stores the hash of the original file, so calibrations of the original file
    can be used with the copy.
    """
    file, _ = parts[0]
    attributes = {
        name: file.attributes[name] for name in file.attributes if name not in _OWN_ATTRIBUTES
    }
    attributes[UNMARKED_SHA256] = file.sha256()
    schema = str(file.attributes["schema"])
    with HDF5Writer(partial, schema=schema, classes=file.classes, attributes=attributes) as writer:
        for number, (part, draw) in enumerate(parts):
            group = f"label/{number}/" if schema == SCHEMA else ""
            is_for_evaluate = draw.batches[0].is_for_evaluate
            for place, dataset in part.handle.datasets.items():
                if place == "classes":
                    continue
                if place.startswith(f"{MARKED}/") and not is_for_evaluate:
                    continue
                if number and not place.endswith(_OF_EACH_LABEL):
                    writer.share(f"{group}{place}", f"label/0/{place}")
                elif place == TARGET_LABELS and is_for_evaluate:
                    labels = dataset[:]
                    labels[draw.rows] = draw.labels  # An unknown label takes back a disputed label.
                    writer.write(f"{group}{place}", labels)
                else:
                    writer.copy(f"{group}{place}", dataset)
            if not is_for_evaluate:
                write_draw(writer, draw, group)
        writer.complete()


def write_draw(writer: HDF5Writer, draw: Draw, group: str = "") -> None:
    """Write a draw and its labels into a group of an open file.

    Raises `ValueError` if the labels are hidden.
    """
    if (draw.labels == HIDDEN_LABEL).any():
        raise ValueError("the labels of the picked rows are hidden: call draw_with_labels")
    for name in _OF_ROWS:
        writer.write(f"{group}{MARKED}/{name}", getattr(draw, name))
    for name in ("drawn", "population", "seed"):
        numbers = [getattr(batch, name) for batch in draw.batches]
        writer.write(f"{group}{MARKED}/batches/{name}", np.array(numbers, dtype=np.int64))
    splits = ["+".join(batch.splits) for batch in draw.batches]
    writer.write(f"{group}{MARKED}/batches/splits", utf8(splits))
    writer.write(f"{group}{MARKED}/batches/score", utf8([batch.score for batch in draw.batches]))


def _values(file: FeatureFile, name: str, kinds: str) -> AnyArray:
    dataset = file.handle[MARKED].get(name)
    if not isinstance(dataset, Dataset) or dataset.dtype.kind not in kinds or dataset.ndim != 1:
        raise _damaged(file, f"{name} is missing")
    return dataset[:]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _fault(draw: Draw, target: Domain) -> str | None:
    rows = draw.rows
    if len(rows) and not (rows[0] >= 0 and rows[-1] < target.n and (np.diff(rows) > 0).all()):
        return "a row does not exist in the target, or occurs twice"
    if not ((draw.inclusion > 0) & (draw.inclusion <= 1)).all():
        return "an inclusion probability is not between 0 and 1"
    if not ((draw.batch >= 0) & (draw.batch < len(draw.batches))).all():
        return "a row belongs to a batch that does not exist"
    for number, batch in enumerate(draw.batches):
        if not set(batch.splits) <= set(SPLITS) or batch.splits != draw.batches[0].splits:
            return "a batch names a split that does not exist"
        if batch.population != target.count(*batch.splits) - int((draw.batch < number).sum()):
            return "a batch stores a wrong number of target rows"
        strata = np.sort(draw.stratum[draw.batch == number])
        if batch.drawn != len(strata) or (strata != np.arange(len(strata))).any():
            return "rows of a batch are missing"
    return None


def _damaged(file: FeatureFile, damage: str) -> CovcalError:
    return CovcalError(
        f"{file.path}: the picked rows in /{MARKED} are damaged, because {damage}: {_AGAIN}"
    )


FLOOR = 0.2  # Minimum inclusion probability, divided by the mean probability n / N.
_ROUNDING = 1e-9  # Maximum rounding error of a sum of lengths.
_SIGMAS = 6.0  # Largest accepted error of the estimated number of rows, in standard errors.
_BANDS = 5  # Number of groups of rows with similar scores.
_CHUNK = 1 << 16


def inclusion_probabilities(scores: Float64s, n: int) -> Float64s:
    """Return the inclusion probability of each row, (N,), for a draw of n rows."""
    return inclusion_rule(lambda: (scores,), n)(scores)


def inclusion_rule(
    parts: Callable[[], Iterable[Float64s]], n: int
) -> Callable[[Float64s], Float64s]:
    """Return a function that maps scores to inclusion probabilities for a draw of n rows.

    - `parts`: a function that returns the scores of all N rows, in [0, 1], in blocks.
    - `n`: number of rows to draw, from 1 to N.
    """
    total, N, largest = 0.0, 0, np.zeros(1)
    for scores in parts():
        spread = _spread(scores)
        total, N = total + float(spread.sum()), N + len(scores)
        largest[0] = max(largest[0], spread.max(initial=0))

    def size(spread: Float64s) -> Float64s:
        if total == 0:
            return np.full(len(spread), 1 / N)
        return np.asarray((1 - FLOOR) * spread / total + FLOOR * (1 / N))

    # Rows with a probability of 1 or more are certain to be drawn. Then the probabilities of the
    # other rows rise, so more rows may become certain. Each round stores how many rows are left to
    # draw, and the sum of `sizes` over the uncertain rows.
    rounds: list[tuple[int, float]] = []

    def is_certain(sizes: Float64s) -> Booleans:
        certain = np.zeros(len(sizes), dtype=np.bool_)
        for left, length in rounds:
            certain |= left * sizes / length >= 1
        return certain

    while not rounds or is_certain(size(largest)).any():
        certain, rest = 0, 0.0
        for scores in parts():
            sizes = size(_spread(scores))
            is_out = is_certain(sizes)
            certain, rest = certain + int(is_out.sum()), rest + float(sizes[~is_out].sum())
        if rounds and certain == n - rounds[-1][0]:
            break
        rounds.append((n - certain, max(rest, 1e-300)))

    def probabilities(scores: Float64s) -> Float64s:
        sizes, (left, length) = size(_spread(scores)), rounds[-1]
        return np.where(is_certain(sizes), 1.0, left * sizes / length)

    return probabilities


def is_possible(inclusion: Float64s, population: int, *, for_decision: bool) -> bool:
    """Return whether `inclusion`, (n,), can be the inclusion probabilities of n drawn rows.

    Every probability must be at least n FLOOR / N. If the rows were not drawn for a decision, the
    inverse probabilities must also sum to about N (Hansen & Hurwitz 1943).
    """
    n, N = len(inclusion), population
    floor = OUTSIDE / MOST_GROUPS if for_decision else FLOOR
    possible = n <= N and bool(((inclusion >= floor * n / N * (1 - 1e-6)) & (inclusion <= 1)).all())
    if not possible or for_decision:
        return possible
    certain = inclusion == 1
    left, rest = N - int(certain.sum()), 1 / inclusion[~certain]
    spread = float(rest.std(ddof=1)) if len(rest) > 1 else float(rest.sum())
    # The sum may differ from N by the largest weight that a row can have, N / (n FLOOR).
    noise = _SIGMAS * spread * math.sqrt(len(rest)) + (N / FLOOR / n if len(rest) else 0.0)
    return abs(float(rest.sum()) - left) <= noise + 1e-6 * N


def inclusions_of_groups(labels: int, is_inside: Booleans, groups: Integers) -> Float64s:
    """Return the inclusion probabilities of G groups with equal numbers of labels, shape (G, 2).

    `groups`, (n,), are numbers from 0. If a group has too few rows for its labels, the other groups
    get the remaining labels.
    """
    sizes, left = np.bincount(groups), float(labels)
    inside, pairs = np.bincount(groups[is_inside], minlength=len(sizes)), np.zeros((len(sizes), 2))
    order = np.argsort(sizes)[(sizes == 0).sum() :]
    for others, group in zip(range(len(order), 0, -1), order, strict=True):
        share = min(float(sizes[group]), left / others)
        pairs[group] = inclusions(share, int(inside[group]), int(sizes[group] - inside[group]))
        left -= share
    return pairs


def inclusions_for_decision(
    target: Domain, draw: Draw, rows: Rows, scores: Float64s, groups: Integers
) -> list[Float64s]:
    """Return, for each batch, the inclusion probabilities of confident rows and of other rows.

    Confident rows have a score above the threshold of the batch. The array of a batch has shape (G,
    2) if each of G groups got the same number of labels, and (1, 2) if groups were ignored. The
    array has shape (0, 2) if the batch was not drawn for a decision.

    - `rows`, (n,): all rows that could be drawn, with their `scores` and `groups`.

    Raises `CovcalError` if the rows were drawn for another calibration or for other groups.
    """
    of_batches, places = [], np.searchsorted(rows, draw.rows)
    for number, batch in enumerate(draw.batches):
        region, is_left = region_of(batch.score), np.full(len(rows), True)
        if region is None:
            of_batches.append(np.empty((0, 2)))
            continue
        is_left[places[draw.batch < number]] = False
        is_inside = scores > region
        drawn, recorded = places[draw.batch == number], draw.inclusion[draw.batch == number]
        is_clear = np.abs(scores[drawn] - region) > NEAR
        for of_rows in (np.zeros_like(groups), groups):
            pairs = inclusions_of_groups(batch.drawn, is_inside[is_left], of_rows[is_left])
            p, q = pairs[of_rows[drawn]].T
            if np.allclose(
                recorded[is_clear], np.where(is_inside[drawn], p, q)[is_clear], rtol=1e-6
            ):
                of_batches.append(pairs)
                break
        else:
            remedy = "pick other rows with covcal pick --for"
            if number:
                remedy = "run covcal calibrate again with the labels of earlier batches"
            raise CovcalError(
                f"{target.path}: the labels of batch {number + 1} can prove a promise only with "
                "the calibration and the groups of covcal pick --for: pass the same -c and "
                f"--promise-by. If that calibration is gone, {remedy}"
            )
    return of_batches


def _spread(scores: Float64s) -> Float64s:
    return np.asarray(np.sqrt(scores * (1 - scores)))


def order_of_likeness(scores: Floats, predictions: AnyArray) -> Iterator[Integers]:
    """Yield blocks of row numbers, sorted so that neighbouring rows are similar.

    Rows are divided into groups by score. Within a group, rows are sorted by predicted class and
    score.

    - `scores`, (N,): scores of the rows, perhaps transformed.
    - `predictions`, (N,): predicted classes, as signed integers.
    """
    n = len(scores)
    cuts = [-(-band * n // _BANDS) for band in range(1, _BANDS)]
    bands = _bands_of(scores, [cut for cut in cuts if cut < n])
    for band in range(_BANDS):
        places: Integers = np.flatnonzero(bands == band).astype(np.int32 if n < 1 << 31 else int)
        yield from _in_band(places, scores, predictions, is_reversed=bool(band % 2))


def _bands_of(scores: Floats, cuts: Sequence[int]) -> NDArray[np.uint8]:
    """Return the number of each row's group, (N,). Groups begin at the ranks `cuts`."""
    ordered = np.sort(scores)
    values = ordered[list(cuts)]
    # For each boundary between groups: how many rows with this score belong to the lower group.
    skipped = [
        cut - below for cut, below in zip(cuts, np.searchsorted(ordered, values), strict=True)
    ]
    del ordered  # saves memory
    bands = np.zeros(len(scores), dtype=np.uint8)
    for start in range(0, len(scores), _CHUNK):
        part = scores[start : start + _CHUNK]
        for number, value in enumerate(values):
            reached = part > value
            ties = np.flatnonzero(part == value)
            reached[ties[skipped[number] :]] = True
            skipped[number] = max(0, skipped[number] - len(ties))
            bands[start : start + _CHUNK] += reached
    return bands


def _in_band(
    places: Integers, scores: Floats, predictions: AnyArray, *, is_reversed: bool
) -> Iterator[Integers]:
    """Yield the rows of a group in blocks, sorted by predicted class and then by score."""
    size = len(places)
    highest = int(predictions.max(initial=0))
    place_bits, class_bits = max(1, size - 1).bit_length(), highest.bit_length()
    if scores.dtype != np.float32 or place_bits + class_bits > 32:
        sign = -1 if is_reversed else 1
        order = np.lexsort((sign * scores[places], sign * predictions[places]))
        yield places[order]
        return
    # Pack class, score and position into one whole number per row, which is fast to sort.
    numbers = np.empty(size, dtype=np.uint64)
    for start in range(0, size, _CHUNK):
        part = places[start : start + _CHUNK]
        bits = (scores[part] + np.float32(0)).view(np.uint32)  # -0.0 becomes 0.0
        ascending = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
        classes = predictions[part].astype(np.uint64)
        if is_reversed:
            ascending, classes = ~ascending, highest - classes
        in_order = (classes << np.uint64(32)) | ascending
        numbers[start : start + _CHUNK] = (in_order << np.uint64(place_bits)) | np.arange(
            start, start + len(part), dtype=np.uint64
        )
    numbers.sort()
    for start in range(0, size, _CHUNK):
        mask = np.uint64((1 << place_bits) - 1)
        yield places[(numbers[start : start + _CHUNK] & mask).astype(np.int64)]


def drawn(probabilities: Float64s, rng: np.random.Generator) -> Integers:
    """Draw rows with given inclusion probabilities. Return row numbers, ascending, (n,) int64."""
    return drawn_along([(np.arange(len(probabilities)), probabilities)], rng)


def drawn_along(parts: Iterable[tuple[Integers, Float64s]], rng: np.random.Generator) -> Integers:
    """Draw one row from each stratum of sorted rows. Return row numbers, (n,) int64.

    - `parts`: blocks of sorted row numbers and their inclusion probabilities, which sum to n.
    """
    # For each drawn row: its position on the line, and its row number.
    certain: list[tuple[int, int]] = []
    winners: list[tuple[int, int]] = []
    # Positions, row numbers and right ends of the rows that no finished stratum contains.
    rows: list[Integers] = [np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)]
    edges, first = np.zeros(1), 0
    # A row that lies in two strata, and may still be drawn in the second stratum.
    carried: tuple[int, int] | None = None

    def row(index: int) -> tuple[int, int]:
        place, number = rows
        return int(place[index]), int(number[index])

    def draw_one(last: int) -> None:
        nonlocal carried, first
        stratum = len(winners)
        inside = edges[last] - stratum
        # Draw one of the rows before `last`, with probabilities in proportion to their lengths.
        point = stratum + rng.random() * inside
        winner = carried
        if point >= edges[first]:
            index = int(np.searchsorted(edges, point, "right")) - 1
            winner = row(index) if index >= 0 else None
        # Choose either `winner` or `last`. The row that loses may be drawn in the next stratum.
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
        places, count = np.arange(start, start + len(numbers)), len(numbers)
        is_certain = probabilities == 1
        if is_certain.any():
            certain += zip(places[is_certain].tolist(), numbers[is_certain].tolist(), strict=True)
            places, numbers = places[~is_certain], numbers[~is_certain]
            probabilities = probabilities[~is_certain]
        rows = [
            np.concatenate([old[first:], new])
            for old, new in zip(rows, (places, numbers), strict=True)
        ]
        edges = np.concatenate([edges[first:], edges[-1] + np.cumsum(probabilities)])
        start, first = start + count, 0
        while (last := _reaching(edges, len(winners))) < len(rows[0]):
            draw_one(last)
    # Rounding errors may make the last stratum too short.
    for _ in range(len(winners), round(float(edges[-1]))):
        draw_one(len(rows[0]) - 1)
    return np.array([number for _, number in sorted(certain + winners)], dtype=np.int64)


def _reaching(edges: Float64s, stratum: int) -> int:
    return int(np.searchsorted(edges[1:], stratum + 1 - _ROUNDING))
