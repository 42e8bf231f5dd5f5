"""The reference that a calibration keeps: its own rows as later periods are held against them.

The classifier's own numbers are those of the target's training and validation rows. The density
ratio and aligned logits were learnt on its training rows, and are sketched on validation rows
alone, where they look as they will on later ones. The source's training rows are not read.
"""

import numpy as np

from covcal_cli.arrays import Floats, Labels, Rows
from covcal_cli.estimators.clusters import MOST_ROWS, class_centres, strays
from covcal_cli.estimators.inputs import ESTIMATED, MAX_ROWS
from covcal_cli.estimators.sketches import (
    CONFIDENCE,
    DENSITY_RATIO,
    axis_signals,
    calibrated_confidence,
    direction,
    fit_axes,
    margins,
    moments,
    most_points,
    points,
    quantiles,
    shares,
    signal,
    watched_classes,
)
from covcal_cli.forecast.forecaster import ScaledLogits
from covcal_cli.formats.features import Domain, FeatureFile, thinned, thinned_places
from covcal_cli.formats.reference import (
    Clusters,
    Coordinates,
    Packed,
    Reference,
    Signal,
    SourceSketch,
    Space,
)
from covcal_cli.maths.odds import top_log_odds
from covcal_cli.maths.temperature import MIN_ERRORS, fit_temperature

_MOST_CLASSES = 100  # whose clusters are kept
_LEAST_ROWS = 2  # of a domain whose moments are kept


def reference_of(file: FeatureFile, scaled: ScaledLogits, seed: int) -> Reference | None:
    """Sketch the rows of the file that a calibration is made on.

    Parameters
    ----------
    file : FeatureFile
        What the calibration is fitted on.
    scaled : ScaledLogits
        What the calibration scales.
    seed : int
        Chooses rows where there are many.

    Returns
    -------
    Reference or None
        None where there are fewer than 2 labelled source validation rows.
    """
    source = file.source
    if source is None:
        return None
    held = _drawn(source, "logits", seed, "validation")
    labels = source.labels(held)
    held, labels = held[labels >= 0], labels[labels >= 0]
    if len(held) < _LEAST_ROWS or source.n_classes < 2:
        return None
    target = file.target
    has_target = target is not None and target.count("validation") >= _LEAST_ROWS
    baseline: Domain = target if target is not None and has_target else source
    logits = source.logits(held)
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
        temperature=temperature,
        baseline="target" if has_target else "source",
        signals=signals,
        joint=joint,
        coordinates=coordinates,
        source=SourceSketch(
            right=int(right.sum()),
            wrong=wrong,
            right_odds=quantiles(odds[right]),
            wrong_odds=quantiles(odds[~right]),
            predicted=Packed.of(shares(predictions, source.n_classes)),
            clusters=_clusters(logits, labels),
        ),
    )


def _clusters(logits: Floats, labels: Labels) -> Clusters | None:
    """Return the clusters of labelled rows; None where there are very many classes."""
    n_classes = logits.shape[1]
    if n_classes > _MOST_CLASSES:
        return None
    some = thinned(np.arange(len(labels)), MOST_ROWS, 0)
    logits, labels = logits[some], labels[some]
    centres = class_centres(logits, labels)
    there = np.flatnonzero(~np.isnan(centres[:, 0]))
    frequent = np.bincount(labels, minlength=n_classes) + 0.5
    held = frequent / frequent.sum()
    return Clusters(
        centres=Packed.of(centres[there]),
        classes=tuple(there.tolist()),
        shares=Packed.of(held),
        strays=float(strays(logits, centres, None).mean()),
        held_strays=float(strays(logits, centres, held).mean()),
    )


def _drawn(domain: Domain, of: Space, seed: int, *splits: str) -> Rows:
    """Return as many rows of some splits as may be read."""
    return domain.drawn(min(MAX_ROWS, most_points(domain, of)), seed, *splits)


def _rows_of(domain: Domain, of: Space, seed: int) -> Rows:
    """Return the rows of a baseline that its sketches are of; the source's training rows are not.

    Those the classifier was trained on.
    """
    splits = ESTIMATED if domain.name == "target" else ("validation",)
    return _drawn(domain, of, seed, *splits)


def _signals(
    file: FeatureFile,
    baseline: Domain,
    scaled: ScaledLogits,
    coordinates: Coordinates,
    seed: int,
) -> tuple[tuple[Signal, ...], Packed | None]:
    of = coordinates.of
    rows, unseen = _rows_of(baseline, of, seed), _drawn(baseline, of, seed, "validation")
    logits = baseline.logits(rows)
    labels = logits.argmax(axis=1)
    learnt = scaled.scaling.reads_aligned
    found = [
        signal(CONFIDENCE, calibrated_confidence(baseline, unseen if learnt else rows, scaled))
    ]
    if coordinates.density is not None:
        fresh = coordinates.axes.located(points(baseline, unseen, of))
        found.append(signal(DENSITY_RATIO, fresh @ coordinates.density.values))
    classes = watched_classes(shares(labels, len(file.classes)))
    for number, values in zip(classes, margins(logits, classes), strict=True):
        found.append(signal(f"class {file.classes[number]}", values, class_number=number))
    places = coordinates.axes.located(points(baseline, rows, of))
    of_axes, joint = axis_signals(places)
    return (*found, *of_axes), joint


def _coordinates(source: Domain, target: Domain | None, seed: int) -> Coordinates:
    """Return coordinates with the moments of both domains, and the density ratio's direction."""
    domains = [source] if target is None else [source, target]
    of: Space = "logits" if any(one.n_features is None for one in domains) else "features"
    found = [points(domain, _rows_of(domain, of, seed), of) for domain in domains]
    # As many rows of each: neither domain alone says what is usual.
    least = min(map(len, found))
    some = [part[thinned_places(len(part), least, seed)] for part in found]
    axes = fit_axes(np.concatenate(some), seed)
    kept = [moments(axes.located(part)) for part in found]
    density = None
    if target is not None and target.count("train") >= _LEAST_ROWS:
        train = points(target, _drawn(target, of, seed, "train"), of)
        density = Packed.of(direction(moments(axes.located(train)), kept[0]))
    return Coordinates(of, axes, kept[0], kept[1] if target is not None else None, density)
