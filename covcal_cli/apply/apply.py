"""Write the calibrated probabilities of every row of a file, block by block.

No true label is read. The output ``label`` is the predicted class, and ``confidence`` is the
calibrated probability of this class. With class offsets or adapted features, another class can have
a higher calibrated probability. `ApplyReport.label_is_not_top` counts such rows (MATHEMATICS,
section 6).
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from covcal_cli.apply.writers import AppliedRows, Layout, for_screens, format_of, write_csv
from covcal_cli.arrays import Float32s, Floats, Labels, Rows
from covcal_cli.errors import CovcalError, checked_settings, require_one_of
from covcal_cli.files import atomic_output, check_output, sha256_of
from covcal_cli.forecast import ScaledLogits, networks_for
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.decision import Decision, read_decision
from covcal_cli.formats.features import ALL, PREDICTION, SPLITS, Domain, FeatureFile
from covcal_cli.formats.lineage import labels_of
from covcal_cli.multilabel import for_each_label
from covcal_cli.progress import Progress, ProgressCallback, silent

DomainName = Literal["source", "target"]
_BLOCK_VALUES = 1 << 20
# For few classes, NumPy is faster if the classes are the first axis.
_FEW_CLASSES = 32


@checked_settings
@dataclass(frozen=True, kw_only=True)
class ApplySettings:
    """The settings of ``covcal apply``."""

    domain: DomainName = "target"
    split: str = ALL  # "all", "train", "validation" or "test".
    confidence_only: bool = False  # Whether to leave out the probabilities of all classes.
    # Whether to accept images whose preprocessing differs from the calibration's images.
    allow_other_preprocessing: bool = False

    def __post_init__(self) -> None:
        require_one_of("domain", self.domain, ("target", "source"))
        require_one_of("split", self.split, (ALL, *SPLITS))


DEFAULTS = ApplySettings()


@dataclass(frozen=True)
class ApplyReport:
    """The result of ``covcal apply``."""

    rows: int
    mean_confidence: float  # Mean calibrated confidence, which estimates the accuracy.
    label_is_not_top: int  # Number of rows in which the label is not the most probable class.
    ties: int  # Number of rows in which all classes have the same logit.
    tie_confidence: tuple[float, float]  # Lowest and highest confidence of tied rows.
    method_used: str
    temperature: float  # Temperature T_f.
    aligned_temperature: float | None  # Temperature T_a of the aligned logits.
    networks: Path | None  # Path of the adapted file with the networks; None without networks.
    offset: float = 0.0  # What is added to the log odds of the confidence.
    accepted: int | None = None  # Number of rows that the decision accepts; None without one.
    # Mean calibrated probability of each label, if rows can have several labels. With several
    # labels, all other fields describe the first label.
    labels: Mapping[str, float] = field(default_factory=dict)


def apply(
    path: str | Path,
    document: str | Path,
    output: str | Path | IO[bytes],
    settings: ApplySettings = DEFAULTS,
    *,
    networks: str | Path | None = None,
    decision: str | Path | None = None,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> ApplyReport:
    """Write id, label, confidence and calibrated probabilities of all rows.

    Rows keep their order. Equal inputs and versions give equal bytes.

    Parameters
    ----------
    path : str or Path
        A features or adapted file of the calibrated model.
    document : str or Path
        The cal.json.
    output : str, Path or binary stream
        A ``.csv``, ``.parquet``, ``.npz`` or ``.h5`` file, or a binary stream for CSV. A file is
        written completely or not at all.
    settings : ApplySettings
    networks : str or Path, optional
        The adapted file with the networks of the calibration. Needed only if `path` is a features
        file and the calibration scales aligned logits. Default: the adapted file that cal.json
        names.
    decision : str or Path, optional
        A decide.json for this calibration. The output then has columns for accepted rows or sets of
        classes.
    force : bool
        Replace an existing output.
    progress : callable, optional
        Called with a `Progress` for every block.

    Raises
    ------
    CovcalError
        If the calibration belongs to another model, rows or networks are missing, or the output
        cannot be written.
    """
    path, document = Path(path), Path(document)
    networks = None if networks is None else Path(networks)
    if isinstance(output, str):
        output = Path(output)
    if isinstance(output, Path):
        write = format_of(output)
        check_output(
            output,
            force=force,
            inputs=[path, document, *(Path(name) for name in (networks, decision) if name)],
        )
    with ExitStack() as stack:

        def opened() -> _CalibratedRows:
            file = stack.enter_context(FeatureFile(path))
            return _opened(file, document, settings, networks, decision, progress or silent)

        labels = labels_of(path, [document])
        source: _CalibratedRows | _LabelRows
        if labels:
            if settings.confidence_only:
                raise CovcalError(f"{path} holds several labels: leave out --confidence-only")
            source = _LabelRows(for_each_label(labels, opened))
            first = next(iter(source.labels.values()))
        else:
            source = first = opened()
        aligned, calibration = first.scaled.networks, first.calibration
        if isinstance(output, Path):
            if aligned is not None:
                check_output(output, force=force, inputs=[aligned.path])
            provenance = _provenance(first.file, calibration, settings)
            if labels:  # With several labels, each label has its own calibration.
                del provenance["method_used"], provenance["temperature"]
            with atomic_output(output, force=force) as partial:
                write(partial, source.layout(provenance), source.blocks())
        else:
            write_csv(output, source.layout({}), source.blocks(), displayed=for_screens)
    return ApplyReport(
        rows=len(first.rows),
        mean_confidence=first.confidence_sum / len(first.rows),
        label_is_not_top=first.label_is_not_top,
        ties=first.ties,
        tie_confidence=first.tie_confidence,
        method_used=calibration.method_used,
        temperature=calibration.forecaster_temperature,
        aligned_temperature=calibration.aligned_temperature,
        networks=None if aligned is None else aligned.path,
        offset=calibration.confidence_offset,
        accepted=first.accepted if first.decision and first.decision.accepts_rows else None,
        labels=source.means if isinstance(source, _LabelRows) else {},
    )


def _opened(
    file: FeatureFile,
    document: Path,
    settings: ApplySettings,
    networks: Path | None,
    decision: str | Path | None,
    progress: ProgressCallback,
) -> "_CalibratedRows":
    calibration = read_calibration(document)
    aligned = networks_for(
        calibration, file, networks, allow_other_preprocessing=settings.allow_other_preprocessing
    )
    domain = _chosen_domain(file, settings.domain)
    if aligned is not None:
        aligned.require_features(domain)
    return _CalibratedRows(
        file=file,
        calibration=calibration,
        domain=domain,
        rows=_chosen_rows(domain, settings.split),
        scaled=ScaledLogits(calibration.scaling, aligned),
        with_probabilities=not (settings.confidence_only or file.has_one_confidence),
        decision=None if decision is None else read_decision(decision, document),
        progress=progress,
    )


@dataclass
class _CalibratedRows:
    file: FeatureFile
    calibration: Calibration
    domain: Domain
    rows: Rows | range
    scaled: ScaledLogits
    with_probabilities: bool
    progress: ProgressCallback
    decision: Decision | None = None
    n_labels: int = 1  # Number of labels whose blocks are in memory at the same time.
    confidence_sum: float = 0.0
    accepted: int = 0
    label_is_not_top: int = 0
    ties: int = 0
    tie_confidence: tuple[float, float] = (1.0, 0.0)

    def layout(self, provenance: Mapping[str, str | int | float]) -> Layout:
        file, no_rows = self.file, np.empty(0, dtype=np.int64)
        labels = self._predictions(no_rows)
        return Layout(
            len(self.rows),
            file.classes,
            self.domain.id_bytes(no_rows).dtype,
            self.with_probabilities,
            provenance,
            with_decision=self.decision is not None and self.decision.accepts_rows,
            with_sets=self.decision is not None and self.decision.sets is not None,
            integer_ids=file.attributes.get(f"{self.domain.name}_ids") == "integers",
            label_dtype=None if labels is None else labels.dtype,
        )

    def blocks(self) -> Iterator[AppliedRows]:
        width = self.domain.n_classes
        if self.scaled.scaling.reads_aligned:
            networks = self.scaled.networks
            members = self.domain.n_members if networks is None else networks.n_members
            width = max(width * members, self.domain.n_features or 0)
        size = max(256, _BLOCK_VALUES // (width * self.n_labels))
        for start in range(0, len(self.rows), size):
            rows = self.rows[start : start + size]
            yield self._block(np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows)
            self.progress(Progress("apply", min(start + size, len(self.rows)), len(self.rows)))

    def _count_ties(self, logits: Floats, confidence: Floats) -> None:
        # Comparing two columns first is faster than comparing all columns.
        rows = np.flatnonzero(logits[:, 0] == logits[:, -1])
        ties = confidence[rows[(logits[rows] == logits[rows, :1]).all(axis=1)]]
        if len(ties):
            self.ties += len(ties)
            low, high = self.tie_confidence
            self.tie_confidence = min(low, float(ties.min())), max(high, float(ties.max()))

    def _block(self, rows: Rows) -> AppliedRows:
        logits = self.domain.logits(rows)
        labels, confidence, probabilities = _calibrated(logits, self.domain, rows, self.scaled)
        self.confidence_sum += float(confidence.sum(dtype=np.float64))
        # A file with one confidence per row does not have the probabilities of the other classes.
        if self.scaled.scaling.can_move_the_top and not self.file.has_one_confidence:
            top = probabilities.max(axis=1)
            self.label_is_not_top += int(np.count_nonzero(top > confidence))
        if not self.file.has_one_confidence:
            self._count_ties(logits, confidence)
        accept, members, decision = None, None, self.decision
        if decision is not None and decision.accepts_rows:
            accept = decision.accepts(confidence, self.domain, rows)
            self.accepted += int(np.count_nonzero(accept))
        if decision is not None and decision.sets is not None:
            members = decision.sets.members(probabilities)
        return AppliedRows(
            self._ids(rows),
            labels,
            confidence,
            probabilities if self.with_probabilities else None,
            accept,
            members,
            self._predictions(rows),
        )

    def _predictions(self, rows: Rows) -> NDArray[np.bytes_] | None:
        """Return the predicted classes if the file has only one confidence per row, else None."""
        if not self.file.is_forecast_of_right or PREDICTION not in self.domain.columns:
            return None
        return self.domain.column(PREDICTION, rows)

    def _ids(self, rows: Rows) -> NDArray[np.bytes_]:
        ids = self.domain.id_bytes(rows)
        try:
            ids.tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise CovcalError(
                f"{self.domain.path}: /{self.domain.name}/ids is not UTF-8: extract again"
            ) from error
        return ids


class _LabelRows:
    def __init__(self, labels: Mapping[str, _CalibratedRows]) -> None:
        self.labels = labels
        self._sums = np.zeros(len(labels))
        for number, rows in enumerate(labels.values()):
            rows.n_labels = len(labels)
            rows.progress = rows.progress if number == 0 else silent

    @property
    def means(self) -> dict[str, float]:
        first = next(iter(self.labels.values()))
        return dict(zip(self.labels, (self._sums / len(first.rows)).tolist(), strict=True))

    def layout(self, provenance: Mapping[str, str | int | float]) -> Layout:
        first = next(iter(self.labels.values())).layout(provenance)
        return replace(first, classes=list(self.labels), is_multilabel=True, with_sets=False)

    def blocks(self) -> Iterator[AppliedRows]:
        for blocks in zip(*(rows.blocks() for rows in self.labels.values()), strict=True):
            present = [b.probabilities[:, 1] for b in blocks if b.probabilities is not None]
            accepts = [block.accept for block in blocks if block.accept is not None]
            probabilities = np.stack(present, axis=1)
            self._sums += probabilities.sum(axis=0, dtype=np.float64)
            yield replace(
                blocks[0],
                probabilities=probabilities,
                accept=np.stack(accepts, axis=1) if accepts else None,
                members=None,
            )


def _chosen_domain(file: FeatureFile, name: DomainName) -> Domain:
    domain = file.target if name == "target" else file.source
    if domain is None:
        other = "source" if name == "target" else "target"
        raise CovcalError(f"{file.path} has no {name} rows: pass --domain {other}")
    return domain


def _chosen_rows(domain: Domain, split: str) -> Rows | range:
    if split != ALL:
        return domain.require_rows(split)
    if domain.n == 0:
        raise CovcalError(f"{domain.path} has no {domain.name} rows to write")
    return range(domain.n)


def _provenance(
    file: FeatureFile, calibration: Calibration, settings: ApplySettings
) -> dict[str, str | int | float]:
    model = file.model
    provenance: dict[str, str | int | float] = {
        "input_sha256": file.sha256(),
        "calibration_sha256": sha256_of(calibration.path),
        "method_used": calibration.method_used,
        "temperature": calibration.forecaster_temperature,
        "model_name": model["name"],
        "model_sha256": model["sha256"],
        "domain": settings.domain,
        "split": settings.split,
    }
    if calibration.aligned_temperature is not None:
        provenance["aligned_temperature"] = calibration.aligned_temperature
    if calibration.scaling.reads_aligned:
        provenance["networks_sha256"] = calibration.networks_sha256 or ""
    return provenance


# Blocks are stored in float32, and therefore computed in float32.


def _calibrated(
    logits: Float32s, domain: Domain, rows: Rows, scaled: ScaledLogits
) -> tuple[Labels, Float32s, Float32s]:
    """Return labels, (m,), confidences, (m,), and calibrated probabilities, (m, K)."""
    scaling = scaled.scaling
    if not scaling.can_move_the_top:
        labels, distances, axis = _distances(logits)
        probabilities = _softmax(distances, axis, scaling.temperature)
        return labels, probabilities.max(axis=1), probabilities
    labels = logits.argmax(axis=1)
    probabilities = scaled.forecast(domain, rows).probabilities.astype(np.float32).T
    return labels, probabilities[np.arange(len(rows)), labels], probabilities


def _distances(logits: Float32s) -> tuple[Labels, Float32s, int]:
    """Return labels, logits minus the highest logit of each row, and the axis of the classes."""
    with np.errstate(over="ignore"):  # A logit of -inf gives a probability of 0.
        if logits.shape[1] > _FEW_CLASSES:
            return logits.argmax(axis=1), logits - logits.max(axis=1, keepdims=True), 1
        distances = np.ascontiguousarray(logits.T)
        distances = distances - distances.max(axis=0)
    labels = np.zeros(len(logits), dtype=np.int64)
    # If several classes have the highest logit, the label is the first of these classes.
    for index in reversed(range(len(distances))):
        np.putmask(labels, distances[index] == 0, index)
    return labels, distances, 0


def _softmax(distances: Float32s, axis: int, temperature: float) -> Float32s:
    """Overwrite `distances`, (m, K), with the softmax of `distances` / T."""
    with np.errstate(over="ignore"):
        # In float32, a very small temperature would become 0.
        np.divide(distances, temperature, out=distances, dtype=np.float64, casting="same_kind")
    np.exp(distances, out=distances)
    distances /= distances.sum(axis=axis, keepdims=True)
    return distances if axis == 1 else distances.T
