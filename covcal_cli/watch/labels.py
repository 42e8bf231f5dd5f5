"""Estimate the accuracy of a period from labels, and the gap of several periods together.

The labels of a period give an accuracy A and an effective size n*, the number of random labels with
the same precision. The labels then count like n* random labels, of which A n* are right. A pool
sums these numbers over several periods. The gap of a pool is its mean confidence minus its
accuracy. The interval of the gap is anytime-valid (`maths.odds.anytime_interval`).

Pool k contains all labelled periods from period k on, for k = 0, 1, ... The interval of pool k may
be wrong with the probability e / ((k + 1) (k + 2)). These probabilities sum to e, so all intervals
are right with a probability of at least 1 - e. If the gap changes, the intervals of long pools and
of short pools may not overlap. So a pool is valid only if its interval overlaps the intervals of
all pools that begin later. The verdict uses the valid pool with the most periods. A pool with fewer
periods is used only if it alone proves a gap above the tolerance.

Labels that arrive later are given as a CSV with the columns ``id`` and ``label``. If an id occurs
in several periods, the CSV also needs the column ``period``. If rows can have several labels, the
CSV has a column ``label_NAME`` for each label.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, AnyArray, Booleans, Float64s, Integers, Labels, Rows
from covcal_cli.data.classes import OF_FILE, named_classes
from covcal_cli.data.labels import PRESENCE, RowLabels
from covcal_cli.data.stores.csv import CSVStore
from covcal_cli.errors import CovcalError, shown
from covcal_cli.estimators.inputs import most_rows
from covcal_cli.estimators.metrics import MetricEstimate, Wanted
from covcal_cli.files import require_file
from covcal_cli.formats.features import ALL, SPLITS, Domain, FeatureFile, thinned
from covcal_cli.formats.writer import utf8
from covcal_cli.labels.draws import MAX_FRAME, Batch, Draw, frame_rows
from covcal_cli.labels.metrics import accuracy_and_size, difference_estimate, metrics_by_labels
from covcal_cli.labels.picked_labels import draw_with_labels, labelled_draw, labelled_part
from covcal_cli.labels.posterior import MAX_FRAME as MOST_FITTED
from covcal_cli.labels.posterior import posterior
from covcal_cli.labels.score import score, tell_selection
from covcal_cli.labels.sheet import LABEL_PREFIX
from covcal_cli.labels.target_labels import target_labels
from covcal_cli.maths.odds import anytime_interval
from covcal_cli.multilabel import current_label
from covcal_cli.watch.period import Gap, Measured, PeriodAccuracy, PeriodLabels

ERROR = 0.05  # Probability that any interval of a history is wrong.
_MOST_ROWS = 20_000  # Maximum number of rows whose labels are read from a file.
_MOST_STARTS = 100  # Maximum number of labelled periods in a pool.
# Numbers of labels that can be suggested.
_OFFERS = (10, 20, 30, 50, 80, 100, 150, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 5000, 10_000)
_PRIOR = 10.0  # The accuracy that is likely without labels has the weight of this number of labels.


@dataclass(frozen=True)
class FileLabels:
    """The labelled rows of a file, and the scores of the file's rows.

    A score is an estimate of the probability that the classifier is right on a row.
    """

    draw: Draw  # The n labelled rows.
    right: Float64s  # (n,), 1 if the prediction is right, else 0.
    scores: Float64s  # (n,), scores of the labelled rows.
    frame_scores: Float64s  # (m,), scores of some rows that could be drawn, chosen at random.
    drawable: Booleans  # (N,), whether each target row could be drawn.

    @property
    def is_random(self) -> bool:
        """Whether the labelled rows are treated as a random sample of their period."""
        return self.draw.design == "random"

    def of(self, rows: Rows) -> PeriodLabels | None:
        """Estimate the accuracy on `rows` from labels; return None without labels."""
        inside, frame = np.isin(self.draw.rows, rows), np.isin(self.draw.frame, rows)
        labelled, population = int(inside.sum()), int(self.drawable[rows].sum())
        if not labelled or not frame.any():
            return None
        share = np.full(labelled, labelled / population)
        accuracy, size = accuracy_and_size(
            1 / share if self.is_random else self.draw.weights[inside],
            (1 - share) / share**2 if self.is_random else self.draw.variances[inside],
            population,
            self.right[inside],
            self.frame_scores[frame],
            self.scores[inside],
        )
        return PeriodLabels(labelled, accuracy, min(size, float(population)))

    def selection(self, rows: Rows) -> str:
        """Describe how labelled rows of `rows` differ from a random sample, or return ""."""
        if not self.is_random:
            return ""
        inside, frame = np.isin(self.draw.rows, rows), np.isin(self.draw.frame, rows)
        return tell_selection(self.scores[inside], self.frame_scores[frame])

    def weighted(self, rows: Rows) -> PeriodLabels | None:
        """Return the weighted accuracy on the labelled rows of `rows`; None without labels.

        Weights are divided by the largest weight, because anytime-valid intervals need weights of
        at most 1.
        """
        inside = np.isin(self.draw.rows, rows)
        if not inside.any():
            return None
        counts = np.ones(len(self.draw))
        if not self.is_random:
            counts = self.draw.weights / self.draw.weights.max()
        size = float(counts[inside].sum())
        accuracy = float(np.clip(counts[inside] @ self.right[inside] / size, 0, 1))
        return PeriodLabels(int(inside.sum()), accuracy, size)

    def metrics(
        self,
        target: Domain,
        rows: Rows,
        wanted: Sequence[Wanted],
        classes: Sequence[str],
        costs: Float64s | None,
    ) -> tuple[MetricEstimate, ...]:
        """Estimate metrics on `rows`. At least one of `rows` must have a label."""
        draw = self.draw
        inside, frame = np.isin(draw.rows, rows), np.isin(draw.frame, rows)
        population, labelled = int(self.drawable[rows].sum()), int(inside.sum())
        share = np.full(labelled, labelled / population)
        first, *later = draw.batches
        part = replace(
            draw.taken(inside),
            inclusion=share if self.is_random else draw.inclusion[inside],
            batches=(replace(first, population=population), *later),
            frame=draw.frame[frame],
        )
        accuracy = difference_estimate(
            part, self.right[inside], self.frame_scores[frame], self.scores[inside]
        )
        of_frame = target.logits(thinned(part.frame, most_rows(len(classes)), draw.seed))
        logits, some = target.logits(part.rows), np.zeros(labelled, dtype=np.bool_)
        some[thinned(np.arange(labelled), MOST_FITTED, draw.seed)] = True
        few = thinned(np.arange(len(of_frame)), MOST_FITTED, draw.seed)
        scaling = posterior(of_frame[few], logits[some], part.without(~some), accuracy.accuracy)
        estimates = metrics_by_labels(
            part, of_frame, logits, scaling, accuracy, wanted, classes, costs=costs
        )
        return tuple(estimates)


def picked_labels(file: FeatureFile, seed: int) -> FileLabels | None:
    """Return the labels of rows from `covcal pick`; None without labels."""
    return _of_draw(file, labelled_draw(file), seed)


def own_labels(file: FeatureFile, seed: int) -> FileLabels | None:
    """Return the target labels that the file contains; None without labels."""
    target = file.require_target()
    rows = target.rows(ALL)
    labels = target_labels(target, rows)
    rows = thinned(rows[labels != UNKNOWN_LABEL], _MOST_ROWS, seed)
    return joined_labels(file, rows, target_labels(target, rows), seed) if len(rows) else None


def joined_labels(file: FeatureFile, rows: Rows, labels: Labels, seed: int) -> FileLabels:
    """Return `FileLabels` from `labels` that arrived after their `rows` (ascending row numbers).

    If ``covcal pick`` drew all labelled rows, their sampling weights are used. Otherwise, the rows
    are treated as a random sample of their period.
    """
    draw = draw_with_labels(file)
    if len(draw) and np.isin(rows, draw.rows).all():
        labels_of_draw = draw.labels.copy()
        labels_of_draw[np.searchsorted(draw.rows, rows)] = labels
        of_draw = _of_draw(file, labelled_part(file, replace(draw, labels=labels_of_draw)), seed)
        if of_draw is not None:
            return of_draw
    target = file.require_target()
    frame = thinned(np.arange(target.n, dtype=np.int64), MAX_FRAME, seed)
    scores = score(file, rows, seed=seed)
    numbers = np.arange(len(rows), dtype=np.int64)
    return FileLabels(
        Draw(
            rows,
            np.full(len(rows), len(rows) / target.n),
            np.zeros_like(numbers),
            numbers,
            labels,
            (Batch(len(rows), target.n, seed, SPLITS, "none"),),
            frame,
            "random",
        ),
        (scores.predictions == labels).astype(np.float64),
        scores.right,
        score(file, frame, seed=seed).right,
        np.ones(target.n, dtype=np.bool_),
    )


def _of_draw(file: FeatureFile, draw: Draw | None, seed: int) -> FileLabels | None:
    if draw is None:
        return None
    target = file.require_target()
    drawable = np.zeros(target.n, dtype=np.bool_)
    drawable[frame_rows(target, draw.batches[0].splits)] = True
    return FileLabels(
        draw,
        draw.right(target.logits(draw.rows)),
        score(file, draw.rows, seed=seed).right,
        score(file, draw.frame, seed=seed).right,
        drawable,
    )


def added(first: PeriodLabels | None, second: PeriodLabels | None) -> PeriodLabels | None:
    """Combine the labels of two parts of a period, each treated as a random sample."""
    if first is None or second is None:
        return first or second
    size = first.size + second.size
    accuracy = (first.accuracy * first.size + second.accuracy * second.size) / size
    return PeriodLabels(first.rows + second.rows, min(accuracy, 1.0), size)


def together(parts: Sequence[tuple[int, PeriodLabels | None]]) -> PeriodLabels | None:
    """Combine the labels of several parts of a period, weighted by number of rows.

    `parts` has each part's number of rows and its labels.
    """
    labelled = [(rows, labels) for rows, labels in parts if labels is not None]
    if not labelled:
        return None
    shares = np.array([rows for rows, _ in labelled]) / sum(rows for rows, _ in labelled)
    accuracies = np.array([labels.accuracy for _, labels in labelled])
    sizes = np.array([labels.size for _, labels in labelled])
    # Add one right label and one wrong label, so that the variance is never 0.
    smoothed = (accuracies * sizes + 1) / (sizes + 2)
    variance = float(shares**2 @ (smoothed * (1 - smoothed) / sizes))
    accuracy = float(shares @ accuracies)
    mean = float(shares @ smoothed)
    rows = sum(labels.rows for _, labels in labelled)
    return PeriodLabels(rows, accuracy, mean * (1 - mean) / variance)


@dataclass(frozen=True)
class Pool:
    """The gap between mean confidence and accuracy, from the labels of several periods."""

    gap: Gap
    labels: int  # Number of labels.
    first: str  # Name of the first labelled period.
    last: str
    needed: int | None = None  # Number of further labels for a verdict, or None.

    def accuracy(self, entry: Measured) -> PeriodAccuracy:
        """Return the accuracy of a period: its mean confidence minus the gap."""
        value, low, high = (
            float(np.clip(entry.confidence - gap, 0, 1))
            for gap in (self.gap.value, self.gap.high, self.gap.low)
        )
        periods = f" of {self.first} to {self.last}"
        if self.first == self.last:
            periods = "" if self.last == entry.period else f" of {self.last}"
        of = f"{self.labels} label{'s' * (self.labels > 1)}{periods}"
        return PeriodAccuracy(value, low, high, of)


def pooled(
    entries: Sequence[Measured], tolerance: float, start: int = 0, error: float = ERROR
) -> Pool | None:
    """Estimate the gap from the labels since the period number `start`; None without labels."""
    labelled = [
        (entry, entry.labels, place)
        for place, entry in enumerate(entries)
        if entry.labels is not None
    ]
    all_pools = pools(
        np.array([labels.size for _, labels, _ in labelled]),
        np.array([labels.accuracy for _, labels, _ in labelled]),
        np.array([entry.confidence for entry, _, _ in labelled]),
        [k for k, (_, _, place) in enumerate(labelled) if place >= start],
        error=error,
    )
    if all_pools is None:
        return None
    gaps, chosen = all_pools.gaps, all_pools.chosen
    if gaps[chosen].verdict(tolerance) == "not known":
        proved = [max(gap.low, -gap.high) for gap in gaps]
        worst = max(range(chosen, len(gaps)), key=proved.__getitem__)
        chosen = worst if proved[worst] > tolerance else chosen
    k, gap = all_pools.starts[chosen], gaps[chosen]
    needed = None
    if gap.verdict(tolerance) == "not known":
        sizes = np.array([labels.size for _, labels, _ in labelled[k:]])
        confidence = float(sizes @ [entry.confidence for entry, _, _ in labelled[k:]] / sizes.sum())
        accuracy = confidence - gap.value
        needed = labels_for_verdict(confidence, tolerance, accuracy, float(sizes.sum()), k)
    return Pool(
        gap,
        sum(labels.rows for _, labels, _ in labelled[k:]),
        labelled[k][0].period,
        labelled[-1][0].period,
        needed,
    )


def labels_for_verdict(
    confidence: float, tolerance: float, accuracy: float = 0.0, size: float = 0.0, k: int = 0
) -> int | None:
    """Return how many more labels will probably give a verdict; None if over 10,000.

    `accuracy` and `size` are those of the present labels. More labels are expected to have the same
    accuracy. Without labels, the confidence is expected to be right.
    """

    def gives_verdict(low: Float64s, high: Float64s) -> Booleans:
        holds = (confidence - low <= tolerance) & (high - confidence <= tolerance)
        return np.asarray(holds | (confidence - high > tolerance) | (low - confidence > tolerance))

    counts = accuracy * size, (1 - accuracy) * size
    return labels_needed(counts, confidence, confidence, k, gives_verdict)


def labels_needed(
    counts: tuple[float, float],
    likely: float,
    expected: float,
    k: int,
    decides: Callable[[Float64s, Float64s], Booleans],
) -> int | None:
    """Return how many more labels will probably give a verdict; None if over 10,000.

    - `counts`: the total weights of right rows and of wrong rows in pool `k`.
    - `likely`: the accuracy that is likely without labels. `expected`: see `pools`.
    - `decides`: a function of lower and upper ends, which returns which intervals give a verdict.
    """
    right, wrong = counts
    accuracy = (right + _PRIOR * likely) / (right + wrong + _PRIOR)
    more = np.array(_OFFERS)
    low, high = anytime_interval(
        right + more * accuracy, wrong + more * (1 - accuracy), expected, spent(np.array(k))
    )
    decided = more[decides(low, high)]
    return int(decided[0]) if len(decided) else None


@dataclass(frozen=True)
class Pools:
    """Pools of labelled periods, with the gap of each pool."""

    starts: Sequence[int]  # index of the first labelled period of each pool
    gaps: Sequence[Gap]
    chosen: int  # number of the chosen pool


def spent(k: Integers, error: float = ERROR) -> Float64s:
    """Return the probability with which the interval of pool `k` may be wrong."""
    return np.asarray(error / ((k + 1.0) * (k + 2.0)))


def pools(
    sizes: Float64s,
    accuracies: Float64s,
    confidences: Float64s,
    starts: Sequence[int],
    *,
    expected: float | None = None,
    error: float = ERROR,
) -> Pools | None:
    """Return the pools that begin at the periods `starts`, or None without starts.

    - `sizes`, `accuracies`, `confidences`, (n,): effective size n*, accuracy A and mean confidence
      of each labelled period, in the order of time.
    - `starts`: indexes of labelled periods; only the last 100 are used.
    - `expected`: the accuracy that is expected without labels (default: the mean confidence).
    - `error`: probability that any interval of a history is wrong.
    """
    starts = starts[-_MOST_STARTS:]
    if not starts:
        return None
    totals, rights, means = (
        values[::-1].cumsum()[::-1][starts]
        for values in (sizes, sizes * accuracies, sizes * confidences)
    )
    confidence, accuracy = means / totals, np.clip(rights / totals, 0, 1)
    lows, highs = anytime_interval(
        accuracy * totals,
        (1 - accuracy) * totals,
        confidence if expected is None else expected,
        spent(np.array(starts), error),
    )
    ends = confidence - accuracy, confidence - highs, confidence - lows
    gaps = [Gap(*gap) for gap in zip(*(end.tolist() for end in ends), strict=True)]
    highest_low = np.maximum.accumulate([gap.low for gap in gaps][::-1])[::-1]
    lowest_high = np.minimum.accumulate([gap.high for gap in gaps][::-1])[::-1]
    chosen = next(
        i for i, gap in enumerate(gaps) if gap.low <= lowest_high[i] and gap.high >= highest_low[i]
    )
    return Pools(starts, gaps, chosen)


_REMEDY = "give a CSV with the columns id and label"
_MOST_NAMED = 8  # maximum number of periods that a message names


@dataclass
class LateLabels:
    """Labels that arrived later, from a CSV, with the period of each label."""

    path: Path
    ids: AnyArray  # (m,), UTF-8 bytes.
    texts: AnyArray  # (m,), names or numbers of classes.
    periods: AnyArray | None  # (m,), the column ``period``, or None.
    joined: dict[int, str] = field(
        default_factory=dict
    )  # The name of each line's period, by line number.
    watched: list[str] = field(default_factory=list)

    def of_rows(self, file: FeatureFile, period: str, rows: Rows) -> tuple[Rows, Labels]:
        """Return the ascending labelled rows of a period, and the labels of these rows.

        Raises `CovcalError` if an id belongs to several rows, or a label is not a class.
        """
        self.watched.append(period)
        ids = file.require_target().id_bytes(rows)
        wanted = np.arange(len(self.ids))
        if self.periods is not None:
            wanted = np.flatnonzero(self.periods == period)
        near = np.flatnonzero(np.isin(ids, self.ids[wanted]))
        order = wanted[np.argsort(self.ids[wanted], kind="stable")]
        lines: Integers = order[np.searchsorted(self.ids[order], ids[near])]
        for line, count in Counter(lines.tolist()).items():
            other = self.joined.setdefault(line, period)
            if count > 1 or other != period:
                where = f"in {period}" if count > 1 else f"in {other} and in {period}"
                raise CovcalError(
                    f"{self.path}: several rows have the id {self._id(line)} ({where}): use "
                    "unique ids, or add a column 'period' with the name of the row's period"
                )
        classes = replace(named_classes(file.classes), whose=OF_FILE)
        texts = RowLabels(self.texts, self.path, "label", texts_are_numbers=True)
        labels = texts.indices(classes)[lines]
        labelled = labels != UNKNOWN_LABEL
        return rows[near[labelled]], labels[labelled]

    @property
    def notes(self) -> list[str]:
        """Return a note if some labels belong to none of the periods."""
        missing = sorted(set(range(len(self.ids))) - set(self.joined))
        if not missing:
            return []
        return [
            f"{self.path}: {len(missing)} of {len(self.ids)} ids are in no watched period (for "
            f"example {self._id(missing[0])}){self._unknown_period('; ')}"
        ]

    def require_any(self) -> None:
        """Raise a CovcalError if no label belongs to any period."""
        if not self.joined:
            if unknown := self._unknown_period(""):
                raise CovcalError(f"{self.path}: {unknown}")
            raise CovcalError(
                f"{self.path}: no watched period has a row with one of the ids, such as "
                f"{self._id(0)}: use the ids in the features files, and watch the files of the "
                "labelled rows"
            )

    def _unknown_period(self, start: str) -> str:
        names = [] if self.periods is None else self.periods.tolist()
        unknown = next((name for name in names if name not in self.watched), None)
        if unknown is None:
            return ""
        periods = list(dict.fromkeys(self.watched))
        more = ", ..." if len(periods) > _MOST_NAMED else ""
        return (
            f"{start}the column 'period' contains {shown(unknown)}, which is not a watched period: "
            f"use {', '.join(periods[:_MOST_NAMED])}{more}"
        )

    def _id(self, line: int) -> str:
        return shown(self.ids[line].decode("utf-8", "replace"))


def read_late_labels(path: Path) -> LateLabels:
    """Read a CSV of labels that arrived later.

    Raises `CovcalError` if a column is missing, or an id occurs twice.
    """
    require_file(path, remedy=_REMEDY)
    store = CSVStore(path, as_texts=True)
    name = current_label()
    column = "label" if name is None else f"{LABEL_PREFIX}{name}"
    for needed in ("id", column):
        if needed not in store.entries:
            remedy = f"give a CSV with the columns id and {column}"
            raise CovcalError(f"{path} has no column {needed}: {remedy}")
    ids, texts = store.texts("id"), [text.strip() for text in store.texts(column)]
    if name is not None:
        texts = [str(PRESENCE.get(text.lower(), text)) for text in texts]
    periods = store.texts("period") if "period" in store.entries else None
    keys = list(zip(ids, periods or [""] * len(ids), strict=True))
    twice = next((key for key, count in Counter(keys).items() if count > 1), None)
    if twice is not None:
        raise CovcalError(f"{path}: id {shown(twice[0])} occurs twice: keep one of the lines")
    return LateLabels(
        path, utf8(ids), np.array(texts), None if periods is None else np.array(periods)
    )
