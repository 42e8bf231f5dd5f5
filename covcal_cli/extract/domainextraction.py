"""One domain on its way into features.h5: run batch by batch into a spool, then written.

Used by ``extraction.py``, which prepares both domains and owns the file.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.extract.batching import BatchRunner
from covcal_cli.extract.domainwriter import Block, RowFacts, storable, write_domain
from covcal_cli.extract.outputstatistics import OutputStatistics
from covcal_cli.extract.sampling import Rows
from covcal_cli.extract.spool import DomainSpool
from covcal_cli.featurefile import SPLITS, UNKNOWN_LABEL
from covcal_cli.featurewriter import HDF5Writer, utf8
from covcal_cli.inputs.domain import Batch, DomainData
from covcal_cli.inputs.outputs import OutputTable
from covcal_cli.inputs.pipeline import ImagePipeline
from covcal_cli.models.classifier import Classifier, Floats
from covcal_cli.progress import Progress, ProgressCallback

MAX_SKIPPED = 0.01


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
    """Runs the classifier over the chosen rows of one domain, and writes what it gave.

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
    rows : array of int64, shape (m,)
        The rows to run, ascending.
    chosen : int
        Rows of which these are a shard; m without sharding.
    skip_unreadable : bool
        Leave out up to 1 % of `chosen` that cannot be read, instead of stopping at the first.

    Attributes
    ----------
    labels : array of int64, shape (n,)
    rows : array of int64, shape (m,)
    chosen : int
    kept : array of int64
        The rows written; all of `rows` until `write` has been called.
    skipped : list of (int, str)
        Row number and reason of every row that could not be read.
    """

    def __init__(
        self,
        name: str,
        data: DomainData,
        *,
        labels: NDArray[np.int64],
        split: NDArray[np.uint8],
        rows: Rows,
        chosen: int,
        skip_unreadable: bool = True,
    ) -> None:
        self.name, self.data, self.rows, self.chosen = name, data, rows, chosen
        self.labels, self._split = labels, split
        self._allowed = MAX_SKIPPED * chosen if skip_unreadable else 0
        self._skip_unreadable = skip_unreadable
        self._are_images = False
        self.kept = rows
        self.skipped: list[tuple[int, str]] = []
        self.statistics = OutputStatistics(0, 0)

    def first_batch(
        self, pipeline: ImagePipeline | None, *, size: int, threads: int
    ) -> Batch | None:
        """Return the first batch of which any row can be read, or None if no row can."""
        batches = self.data.batches(pipeline, self.rows[:size], size=size, threads=threads)
        with closing(batches):
            return next((piece for piece in batches if len(piece.rows)), None)

    def run(
        self,
        spool: DomainSpool,
        runner: BatchRunner,
        pipeline: ImagePipeline | None,
        *,
        threads: int,
        progress: ProgressCallback | None,
    ) -> None:
        """Run the rows that the spool does not hold yet, and append them to it.

        Raises
        ------
        CovcalError
            If too many files cannot be read, or the classifier's answer is not a number.
        """
        self._are_images = pipeline is not None
        self._require_readable(spool.skipped)
        todo = self.rows[spool.done :]
        if not len(todo):
            return
        batches = self.data.batches(pipeline, todo, size=runner.size, threads=threads)
        with closing(batches):  # an error here must stop the decoding threads at once
            for piece in batches:
                self._require_readable([*spool.skipped, *piece.skipped])
                arrays: dict[str, Floats] = {}
                if len(piece.rows):
                    features, logits = runner.run(piece.inputs)
                    self._require_finite(features, logits, piece)
                    arrays = {"logits": logits}
                    if features is not None:
                        arrays["features"] = features
                done = spool.done + len(piece.rows) + len(piece.skipped)
                spool.append(arrays, done, piece.skipped)
                if progress is not None:
                    progress(Progress(self.name, done, len(self.rows)))

    def write(self, writer: HDF5Writer, spool: DomainSpool, classifier: Classifier) -> None:
        """Write the group ``/NAME`` from a spool that holds every row, and count as it passes."""
        self.skipped = spool.skipped
        left_out = np.array([row for row, _ in self.skipped], dtype=np.int64)
        self.kept = self.rows[~np.isin(self.rows, left_out)]
        self.statistics = OutputStatistics(
            len(self.kept), classifier.n_classes, classifier.weight, classifier.bias
        )
        ids = self.data.ids
        everything = len(self.kept) == len(ids)
        facts = RowFacts(
            labels=self.labels[self.kept],
            split=self._split[self.kept],
            ids=utf8(ids if everything else [ids[row] for row in self.kept]),
            columns={
                column: storable(np.asarray(values)[self.kept])
                for column, values in self.data.columns.items()
            },
            skipped=[(ids[row], reason) for row, reason in self.skipped],
        )
        write_domain(writer, self.name, spool.widths, self._counted(spool), facts)

    def report(self) -> DomainReport:
        """Return what was read."""
        counts = np.bincount(self._split[self.kept], minlength=len(SPLITS))
        return DomainReport(
            name=self.name,
            path=self.data.path,
            rows=dict(zip(SPLITS, map(int, counts), strict=True)),
            labelled=int((self.labels[self.kept] != UNKNOWN_LABEL).sum()),
            skipped=tuple((self.data.ids[row], reason) for row, reason in self.skipped),
        )

    def accuracy(self) -> float | None:
        """Return the share of labelled rows that the classifier gets right; for the source only."""
        return self.statistics.accuracy(self.labels[self.kept])

    def warnings(self) -> list[str]:
        """Return what a user should look into, one line each."""
        found = list(self.data.notes)
        rows = self.report().rows
        empty = [name for name in ("train", "validation") if not rows[name]]
        if empty:
            hashed = self.data.given_split is None
            remedy = "pass other --fractions" if hashed else "the data's own splits leave them out"
            if len(self.kept) < len(self.labels):
                remedy = "choose more rows"
            found.append(
                f"{self.data.path} has no {self.name} {' and no '.join(empty)} rows: {remedy}"
            )
        saturated = self.statistics.saturated()
        if saturated is not None:
            found.append(
                f"every confidence on the {self.name} {saturated}: {self._doubt_on_scale()}"
            )
        if self.name == "source":
            labels = self.labels[self.kept]
            known = np.unique(labels[labels != UNKNOWN_LABEL])
            if len(known) < 2 and len(self.kept) < len(self.labels):
                found.append(
                    f"the rows chosen from {self.data.path} show fewer than two classes, which "
                    "says nothing about confidence: --sample draws from all of them"
                )
            doubt = self.statistics.doubt(labels)
            if doubt is not None:
                found.append(doubt)
        return found

    def _doubt_on_scale(self) -> str:
        if isinstance(self.data, OutputTable):
            return "the outputs may be rounded; give them as the classifier computes them"
        if self._are_images:
            return "the pixels may be unscaled; check --scale, --mean and --std"
        return "the inputs may be unscaled; standardise them as for the model's training"

    def _counted(self, spool: DomainSpool) -> Iterator[Block]:
        for block in spool.blocks():
            self.statistics.add(block.get("features"), block["logits"])
            yield block

    def _require_readable(self, skipped: list[tuple[int, str]]) -> None:
        if len(skipped) <= self._allowed:
            return
        shown = "; ".join(f"{self.data.ids[row]} ({reason})" for row, reason in skipped[:3])
        more = f" and {len(skipped) - 3} more" if len(skipped) > 3 else ""
        if not self._skip_unreadable:
            raise CovcalError(
                f"{self.data.path}: {shown}{more} cannot be read: mend or remove it, or pass "
                "--on-error skip"
            )
        raise CovcalError(
            f"{self.data.path}: more than {MAX_SKIPPED:.0%} of {self.chosen} images "
            f"cannot be read: {shown}{more}: mend or remove them"
        )

    def _require_finite(self, features: Floats | None, logits: Floats, piece: Batch) -> None:
        for what, values in (("logits", logits), ("features", features)):
            if values is None:
                continue
            bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
            if len(bad):
                known = self.data.ids[int(piece.rows[bad[0]])]
                raise CovcalError(
                    f"{self.data.path}: the classifier's {what} for {known} are NaN or infinite: "
                    f"check {'the preprocessing (--scale)' if self._are_images else 'its values'} "
                    "and the model"
                )
