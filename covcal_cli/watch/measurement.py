"""Measure how the rows of a period differ from the rows of a calibration."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import AnyArray, Float64s, Floats, Rows
from covcal_cli.errors import CovcalError, TooFewRowsError, one_line
from covcal_cli.estimators.inputs import MAX_VALUES
from covcal_cli.estimators.metrics import COST, MetricEstimate, has_metrics, wanted_again
from covcal_cli.files import as_word
from covcal_cli.forecast import ScaledLogits, scaled_logits
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.decision import CurvePoint
from covcal_cli.formats.features import Domain, FeatureFile, hashes_of, thinned
from covcal_cli.formats.lineage import is_unchanged
from covcal_cli.labels.sheet import id_hashes
from covcal_cli.maths.odds import confidences
from covcal_cli.records import write_document
from covcal_cli.watch import sketches
from covcal_cli.watch.accuracy import SourceRows, source_rows
from covcal_cli.watch.calendar import Cut, cuts, rows_of
from covcal_cli.watch.columns import drifts
from covcal_cli.watch.labels import (
    FileLabels,
    LateLabels,
    added,
    joined_labels,
    own_labels,
    picked_labels,
    together,
)
from covcal_cli.watch.period import (
    HASH_BITS,
    SAMPLED,
    Accepted,
    Measured,
    PeriodAccuracy,
    RowSample,
    WatchedCalibration,
    WatchSettings,
)
from covcal_cli.watch.promise import WatchedDecision, accepted_in_period
from covcal_cli.watch.reference import (
    CONFIDENCE,
    DENSITY_RATIO,
    Moments,
    Reference,
    identity_of,
    read_reference,
    reference_path,
)
from covcal_cli.watch.segments import Segments, segments_by, segments_of

# Maximum number of rows to read from a period.
_MOST_ROWS = 20_000
_HASHED_IDS = 1 << 14  # Number of ids that are hashed at a time, to limit memory.
_LEAST_ROWS = 2  # Minimum number of rows for a covariance.


@dataclass(frozen=True)
class Standard:
    """A calibration, and the reference data with which periods are compared."""

    calibration: Calibration
    document: Path
    sha256: str  # The result of `identity_of` for the calibration.
    reference: Reference
    source: SourceRows
    settings: WatchSettings
    networks: Path | None = None
    notes: tuple[str, ...] = ()
    is_new: bool = False  # Whether the reference data still have to be saved.
    segments: Segments | None = None  # The segments for the option --segment.
    decision: WatchedDecision | None = None
    costs: Float64s | None = None  # (K, K), costs by true and predicted class.

    @property
    def used(self) -> WatchedCalibration:
        """The description of the calibration that is stored with periods."""
        return WatchedCalibration(self.document, self.sha256, self.calibration.method_used)


def standard_of(
    calibration: Calibration,
    document: Path,
    settings: WatchSettings,
    networks: Path | None = None,
    named: Sequence[Path] = (),
) -> Standard:
    """Return a calibration with its reference data, which are made if they are missing.

    For safety, a features file outside the calibration's folder must be one of the `named` files.

    Raises `CovcalError` if the reference data are missing and cannot be made.
    """
    fitted, *others = calibration.inputs
    if fitted.is_outside and any(_is_same(fitted.path, path) for path in named):
        inputs = replace(fitted, is_outside=False), *others
        calibration = replace(calibration, inputs=inputs)
    stored = read_reference(calibration) if reference_path(document).exists() else None
    reference = make_reference(calibration, document) if stored is None else stored
    source, segments = source_rows(calibration, reference), None
    notes: tuple[str, ...] = ()
    if (column := settings.segment) is not None:
        segments = segments_by(column, settings, calibration, reference)
        if not segments.sketches:
            notes = (
                "to show the drift of segments, covcal needs the unchanged file "
                f"{calibration.inputs[0].path} with the column {column}. Without this file, only "
                "labelled rows give verdicts on segments",
            )
    return Standard(
        calibration,
        document,
        identity_of(calibration),
        reference,
        source,
        settings,
        networks,
        notes,
        is_new=stored is None,
        segments=segments,
    )


def with_written_reference(standard: Standard, wrote: Callable[[Path], None]) -> Standard:
    """Save new reference data, and call `wrote` with the path. If saving fails, add a note."""
    if not standard.is_new:
        return standard
    path, notes = reference_path(standard.document), standard.notes
    try:
        write_document(standard.reference, path, force=True)
        wrote(path)
    except (CovcalError, OSError) as error:
        why = one_line(error)
        notes += (f"the reference data cannot be saved for later runs of watch: {why}",)
    return replace(standard, notes=notes, is_new=False)


def _is_same(first: Path, second: Path) -> bool:
    return first.is_file() and second.is_file() and first.samefile(second)


def make_reference(calibration: Calibration, document: Path) -> Reference:
    """Make the reference data of a calibration from its features file.

    Raises `CovcalError` if the file is missing or has changed. Raises `TooFewRowsError` if the
    features file has fewer than 2 labelled source validation rows.
    """
    fitted = calibration.inputs[0]
    if not is_unchanged(fitted):
        state, remedy = "is gone", f"put {fitted.path.name} back, or calibrate again"
        if fitted.is_outside:
            words = f"covcal watch {as_word(fitted.path)} -c {as_word(document)}"
            state, remedy = "is outside its folder", f"run {words} once"
        elif fitted.path.exists():
            state = "has changed"
        raise CovcalError(
            f"{document} has no reference data for watch ({reference_path(document).name}), "
            f"because {fitted.path} {state}: {remedy}"
        )
    with FeatureFile(fitted.path) as file:
        scaled = ScaledLogits(calibration.scaling)
        identity = identity_of(calibration)
        reference = sketches.reference_of(file, scaled, calibration.seed, identity)
    if reference is None:
        raise TooFewRowsError(
            f"{fitted.path} has fewer than 2 labelled source validation rows, which are too "
            "few for watch: extract more labelled source rows, and calibrate again"
        )
    return reference


@dataclass(frozen=True)
class Source:
    """A file to watch, and how it is divided into periods."""

    path: Path
    name: str  # The name of the period, if the file is a single period.
    by: str | None  # The column of dates that divides the file.
    every: str  # Length of a period.
    uses_labels: bool = False  # Whether labels in the file are used.

    @property
    def is_one_period(self) -> bool:
        """Whether the file is a single period."""
        return self.by is None and rows_of(self.every) is None


@dataclass(frozen=True)
class Measurement:
    """A measured period, compared with the period of the same name in the history."""

    entry: Measured
    state: Literal["new", "same", "grown", "other"]
    is_of_decision: bool = False  # Whether the decision was made on the file of this period.
    selection: str = ""  # How labelled rows differ from a random sample, in words.
    n_unused_labels: int = 0  # Number of target labels that only --target-labels would use.


def measurements(
    source: Source, standard: Standard, recorded: Mapping[str, Measured], late: LateLabels | None
) -> Iterator[Measurement]:
    """Measure and yield every period of a file.

    If the history already has the rows, only their labels are read. A period has "grown" if it has
    the rows of the history and additional rows after them.

    Raises `CovcalError` if the file has no target, belongs to another classifier, or has an invalid
    date.
    """
    with FeatureFile(source.path) as file:
        yield from measurements_of(file, source, standard, recorded, late)


def measurements_of(
    file: FeatureFile,
    source: Source,
    standard: Standard,
    recorded: Mapping[str, Measured],
    late: LateLabels | None = None,
) -> Iterator[Measurement]:
    """Measure and yield every period of an open file."""
    target = file.require_target()
    if standard.settings.metrics or standard.costs is not None:
        file.require_all_classes("--metrics" if standard.settings.metrics else "--cost")
    scaled = scaled_logits(
        file,
        {"": standard.calibration},
        standard.networks,
        allow_other_preprocessing=standard.settings.allow_other_preprocessing,
    )[""]
    parts = list(cuts(target, source.name, source.by, source.every))
    labels = _labels(file, parts, source, late, standard.calibration.seed)
    n_unused = target.n_labelled if labels is None and late is None else 0
    for cut in parts:
        before = recorded.get(cut.name)
        digest, row_sample = _digest(target, cut.rows)
        state: Literal["new", "same", "grown", "other"] = "new"
        if before is not None:
            is_known = digest in before.rows_sha256 or (
                # The same rows may be in another order.
                row_sample is not None
                and (before.rows, before.row_sample) == (len(cut.rows), row_sample)
            )
            state = "same" if is_known else "other"
            can_grow = not source.is_one_period and before.rows < len(cut.rows)
            if not is_known and can_grow:
                first, _ = _digest(target, cut.rows[: before.rows])
                state = "grown" if (first,) == before.rows_sha256 else "other"
        if before is not None and state == "same":
            entry = before
        else:
            entry = _of_period(source, digest, target, cut, scaled, standard)
            entry = replace(entry, row_sample=row_sample)
        if len(entry.rows_sha256) > 1:
            yield Measurement(entry, state, n_unused_labels=n_unused)
            continue
        of_rows = None if labels is None else labels.of(cut.rows)
        if of_rows is not None:
            entry = replace(entry, labels=of_rows)
        is_of_decision = False
        if standard.decision is not None:
            made_on = {entry.sha256 for entry in standard.decision.decision.inputs}
            is_of_decision = file.sha256() in made_on
            used = None if is_of_decision else labels
            entry = _with_accepted(entry, before, target, cut, scaled, standard, used)
        entry = _with_metrics(entry, target, cut, standard, labels if of_rows else None)
        if standard.segments is not None:
            verdicts = segments_of(
                standard.segments, target, cut.rows, scaled, labels, entry, standard.calibration
            )
            entry = replace(entry, segments=tuple(verdicts))
        selection = "" if labels is None else labels.selection(cut.rows)
        yield Measurement(entry, state, is_of_decision, selection, n_unused)


def _with_accepted(
    entry: Measured,
    before: Measured | None,
    target: Domain,
    cut: Cut,
    scaled: ScaledLogits,
    standard: Standard,
    labels: FileLabels | None,
) -> Measured:
    decision = standard.decision
    if decision is None:
        return entry
    recorded = entry.accepted
    is_recorded = recorded is not None and recorded.decision == decision.sha256
    is_recorded &= before is not None and entry.rows_sha256 == before.rows_sha256
    of_rows = None if labels is None else labels.of(cut.rows)
    if is_recorded and of_rows is None:
        return entry
    confidence = scaled.confidence(target, cut.rows)
    accepted = cut.rows[decision.decision.accepts(confidence, target, cut.rows)]
    # Count all labels again, because an earlier command may have used another decision.
    if recorded is not None and is_recorded and labels is not None:
        return replace(entry, accepted=replace(recorded, labels=labels.weighted(accepted)))
    sample = _sample(target, cut, standard.calibration.seed)
    measured = accepted_in_period(
        target, accepted, sample, scaled, decision, entry.estimate, labels
    )
    return replace(entry, accepted=measured)


def _with_metrics(
    entry: Measured, target: Domain, cut: Cut, standard: Standard, labels: FileLabels | None
) -> Measured:
    """Add metrics to a period, from `labels` or estimated without labels.

    Metrics in the history are kept, except the cost: costs.json may have changed.
    """
    classes, costs = standard.calibration.classes, standard.costs
    wanted = tuple(
        dict.fromkeys([*standard.settings.metrics, *wanted_again(entry.metrics, classes)])
    )
    recorded = [metric for metric in entry.metrics if costs is None or metric.metric != COST]
    metrics: Iterable[MetricEstimate]
    if labels is not None and (wanted or costs is not None):
        by_labels = labels.metrics(target, cut.rows, wanted, classes, costs)
        metrics = [*recorded, *by_labels]
    elif costs is None and has_metrics(recorded, wanted, classes):
        return entry
    else:
        logits = target.logits(_sample(target, cut, standard.calibration.seed))
        of_source = standard.source.metrics(
            logits, entry.estimate, standard.settings.metrics, classes, costs
        )
        metrics = [*of_source, *recorded]
    by_key = {(metric.metric, metric.class_name): metric for metric in metrics}
    return replace(entry, metrics=tuple(by_key.values()))


def _sample(target: Domain, cut: Cut, seed: int) -> Rows:
    return thinned(cut.rows, min(_MOST_ROWS, MAX_VALUES // target.n_classes), seed)


def _labels(
    file: FeatureFile, parts: Sequence[Cut], source: Source, late: LateLabels | None, seed: int
) -> FileLabels | None:
    own = own_labels(file, seed) if source.uses_labels else None
    if own is not None:
        return own
    joined = [late.of_rows(file, cut.name, cut.rows) for cut in parts] if late else []
    if not any(len(rows) for rows, _ in joined):
        return picked_labels(file, seed)
    rows = np.concatenate([rows for rows, _ in joined])
    labels = np.concatenate([labels for _, labels in joined])
    order = np.argsort(rows)
    return joined_labels(file, rows[order], labels[order], seed)


def _digest(target: Domain, rows: Rows) -> tuple[str, RowSample | None]:
    """Return a hash of ids and logits, and a sample of the rows.

    Rows are recognised by id and logits, or by logits alone if ids are row numbers. The sample is
    None if several sampled rows are equal.
    """
    digest, total = hashlib.sha256(), 0
    smallest: AnyArray = np.zeros(0, dtype=np.uint64)
    counts: AnyArray = np.zeros(0)
    for block in target.blocks(rows, "logits"):
        ids, logits = target.id_bytes(block), target.logits(block).astype("<f4")
        for start in range(0, len(ids), _HASHED_IDS):
            digest.update(_joined_ids(ids[start : start + _HASHED_IDS]))
        digest.update(logits.tobytes())
        of_ids = np.where(np.char.isdigit(ids), np.uint64(0), id_hashes(ids))
        hashes = (hashes_of(logits.view("<u4")) + of_ids) >> np.uint64(64 - HASH_BITS)
        total += int(hashes.sum(dtype=np.uint64))
        smallest, places = np.unique(np.append(smallest, hashes), return_inverse=True)
        counts = np.bincount(places, np.append(counts, np.ones(len(hashes))))[:SAMPLED]
        smallest = smallest[:SAMPLED]
    if not len(smallest) or counts.sum() > len(counts) + 1:
        return digest.hexdigest(), None
    return digest.hexdigest(), RowSample(total % (1 << HASH_BITS), tuple(smallest.tolist()))


def _joined_ids(ids: NDArray[np.bytes_]) -> bytes:
    width = ids.dtype.itemsize
    cells = np.zeros((len(ids), width + 1), dtype=np.uint8)
    cells[:, :width] = np.ascontiguousarray(ids).view(np.uint8).reshape(-1, width)
    is_used = cells != 0
    is_used[:, width] = True
    joined: bytes = cells[is_used].tobytes()
    return joined


def _of_period(
    source: Source, digest: str, target: Domain, cut: Cut, scaled: ScaledLogits, standard: Standard
) -> Measured:
    reference, seed = standard.reference, standard.calibration.seed
    rows = _sample(target, cut, seed)
    logits = target.logits(rows)
    confidence = scaled.confidence(target, rows)
    some = thinned(
        np.arange(len(rows)), sketches.most_points(target, reference.coordinates.of), seed
    )
    compared = _compared(target, rows[some], reference) if len(rows) else None
    own_moments = None if compared is None else sketches.moments(compared)
    auc_source, auc_target, effective = distances(reference, own_moments)
    signals = []
    if len(rows):
        signals = list(signals_of(reference, logits[some], confidence[some], compared))
    return Measured(
        period=cut.name,
        file=source.path,
        by=source.by,
        every=source.every,
        rows_sha256=(digest,),
        rows=len(cut.rows),
        read=len(rows),
        confidence_before=_mean(confidences(logits, 1.0)),
        confidence=_mean(confidence),
        predicted=tuple(sketches.shares(logits.argmax(axis=1), target.n_classes).tolist()),
        estimate=standard.source.estimate(logits),
        labels=None,
        auc_target=auc_target,
        auc_source=auc_source,
        effective_rows=effective,
        signals={name: mean for name, mean, _ in signals},
        variances={name: variance for name, _, variance in signals},
        signal_rows=len(some),
        columns=drifts(reference.columns, target, rows),
    )


def _mean(shares_of_rows: Float64s) -> float:
    return float(shares_of_rows.mean()) if len(shares_of_rows) else 0.0


def joined(first: Measured, second: Measured) -> Measured:
    """Join two parts of a period. Values are averaged, weighted by the number of rows."""
    rows = np.array([first.rows, second.rows], dtype=np.float64)

    def mean(*values: float, weights: Float64s = rows) -> float:
        return float(np.average(values, weights=weights))

    def mean_if_both(name: str) -> float | None:
        values = getattr(first, name), getattr(second, name)
        return None if None in values else mean(*values)

    def by_signal(name: str) -> dict[str, float]:
        before, now = getattr(first, name), getattr(second, name)
        signals = [signal for signal in before if signal in now]
        return {key: mean(before[key], now[key], weights=signal_rows) for key in signals}

    estimates = [part.estimate for part in (first, second) if part.estimate is not None]
    sizes = np.array([part.rows for part in (first, second) if part.estimate is not None])
    estimate = None
    if estimates:
        accuracy, low, high = (
            float(np.average([getattr(estimated, name) for estimated in estimates], weights=sizes))
            for name in ("accuracy", "low", "high")
        )
        is_contradicted = any(estimated.contradicted for estimated in estimates)
        estimate = PeriodAccuracy(accuracy, low, high, estimates[0].of, is_contradicted)
    signal_rows = np.array([first.signal_rows, second.signal_rows], dtype=np.float64)
    return replace(
        second,
        rows_sha256=(*first.rows_sha256, *second.rows_sha256),
        rows=first.rows + second.rows,
        read=first.read + second.read,
        confidence_before=mean(first.confidence_before, second.confidence_before),
        confidence=mean(first.confidence, second.confidence),
        predicted=tuple(map(mean, first.predicted, second.predicted)),
        estimate=estimate,
        labels=together([(first.rows, first.labels), (second.rows, second.labels)]),
        auc_target=mean_if_both("auc_target"),
        auc_source=mean_if_both("auc_source"),
        effective_rows=mean_if_both("effective_rows"),
        signals=by_signal("signals"),
        variances=by_signal("variances"),
        signal_rows=first.signal_rows + second.signal_rows,
        # The drift, metrics and segments of two files cannot be combined.
        columns=(),
        metrics=(),
        segments=(),
        row_sample=first.row_sample
        and second.row_sample
        and first.row_sample.joined(second.row_sample),
        accepted=_joined_accepted(first, second),
    )


def _joined_accepted(first: Measured, second: Measured) -> Accepted | None:
    parts = first.accepted, second.accepted
    if parts[0] is None or parts[1] is None or parts[0].decision != parts[1].decision:
        return None
    points, sizes = (parts[0].expected, parts[1].expected), (parts[0].rows, parts[1].rows)
    expected = points[1] or points[0]
    if points[0] is not None and points[1] is not None:

        def mean(name: str, weights: tuple[int, int] = sizes) -> float:
            return float(np.average([getattr(point, name) for point in points], weights=weights))

        share, error = mean("share", (first.rows, second.rows)), mean("error")
        expected = CurvePoint(share, error, min(mean("low"), error), max(mean("high"), error))
    labels = added(parts[0].labels, parts[1].labels)
    return replace(parts[1], rows=sum(sizes), expected=expected, labels=labels)


def _compared(target: Domain, rows: Rows, reference: Reference) -> Float64s | None:
    coordinates = reference.coordinates
    if coordinates.of == "features" and target.n_features != len(coordinates.axes.mean.values):
        return None
    return coordinates.axes.located(sketches.points(target, rows, coordinates.of))


def distances(
    reference: Reference, moments: Moments | None
) -> tuple[float | None, float | None, float | None]:
    """Return the AUCs of a period against target and source, and the effective source rows.

    The AUC measures how well a linear classifier separates the period from a domain. Period and
    domain are assumed to be normal with equal covariance and squared Mahalanobis distance d2. Then
    the AUC is Phi(sqrt(d2 / 2)). After importance weighting, the effective share of source rows is
    exp(-d2).
    """
    if moments is None or moments.rows < _LEAST_ROWS:
        return None, None, None
    of_source = sketches.squared_distance(reference.coordinates.source, moments)
    target = reference.coordinates.target
    of_target = None if target is None else _auc(sketches.squared_distance(target, moments))
    rows = reference.source.right + reference.source.wrong
    return _auc(of_source), of_target, rows * math.exp(-of_source)


def _auc(squared: float) -> float:
    return 0.5 * (1 + math.erf(math.sqrt(squared) / 2))


def signals_of(
    reference: Reference, logits: Floats, confidence: Float64s, compared: Float64s | None
) -> Iterator[tuple[str, float, float]]:
    """Yield the name, the difference of mean ranks and the variance of ranks for each signal.

    - `logits`, (n, K): the classifier's logits.
    - `confidence`, (n,): the calibrated confidence in the predicted classes.
    - `compared`, (n, p): the coordinates of the rows, or None.
    """
    density = reference.coordinates.density
    values = {CONFIDENCE: confidence}
    if density is not None and compared is not None:
        values[DENSITY_RATIO] = compared @ density.values
    classes = [signal for signal in reference.signals if signal.class_number is not None]
    of_classes = sketches.margins(logits, [int(signal.class_number or 0) for signal in classes])
    values |= {signal.name: row for signal, row in zip(classes, of_classes, strict=True)}
    for signal in reference.signals:
        if signal.axis is not None and compared is not None:
            values[signal.name] = compared[:, signal.axis]
        if signal.name in values:
            # Ranking is much faster for sorted values.
            ranks = signal.ranks(np.sort(values[signal.name]))
            yield signal.name, float(ranks.mean()) - signal.mean, float(ranks.var())
