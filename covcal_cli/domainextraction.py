"""One domain on its way into features.h5: run, written, counted, and judged.

Used by ``extraction.py``, which prepares both domains and owns the file.
"""

import math
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import SPLITS, UNKNOWN_LABEL
from covcal_cli.featurewriter import HDF5Writer, utf8
from covcal_cli.inputs.domain import Batch, DomainData
from covcal_cli.inputs.preprocessing import ImagePipeline
from covcal_cli.models.classifier import Classifier, Floats
from covcal_cli.progress import Progress, ProgressCallback

MAX_SKIPPED = 0.01
_SATURATED = 0.999
_FEW_ROWS = 50  # what holds for fewer may be luck


@dataclass(frozen=True)
class DomainReport:
    """What was read of one domain.

    Attributes
    ----------
    name : str
        ``"source"`` or ``"target"``.
    path : Path
        Where the data lies.
    rows : dict of str to int
        Rows per split.
    labelled : int
        Rows whose class is known.
    skipped : tuple of (str, str)
        Id and reason of every file that could not be read.
    """

    name: str
    path: Path
    rows: dict[str, int]
    labelled: int
    skipped: tuple[tuple[str, str], ...]


class DomainExtraction:
    """Runs the classifier over one domain and counts what a report needs.

    Parameters
    ----------
    name : str
        ``"source"`` or ``"target"``.
    data : DomainData
        Its rows.
    labels : array of int64, shape (n,)
        Class indices, -1 where unknown.
    split : array of uint8, shape (n,)
        Index into `SPLITS`.
    n_classes : int
        K.
    """

    def __init__(
        self,
        name: str,
        data: DomainData,
        *,
        labels: NDArray[np.int64],
        split: NDArray[np.uint8],
        n_classes: int,
    ) -> None:
        self._name, self._data, self._labels, self._split = name, data, labels, split
        self._skipped: list[tuple[int, str]] = []
        self._kept = np.ones(len(labels), dtype=bool)
        self._n_classes = n_classes
        self._predicted = np.zeros(n_classes, dtype=np.int64)
        self._correct = 0
        self._least_confident = 1.0

    @property
    def labelled(self) -> int:
        """Rows written whose class is known."""
        return int((self._labels[self._kept] != UNKNOWN_LABEL).sum())

    @property
    def accuracy(self) -> float:
        """Share of the labelled rows that the classifier gets right."""
        return self._correct / self.labelled

    def write(
        self,
        writer: HDF5Writer,
        classifier: Classifier,
        pipeline: ImagePipeline | None,
        *,
        batch: int,
        threads: int,
        progress: ProgressCallback | None,
    ) -> None:
        """Run the classifier batch by batch and append the results under ``/NAME``.

        Raises
        ------
        CovcalError
            If too many files cannot be read, or the classifier's answer is not a number.
        """
        total, done = len(self._labels), 0
        rows = np.arange(total, dtype=np.int64)
        batches = self._data.batches(classifier.inputs, pipeline, rows, size=batch, threads=threads)
        with closing(batches):  # an error here must stop the decoding threads at once
            for piece in batches:
                self._skip(piece)
                if len(piece.rows):
                    features, logits = classifier.run(piece.inputs)
                    self._require_finite(features, logits, piece)
                    if features is not None:
                        writer.append(f"{self._name}/features", features)
                    writer.append(f"{self._name}/logits", logits)
                    self._count(logits, piece)
                done += len(piece.rows) + len(piece.skipped)
                if progress is not None:
                    progress(Progress(self._name, done, total))
        writer.write(f"{self._name}/labels", self._labels[self._kept])
        writer.write(f"{self._name}/split", self._split[self._kept])
        ids = [self._data.ids[row] for row in np.flatnonzero(self._kept)]
        writer.write(f"{self._name}/ids", utf8(ids))
        if self._skipped:
            skipped = [self._data.ids[row] for row, _ in self._skipped]
            writer.write(f"{self._name}/skipped", utf8(skipped))

    def report(self) -> DomainReport:
        """Return what was read."""
        counts = np.bincount(self._split[self._kept], minlength=len(SPLITS))
        return DomainReport(
            name=self._name,
            path=self._data.path,
            rows=dict(zip(SPLITS, map(int, counts), strict=True)),
            labelled=self.labelled,
            skipped=tuple((self._data.ids[row], reason) for row, reason in self._skipped),
        )

    def warnings(self) -> list[str]:
        """Return what a user should look into, one line each."""
        found = list(self._data.notes)
        rows = self.report().rows
        empty = [name for name in ("train", "validation") if not rows[name]]
        if empty:
            hashed = self._data.given_split is None
            remedy = "pass other --fractions" if hashed else "the data's own splits leave them out"
            found.append(
                f"{self._data.path} has no {self._name} {' and no '.join(empty)} rows: {remedy}"
            )
        if sum(rows.values()) >= _FEW_ROWS and self._least_confident > _SATURATED:
            found.append(
                f"every confidence on the {self._name} exceeds {_SATURATED}: the pixels may be "
                "unscaled; check --scale, --mean and --std"
            )
        chance = self._chance()
        if self._name == "source" and chance is not None and self.accuracy <= chance:
            found.append(
                f"the classifier gets {self.accuracy:.1%} of the source right, no better than "
                "guessing: check the preprocessing and the order of the classes"
            )
        return found

    def _skip(self, piece: Batch) -> None:
        self._skipped += piece.skipped
        self._kept[[row for row, _ in piece.skipped]] = False
        if len(self._skipped) > MAX_SKIPPED * len(self._labels):
            shown = "; ".join(
                f"{self._data.ids[row]} ({reason})" for row, reason in self._skipped[:3]
            )
            more = f" and {len(self._skipped) - 3} more" if len(self._skipped) > 3 else ""
            raise CovcalError(
                f"{self._data.path}: more than {MAX_SKIPPED:.0%} of {len(self._labels)} images "
                f"cannot be read: {shown}{more}: mend or remove them"
            )

    def _require_finite(self, features: Floats | None, logits: Floats, piece: Batch) -> None:
        for what, values in (("logits", logits), ("features", features)):
            if values is None:
                continue
            bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
            if len(bad):
                known = self._data.ids[int(piece.rows[bad[0]])]
                raise CovcalError(
                    f"{self._data.path}: the classifier's {what} for {known} are NaN or infinite: "
                    "check the preprocessing (--scale) and the model"
                )

    def _count(self, logits: Floats, piece: Batch) -> None:
        predictions, labels = logits.argmax(axis=1), self._labels[piece.rows]
        self._correct += int((predictions == labels).sum())  # an unknown label, -1, never is
        self._predicted += np.bincount(
            predictions[labels != UNKNOWN_LABEL], minlength=logits.shape[1]
        )
        above = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        confidence = 1 / np.exp(above).sum(axis=1)
        self._least_confident = min(self._least_confident, float(confidence.min()))

    def _chance(self) -> float | None:
        """Return the highest accuracy that predictions unrelated to the labels would reach.

        The expected share of hits if the predictions were shuffled, plus two standard deviations;
        None with too few labelled rows to tell.
        """
        n = self.labelled
        if n < _FEW_ROWS:
            return None
        known = self._labels[self._kept & (self._labels != UNKNOWN_LABEL)]
        expected = float(np.bincount(known, minlength=self._n_classes) @ self._predicted) / n**2
        return expected + 2 * math.sqrt(expected * (1 - expected) / n)
