"""Judge the segments of a period. A segment has the rows with the same value in a column.

A segment is compared with the calibration's rows that have the value of the segment. The accuracy
of a segment is estimated with the source rows that have this value. Intervals and p-values are
corrected for the number of segments.

A verdict on a predicted class needs labels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from covcal_cli.arrays import AnyArray, Integers, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.forecast import ScaledLogits
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import Domain, FeatureFile, thinned
from covcal_cli.formats.groups import column_groups
from covcal_cli.formats.lineage import is_unchanged
from covcal_cli.formats.writer import utf8
from covcal_cli.watch.accuracy import SourceRows, source_rows_of
from covcal_cli.watch.columns import corrected, drift_of, sketch
from covcal_cli.watch.labels import ERROR, FileLabels, pooled
from covcal_cli.watch.period import Measured, SegmentVerdict, WatchSettings
from covcal_cli.watch.reference import CONFIDENCE, ColumnSketch, Reference
from covcal_cli.watch.sketches import baseline_of
from covcal_cli.watch.verdict import verdict_on

PREDICTED = "predicted"  # The value of --segment for predicted classes.
_MOST_SEGMENTS = 30
_MOST_ROWS = 20_000  # Maximum number of rows to read from a segment.
_LEAST_SOURCE = 50  # Minimum number of source rows for an estimate.


@dataclass(frozen=True)
class Segments:
    """The values of a column, with the calibration's rows for each value."""

    column: str
    settings: WatchSettings
    sketches: Mapping[str, Sequence[ColumnSketch]]
    sources: Mapping[str, SourceRows]


def segments_by(
    column: str, settings: WatchSettings, calibration: Calibration, reference: Reference
) -> Segments:
    """Return the segments of a column; no segments if the calibration's file has changed."""
    fitted = calibration.inputs[0]
    if not is_unchanged(fitted):
        return Segments(column, settings, {}, {})
    with FeatureFile(fitted.path) as file:
        return segments_in_file(file, column, settings, calibration, reference)


def segments_in_file(
    file: FeatureFile,
    column: str,
    settings: WatchSettings,
    calibration: Calibration,
    reference: Reference,
) -> Segments:
    """Return the segments of a column in the calibration's open features file."""
    sketches: dict[str, list[ColumnSketch]] = {}
    sources: dict[str, SourceRows] = {}
    classes = calibration.classes
    baseline, rows = baseline_of(file, reference, calibration.seed)
    scaled = ScaledLogits(calibration.scaling)
    if column in (*baseline.columns, PREDICTED):
        for name, part in _parts(column, baseline, rows, classes):
            values = _values(column, baseline, part, scaled, classes)
            columns = [sketch(key, entry) for key, entry in values.items()]
            sketches[name] = [entry for entry in columns if entry is not None]
    source = file.require_source()
    rows = source.rows("validation")
    if column in source.columns:
        for name, part in _parts(column, source, rows, classes):
            if len(part) >= _LEAST_SOURCE:
                sources[name] = source_rows_of(file, calibration, reference, part)
    return Segments(column, settings, sketches, sources)


def segments_of(
    segments: Segments,
    target: Domain,
    rows: Rows,
    scaled: ScaledLogits,
    labels: FileLabels | None,
    entry: Measured,
    calibration: Calibration,
) -> Iterator[SegmentVerdict]:
    """Yield the verdict on every segment of a period, sorted by name."""
    classes, tolerance = calibration.classes, segments.settings.tolerance
    parts = _parts(segments.column, target, rows, classes)
    for name, part in parts:
        drawn = thinned(part, _MOST_ROWS, calibration.seed)
        source = segments.sources.get(name)
        values = _values(segments.column, target, drawn, scaled, classes)
        of_segment = replace(
            entry,
            rows=len(part),
            read=len(drawn),
            signal_rows=1,
            confidence=float(values[CONFIDENCE].mean()),
            estimate=None if source is None else source.estimate(target.logits(drawn)),
            labels=None if labels is None else labels.of(part),
        )
        pool = pooled([of_segment], tolerance, error=ERROR / len(parts))
        verdict, gap, why = verdict_on(of_segment, pool, tolerance)
        if pool is None and source is None:
            why = f"this segment has fewer than {_LEAST_SOURCE} source rows: label some rows"
            if segments.column not in target.columns:
                why = "a verdict on a predicted class needs labels: label some rows"
        compared = [
            drift
            for column in segments.sketches.get(name, ())
            if column.name in values
            for drift in drift_of(column, values[column.name])
        ]
        drifts = [
            drift
            for drift in corrected(compared, len(compared) * len(parts))
            if drift.is_drift(segments.settings.level)
        ]
        yield SegmentVerdict(
            period=entry.period,
            segment=name,
            rows=len(part),
            confidence=of_segment.confidence,
            accuracy=of_segment.estimate if pool is None else pool.accuracy(of_segment),
            gap=gap,
            verdict=verdict,
            why=why,
            drifts=tuple(sorted(drifts, key=lambda drift: -drift.size)),
        )


def _parts(
    column: str, domain: Domain, rows: Rows, classes: Sequence[str]
) -> list[tuple[str, Rows]]:
    if column in domain.columns or column != PREDICTED:
        groups = column_groups(domain, column, rows, others=[PREDICTED])
        names, numbers = groups.names, groups.numbers(rows)
    else:
        names, numbers = list(classes), _predicted(domain, rows)
    present = np.unique(numbers).tolist()
    if len(present) > _MOST_SEGMENTS:
        raise CovcalError(
            f"{domain.path}: column {column} has {len(present)} values: for --segment, choose a "
            f"column with at most {_MOST_SEGMENTS}"
        )
    return [(names[number], rows[numbers == number]) for number in present]


def _predicted(domain: Domain, rows: Rows) -> Integers:
    blocks = domain.blocks(rows, "logits")
    predicted = [domain.logits(block).argmax(axis=1) for block in blocks]
    return np.concatenate([np.zeros(0, dtype=np.int64), *predicted])


def _values(
    column: str, domain: Domain, rows: Rows, scaled: ScaledLogits, classes: Sequence[str]
) -> dict[str, AnyArray]:
    kept = {name: domain.column(name, rows) for name in domain.columns if name != column}
    return kept | {
        CONFIDENCE: scaled.confidence(domain, rows),
        "predicted class": utf8(classes)[_predicted(domain, rows)],
    }
