"""Measure a period: how its rows differ from the rows of the calibration."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Rows
from covcal_cli.errors import CovcalError, TooFewRowsError
from covcal_cli.estimators.inputs import (
    MAX_VALUES,
)
from covcal_cli.files import as_word, sha256_of
from covcal_cli.forecast.forecaster import ScaledLogits, scaled_logits
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import Domain, FeatureFile, thinned
from covcal_cli.formats.lineage import is_unchanged
from covcal_cli.maths.odds import confidences
from covcal_cli.records import write_document
from covcal_cli.watch.accuracy import SourceRows, source_rows
from covcal_cli.watch.labels import picked_labels
from covcal_cli.watch.period import Cut, Every, Measured, cuts
from covcal_cli.watch.reference import (
    CONFIDENCE,
    DENSITY_RATIO,
    Moments,
    Reference,
    read_reference,
    reference_path,
)
from covcal_cli.watch.sketches import (
    calibrated_confidence,
    margins,
    moments,
    most_points,
    points,
    reference_of,
    shares,
    squared_distance,
)

# The most rows of a period that are read. Their sampling noise is far below that of a calibration's
# own rows.
_MOST_ROWS = 20_000
_LEAST_ROWS = 2  # fewer rows have no useful moments


@dataclass(frozen=True)
class Standard:
    """A calibration with everything that periods are compared with."""

    calibration: Calibration
    document: Path
    sha256: str  # hash of the calibration's file
    reference: Reference
    source: SourceRows
    networks: Path | None
    allow_other_preprocessing: bool
    notes: tuple[str, ...] = ()


def standard_of(
    calibration: Calibration,
    document: Path,
    networks: Path | None,
    *,
    named: Sequence[Path],
    allow_other_preprocessing: bool,
    wrote: Callable[[Path], None],
) -> Standard:
    """Return a calibration with its reference data; make them if they do not exist yet.

    The file that the calibration was fitted on is opened only if it is in the calibration's folder,
    or if the user `named` it. If the reference data cannot be written, only this watch uses them,
    and a note says so. `wrote` is called with their file once it is written.

    Raises
    ------
    CovcalError
        If there are no reference data, and they cannot be made.
    """
    fitted, *others = calibration.inputs
    if fitted.is_outside and any(_is_same(fitted.path, path) for path in named):
        inputs = replace(fitted, is_outside=False), *others
        calibration = replace(calibration, inputs=inputs)
    sha256, path, notes = sha256_of(document), reference_path(document), []
    reference = read_reference(document, calibration, sha256) if path.exists() else None
    if reference is None:
        reference = make_reference(calibration, document, sha256)
        try:
            write_document(reference, path, force=True)
            wrote(path)
        except (CovcalError, OSError) as error:
            notes.append(f"the reference data are used for this watch only: {error}")
    return Standard(
        calibration,
        document,
        sha256,
        reference,
        source_rows(calibration, reference),
        networks,
        allow_other_preprocessing,
        tuple(notes),
    )


def _is_same(first: Path, second: Path) -> bool:
    return first.is_file() and second.is_file() and first.samefile(second)


def make_reference(calibration: Calibration, document: Path, sha256: str) -> Reference:
    """Make the reference data of a calibration from the file that it was fitted on.

    Raises
    ------
    CovcalError
        If that file is gone or has changed.
    TooFewRowsError
        If it has too few labelled source validation rows.
    """
    fitted = calibration.inputs[0]
    if not is_unchanged(fitted):
        state, remedy = "is gone", "put one of the two files back, or calibrate again"
        if fitted.is_outside:
            words = f"covcal watch {as_word(fitted.path)} -c {as_word(document)}"
            state, remedy = "is outside its folder", f"run {words} once"
        elif fitted.path.exists():
            state = "has changed"
        raise CovcalError(
            f"{document} has no reference data for watch: {reference_path(document).name} of this "
            f"calibration is not beside it, and {fitted.path}, from which watch makes it, {state}: "
            f"{remedy}"
        )
    with FeatureFile(fitted.path) as file:
        scaled = ScaledLogits(calibration.scaling)
        reference = reference_of(file, scaled, calibration.seed, sha256)
    if reference is None:
        raise TooFewRowsError(
            f"{fitted.path} has fewer than 2 labelled source validation rows, too few for the "
            "reference data of watch: extract with more labelled source rows, and calibrate again"
        )
    return reference


def measured(
    path: Path, name: str, standard: Standard, *, by: str | None, every: Every
) -> Iterator[Measured]:
    """Yield the numbers of each period of a file.

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
        labels = picked_labels(file, standard.calibration.seed)
        for cut in cuts(target, name, by, every):
            yield replace(
                _of_period(path, digest, target, cut, scaled, standard),
                labels=None if labels is None else labels.of(cut.rows),
            )


def _of_period(
    path: Path, digest: str, target: Domain, cut: Cut, scaled: ScaledLogits, standard: Standard
) -> Measured:
    reference, seed = standard.reference, standard.calibration.seed
    rows = thinned(cut.rows, min(_MOST_ROWS, MAX_VALUES // target.n_classes), seed)
    logits = target.logits(rows)
    confidence = calibrated_confidence(target, rows, scaled)
    some = thinned(np.arange(len(rows)), most_points(target, reference.coordinates.of), seed)
    compared = _compared(target, rows[some], reference)
    own_moments = None if compared is None else moments(compared)
    auc_source, auc_target, effective = distances(reference, own_moments)
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
        labels=None,
        auc_target=auc_target,
        auc_source=auc_source,
        effective_rows=effective,
        signals=dict(signals_of(reference, logits[some], confidence[some], compared)),
        signal_rows=len(some),
    )


def _compared(target: Domain, rows: Rows, reference: Reference) -> Float64s | None:
    """Return the rows' coordinates, shape (m, p); None if the file does not have the features."""
    coordinates = reference.coordinates
    if coordinates.of == "features" and target.n_features != len(coordinates.axes.mean.values):
        return None
    return coordinates.axes.located(points(target, rows, coordinates.of))


def distances(
    reference: Reference, found: Moments | None
) -> tuple[float | None, float | None, float | None]:
    """Return the domain AUC of a period against source and target, and the source's effective rows.

    For two normal domains with equal covariance and squared Mahalanobis distance d2, the best AUC
    is Phi(sqrt(d2 / 2)), and importance weights leave a share exp(-d2) of effective rows.
    """
    if found is None or found.rows < _LEAST_ROWS:
        return None, None, None
    of_source = squared_distance(reference.coordinates.source, found)
    target = reference.coordinates.target
    of_target = None if target is None else _auc(squared_distance(target, found))
    rows = reference.source.right + reference.source.wrong
    return _auc(of_source), of_target, rows * math.exp(-of_source)


def _auc(squared: float) -> float:
    return 0.5 * (1 + math.erf(math.sqrt(squared) / 2))


def signals_of(
    reference: Reference, logits: Floats, confidence: Float64s, compared: Float64s | None
) -> Iterator[tuple[str, float]]:
    """Yield the position of the rows among the reference rows, signal by signal.

    Parameters
    ----------
    reference : Reference
        The reference data of the calibration.
    logits : ndarray of shape (n, K)
        The classifier's.
    confidence : ndarray of shape (n,)
        Calibrated confidence in the classifier's labels.
    compared : ndarray of shape (n, p), optional
        Coordinates of the rows, if they have any.
    """
    density = reference.coordinates.density
    values = {CONFIDENCE: confidence}
    if density is not None and compared is not None:
        values[DENSITY_RATIO] = compared @ density.values
    classes = [one for one in reference.signals if one.class_number is not None]
    of_classes = margins(logits, [int(one.class_number or 0) for one in classes])
    values |= {one.name: row for one, row in zip(classes, of_classes, strict=True)}
    for one in reference.signals:
        if one.axis is not None and compared is not None:
            values[one.name] = compared[:, one.axis]
        if one.name in values:
            yield one.name, float(one.ranks(values[one.name]).mean()) - one.mean
