"""The metrics of calibrations on labelled target rows, in one pass over the file in blocks.

Besides ``calibrate/labelled.py`` this is the only place where target labels are read; the rows that
it used are left out here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Integers, Labels, Rows
from covcal_cli.errors import CovcalError, TooFewRowsError, UnlabelledError
from covcal_cli.evaluate.bins import ConfidenceBlock, GroupBins, GroupMetrics
from covcal_cli.evaluate.bootstrap import LEVEL, intervals
from covcal_cli.evaluate.metrics import MetricsAccumulator
from covcal_cli.evaluate.paired import PairedRows
from covcal_cli.evaluate.ranked import GroupCollector, auroc
from covcal_cli.evaluate.result import Evaluation, Predictions, Since
from covcal_cli.files import as_word, sha256_of
from covcal_cli.forecast.forecaster import (
    NONE,
    UNSCALED,
    ScaledLogits,
    forecaster_logits,
    scaled_logits,
)
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import ALL, SPLITS, Domain, FeatureFile
from covcal_cli.labels.target_labels import target_labels
from covcal_cli.maths.scaling import Scaling
from covcal_cli.maths.softmax import Softmax, class_major
from covcal_cli.records import Input, require_at_least, require_one_of

MAX_GROUPS = 1000
_BY_CLASS, _BY_PREDICTED = "class", "predicted"
_CACHED_VALUES = 1 << 16  # so many float64 logits at a time stay in the processor's cache


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """What ``covcal evaluate`` can be told of rows and measures."""

    split: str = "test"  # of the target; or "all"
    bins: int = 15  # of confidence
    # Judge the confidence in the classifier's label, or in the forecaster's own.
    predictions: Predictions = "original"
    by: str | None = None  # "class", "predicted" or a column: metrics by group, too
    resamples: int = 0  # of the bootstrap; 0: no intervals
    level: float = LEVEL  # of the intervals
    seed: int = 0  # of the bootstrap
    # Take files whose images were preprocessed otherwise than a calibration's.
    allow_other_preprocessing: bool = False

    def __post_init__(self) -> None:
        require_one_of("split", self.split, (*SPLITS, ALL))
        require_one_of("kind of predictions", self.predictions, get_args(Predictions))
        require_at_least("bins", self.bins, 1)
        require_at_least("resamples", self.resamples, 0)
        require_at_least("seed", self.seed, 0)
        if not 0 < self.level < 1:
            raise CovcalError(f"the level of intervals lies between 0 and 1, not at {self.level}")


DEFAULTS = EvaluateSettings()


def evaluate(
    path: str | Path,
    calibrations: Mapping[str, Calibration],
    settings: EvaluateSettings = DEFAULTS,
    *,
    documents: Sequence[str | Path] = (),
    networks: str | Path | None = None,
    earlier: Mapping[str, Scaling] = MappingProxyType({}),
) -> Evaluation:
    """Measure calibrations, and the uncalibrated classifier beside them, on target rows.

    Parameters
    ----------
    path : str or Path
        A features or adapted file with labelled target rows in the split.
    calibrations : mapping of str to Calibration
        By the name to report them under, as `read_named` gives them.
    settings : EvaluateSettings
    documents : sequence of str or Path
        The files that hold the calibrations, in the same order, for the record and for messages.
    networks : str or Path, optional
        For methods on aligned logits and a file without them: the adapted file with the networks,
        if it is not where the calibration says.
    earlier : mapping of str to Scaling
        What calibrations, by name, are to be compared with on the same rows; without
        `resamples` none is.

    Raises
    ------
    UnlabelledError
        If no row of the split has a label, or it is empty and no target row has any.
    TooFewRowsError
        If the split is empty and others have labels.
    CovcalError
        If a calibration does not fit the file, or the groups are unknown.
    """
    path, files = Path(path), [Path(document) for document in documents]
    networks = None if networks is None else Path(networks)
    split, by, resamples = settings.split, settings.by, settings.resamples
    if NONE in calibrations and calibrations[NONE].method_used != NONE:
        raise CovcalError(f"{NONE} is the classifier as it came: call the calibration otherwise")
    with FeatureFile(path) as file:
        judged = {
            NONE: ScaledLogits(UNSCALED),
            **scaled_logits(
                file,
                calibrations,
                files,
                networks,
                allow_other_preprocessing=settings.allow_other_preprocessing,
            ),
        }
        # The rows to judge, and how they are grouped.
        target = file.require_target()
        given = "".join(f" -c {document}" for document in files or ("cal.json",))
        expected = f"covcal estimate {as_word(path)}{given} prints what to expect without labels"
        if file.source is None:  # which an estimate needs
            expected = (
                "extract it together with the source, and covcal estimate prints what to expect "
                "without labels"
            )
        rows = _rows_to_judge(target, split, expected)
        rows, left_out = _without_fitted(target, rows, calibrations)
        groups = None if by is None else _grouping(target, by, rows, file.classes)
        # One pass over the file, whatever the number of calibrations, and the pairs among them.
        if resamples:
            judged |= {
                _before(name): ScaledLogits(then)
                for name, then in earlier.items()
                if name in judged and (file.is_adapted or not then.reads_aligned)
            }
        same_labels = settings.predictions == "original"  # are judged of all calibrations
        classes = len(file.classes) if same_labels else 1
        pairs = {
            pair: PairedRows(settings.bins, classes) for pair in _compared(judged) if resamples
        }
        collected = {
            name: MetricsAccumulator(settings.bins, len(file.classes), keep_losses=resamples > 0)
            for name in judged
        }
        grouped = {
            name: (GroupBins(settings.bins, len(groups.names)), GroupCollector(len(groups.names)))
            for name in judged
            if groups and not _is_before(name)
        }
        block: dict[str, ConfidenceBlock] = {}  # by calibration

        def count(name: str, forecast: Softmax, chosen: Labels, labels: Labels, part: Rows) -> None:
            block[name] = collected[name].add(forecast, chosen, labels)
            if groups is not None and name in grouped:
                numbers = groups.numbers(part, labels, chosen)
                counts, ranks = grouped[name]
                counts.add(block[name], numbers)
                ranks.add(block[name].confidence, block[name].correct, numbers)
            if len(block) == len(judged):
                for (after, before), paired in pairs.items():
                    paired.add(block[before], block[after], chosen if same_labels else None)
                block.clear()

        unlabelled = _read(target, rows, judged, settings.predictions, count)
        if unlabelled == len(rows):
            elsewhere = ": pass --split all to judge those of other splits;"
            raise UnlabelledError(
                f"{path} holds no label for its {len(rows)} target {split} rows, and evaluate "
                f"needs them{elsewhere if _has_labels(target) else ';'} {expected}"
            )
        results = {name: entry.result() for name, entry in collected.items()}
        metrics = {name: entry for name, entry in results.items() if not _is_before(name)}
        differences = [
            one
            for (after, before), paired in pairs.items()
            for one in paired.differences(
                after,
                before,
                (results[before].correctness_auroc, results[after].correctness_auroc),
                resamples=resamples,
                seed=settings.seed,
                level=settings.level,
            )
        ]
        role = "adapted" if file.is_adapted else "features"
        return Evaluation(
            split=split,
            predictions=settings.predictions,
            unlabelled=unlabelled,
            left_out=len(left_out),
            metrics=metrics,
            scalings={name: judged[name].scaling for name in metrics},
            inputs=(
                Input(role, path, file.sha256()),
                *(Input("calibration", document, sha256_of(document)) for document in files),
            ),
            classes={
                name: entry.by_class.result(file.classes)
                for name, entry in metrics.items()
                if entry.by_class is not None
            },
            by=by,
            groups={
                name: _of_groups(*found, groups.names) for name, found in grouped.items() if groups
            },
            resamples=resamples,
            level=settings.level,
            seed=settings.seed,
            intervals={
                name: intervals(
                    entry, resamples=resamples, seed=settings.seed, level=settings.level
                )
                for name, entry in metrics.items()
                if resamples
            },
            differences=tuple(one for one in differences if not _is_before(one.against)),
            since={
                name: Since(
                    results[_before(name)],
                    {one.metric: one for one in differences if one.against == _before(name)},
                )
                for name in earlier
                if _before(name) in results
            },
            model=file.model["name"],
            notes=(
                *_notes_on_split(split),
                *_notes_on_fitted(target, calibrations, files),
                *_notes_on_left_out(target, left_out, calibrations),
            ),
        )


def _compared(judged: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield what is compared with what, of names that start with ``none`` and the first given.

    Each calibration is, with ``none``, with the first and with its earlier self.
    """
    names = list(judged)
    now = [name for name in names if not _is_before(name)]
    for place, name in enumerate(now):
        yield from ((name, reference) for reference in now[: min(place, 2)])
        if _before(name) in names:
            yield name, _before(name)


# The name of a calibration's earlier self; no name that is given can hold a NUL.


def _before(name: str) -> str:
    return f"{name}\0"


def _is_before(name: str) -> bool:
    return name.endswith("\0")


def _rows_to_judge(target: Domain, split: str, expected: str) -> Rows:
    """Return the rows of a split; where it is empty, say what there is to be done.

    `expected` says how to see what is to be expected without labels.
    """
    rows = target.rows(split)
    if len(rows):
        return rows
    if _has_labels(target):
        raise TooFewRowsError(
            f"{target.path} has no target {split} rows ({target.counts()}): pass --split all, or "
            "extract again with other --fractions"
        )
    raise UnlabelledError(
        f"{target.path} holds no target {split} rows and no target label, and evaluate needs both; "
        f"{expected}"
    )


def _has_labels(target: Domain) -> bool:
    """Return whether any target row has a label."""
    blocks = target.blocks(target.rows(ALL))
    return any((target_labels(target, block) >= 0).any() for block in blocks)


def _read(
    target: Domain,
    rows: Rows,
    judged: Mapping[str, ScaledLogits],
    predictions: Predictions,
    count: Callable[[str, Softmax, Labels, Labels, Rows], None],
) -> int:
    """Call `count` with every labelled row for every calibration; return how many have no label.

    It gets the calibration's name, its forecast, the labels to judge, the true ones and the rows.
    """
    unlabelled = 0
    size = max(256, _CACHED_VALUES // target.n_classes)
    for block in target.blocks(rows, *{name for one in judged.values() for name in one.reads}):
        labels = target_labels(target, block)
        known = labels >= 0
        if not known.all():
            unlabelled += int((~known).sum())
            block, labels = block[known], labels[known]
        # The logits of the block that the calibrations scale, each made once.
        logits: dict[str, Floats] = {}
        for entry in judged.values():
            for key, forecaster in entry.keys.items():
                if key not in logits:
                    logits[key] = forecaster_logits(target, block, forecaster, entry.networks)
        # Then in parts that stay in the cache, every calibration on each.
        for start in range(0, len(block), size):
            part = slice(start, start + size)
            parts = {key: class_major(values[part]) for key, values in logits.items()}
            top = _top_class(parts["original"])
            for name, entry in judged.items():
                forecast = entry.scaling.forecast([parts[key] for key in entry.keys])
                chosen = top if predictions == "original" else _top_class(forecast.logits)
                count(name, forecast, chosen, labels[part], block[part])
    return unlabelled


def _top_class(logits: Float64s) -> Labels:
    """Return the first class whose logit is 0, the highest.

    Comparing bytes class by class is many times faster than argmax along the first axis.
    """
    classes = len(logits)
    if classes > np.iinfo(np.uint8).max:
        return np.asarray(logits.argmax(axis=0), dtype=np.int64)
    rank = np.zeros(logits.shape[1], dtype=np.uint8)
    for number, row in enumerate(logits):
        np.maximum(rank, (row == 0).view(np.uint8) * np.uint8(classes - number), out=rank)
    top: Labels = classes - rank.astype(np.int64)
    return top


def _without_fitted(
    target: Domain, rows: Rows, calibrations: Mapping[str, Calibration]
) -> tuple[Rows, Rows]:
    """Return `rows` without those whose labels a calibration was fitted to, and those.

    Rows are known by their ids, so that a calibration is judged fairly on a file made anew too.
    """
    fitted = {
        known
        for calibration in calibrations.values()
        if calibration.labelled_rows is not None
        for known in calibration.labelled_rows.ids
    }
    if not fitted:
        return rows, rows[:0]
    kept = np.concatenate(
        [
            np.array([known not in fitted for known in target.ids(block)], dtype=bool)
            for block in target.blocks(rows)
        ]
    )
    if not kept.any():
        raise CovcalError(
            f"{target.path}: a calibration was fitted to every row to judge: take fewer --labels, "
            "or another --split"
        )
    return rows[kept], rows[~kept]


def _notes_on_split(split: str) -> list[str]:
    if split == "test":
        return []
    return [
        "adapt, estimate and calibrate read the target's training and validation rows, though no "
        "label of any: rows that come later may fare a little worse"
    ]


def _notes_on_fitted(
    target: Domain, calibrations: Mapping[str, Calibration], documents: Sequence[Path]
) -> list[str]:
    """Return a note per calibration that was fitted to labelled rows of which none is here by id.

    The file may hold other data, which is fine, or the same rows under other ids, which is not.
    """
    notes = []
    for number, (name, calibration) in enumerate(calibrations.items()):
        if calibration.labelled_rows is None:
            continue
        ids = calibration.labelled_rows.ids
        fitted = set(ids)
        if all(
            fitted.isdisjoint(target.ids(part))
            for rows in target.split_blocks(*SPLITS)
            for part in target.blocks(rows)
        ):
            document = documents[number] if number < len(documents) else name
            notes.append(
                f"none of the {len(ids)} rows that {document} was fitted to is in {target.path} by "
                "id: if they are there under other ids they are judged too"
            )
    return notes


def _notes_on_left_out(
    target: Domain, left_out: Rows, calibrations: Mapping[str, Calibration]
) -> list[str]:
    """Return a note where rows that are left out were no random ones, so that the rest is none."""
    picked = {
        known
        for calibration in calibrations.values()
        if calibration.labelled_rows is not None and calibration.labelled_rows.design == "marked"
        for known in calibration.labelled_rows.ids
    }
    if picked.isdisjoint(target.ids(left_out)):
        return []
    return [
        "the rows left out were picked, doubtful ones more often than sure ones: the others are no "
        "random sample and flatter the classifier; judge a split that none was picked from, as the "
        "test rows are unless pick is told otherwise"
    ]


# Groups of rows: by class, by predicted label, or by what a column says.


@dataclass(frozen=True)
class _Grouping:
    names: Sequence[str]  # by number
    # Of m rows' groups, from their row numbers, true labels and judged labels.
    numbers: Callable[[Rows, Labels, Labels], Integers]


def _grouping(target: Domain, by: str, rows: Rows, classes: Sequence[str]) -> _Grouping:
    """Return the groups of `rows`, which `by` may not cut into more than a thousand."""
    if by == _BY_CLASS:
        return _Grouping(classes, lambda _rows, labels, _judged: labels)
    if by == _BY_PREDICTED:
        return _Grouping(classes, lambda _rows, _labels, judged: judged)
    if by not in target.columns:
        known = ", ".join([*target.columns, _BY_CLASS, _BY_PREDICTED])
        raise CovcalError(f"{target.path} has no target column {by!r} to group by: take {known}")
    # The values in order: a row's group is the place of its own among them.
    values = np.empty(0, dtype=target.column(by, rows[:1]).dtype)
    for block in target.blocks(rows):
        values = np.union1d(values, target.column(by, block))
        if len(values) > MAX_GROUPS:
            raise CovcalError(
                f"{target.path}: column {by!r} has more than {MAX_GROUPS} values, so its groups "
                "would be single rows: group by another column"
            )

    def numbers(block: Rows, _labels: Labels, _judged: Labels) -> Integers:
        return np.searchsorted(values, target.column(by, block)).astype(np.int64)

    return _Grouping([_text(value) for value in values.tolist()], numbers)


def _of_groups(
    counts: GroupBins, ranks: GroupCollector, names: Sequence[str]
) -> tuple[GroupMetrics, ...]:
    """Return the metrics of every group, with those of its ranked rows."""
    return tuple(
        group
        if not group.n or (area := auroc(rows)) is None
        else replace(group, correctness_auroc=area.value)
        for group, rows in zip(counts.result(names), ranks.ranked(), strict=True)
    )


def _text(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else f"{value}"
    return text or "(empty)"
