"""Watch periods whose logits are in memory, with ``covcal.Watch``.

Each period is put into a features file in memory, which ``covcal watch`` can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from covcal_cli.array_arguments import (
    array_of,
    class_numbers,
    columns_of,
    is_missing,
    labels_of,
    logits_of,
    numbers_of,
    require_row_order,
)
from covcal_cli.arrays import UNKNOWN_LABEL, AnyArray, Float64s, Labels
from covcal_cli.calibrate.calibrator import ArrayFile, Calibrator
from covcal_cli.errors import ArgumentError, OutputExistsError, TooFewRowsError, checked
from covcal_cli.estimators.metrics import parse_metrics
from covcal_cli.forecast import ScaledLogits
from covcal_cli.formats.calibration import read_calibration
from covcal_cli.formats.features import ONE_CONFIDENCE
from covcal_cli.formats.writer import utf8
from covcal_cli.watch.accuracy import source_rows_of
from covcal_cli.watch.history import History, read_history
from covcal_cli.watch.measurement import (
    Source,
    Standard,
    measurements_of,
    standard_of,
    with_written_reference,
)
from covcal_cli.watch.period import Period, SegmentVerdict, WatchSettings
from covcal_cli.watch.promise import watched_decision
from covcal_cli.watch.reference import identity_of
from covcal_cli.watch.segments import PREDICTED, segments_in_file
from covcal_cli.watch.sketches import reference_of
from covcal_cli.watch.watch import extended, repeated, selected

_IN_MEMORY = Path("the arrays")  # shown instead of a path for data in memory


class Watch:
    """Judge whether a calibration is still right on later rows, like ``covcal watch``.

    Parameters
    ----------
    calibration : path or Calibrator
        A fitted calibrator, or a cal.json with its reference data or features file.
    source_logits, source_labels, target_logits : arrays, optional
        The arrays on which the calibrator was fitted. A cal.json needs no arrays.
    target_columns, source_columns : data frames or dicts of arrays, optional
        Other columns of the source and target rows, with which later rows are compared. `segment`
        also needs the columns of the source.
    history : path, optional
        A file of JSON lines, which ``covcal watch --history`` reads and writes too. By default, the
        history is kept in memory.
    tolerance : float
        Allowed difference between mean confidence and accuracy.
    every : str
        The length of a period: day, week, month, quarter or year.
    false_alarms : float
        Maximum number of false alarms per year. An alarm is false if the rows have not changed.
    stable : int
        An alarm ends after this many periods without another change. With 0, stable periods never
        end an alarm.
    segment : str, optional
        A column, or "predicted", whose values get their own verdicts.
    metrics : str, optional
        Metrics to estimate for every period, such as "f1,recall:fraud".
    decide : path, optional
        A decide.json that was made with this cal.json. Each period then has a verdict on the
        promise of this decision (`promise`).

    Attributes
    ----------
    periods_ : tuple of Period
        The latest verdict on every period.
    segments_ : tuple of SegmentVerdict
        The verdicts on the segments of the last period.
    notes_ : tuple of str
        Notes on the data.

    Raises
    ------
    CovcalError
        If the reference data cannot be made, or the history cannot be read.
    """

    @checked
    def __init__(
        self,
        calibration: str | Path | Calibrator,
        source_logits: ArrayLike | None = None,
        source_labels: ArrayLike | None = None,
        target_logits: ArrayLike | None = None,
        *,
        target_columns: Any = None,
        source_columns: Any = None,
        history: str | Path | None = None,
        tolerance: float = 0.05,
        every: str = "week",
        false_alarms: float = 0.05,
        stable: int = 8,
        segment: str | None = None,
        metrics: str = "",
        decide: str | Path | None = None,
    ) -> None:
        try:
            wanted = parse_metrics(metrics) if metrics else ()
        except ValueError as error:
            raise ArgumentError(f"metrics: {error}") from error
        self._settings = WatchSettings(
            every=every,
            tolerance=tolerance,
            false_alarms=false_alarms,
            stable=stable,
            segment=segment,
            metrics=wanted,
        )
        self._calibrator = calibration if isinstance(calibration, Calibrator) else None
        arrays = source_logits, source_labels, target_logits
        if isinstance(calibration, Calibrator):
            if decide is not None:
                raise ArgumentError("decide needs the cal.json with which the decision was made")
            columns = source_columns, target_columns
            self._standard = _standard_of_arrays(calibration, *arrays, columns, self._settings)
        elif all(array is None for array in (*arrays, target_columns, source_columns)):
            self._standard = _standard_of_file(Path(calibration), self._settings)
        else:
            raise ArgumentError(
                "a cal.json has its own reference data: leave out source_logits, "
                "source_labels, target_logits and columns"
            )
        if decide is not None:
            decision = watched_decision(Path(decide), Path(str(calibration)))
            self._standard = replace(self._standard, decision=decision)
        self._on_disk = history is not None
        self._history = History(_IN_MEMORY)
        if history is not None:
            self._history = read_history(Path(history))
        self.notes_: tuple[str, ...] = self._standard.notes
        self.segments_: tuple[SegmentVerdict, ...] = ()

    @property
    def periods_(self) -> tuple[Period, ...]:
        """The latest verdict on every period, in the order in which they were added."""
        return tuple(self._history.of(self._standard.sha256))

    @checked
    def observe(
        self,
        logits: ArrayLike,
        *,
        period: str,
        features: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        columns: Any = None,
        join: bool = False,
        force: bool = False,
    ) -> Period:
        """Judge the rows of a period, and add the period to the history.

        If labels arrive later, pass the same rows again with the labels.

        Parameters
        ----------
        logits : array or data frame, shape (n, K), or (n,) for the second of two classes
            The classifier's logits. A data frame may have a column for each class, named after the
            class, and other columns.
        period : str
            A name such as "2026-11-29", "2026-W48" or "2026-11". Periods with such names are sorted
            by time.
        features : array, shape (n, d), optional
            Features, if the calibration was fitted on a file with features.
        labels : array, shape (n,), optional
            Class names or class numbers, with None or NaN for rows without a label. The labelled
            rows should be a random sample of the period.
        columns : data frame or dict of arrays, optional
            Columns of numbers or categories whose drift is measured. Default: the columns of
            `logits` that are not classes.
        join : bool
            Add the rows to the period of this name in the history.
        force : bool
            Replace the period of this name in the history.

        Returns
        -------
        Period
            ``verdict`` is "holds", "off" or "not known"; ``answer`` and ``change`` are sentences.
            ``drifts`` has the columns that drifted, and ``measured.metrics`` has the metrics.

        Raises
        ------
        CovcalError
            If an array has a wrong shape or class, or if the history already has this period with
            different rows.
        """
        if not period.strip():
            raise ArgumentError("period must be a name, such as 2026-11-29")
        rows, rest = self._logits(logits)
        arrays: dict[str, AnyArray] = {"logits": rows}
        if features is not None:
            arrays["features"] = _features(features, len(rows))
        if labels is not None:
            require_row_order(labels, logits, "labels")
            arrays["labels"] = self._labels(labels, len(rows))
        arrays |= _columns(rest if columns is None else columns, "columns", len(rows))
        _require_segment(self._settings.segment, arrays, "columns")
        calibration = self._standard.calibration
        source = Source(
            _IN_MEMORY, period, None, self._settings.every, uses_labels=labels is not None
        )
        recorded = {entry.measured.period: entry.measured for entry in self.periods_}
        domains = {"target": arrays}
        with ArrayFile(domains, calibration.classes, calibration.model["sha256"]) as file:
            measured = list(measurements_of(file, source, self._standard, recorded))
        try:
            reported, notes, self._history = extended(
                measured,
                self._history,
                self._standard,
                on_disk=self._on_disk,
                join=join,
                force=force,
            )
        except OutputExistsError as error:
            raise OutputExistsError(
                f"the history has other rows for {period}: pass join=True to add the new "
                "rows, force=True to replace the old rows, or another period"
            ) from error
        self.notes_ = (*notes, *selected(measured), *repeated(measured, recorded))
        self.segments_ = measured[0].entry.segments
        return next(line for line in reversed(reported) if line.measured.period == period)

    def _logits(self, logits: Any) -> tuple[Float64s, Any]:
        names = list(self._standard.calibration.classes)
        calibrator = self._calibrator
        if calibrator is not None:
            names = list(getattr(calibrator, "feature_names_in_", calibrator.classes_))
        columns, rest = columns_of(logits) or [], None
        if calibrator is None and not set(names) <= set(columns):
            of_classes = [f"logit_{name}" for name in names]
            names = of_classes if set(of_classes) <= set(columns) else names
        if set(names) <= set(columns):
            rest = {name: logits[name] for name in columns if name not in names}
            logits = np.column_stack([numbers_of(logits[name], "logits") for name in names])
        elif not hasattr(calibrator, "feature_names_in_"):
            _require_classes(logits, names)
        if hasattr(logits, "__len__") and np.ndim(logits) and not len(logits):  # no rows
            return np.zeros((0, len(self._standard.calibration.classes))), rest
        if calibrator is not None:
            return calibrator.rows(logits), rest
        rows = logits_of(logits, "logits")
        if rows.shape[1] != len(names):
            raise ArgumentError(
                f"logits have {rows.shape[1]} classes, but the calibration has {len(names)}: "
                "give logits of the same classifier"
            )
        return rows, rest

    def _labels(self, labels: Any, n: int) -> Labels:
        values = _objects(labels, "labels")
        if values.shape != (n,):
            raise ArgumentError(f"labels must have shape ({n},), not {values.shape}")
        is_known = np.array([not is_missing(label) for label in values.tolist()])
        numbers = np.full(n, UNKNOWN_LABEL, dtype=np.int64)
        if not is_known.any():
            return numbers
        texts = labels_of(values[is_known].tolist(), "labels", int(is_known.sum()))
        classes: AnyArray = np.array(self._standard.calibration.classes)
        if self._calibrator is not None:
            classes = self._calibrator.classes_
        elif texts.dtype.kind in "iu":
            are_numbers = all(name.isdecimal() for name in classes.tolist())
            classes = classes.astype(np.int64) if are_numbers else np.arange(len(classes))
        numbers[is_known] = class_numbers(texts, classes, "labels")
        return numbers


def _require_classes(logits: Any, classes: list[Any]) -> None:
    columns = columns_of(logits) or []
    texts = [name for name in columns if isinstance(name, str) and not name.isdecimal()]
    lacking = [name for name in map(str, classes) if name not in columns]
    if texts and lacking and not all(map(str.isdecimal, lacking)):
        raise ArgumentError(
            f"logits have no column {lacking[0]}, which is a class of the calibration "
            f"(columns: {', '.join(texts[:5])}): name the columns like the classes, or "
            f"logit_{lacking[0]} and so on"
        )


def _features(features: Any, n: int) -> AnyArray:
    values = numbers_of(features, "features")
    if values.ndim != 2 or len(values) != n:
        raise ArgumentError(f"features must have shape ({n}, d), not {values.shape}")
    return values.astype(np.float32)


def _columns(columns: Any, name: str, n: int) -> dict[str, AnyArray]:
    if columns is None:
        return {}
    keys = columns_of(columns)
    if keys is None and not hasattr(columns, "keys"):
        raise ArgumentError(f"{name} must be a data frame, or a dict of arrays by name")
    stored = {}
    for key in list(columns) if keys is None else keys:
        column = str(key)
        if not column.isprintable() or "/" in column or not column.strip("."):
            raise ArgumentError(f"{name}: {key!r} cannot be the name of a column: rename it")
        if f"columns/{column}" in stored:
            raise ArgumentError(f"{name}: two columns are called {column!r}: rename one")
        values = _objects(columns[key], f"{name}[{key!r}]")
        if values.shape != (n,):
            raise ArgumentError(f"{name}[{key!r}] must have shape ({n},), not {values.shape}")
        if values.dtype.kind not in "fiub":
            values = _numbers_or_texts(values)
        stored[f"columns/{column}"] = values if values.dtype.kind == "S" else values.astype(float)
    return stored


def _require_segment(segment: str | None, arrays: Mapping[str, AnyArray], name: str) -> None:
    if segment not in (None, PREDICTED) and f"columns/{segment}" not in arrays:
        raise ArgumentError(
            f"{name} has no column {segment!r}, but segment needs it: add the column, or "
            f"pass segment={PREDICTED!r}"
        )


def _objects(values: Any, name: str) -> AnyArray:
    """Return an array of objects, in which NaN among texts does not become "nan"."""
    return array_of(np.array(values, dtype=object) if isinstance(values, list) else values, name)


def _numbers_or_texts(values: AnyArray) -> AnyArray:
    present = [not is_missing(value) for value in values.tolist()]
    if all(isinstance(value, Real) for value in values[present].tolist()):
        numbers = np.full(len(values), np.nan)
        numbers[present] = numbers_of(values[present], "columns")
        return numbers
    texts = [f"{value}" if known else "" for value, known in zip(values, present, strict=True)]
    return utf8([text.encode("utf-8", "replace").decode() for text in texts])


def _standard_of_file(document: Path, settings: WatchSettings) -> Standard:
    calibration = read_calibration(document)
    if calibration.scaling.reads_aligned or calibration.reading.get("tail") == ONE_CONFIDENCE:
        raise ArgumentError(
            f"the calibration {document} needs more than logits: extract the later rows, and run "
            "covcal watch"
        )
    return with_written_reference(standard_of(calibration, document, settings), lambda _: None)


def _standard_of_arrays(
    calibrator: Calibrator,
    source_logits: Any,
    source_labels: Any,
    target_logits: Any,
    columns: tuple[Any, Any],
    settings: WatchSettings,
) -> Standard:
    if source_logits is None or source_labels is None:
        raise ArgumentError(
            "the Calibrator does not store its arrays: give the source_logits, source_labels and "
            "target_logits on which it was fitted"
        )
    source = calibrator.rows(source_logits)
    target = source[:0] if target_logits is None else calibrator.rows(target_logits)
    texts = labels_of(source_labels, "source_labels", len(source), source_logits)
    labels = class_numbers(texts, calibrator.classes_, "source_labels")
    calibration = calibrator.calibration_
    domains: dict[str, dict[str, AnyArray]] = {
        "source": {"logits": source, "labels": labels},
        "target": {"logits": target},
    }
    for (name, arrays), of_domain in zip(domains.items(), columns, strict=True):
        arrays |= _columns(of_domain, f"{name}_columns", len(arrays["logits"]))
        _require_segment(settings.segment, arrays, f"{name}_columns")
    with ArrayFile(domains, calibration.classes) as file:
        if file.sha256() != calibration.inputs[0].sha256:
            raise ArgumentError(
                "source_logits, source_labels and target_logits differ from the arrays of the "
                "fit: pass the arrays that you passed to fit"
            )
        scaled = ScaledLogits(calibration.scaling)
        reference = reference_of(file, scaled, calibration.seed, identity_of(calibration))
        if reference is None:
            raise TooFewRowsError("Watch needs at least 2 source rows: give more rows")
        rows = source_rows_of(file, calibration, reference)
        segments = None
        if (column := settings.segment) is not None:
            segments = segments_in_file(file, column, settings, calibration, reference)
    standard = Standard(
        calibration, _IN_MEMORY, identity_of(calibration), reference, rows, settings
    )
    return replace(standard, segments=segments)
