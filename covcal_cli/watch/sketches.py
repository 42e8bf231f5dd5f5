"""Make the reference data of a calibration, and compute the signals of `covcal watch`.

A signal is one number per row, such as the confidence. The ranks of new rows and reference rows are
compared, as in the Mann-Whitney test.

Reference rows are the target's training and validation rows. For the density ratio and aligned
logits, only validation rows are used, because both were fitted to training rows. The source's
training rows are never used, because the classifier was trained on them.
"""

from collections.abc import Sequence

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels, Rows
from covcal_cli.estimators import clusters
from covcal_cli.estimators.inputs import ESTIMATED, MAX_ROWS
from covcal_cli.forecast import ScaledLogits
from covcal_cli.formats.features import Domain, FeatureFile, SourceDomain, thinned, thinned_places
from covcal_cli.maths.odds import top_log_odds
from covcal_cli.maths.softmax import masked
from covcal_cli.maths.temperature import MIN_ERRORS, fit_temperature
from covcal_cli.watch.columns import sketches_of
from covcal_cli.watch.reference import (
    CONFIDENCE,
    DENSITY_RATIO,
    Axes,
    ClassPlaces,
    Clusters,
    Coordinates,
    Moments,
    Packed,
    Reference,
    Signal,
    SourceSketch,
    Space,
    quantiles,
    ranks,
)

_LEAST_ROWS, _LEAST_CLASSES = 2, 2
_MOST_CLASSES_CLUSTERED = 100  # Clusters are stored for at most this many classes.
_MOST_CLASSES_PLACED = 50  # `ClassPlaces` are stored for at most this many classes.
_MOST_CLASSES = 10  # Maximum number of classes whose changes are tested.
_MOST_AXES, _MOST_NUMBERS = (
    16,
    20_000,
)  # Maximum number of axes, and maximum number of values in all axes.
_ROWS_PER_AXIS = 10
_RANK_RIDGE = 0.01  # Ridge on the diagonal of the correlation matrix.
_STEPS = 8  # Number of subspace iterations.
# At most 10 million numbers of a domain are compared, but at least 1000 rows.
_LEAST_POINTS, _MOST_VALUES = 1000, 10_000_000
_MOST_ROWS = 5000  # Maximum number of rows for computing the axes.
_CONSTANT = 1e-7  # Relative standard deviation below which a column counts as constant.
_RIDGE = 1e-3  # Ridge of the covariance, as a share of the mean variance.


def sketched_rows(file: FeatureFile, seed: int) -> tuple[SourceDomain, Rows] | None:
    """Return the source and its labelled validation rows; None if there are too few rows."""
    source = file.source
    if source is None or source.n_classes < _LEAST_CLASSES:
        return None
    rows = _drawn(source, "logits", seed, "validation")
    rows = rows[source.labels(rows) >= 0]
    return None if len(rows) < _LEAST_ROWS else (source, rows)


def reference_of(
    file: FeatureFile, scaled: ScaledLogits, seed: int, calibration_sha256: str
) -> Reference | None:
    """Make the reference data of a calibration from its features file.

    Return None if there are fewer than 2 labelled source validation rows. `scaled` computes the
    calibrated confidence. `seed` is for drawing samples of rows.
    """
    sketched = sketched_rows(file, seed)
    if sketched is None:
        return None
    source, rows = sketched
    labels = source.labels(rows)
    target = file.target
    has_target = target is not None and target.count("validation") >= _LEAST_ROWS
    baseline: Domain = target if target is not None and has_target else source
    logits = source.logits(rows)
    predictions = logits.argmax(axis=1)
    right = predictions == labels
    wrong = int((~right).sum())
    temperature = fit_temperature(
        logits, labels, allow_sharpening=wrong >= MIN_ERRORS, seed=seed
    ).temperature
    odds = top_log_odds(logits, temperature)
    coordinates = _coordinates(source, target if has_target else None, seed)
    signals, joint = _signals(file, baseline, scaled, coordinates, seed)
    return Reference(
        calibration_sha256=calibration_sha256,
        temperature=temperature,
        baseline="target" if has_target else "source",
        signals=signals,
        joint=joint,
        columns=sketches_of(baseline, _baseline_rows(baseline, coordinates.of, seed)),
        coordinates=coordinates,
        source=SourceSketch(
            right=int(right.sum()),
            wrong=wrong,
            right_odds=quantiles(odds[right]),
            wrong_odds=quantiles(odds[~right]),
            predicted=Packed.of(shares(predictions, source.n_classes)),
            clusters=None if file.has_one_confidence else _clusters(logits, labels),
            places=_places(logits),
        ),
    )


def _clusters(logits: Floats, labels: Labels) -> Clusters | None:
    n_classes = logits.shape[1]
    if n_classes > _MOST_CLASSES_CLUSTERED:
        return None
    drawn = thinned(np.arange(len(labels)), clusters.MOST_ROWS, 0)
    logits, labels = logits[drawn], labels[drawn]
    cloud = clusters.directions(logits)
    centres = clusters.class_centres(cloud, labels)
    frequencies = np.bincount(labels, minlength=n_classes) + 0.5
    fixed_shares = frequencies / frequencies.sum()
    free, fixed = clusters.strays(cloud, logits.argmax(axis=1), centres, fixed_shares)
    return Clusters(
        centres=Packed.of(centres.directions),
        classes=tuple(centres.classes.tolist()),
        shares=Packed.of(fixed_shares),
        strays=float(free.mean()),
        held_strays=float(fixed.mean()),
    )


def _places(logits: Floats) -> ClassPlaces | None:
    if not 2 < logits.shape[1] <= _MOST_CLASSES_PLACED:
        return None
    of = clusters.places(logits, clusters.LEAST_ROWS_OF_CLASS)
    numbers, counts = tuple(of.classes.tolist()), tuple(of.counts.tolist())
    return ClassPlaces(numbers, counts, Packed.of(of.means), Packed.of(of.spreads))


def _drawn(domain: Domain, of: Space, seed: int, *splits: str) -> Rows:
    return domain.drawn(min(MAX_ROWS, most_points(domain, of)), seed, *splits)


def _baseline_rows(domain: Domain, of: Space, seed: int) -> Rows:
    splits = ESTIMATED if domain.name == "target" else ("validation",)
    return _drawn(domain, of, seed, *splits)


def baseline_of(file: FeatureFile, reference: Reference, seed: int) -> tuple[Domain, Rows]:
    """Return the domain of the reference rows, and their row numbers in the features file."""
    domain = file.require_target() if reference.baseline == "target" else file.require_source()
    return domain, _baseline_rows(domain, reference.coordinates.of, seed)


def _signals(
    file: FeatureFile, baseline: Domain, scaled: ScaledLogits, coordinates: Coordinates, seed: int
) -> tuple[tuple[Signal, ...], Packed | None]:
    of = coordinates.of
    rows, unseen = _baseline_rows(baseline, of, seed), _drawn(baseline, of, seed, "validation")
    logits = baseline.logits(rows)
    confidence_rows = unseen if scaled.scaling.reads_aligned else rows
    signals = [signal(CONFIDENCE, scaled.confidence(baseline, confidence_rows))]
    if coordinates.density is not None:
        places = coordinates.axes.located(points(baseline, unseen, of))
        signals.append(signal(DENSITY_RATIO, places @ coordinates.density.values))
    classes = watched_classes(shares(logits.argmax(axis=1), len(file.classes)))
    for number, values in zip(classes, margins(logits, classes), strict=True):
        signals.append(signal(f"class {file.classes[number]}", values, class_number=number))
    axes, joint = axis_signals(coordinates.axes.located(points(baseline, rows, of)))
    return (*signals, *axes), joint


def _coordinates(source: Domain, target: Domain | None, seed: int) -> Coordinates:
    domains = [source] if target is None else [source, target]
    of: Space = "logits" if any(domain.n_features is None for domain in domains) else "features"
    clouds = [points(domain, _baseline_rows(domain, of, seed), of) for domain in domains]
    # Use equally many rows of both domains, so that both influence the axes.
    least = min(map(len, clouds))
    equal = [cloud[thinned_places(len(cloud), least, seed)] for cloud in clouds]
    axes = fit_axes(np.concatenate(equal), seed)
    both = [moments(axes.located(cloud)) for cloud in clouds]
    density = None
    if target is not None and target.count("train") >= _LEAST_ROWS:
        train = points(target, _drawn(target, of, seed, "train"), of)
        density = Packed.of(direction(moments(axes.located(train)), both[0]))
    return Coordinates(of, axes, both[0], both[1] if target is not None else None, density)


def watched_classes(predicted: Float64s) -> list[int]:
    """Return the classes that have signals: the most frequently predicted classes, ascending.

    If there are two classes, only one class has a signal, because both margins differ only in sign.
    """
    most = 1 if len(predicted) == 2 else _MOST_CLASSES
    return sorted(np.argsort(-predicted, kind="stable")[:most].tolist())


def margins(logits: Floats, classes: Sequence[int]) -> Float64s:
    """Return the margin of each class for each row, shape (len(classes), n).

    The margin of a class is its logit minus the highest other logit.
    """
    predictions = logits.argmax(axis=1)
    rows = np.arange(len(logits))
    top = logits[rows, predictions].astype(np.float64)
    rest = logits.copy()
    rest[rows, predictions] = -np.inf
    second = rest.max(axis=1).astype(np.float64)
    lowest = -float(np.finfo(np.float32).max)
    values = np.empty((len(classes), len(logits)))
    for place, number in enumerate(classes):
        others = np.where(predictions == number, second, top)
        values[place] = logits[:, number] - np.maximum(others, lowest)
    return values


def signal(
    name: str, values: Floats, *, class_number: int | None = None, axis: int | None = None
) -> Signal:
    """Return the reference distribution of a signal from its values (n,)."""
    sketch = quantiles(values)
    own_ranks = ranks(sketch.values, values)
    mean, variance = float(own_ranks.mean()), float(own_ranks.var())
    return Signal(name, len(values), sketch, mean, variance, class_number, axis)


def axis_signals(places: Float64s) -> tuple[list[Signal], Packed | None]:
    """Return a signal for each axis of the coordinates (n, p), and their whitening matrix."""
    most = min(places.shape[1], len(places) // _ROWS_PER_AXIS)
    sketches = (signal(f"axis {axis}", places[:, axis], axis=axis) for axis in range(most))
    signals = [sketch for sketch in sketches if sketch.variance > 0]
    if not signals:
        return [], None
    ranked = np.stack([sketch.ranks(places[:, int(sketch.axis or 0)]) for sketch in signals])
    correlations = np.atleast_2d(np.corrcoef(ranked)) + _RANK_RIDGE * np.eye(len(signals))
    return signals, Packed.of(np.linalg.inv(np.linalg.cholesky(correlations)))


def most_points(domain: Domain, of: Space) -> int:
    """Return the maximum number of rows with which domains are compared."""
    width = domain.n_features if of == "features" else domain.n_classes
    return max(_LEAST_POINTS, _MOST_VALUES // (width or 1))


def points(domain: Domain, rows: Rows, of: Space) -> Floats:
    """Return the features or the centred logits of rows, (n, d).

    A logit of -inf is replaced by the lowest finite logit of its row.
    """
    if of == "features":
        return domain.features(rows)
    logits = domain.logits(rows).astype(np.float64)
    out = masked(logits)
    if out.any():
        lowest = np.where(out, np.inf, logits).min(axis=1, keepdims=True)
        logits = np.where(out, lowest, logits)
    return np.asarray(logits - logits.mean(axis=1, keepdims=True))


def fit_axes(cloud: Floats, seed: int) -> Axes:
    """Compute the leading principal axes of standardised points (n, d) by subspace iteration."""
    mean, scale = cloud.mean(axis=0, dtype=np.float64), cloud.std(axis=0, dtype=np.float64)
    varies = (scale > _CONSTANT * np.abs(mean)) & (scale > np.finfo(np.float32).tiny)
    scale = np.where(varies, scale, np.maximum(1.0, np.abs(mean)))
    width = cloud.shape[1]
    count = max(1, min(_MOST_AXES, width, _MOST_NUMBERS // width - 2))
    drawn = cloud[thinned(np.arange(len(cloud)), _MOST_ROWS, seed)]
    standard = ((drawn - mean) / scale).astype(np.float32)
    basis = np.random.default_rng(seed).normal(size=(width, count)).astype(np.float32)
    for _ in range(_STEPS):
        basis = np.linalg.qr(standard.T @ (standard @ basis))[0]
    return Axes(Packed.of(mean), Packed.of(scale), Packed.of(basis.T))


def moments(places: Float64s) -> Moments:
    """Return mean and covariance of coordinates (n, p)."""
    centred = places - places.mean(axis=0)
    covariance = centred.T @ centred / max(1, len(places) - 1)
    return Moments(len(places), Packed.of(places.mean(axis=0)), Packed.of(covariance))


def direction(first: Moments, second: Moments) -> Float64s:
    """Return the coefficients of the log of the density ratio `first` / `second`, shape (p,).

    Both densities are assumed to be normal with equal covariance (Fisher's discriminant).
    """
    difference = first.mean.values.astype(np.float64) - second.mean.values
    return np.asarray(np.linalg.solve(_pooled(first, second), difference))


def squared_distance(first: Moments, second: Moments) -> float:
    """Return the squared Mahalanobis distance of two domains, corrected for bias."""
    difference = first.mean.values.astype(np.float64) - second.mean.values
    squared = float(difference @ direction(first, second))
    return max(0.0, squared - len(difference) * (1 / first.rows + 1 / second.rows))


def _pooled(first: Moments, second: Moments) -> Float64s:
    """Return the pooled covariance of two domains, plus a ridge."""
    total = max(1, first.rows + second.rows - 2)
    parts = [(part.rows - 1) / total * part.covariance.values for part in (first, second)]
    both: Float64s = np.stack(parts).sum(axis=0, dtype=np.float64)
    ridge = _RIDGE * max(float(np.trace(both)) / len(both), float(np.finfo(np.float32).tiny))
    return np.asarray(both + ridge * np.eye(len(both)))


def shares(predictions: Labels, n_classes: int) -> Float64s:
    """Return how often each class is predicted, shape (K,)."""
    return np.asarray(np.bincount(predictions, minlength=n_classes) / max(1, len(predictions)))
