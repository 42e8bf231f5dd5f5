"""A period's numbers: what its rows are like beside those of the calibration."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.inputs import MAX_VALUES, confidences
from covcal_cli.estimators.sketches import (
    CONFIDENCE,
    DENSITY_RATIO,
    calibrated_confidence,
    margins,
    moments,
    most_points,
    points,
    shares,
    squared_distance,
)
from covcal_cli.files import sha256_of
from covcal_cli.forecast.forecaster import ScaledLogits, scaled_logits
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import Domain, FeatureFile, thinned
from covcal_cli.formats.reference import Moments, Reference
from covcal_cli.watch.accuracy import SourceRows, source_rows
from covcal_cli.watch.cuts import Cut, Every, cuts
from covcal_cli.watch.labels import accuracy_by_labels
from covcal_cli.watch.period import Measured

# Of a period that are read: their sampling is far below that of any calibration's own rows.
_MOST_ROWS = 20_000
_LEAST_ROWS = 2  # whose moments say something


@dataclass(frozen=True)
class Standard:
    """What periods are held against."""

    calibration: Calibration
    document: Path
    reference: Reference
    source: SourceRows
    networks: Path | None
    allow_other_preprocessing: bool


def standard_of(
    calibration: Calibration,
    document: Path,
    networks: Path | None,
    *,
    allow_other_preprocessing: bool,
) -> Standard:
    """Return what a calibration keeps to hold periods against.

    Raises
    ------
    CovcalError
        If it keeps nothing.
    """
    reference = calibration.reference
    if reference is None:
        raise CovcalError(
            f"{document} keeps nothing to hold other rows against (of few rows, or an earlier "
            "covcal): calibrate again"
        )
    source = source_rows(calibration, reference)
    return Standard(calibration, document, reference, source, networks, allow_other_preprocessing)


def measured(
    path: Path, name: str, standard: Standard, *, by: str | None, every: Every, false_alarms: float
) -> Iterator[Measured]:
    """Yield the numbers of each period of a file.

    Labels that were marked count where the file is one period, as they were drawn from all of it;
    `false_alarms` is how often the interval that they give may miss.

    Raises
    ------
    CovcalError
        If the file has no target, is of another classifier, or a column is no date.
    """
    with FeatureFile(path) as file:
        target = file.require_target()
        scaled = scaled_logits(
            file,
            {"": standard.calibration},
            [standard.document],
            standard.networks,
            allow_other_preprocessing=standard.allow_other_preprocessing,
        )[""]
        digest = sha256_of(path)
        known = None
        if by is None:
            known = accuracy_by_labels(file, scaled, false_alarms, standard.calibration.seed)
        for cut in cuts(target, name, by, every):
            yield replace(_of_period(path, digest, target, cut, scaled, standard), measured=known)


def _of_period(
    path: Path, digest: str, target: Domain, cut: Cut, scaled: ScaledLogits, standard: Standard
) -> Measured:
    reference, seed = standard.reference, standard.calibration.seed
    rows = thinned(cut.rows, min(_MOST_ROWS, MAX_VALUES // target.n_classes), seed)
    logits = target.logits(rows)
    confidence = calibrated_confidence(target, rows, scaled)
    some = thinned(np.arange(len(rows)), most_points(target, reference.coordinates.of), seed)
    compared = _compared(target, rows[some], reference)
    found = None if compared is None else moments(compared)
    auc_source, auc_target, effective = distances(reference, found)
    return Measured(
        period=cut.name,
        file=path,
        file_sha256=digest,
        rows=len(cut.rows),
        read=len(rows),
        confidence_before=float(confidences(logits, 1.0).mean()),
        confidence=float(confidence.mean()),
        predicted=tuple(shares(logits.argmax(axis=1), target.n_classes).tolist()),
        estimate=standard.source.estimate(logits),
        measured=None,
        auc_target=auc_target,
        auc_source=auc_source,
        effective_rows=effective,
        signals=dict(signals_of(reference, logits[some], confidence[some], compared)),
        signal_rows=len(some),
    )


def _compared(target: Domain, rows: Rows, reference: Reference) -> Float64s | None:
    """Return the rows' coordinates, shape (m, p); None where the file lacks such features."""
    kept = reference.coordinates
    if kept.of == "features" and target.n_features != len(kept.axes.mean.values):
        return None
    return kept.axes.located(points(target, rows, kept.of))


def distances(
    reference: Reference, found: Moments | None
) -> tuple[float | None, float | None, float | None]:
    """Return the domain AUC against source and target, and the source's effective rows.

    Of two normal domains that share their covariance, a squared Mahalanobis distance d2 apart, the
    best AUC is Phi(sqrt(d2 / 2)), and importance weights keep a share exp(-d2) of the rows.
    """
    if found is None or found.rows < _LEAST_ROWS:
        return None, None, None
    of_source = squared_distance(reference.coordinates.source, found)
    kept = reference.coordinates.target
    of_target = None if kept is None else _auc(squared_distance(kept, found))
    rows = reference.source.right + reference.source.wrong
    return _auc(of_source), of_target, rows * math.exp(-of_source)


def _auc(squared: float) -> float:
    return 0.5 * (1 + math.erf(math.sqrt(squared) / 2))


def signals_of(
    reference: Reference, logits: Floats, confidence: Float64s, compared: Float64s | None
) -> Iterator[tuple[str, float]]:
    """Yield where rows stand among the reference's, signal by signal.

    Parameters
    ----------
    reference : Reference
        What the calibration keeps.
    logits : ndarray of shape (n, K)
        The classifier's.
    confidence : ndarray of shape (n,)
        Calibrated, of the classifier's own labels.
    compared : ndarray of shape (n, p), optional
        Coordinates of the rows, where they have any.
    """
    density = reference.coordinates.density
    values = {CONFIDENCE: confidence}
    if density is not None and compared is not None:
        values[DENSITY_RATIO] = compared @ density.values
    classes = [one for one in reference.signals if one.class_number is not None]
    found = margins(logits, [int(one.class_number or 0) for one in classes])
    values |= {one.name: row for one, row in zip(classes, found, strict=True)}
    for one in reference.signals:
        if one.axis is not None and compared is not None:
            values[one.name] = compared[:, one.axis]
        if one.name in values:
            yield one.name, float(one.ranks(values[one.name]).mean()) - one.mean
