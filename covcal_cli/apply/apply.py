"""Calibrated probabilities of every row of a file, written as they are computed.

No true label of any domain is read. The label of a row is the one that the classifier predicted;
its confidence is the probability that the calibrated forecaster gives to it (MATHEMATICS,
section 6).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from covcal_cli.apply.writers import AppliedRows, Layout, for_screens, format_of, write_csv
from covcal_cli.arrays import Float32s, Labels, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.files import atomic_output, check_output, sha256_of
from covcal_cli.forecast.forecaster import ScaledLogits, networks_for
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.features import ALL, SPLITS, Domain, FeatureFile
from covcal_cli.progress import Progress, ProgressCallback, silent
from covcal_cli.records import require_one_of

DomainName = Literal["source", "target"]
_BLOCK_VALUES = 1 << 20
# Below it NumPy reduces over classes far faster when they come first, above it when they follow
# each other in memory.
_FEW_CLASSES = 32


@dataclass(frozen=True, kw_only=True)
class ApplySettings:
    """What ``covcal apply`` can be told of the rows."""

    domain: DomainName = "target"
    split: str = ALL  # or train, validation or test
    confidence_only: bool = False  # leave the probabilities of the classes out
    # Take a file whose images were preprocessed otherwise than the calibration's.
    allow_other_preprocessing: bool = False

    def __post_init__(self) -> None:
        require_one_of("domain", self.domain, ("target", "source"))
        require_one_of("split", self.split, (ALL, *SPLITS))


_AS_IT_COMES = ApplySettings()


@dataclass(frozen=True)
class Applied:
    """What was written."""

    rows: int
    # Calibrated, of the classifier's label: an estimate of the accuracy on these rows.
    mean_confidence: float
    method_used: str
    temperature: float  # T_f
    aligned_temperature: float | None  # T_a of a blend
    # The adapted file whose networks gave the aligned logits, where the input has none.
    networks: Path | None


def apply(
    path: str | Path,
    document: str | Path,
    output: str | Path | IO[bytes],
    settings: ApplySettings = _AS_IT_COMES,
    *,
    networks: str | Path | None = None,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> Applied:
    """Write id, label, confidence and calibrated probabilities of every row, in the file's order.

    Memory does not grow with the rows. The same input and versions give the same bytes.

    Parameters
    ----------
    path : str or Path
        A features or adapted file of the calibration's model.
    document : str or Path
        The cal.json.
    output : str, Path or binary stream
        A ``.csv``, ``.parquet``, ``.npz`` or ``.h5`` file, which appears whole or not at all; or a
        stream, which gets CSV.
    settings : ApplySettings
    networks : str or Path, optional
        For a method on aligned logits and a file without them: the adapted file with the networks,
        if it is not where the calibration says.
    force : bool
        Replace an existing output.
    progress : callable, optional
        Called with a `Progress` for every block.

    Raises
    ------
    CovcalError
        If the calibration does not fit the file, rows or networks are missing, or the output cannot
        be written.
    """
    path, document = Path(path), Path(document)
    networks = None if networks is None else Path(networks)
    if isinstance(output, str):
        output = Path(output)
    # Whatever can be refused is refused before the work starts.
    if isinstance(output, Path):
        write = format_of(output)
        check_output(
            output, force=force, inputs=[path, document, *([networks] if networks else [])]
        )
    calibration = read_calibration(document)
    with FeatureFile(path) as file:
        found = networks_for(
            calibration,
            document,
            file,
            networks,
            allow_other_preprocessing=settings.allow_other_preprocessing,
        )
        chosen = _chosen_domain(file, settings.domain)
        if found is not None:
            found.require_features(chosen)
        source = _Source(
            domain=chosen,
            rows=_chosen_rows(chosen, settings.split),
            scaled=ScaledLogits(calibration.scaling, found),
            with_probabilities=not settings.confidence_only,
            progress=progress or silent,
        )
        if isinstance(output, Path):
            if found is not None:
                check_output(output, force=force, inputs=[found.path])
            provenance = _provenance(file, document, calibration, settings)
            with atomic_output(output, force=force) as partial:
                write(partial, source.layout(file, provenance), source.blocks())
        else:
            write_csv(output, source.layout(file, {}), source.blocks(), as_it_is=for_screens)
    return Applied(
        rows=len(source.rows),
        mean_confidence=source.confidence_sum / len(source.rows),
        method_used=calibration.method_used,
        temperature=calibration.forecaster_temperature,
        aligned_temperature=calibration.aligned_temperature,
        networks=None if found is None else found.path,
    )


@dataclass
class _Source:
    """The rows to write, and the sum of their confidence."""

    domain: Domain
    rows: Rows | range
    scaled: ScaledLogits
    with_probabilities: bool
    progress: ProgressCallback
    confidence_sum: float = 0.0

    def layout(self, file: FeatureFile, provenance: Mapping[str, str | int | float]) -> Layout:
        return Layout(
            len(self.rows),
            file.classes,
            self.domain.id_bytes(np.empty(0, dtype=np.int64)).dtype,
            self.with_probabilities,
            provenance,
            integer_ids=file.attributes.get(f"{self.domain.name}_ids") == "integers",
        )

    def blocks(self) -> Iterator[AppliedRows]:
        width = self.domain.n_classes
        if self.scaled.scaling.reads_aligned:
            networks = self.scaled.networks
            members = self.domain.n_members if networks is None else networks.n_members
            width = max(width * members, self.domain.n_features or 0)
        size = max(256, _BLOCK_VALUES // width)
        for start in range(0, len(self.rows), size):
            rows = self.rows[start : start + size]
            yield self._block(np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows)
            self.progress(Progress("apply", min(start + size, len(self.rows)), len(self.rows)))

    def _block(self, rows: Rows) -> AppliedRows:
        labels, confidence, probabilities = calibrated_rows(self.domain, rows, self.scaled)
        self.confidence_sum += float(confidence.sum(dtype=np.float64))
        return AppliedRows(
            self._ids(rows), labels, confidence, probabilities if self.with_probabilities else None
        )

    def _ids(self, rows: Rows) -> NDArray[np.bytes_]:
        ids = self.domain.id_bytes(rows)
        try:
            ids.tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise CovcalError(
                f"{self.domain.path}: /{self.domain.name}/ids is not UTF-8: extract again"
            ) from error
        return ids


def _chosen_domain(file: FeatureFile, name: DomainName) -> Domain:
    domain = file.target if name == "target" else file.source
    if domain is None:
        other = "source" if name == "target" else "target"
        raise CovcalError(f"{file.path} holds no {name} domain: pass --domain {other}")
    return domain


def _chosen_rows(domain: Domain, split: str) -> Rows | range:
    """Return row numbers; those of all rows take no memory."""
    if split != ALL:
        return domain.require_rows(split)
    if domain.n == 0:
        raise CovcalError(f"{domain.path} has no {domain.name} rows: extract again")
    return range(domain.n)


def _provenance(
    file: FeatureFile, document: Path, calibration: Calibration, settings: ApplySettings
) -> dict[str, str | int | float]:
    """Return what makes the output traceable to the bytes that it was computed from."""
    model = file.model
    found: dict[str, str | int | float] = {
        "input_sha256": file.sha256(),
        "calibration_sha256": sha256_of(document),
        "method_used": calibration.method_used,
        "temperature": calibration.forecaster_temperature,
        "model_name": model["name"],
        "model_sha256": model["sha256"],
        "domain": settings.domain,
        "split": settings.split,
    }
    if calibration.aligned_temperature is not None:
        found["aligned_temperature"] = calibration.aligned_temperature
    if calibration.scaling.reads_aligned:
        found["networks_sha256"] = calibration.networks_sha256 or ""
    return found


# A block of rows, in float32 and as fast as NumPy does it: each stands alone, and is stored as
# float32 anyway, while sums over many rows, elsewhere, want float64.


def calibrated_rows(
    domain: Domain, rows: Rows, scaled: ScaledLogits
) -> tuple[Labels, Float32s, Float32s]:
    """Return label (m,), confidence in it (m,) and calibrated probabilities (m, K) of `rows`."""
    logits, scaling = domain.logits(rows), scaled.scaling
    if scaling.forecaster == "original" and not scaling.is_moved:
        labels, distances, axis = _distances(logits)
        probabilities = _softmax(distances, axis, scaling.temperature)
        return labels, probabilities.max(axis=1), probabilities
    # The label's probability need not be the largest of its row.
    labels = logits.argmax(axis=1)
    probabilities = scaled.forecast(domain, rows).probabilities.astype(np.float32).T
    return labels, probabilities[np.arange(len(rows)), labels], probabilities


def _distances(logits: Float32s) -> tuple[Labels, Float32s, int]:
    """Return the labels, logits less the highest of their row, and the axis of the classes."""
    with np.errstate(over="ignore"):  # -inf is a probability of 0
        if logits.shape[1] > _FEW_CLASSES:
            return logits.argmax(axis=1), logits - logits.max(axis=1, keepdims=True), 1
        distances = np.ascontiguousarray(logits.T)
        distances = distances - distances.max(axis=0)
    labels = np.zeros(len(logits), dtype=np.int64)
    for index in reversed(range(len(distances))):  # so that the first of equals stays
        np.putmask(labels, distances[index] == 0, index)
    return labels, distances, 0


def _softmax(distances: Float32s, axis: int, temperature: float) -> Float32s:
    """Return softmax(z / T), shape (m, K), of `distances`, whose memory it takes."""
    with np.errstate(over="ignore"):
        # In float64, where a temperature that float32 cannot hold is no zero.
        np.divide(distances, temperature, out=distances, dtype=np.float64, casting="same_kind")
    np.exp(distances, out=distances)
    distances /= distances.sum(axis=axis, keepdims=True)
    return distances if axis == 1 else distances.T
