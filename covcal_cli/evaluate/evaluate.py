"""Measure calibrations on labelled target rows.

Only this package reads target test labels. Rows to which a calibration was fitted are left out.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, get_args

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, Floats, Integers, Labels, Rows
from covcal_cli.errors import (
    CovcalError,
    TooFewRowsError,
    UnlabelledError,
    checked_settings,
    require_at_least,
    require_one_of,
)
from covcal_cli.evaluate.bins import ConfidenceBlock, GroupBins, GroupMetrics, check_bins
from covcal_cli.evaluate.bootstrap import (
    GROUP_METRICS,
    LEVEL,
    Difference,
    PairedRows,
    Resampling,
    group_interval,
    intervals,
)
from covcal_cli.evaluate.metrics import (
    MAIN,
    METRICS,
    LabelledRows,
    Metrics,
    MetricsAccumulator,
    measurable,
)
from covcal_cli.evaluate.ranked import GroupCollector, areas
from covcal_cli.evaluate.result import (
    DecisionMetrics,
    Evaluation,
    Predictions,
    Since,
    auroc_of,
    require_unseen,
)
from covcal_cli.files import as_word, sha256_of
from covcal_cli.forecast import NONE, UNSCALED, ScaledLogits, forecaster_logits, scaled_logits
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.decision import Decision, read_decision
from covcal_cli.formats.features import ALL, SPLITS, Domain, FeatureFile, thinned
from covcal_cli.formats.groups import ColumnGroups, joined_groups
from covcal_cli.labels.draws import MARKED, rows_of_fit
from covcal_cli.labels.score import tell_selection
from covcal_cli.labels.target_labels import target_labels
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.softmax import Scaling, Softmax, class_major, top_class
from covcal_cli.records import Input

BY_CLASS, BY_PREDICTED = "class", "predicted"
MAX_RESAMPLES = 100_000
_CACHED_VALUES = 1 << 17
_MOST_COMPARED = 20_000  # Maximum number of rows in the test for a random sample.


@checked_settings
@dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """The options of ``covcal evaluate`` that choose rows and metrics."""

    # A split of the target, or "all". The default is the test split, or all rows of target-only
    # files that no other step has read.
    split: str | None = None
    bins: int = 15
    # Which predicted labels are measured: the labels of the classifier ("original"), or the
    # labels of each calibration ("own").
    predictions: Predictions = "original"
    by: str | None = None  # How to form groups: "class", "predicted" or a column's name.
    resamples: int = 0  # Bootstrap resamples; 0 for no intervals.
    level: float = LEVEL  # Confidence level of the intervals.
    seed: int = 0
    metrics: tuple[str, ...] = tuple(METRICS)
    grouped_by: tuple[str, ...] = ()  # Groupings, such as `by`, whose groups have limits.
    allow_other_preprocessing: bool = False  # Do not require the calibration's preprocessing.

    def __post_init__(self) -> None:
        if self.split is not None:
            require_one_of("split", self.split, (*SPLITS, ALL))
        require_one_of("kind of predictions", self.predictions, get_args(Predictions))
        for name in self.metrics:
            require_one_of("metric", name, METRICS)
        check_bins(self.bins)
        if not 0 <= self.resamples <= MAX_RESAMPLES:
            raise CovcalError(f"resamples must be from 0 to {MAX_RESAMPLES}, not {self.resamples}")
        require_at_least("seed", self.seed, 0)
        if not 0 < self.level < 1:
            raise CovcalError(f"the level of intervals must be between 0 and 1, not {self.level}")

    @property
    def resampling(self) -> Resampling:
        """The settings of bootstrap intervals."""
        return Resampling(self.resamples, self.seed, self.level)

    @property
    def groupings(self) -> tuple[str, ...]:
        """The columns whose values divide the rows into groups."""
        return tuple(dict.fromkeys(([] if self.by is None else [self.by]) + [*self.grouped_by]))


DEFAULTS = EvaluateSettings()


class Version(NamedTuple):
    """A calibration, or its earlier version from the baseline."""

    name: str
    earlier: bool = False


def evaluate(
    path: str | Path,
    calibrations: Mapping[str, Calibration],
    settings: EvaluateSettings = DEFAULTS,
    *,
    documents: Sequence[str | Path] = (),
    networks: str | Path | None = None,
    earlier: Mapping[str, Scaling] = MappingProxyType({}),
    decision: str | Path | None = None,
    pooled: Sequence[str | Path] = (),
) -> Evaluation:
    """Measure calibrations, and the uncalibrated classifier, on target rows.

    Parameters
    ----------
    path : str or Path
        A features or adapted file with labelled target rows.
    calibrations : mapping of str to Calibration
        Calibrations by name.
    settings : EvaluateSettings
    documents : sequence of str or Path
        Files of the calibrations, in the same order.
    networks : str or Path, optional
        The adapted file, which is needed only if a method uses the networks and the file was moved.
    earlier : mapping of str to Scaling
        Earlier versions of the calibrations, by name, which are compared with the current versions.
    decision : str or Path, optional
        A decide.json. `evaluate` then also measures its accepted rows and prediction sets.
    pooled : sequence of str or Path
        More files of the same classifier. The rows of all files are measured together.

    Raises
    ------
    UnlabelledError
        If no row of the split has a label.
    TooFewRowsError
        If the split is empty, but other splits have labels.
    CovcalError
        If files or calibrations belong to different classifiers, or a column is missing.
    """
    path, files = Path(path), [Path(document) for document in documents]
    networks = None if networks is None else Path(networks)
    if NONE in calibrations and calibrations[NONE].method_used != NONE:
        raise CovcalError(
            f"{NONE} is the uncalibrated classifier: give the calibration another name"
        )
    with ExitStack() as stack:
        opened = [stack.enter_context(FeatureFile(Path(name))) for name in (path, *pooled)]
        file = opened[0]
        _require_one_classifier(opened)
        versions_of = [
            _versions(part, calibrations, networks, earlier, settings) for part in opened
        ]
        versions = versions_of[0]
        decided = None if decision is None else read_decision(decision, *files)
        measured = [
            Input("adapted" if part.is_adapted else "features", part.path, part.sha256())
            for part in opened
        ]
        of_calibrations = [
            Input("calibration", document, sha256_of(document)) for document in files
        ]
        is_unread = _is_unread(opened, [*calibrations.values(), *([decided] if decided else [])])
        split = settings.split or (ALL if is_unread else "test")
        if decided is not None:
            for entry in measured:
                require_unseen(decided, entry.path, entry, split)
        targets = [part.require_target() for part in opened]
        hint = _label_free_hint(path, files, has_source=file.source is not None)
        if targets[0].count("test"):
            drawn = f"covcal pick {as_word(path)} --split test"
            hint = f"draw test rows with {drawn} and label these rows, or {hint}"
        of_split, repeats = _measured_once(targets, _rows_of_split(targets, split, hint))
        rows, left_out = _without_fitted(targets, of_split, calibrations)
        groupings_of = _groupings(targets, settings.groupings, rows, file.classes)
        groupings = groupings_of[0]
        collector = _Collector(
            versions,
            settings,
            len(file.classes),
            groupings,
            has_all_classes=not file.has_one_confidence,
        )
        if decided is not None:
            made_with = list(map(decided.was_made_with, files))
            of_decision = [*calibrations][made_with.index(True)]
            collector.decision = DecisionMetrics(decided, of_decision)
        unlabelled = sum(
            _read(*parts, settings.predictions, collector)
            for parts in zip(targets, rows, versions_of, groupings_of, strict=True)
        )
        count = sum(map(len, rows))
        if unlabelled == count:
            if any(map(_count_labels, targets)):
                hint = f"to measure the labelled rows of other splits, pass --split all; {hint}"
            of_split_name = "" if split == ALL else f"{split} "
            raise UnlabelledError(
                f"{path}: none of its {count} target {of_split_name}rows has a label: {hint}"
            )
        results = {version: entry.result() for version, entry in collector.metrics.items()}
        metrics = {version.name: entry for version, entry in results.items() if not version.earlier}
        return Evaluation(
            split=split,
            labelled=sum(map(_count_labels, targets)),
            total=sum(target.count(*SPLITS) for target in targets),
            predictions=settings.predictions,
            unlabelled=unlabelled,
            left_out=sum(map(len, left_out)),
            metrics=metrics,
            scalings={name: versions[Version(name)].scaling for name in metrics},
            inputs=(*measured, *of_calibrations),
            classes={
                name: _with_intervals(entry.by_class, file.classes, settings, ("accuracy",))
                for name, entry in metrics.items()
                if entry.by_class is not None
            },
            by=settings.by,
            groups=collector.groups_by(settings.by, settings),
            counts={
                by: {
                    name: {
                        group: counts.bins_of(number)
                        for number, group in enumerate(groupings[by].names)
                    }
                    for name, (counts, _) in entry.items()
                }
                for by, entry in collector.groups.items()
            },
            resamples=settings.resamples,
            level=settings.level,
            seed=settings.seed,
            intervals={
                name: intervals(entry, settings.resampling)
                for name, entry in metrics.items()
                if settings.resamples
            },
            differences=collector.differences(results, settings),
            pairs={
                (after.name, before.name): paired
                for (after, before), paired in collector.pairs.items()
                if not before.earlier
            },
            since={
                after.name: Since(results[before], paired, results[after])
                for (after, before), paired in collector.pairs.items()
                if before.earlier
            },
            decision=collector.decision,
            model=file.model["name"],
            notes=(
                *([_EARLIER_ROWS] if split != "test" and not is_unread else []),
                *repeats,
                *_notes_on_fitted(targets, calibrations, files),
                *_notes_on_left_out(targets, left_out, calibrations),
                *(_notes_on_selection(targets, rows, settings.seed) if unlabelled else ()),
            ),
        )


def _is_unread(files: Sequence[FeatureFile], results: Iterable[Calibration | Decision]) -> bool:
    made_from = {entry.sha256 for result in results for entry in result.inputs}
    return all(
        file.source is None and MARKED not in file.handle and file.sha256() not in made_from
        for file in files
    )


def _require_one_classifier(files: Sequence[FeatureFile]) -> None:
    first, *others = files
    digests = {first.sha256(): first.path}
    for file in others:
        earlier_path = digests.setdefault(file.sha256(), file.path)
        if earlier_path is not file.path:
            raise CovcalError(
                f"{file.path} holds the same rows as {earlier_path}: give only one of them"
            )
        if list(file.classes) != list(first.classes) or (
            file.model["sha256"] != first.model["sha256"]
        ):
            raise CovcalError(
                f"{file.path} and {first.path} are of different classifiers: evaluate each file "
                "separately"
            )
        if file.has_one_confidence != first.has_one_confidence:
            raise CovcalError(
                f"only one of {first.path} and {file.path} has the probabilities of all classes: "
                "evaluate each file separately"
            )


def _versions(
    file: FeatureFile,
    calibrations: Mapping[str, Calibration],
    networks: Path | None,
    earlier: Mapping[str, Scaling],
    settings: EvaluateSettings,
) -> dict[Version, ScaledLogits]:
    fitted = scaled_logits(
        file, calibrations, networks, allow_other_preprocessing=settings.allow_other_preprocessing
    )
    versions = {Version(NONE): ScaledLogits(UNSCALED)}
    versions |= {Version(name): scaled for name, scaled in fitted.items()}
    if settings.resamples:
        versions |= {
            Version(name, earlier=True): ScaledLogits(scaling)
            for name, scaling in earlier.items()
            if Version(name) in versions and (file.is_adapted or not scaling.reads_aligned)
        }
    return versions


_EARLIER_ROWS = (
    "covcal has already used the target's training and validation rows. On later rows, the "
    "metrics may be a little worse"
)


def _label_free_hint(path: Path, documents: Sequence[Path], *, has_source: bool) -> str:
    if not has_source:
        return "extract the target together with the source, and run covcal estimate"
    options = "".join(f" -c {document}" for document in documents or ("cal.json",))
    return f"to estimate the accuracy without labels, run covcal estimate {as_word(path)}{options}"


class _Collector:
    def __init__(
        self,
        versions: Collection[Version],
        settings: EvaluateSettings,
        n_classes: int,
        groupings: Mapping[str, "_Grouping"],
        *,
        has_all_classes: bool,
    ) -> None:
        names = measurable(settings.metrics, has_all_classes=has_all_classes)
        self._names = {by: grouping.names for by, grouping in groupings.items()}
        self._ranks = "correctness_auroc" in names
        self._same_labels = settings.predictions == "original"
        self.metrics = {
            version: MetricsAccumulator(
                settings.bins,
                n_classes,
                names=names,
                keep_losses=settings.resamples > 0,
                return_losses=len(versions) > 1,
                has_all_classes=has_all_classes,
            )
            for version in versions
        }
        self.decision: DecisionMetrics | None = None
        classes = n_classes if self._same_labels else 1
        compared = names if settings.resamples else [name for name in names if name in MAIN]
        self.pairs = {
            pair: PairedRows(settings.bins, classes, compared) for pair in _pairs(versions)
        }
        self.groups = {
            by: {
                version.name: (
                    GroupBins(settings.bins, len(grouping.names)),
                    GroupCollector(len(grouping.names)),
                )
                for version in versions
                if not version.earlier
            }
            for by, grouping in groupings.items()
        }

    def add(
        self,
        version: Version,
        forecast: Softmax,
        labelled: LabelledRows,
        rows: Rows,
        groupings: Mapping[str, "_Grouping"],
    ) -> ConfidenceBlock:
        block = self.metrics[version].add(forecast, labelled)
        for by, grouping in groupings.items():
            if not version.earlier:
                numbers = grouping.numbers(rows, labelled.labels, labelled.predictions)
                counts, ranks = self.groups[by][version.name]
                counts.add(block, numbers)
                if self._ranks:
                    ranks.add(block.confidence, block.correct, numbers)
        return block

    def add_pairs(self, blocks: Mapping[Version, ConfidenceBlock], predicted: Labels) -> None:
        for (after, before), paired in self.pairs.items():
            paired.add(blocks[before], blocks[after], predicted if self._same_labels else None)

    def groups_by(
        self, by: str | None, settings: EvaluateSettings
    ) -> dict[str, tuple[GroupMetrics, ...]]:
        if by is None:
            return {}
        metrics = {}
        for name, (counts, ranks) in self.groups[by].items():
            groups = _with_intervals(counts, self._names[by], settings)
            if self._ranks:
                aurocs = (areas(rows).auroc if len(rows) else None for rows in ranks.ranked())
                groups = tuple(
                    group if auroc is None else replace(group, correctness_auroc=auroc.value)
                    for group, auroc in zip(groups, aurocs, strict=True)
                )
            metrics[name] = groups
        return metrics

    def differences(
        self, results: Mapping[Version, Metrics], settings: EvaluateSettings
    ) -> tuple[Difference, ...]:
        if not settings.resamples:
            return ()
        return tuple(
            difference
            for (after, before), paired in self.pairs.items()
            if not before.earlier
            for difference in paired.differences(
                after.name,
                before.name,
                settings.resampling,
                (auroc_of(results[before]), auroc_of(results[after])),
            )
        )


def _pairs(versions: Iterable[Version]) -> Iterator[tuple[Version, Version]]:
    every = list(versions)
    now = [version for version in every if not version.earlier]
    for place, version in enumerate(now):
        yield from ((version, reference) for reference in now[: min(place, 2)])
        if version._replace(earlier=True) in every:
            yield version, version._replace(earlier=True)


def _rows_of_split(targets: Sequence[Domain], split: str, hint: str) -> list[Rows]:
    rows = [target.rows(split) for target in targets]
    if any(map(len, rows)):
        return rows
    target = next(filter(_count_labels, targets), targets[0])
    if _count_labels(target):
        raise TooFewRowsError(
            f"{target.path} has no target {split} rows ({target.counts()}): pass --split all, or "
            "extract again with other --fractions"
        )
    raise UnlabelledError(f"{target.path} has no target {split} rows and no target labels: {hint}")


def _measured_once(targets: Sequence[Domain], rows: Sequence[Rows]) -> tuple[list[Rows], list[str]]:
    """Leave out labelled rows that also occur in an earlier file, and return a note per file.

    Rows with equal ids and equal logits count as the same row. If ids are row numbers, the logits
    must also be unique in the file.
    """
    measured, notes = list(rows), list[str]()
    earlier: dict[tuple[bytes, int], Path] = {}
    for number, target in enumerate(targets if len(targets) > 1 else ()):
        of_file = rows[number]
        of_file = of_file[target_labels(target, of_file) != UNKNOWN_LABEL]
        ids, hashes = target.id_bytes(of_file).tolist(), target.hashes(of_file)
        proves = np.ones(len(of_file), dtype=np.bool_)
        if all(row_id.isdigit() for row_id in ids):
            _, place, counts = np.unique(hashes, return_inverse=True, return_counts=True)
            proves = counts[place] == 1
        keys = list(zip(ids, hashes.tolist(), strict=True))
        repeated = proves & np.array([key in earlier for key in keys], dtype=np.bool_)
        if repeated.any():
            measured[number] = np.setdiff1d(rows[number], of_file[repeated])
            other = earlier[keys[int(repeated.argmax())]]
            notes.append(
                f"{target.path} and {other} have {int(repeated.sum())} labelled rows in common: "
                "these rows are measured once"
            )
        earlier |= dict.fromkeys(keys, target.path)
    return measured, notes


def _count_labels(target: Domain) -> int:
    blocks = target.split_blocks(*SPLITS)
    return sum(int((target_labels(target, block) >= 0).sum()) for block in blocks)


def _read(
    target: Domain,
    rows: Rows,
    versions: Mapping[Version, ScaledLogits],
    groupings: Mapping[str, "_Grouping"],
    predictions: Predictions,
    collector: _Collector,
) -> int:
    unlabelled = 0
    size = max(256, _CACHED_VALUES // target.n_classes)
    for block in target.blocks(
        rows, *{name for scaled in versions.values() for name in scaled.reads}
    ):
        labels = target_labels(target, block)
        has_label = labels >= 0
        if not has_label.all():
            unlabelled += int((~has_label).sum())
            block, labels = block[has_label], labels[has_label]
        logits: dict[str, Floats] = {}
        for scaled in versions.values():
            for key, forecaster in scaled.keys.items():
                if key not in logits:
                    logits[key] = forecaster_logits(target, block, forecaster, scaled.networks)
        for start in range(0, len(block), size):
            part = slice(start, start + size)
            parts = {key: class_major(values[part]) for key, values in logits.items()}
            top = top_class(parts["original"])
            labelled = LabelledRows(top, labels[part], parts["original"])
            counted: dict[Version, ConfidenceBlock] = {}
            for version, scaled in versions.items():
                forecast = scaled.scaling.forecast([parts[key] for key in scaled.keys])
                if predictions == "own":
                    own = top_class(forecast.logits)
                    labelled = LabelledRows(own, labels[part], forecast.logits)
                decision = collector.decision
                if decision is not None and version == Version(decision.calibration):
                    decision.add(forecast, top, labels[part], target, block[part])
                counted[version] = collector.add(
                    version, forecast, labelled, block[part], groupings
                )
            collector.add_pairs(counted, top)
    return unlabelled


def _without_fitted(
    targets: Sequence[Domain], rows: Sequence[Rows], calibrations: Mapping[str, Calibration]
) -> tuple[list[Rows], list[Rows]]:
    fits = [fit for entry in calibrations.values() if (fit := entry.labelled_rows) is not None]
    if not fits:
        return list(rows), [part[:0] for part in rows]
    unused = [
        ~np.any([rows_of_fit(target, part, fit) for fit in fits], axis=0)
        for target, part in zip(targets, rows, strict=True)
    ]
    if not any(inside.any() for inside in unused):
        raise CovcalError(
            f"{targets[0].path}: a calibration was fitted to every row of this split: use "
            "fewer --labels, or another --split"
        )
    pairs = list(zip(rows, unused, strict=True))
    return [part[inside] for part, inside in pairs], [part[~inside] for part, inside in pairs]


def _notes_on_fitted(
    targets: Sequence[Domain], calibrations: Mapping[str, Calibration], documents: Sequence[Path]
) -> list[str]:
    """Return a note for each calibration that was fitted to rows outside the files."""
    notes = []
    for number, (name, calibration) in enumerate(calibrations.items()):
        if calibration.labelled_rows is None:
            continue
        fit = calibration.labelled_rows
        if not any(rows_of_fit(target, target.rows(ALL), fit).any() for target in targets):
            document = documents[number] if number < len(documents) else name
            notes.append(
                f"{document} was fitted to {fit.n} labelled rows, but {targets[0].path} has none "
                "of these rows. If the ids and logits of these rows were changed, covcal cannot "
                "leave the rows out, and the calibration looks better than it is"
            )
    return notes


def _notes_on_left_out(
    targets: Sequence[Domain], left_out: Sequence[Rows], calibrations: Mapping[str, Calibration]
) -> list[str]:
    picked = [
        fit
        for entry in calibrations.values()
        if (fit := entry.labelled_rows) is not None and fit.design == "marked"
    ]
    if not any(
        rows_of_fit(target, rows, fit).any()
        for target, rows in zip(targets, left_out, strict=True)
        for fit in picked
    ):
        return []
    return [
        "the picked rows had low confidence and are left out, so the classifier looks better "
        "than it is: use a split without picked rows"
    ]


def _notes_on_selection(
    targets: Sequence[Domain], rows: Sequence[Rows], seed: int
) -> Iterator[str]:
    for target, of_file in zip(targets, rows, strict=True):
        some = thinned(of_file, _MOST_COMPARED, seed)
        scores = confidences(target.logits(some), 1.0)
        if how := tell_selection(scores[target_labels(target, some) >= 0], scores):
            yield (
                f"the labelled rows are not a random sample of all rows, because {how}. To "
                "measure all rows, draw rows with covcal pick, and label these rows"
            )


@dataclass(frozen=True)
class _Grouping:
    names: Sequence[str]
    # Maps row numbers, true labels and predicted labels to group numbers, all (m,).
    numbers: Callable[[Rows, Labels, Labels], Integers]


def _groupings(
    targets: Sequence[Domain], asked: Sequence[str], rows: Sequence[Rows], classes: Sequence[str]
) -> list[dict[str, _Grouping]]:
    groupings: list[dict[str, _Grouping]] = [{} for _ in targets]
    for by in asked:
        groups = []
        if by not in (BY_CLASS, BY_PREDICTED):
            groups = joined_groups(targets, by, rows, (BY_CLASS, BY_PREDICTED))
        for number, of_file in enumerate(groupings):
            of_file[by] = _grouping(by, classes, groups[number] if groups else None)
    return groupings


def _grouping(by: str, classes: Sequence[str], groups: ColumnGroups | None) -> _Grouping:
    if groups is not None:
        return _Grouping(groups.names, lambda block, _labels, _predicted: groups.numbers(block))
    if by == BY_CLASS:
        return _Grouping(classes, lambda _rows, labels, _predicted: labels)
    return _Grouping(classes, lambda _rows, _labels, predicted: predicted)


def _with_intervals(
    counts: GroupBins,
    names: Sequence[str],
    settings: EvaluateSettings,
    metrics: Sequence[str] = GROUP_METRICS,
) -> tuple[GroupMetrics, ...]:
    groups = counts.result(names)
    if not settings.resamples:
        return groups
    resampling = settings.resampling.of_groups(len(groups))
    return tuple(
        replace(
            group,
            intervals={
                metric: group_interval(metric, counts.bins_of(number), resampling)
                for metric in metrics
                if group.n
            },
        )
        for number, group in enumerate(groups)
    )
