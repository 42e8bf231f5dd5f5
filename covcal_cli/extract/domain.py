"""Run the model on one domain in batches, and write the rows to features.h5.

Results must not depend on the batches, because runs can be split or resumed. Every run of the model
has the same number of rows, because numerical libraries choose algorithms by the batch size. If the
logits of a row depend on the other rows of its batch, each row is run alone. The usual cause is
dynamic quantisation, which has one scale for the whole batch.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, AnyArray, Float32s, Inputs, Labels, Rows, Splits
from covcal_cli.classifiers.classifier import Classifier, OpenedClassifier, Results, batches_of
from covcal_cli.classifiers.proof import affine, difference
from covcal_cli.data.domain import Batch, DomainData, ImagePipeline
from covcal_cli.data.outputs import OutputTable
from covcal_cli.data.rows import RowNumbers
from covcal_cli.errors import CovcalError, percent, printable
from covcal_cli.extract.parts import Block, DomainSpool, Join, LabelRows, Part, RawRows
from covcal_cli.forecast import UNSEEN
from covcal_cli.formats.features import SPLITS
from covcal_cli.formats.writer import HDF5Writer, utf8
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.softmax import top_of_rows, valid_rows
from covcal_cli.maths.source_accuracy import FEW_ROWS, SourceAccuracy
from covcal_cli.progress import Progress, ProgressCallback

MAX_SKIPPED = 0.01
_SATURATED = 0.999
# Warn that labels may be predictions only if the confidence suggests this number of errors.
_EXPECTED_ERRORS = 10
_NOISE = 1e-5  # Rounding error from another order of summation, relative to the largest logit.
_COUNTED_VALUES = 1 << 18  # Block size in values; a block fits in the CPU's cache.


@dataclass(frozen=True)
class DomainReport:
    """A report on the rows of one domain."""

    name: str  # "source" or "target".
    path: Path
    rows: dict[str, int]  # Number of rows in each split.
    labelled: int  # Number of rows whose class is known.
    skipped: tuple[tuple[str, str], ...]  # Id and error of each unreadable row.

    def __str__(self) -> str:
        n = sum(self.rows.values())
        if not n:
            return f"no rows{skipped_words(len(self.skipped))}"
        labelled = "all labelled" if self.labelled == n else f"{self.labelled or 'none'} labelled"
        use = ", for covcal evaluate only" if self.name == "target" and self.labelled else ""
        return f"{n} rows, {labelled}{use}{skipped_words(len(self.skipped))}"

    @property
    def splits(self) -> str:
        """The number of rows of each split, as text."""
        return ", ".join(f"{name} {count}" for name, count in self.rows.items())


@dataclass(eq=False)
class DomainExtraction:
    """The extraction of one domain."""

    name: str  # "source" or "target"
    data: DomainData
    # Class numbers of all rows, -1 if unknown. Shape (n,), or (n, L) with several labels.
    labels: Labels
    split: Splits  # The split of each row of the data, shape (n,).
    rows: Rows  # The numbers of the rows to run, ascending.
    chosen: int  # Number of rows in all shards together.
    pipeline: ImagePipeline | None  # Converts images to model inputs; None for other data.
    size: int  # Number of rows in a batch.
    threads: int
    skip_unreadable: bool
    has_chosen_fractions: bool  # Whether the user chose the sizes of the splits.

    def __post_init__(self) -> None:
        self.kept = self.rows  # The rows to write; `write` removes unreadable rows.
        self.skipped: list[tuple[int, str]] = []  # Number and error of each unreadable row.
        self.statistics = OutputStatistics(0)
        # Maps names to datasets. With several labels, only the first label is included.
        self.content: Mapping[str, Any] = {}
        # A generator that yields all later batches, and the first batch with its results.
        self.begun: tuple[Generator[Batch, None, None], tuple[Batch, Results]] | None = None
        # The accuracy on labelled source rows (validation and test), from `write`.
        self.accuracy: SourceAccuracy | None = None
        # A warning that columns may be ranks, and whether the labels show that they are classes.
        self.doubt_on_order: str | None = getattr(self.data, "doubt_on_order", None)
        self.has_order_of_classes = False
        self.doubt_on_labels: str | None = None  # A warning that labels may be predictions.

    def batches(self, rows: Rows) -> Generator[Batch, None, None]:
        """Yield batches of model inputs."""
        batches = self.data.batches(self.pipeline, rows, size=self.size, threads=self.threads)
        with closing(batches):  # If the caller fails, the threads that decode images must stop.
            yield from batches

    def run(
        self, spool: DomainSpool, runner: "BatchRunner", progress: ProgressCallback | None
    ) -> None:
        """Run the rows that an interrupted run has not finished."""
        self._require_readable(spool.skipped)
        if spool.done:  # A resumed run continues after the finished rows.
            self.forget_begun()
        if spool.done == len(self.rows):
            return
        batches, first = self.begun or (self.batches(self.rows[spool.done :]), None)
        self.begun = None
        with closing(batches):
            if first is not None:
                piece, results = first
                self._run_batch(spool, piece, runner, progress, results)
                del first, results  # they take memory
            for piece in batches:
                self._run_batch(spool, piece, runner, progress)

    def forget_begun(self) -> None:
        """Discard the first batch with its results, and close the reader."""
        if self.begun is not None:
            self.begun[0].close()
        self.begun = None

    def _run_batch(
        self,
        spool: DomainSpool,
        piece: Batch,
        runner: "BatchRunner",
        progress: ProgressCallback | None,
        results: Results | None = None,
    ) -> None:
        self._require_readable([*spool.skipped, *piece.skipped])
        arrays: dict[str, Float32s] = {}
        error = 0.0
        if len(piece.rows):
            is_latest = results is None
            features, logits = results or runner.run(piece.inputs)
            arrays = {"logits": logits}
            if features is not None:
                arrays["features"] = features
            self._require_finite(arrays, piece)
            error = runner.affine_difference(arrays, is_latest=is_latest)
        done = spool.done + len(piece.rows) + len(piece.skipped)
        spool.append(arrays, done, piece.skipped, error)
        if progress is not None:
            progress(Progress(self.name, done, len(self.rows)))

    def write(
        self, writer: HDF5Writer, spool: DomainSpool, classifier: Classifier, classes: Sequence[str]
    ) -> list[Join]:
        """Write the finished rows of this domain to the features file, and collect statistics.

        With several labels, write one group per label.
        """
        self.skipped = spool.skipped  # Every row was tried, so all unreadable rows are known.
        left_out = np.array([row for row, _ in self.skipped], dtype=np.int64)
        self.kept = self.rows[~np.isin(self.rows, left_out)]
        self.statistics = OutputStatistics(len(self.kept))
        ids = self.data.ids
        everything = len(self.kept) == len(ids)
        kept_ids = ids if everything else [ids[row] for row in self.kept]
        columns = {
            f"columns/{name}": _storable(values if everything else values[self.kept])
            for name, values in self.data.columns.items()
        }
        numbers = spool.numbers()
        logits = replace(numbers["logits"], convert=classifier.outputs.logits)
        numbers["logits"] = logits
        labels = self.labels[self.kept]
        self.content = {
            **numbers,
            "labels": labels,
            "split": self.split[self.kept],
            "ids": kept_ids.encoded() if isinstance(kept_ids, RowNumbers) else utf8(kept_ids),
            **columns,
        }
        part = Part(
            path=self.data.path,
            rows=self.kept,
            content=self.content,
            columns=list(self.data.columns),
            skipped=[(row, ids[row], reason) for row, reason in self.skipped],
        )
        if labels.ndim == 2:
            return self._write_labels(writer, part, logits, labels)
        join = Join(self.name, [part])
        join.write(writer, self.statistics.add)
        if classifier.weight is not None:  # If the model gives probabilities, W is None.
            self.statistics.affine_difference = spool.affine_difference
        if self.name == "source":  # ``covcal extract`` does not use target labels.
            self.accuracy = accuracy = self._accuracy(classes, logits)
            if accuracy is not None and (self.doubt_on_order or classifier.outputs.doubt_on_order):
                self.has_order_of_classes = accuracy.is_as_promised(self._confidence(logits))
            if accuracy is not None and accuracy.right == accuracy.rows:
                expected = accuracy.rows * (1 - self._confidence(logits))
                self.doubt_on_labels = self._doubt_on_labels(expected, classes)
        return [join]

    def _write_labels(
        self, writer: HDF5Writer, part: Part, logits: RawRows, labels: Labels
    ) -> list[Join]:
        joins: list[Join] = []
        for number, of_label in enumerate(labels.T):
            content = {**part.content, "logits": LabelRows(logits, number), "labels": of_label}
            self.content = content if number == 0 else self.content
            join = Join(f"label/{number}/{self.name}", [replace(part, content=content)])
            join.write(writer, shared=joins[0].name if joins else None)
            joins.append(join)
        return joins

    def write_shard(self, writer: HDF5Writer) -> None:
        """Write the row numbers, by which ``merge`` sorts the rows."""
        skipped = np.array([row for row, _ in self.skipped], dtype=np.int64)
        writer.write(f"shard/{self.name}/rows", self.kept)
        writer.write(f"shard/{self.name}/skipped", skipped)
        writer.write(f"shard/{self.name}/chosen", [self.chosen])

    def report(self) -> DomainReport:
        """Return the report on the rows."""
        return DomainReport(
            name=self.name,
            path=self.data.path,
            rows=rows_per_split(self.split[self.kept]),
            labelled=int(
                np.atleast_2d((self.labels[self.kept] != UNKNOWN_LABEL).T).any(axis=0).sum()
            ),
            skipped=tuple((self.data.ids[row], reason) for row, reason in self.skipped),
        )

    def _accuracy(self, classes: Sequence[str], logits: RawRows) -> SourceAccuracy | None:
        unseen = self._unseen
        labels = self.labels[self.kept][unseen]
        predictions = self.statistics.predictions[unseen]
        return SourceAccuracy.of(
            labels, predictions, classes, lambda chosen: logits.take(unseen[chosen])
        )

    @property
    def _unseen(self) -> Rows:
        """Positions of validation and test rows among the kept rows."""
        codes = [SPLITS.index(name) for name in UNSEEN]
        return np.flatnonzero(np.isin(self.split[self.kept], codes))

    def _confidence(self, logits: RawRows) -> float:
        unseen = self._unseen
        labelled = unseen[self.labels[self.kept][unseen] != UNKNOWN_LABEL]
        return float(confidences(logits.take(labelled), 1.0).mean())

    def _doubt_on_labels(self, expected: float, classes: Sequence[str]) -> str | None:
        if expected < _EXPECTED_ERRORS:
            return None
        columns = [
            name
            for name, values in self.data.columns.items()
            if values.dtype.kind == "U" and {*np.unique(values).tolist()} <= {*classes}
        ]
        other = f" (perhaps the column {printable(columns[0])})" if columns else ""
        return (
            f"{self.data.path}: the label is the predicted class in every row, although the "
            f"confidence suggests {expected:.0f} errors. If the labels are predictions, give the "
            f"true labels instead{other}"
        )

    def warnings(self, *, has_features: bool) -> Iterator[str | None]:
        """Yield warnings about this domain, or None."""
        yield from self.data.notes
        if not len(self.data.ids):  # Another note tells the user that a domain is empty.
            return
        rows, hashed = rows_per_split(self.split[self.kept]), self.data.given_split is None
        # ``covcal adapt`` needs training rows, but do not warn if the user chose --fractions.
        learns = has_features and not (hashed and self.has_chosen_fractions)
        needed = ("train", "validation") if learns else ("validation",)
        empty = [name for name in needed if not rows[name]]
        if empty:
            remedy = "pass other --fractions" if hashed else "add rows to these splits of the data"
            if len(self.kept) < len(self.labels):
                remedy = "extract more rows"
            yield f"{self.data.path} has no {self.name} {' and no '.join(empty)} rows: {remedy}"
        # With several labels, ``covcal calibrate`` prints the warnings about confidence instead.
        if self.labels.ndim == 2:
            return
        if len(self.kept) >= FEW_ROWS and self.statistics.least_confidence > _SATURATED:
            yield (
                f"every confidence on the {self.name} is above {_SATURATED}: "
                f"{self._doubt_on_scale()}"
            )
        if self.name == "source":  # Only ``covcal evaluate`` uses target labels.
            labels = self.labels[self.kept]
            is_part = len(self.kept) < len(self.labels)
            if is_part and len(np.unique(labels[labels != UNKNOWN_LABEL])) < 2:
                yield (
                    f"the rows chosen from {self.data.path} have labels of fewer than two "
                    "classes: use --sample, which draws from all rows"
                )
            yield None if self.accuracy is None else self.accuracy.doubt
            yield self.doubt_on_labels

    def _doubt_on_scale(self) -> str:
        if isinstance(self.data, OutputTable):
            return (
                "the outputs may be labels or rounded probabilities. Give probabilities with "
                "all their digits"
            )
        if self.pipeline is not None:
            return "the pixels may be unscaled. Check --scale, --mean and --std"
        return "the inputs may be unscaled. Scale the inputs as in training"

    def _require_readable(self, skipped: Sequence[tuple[int, str]]) -> None:
        if len(skipped) <= (MAX_SKIPPED * self.chosen if self.skip_unreadable else 0):
            return
        named = "; ".join(f"{self.data.ids[row]} ({reason})" for row, reason in skipped[:3])
        more = f" and {len(skipped) - 3} more" if len(skipped) > 3 else ""
        if not self.skip_unreadable:
            raise CovcalError(
                f"{self.data.path}: {named}{more} cannot be read: repair or remove these files, or "
                "pass --on-error skip"
            )
        raise CovcalError(
            f"{self.data.path}: more than {percent(MAX_SKIPPED, 0)} of {self.chosen} images cannot "
            f"be read: {named}{more}: repair or remove these images"
        )

    def _require_finite(self, arrays: Block, piece: Batch) -> None:
        for key, values in arrays.items():
            if np.isfinite(values).all():
                continue
            # A logit of -inf excludes a class, but every row needs a finite logit.
            is_valid = valid_rows(values) if key == "logits" else np.isfinite(values).all(axis=1)
            if is_valid.all():
                continue
            row = int(np.argmin(is_valid))
            row_id = self.data.ids[int(piece.rows[row])]
            if key == "features" and np.isnan(values[row]).any():
                columns = getattr(self.data, "feature_columns", ())
                column = int(np.argmax(np.isnan(values[row])))
                name = columns[column] if columns else f"number {column}"
                raise CovcalError(
                    f"{self.data.path}: the feature {name} of {row_id} is missing (NaN): fill in "
                    "a value, or pass --phi none to keep no features"
                )
            remedy = "its values" if self.pipeline is None else "the preprocessing (--scale)"
            raise CovcalError(
                f"{self.data.path}: the classifier's {key} for {row_id} are NaN or infinite: "
                f"check {remedy} and the model"
            )


def skipped_words(count: int) -> str:
    """Return the number of skipped files, as text."""
    return f"; {count} {'file' if count == 1 else 'files'} skipped" if count else ""


def rows_per_split(split: Splits) -> dict[str, int]:
    """Return the number of rows of each split."""
    return {name: int(np.count_nonzero(split == code)) for code, name in enumerate(SPLITS)}


def _storable(values: AnyArray) -> AnyArray:
    if values.dtype.kind in "OU":
        return utf8([str(value) for value in values])
    return values


def prove(
    opened: OpenedClassifier, inputs: Inputs | None, size: int, few: int | None = None
) -> tuple["BatchRunner", Results | None]:
    """Check the last layer on the first rows, and whether rows of a batch influence each other.

    The checks compare two runs of the model on `few` rows, or on `size` rows by default. Also
    returns phi(x) and the outputs, or None if the rows must be run again.
    """
    if inputs is None:
        return BatchRunner(opened.prove(None, few), size), None
    n = len(next(iter(inputs.values())))
    places = next(batches_of(size, n))
    classifier = opened.prove({name: values[places] for name, values in inputs.items()}, few)
    runner = BatchRunner(classifier, size)
    features, logits = classifier.first_results or runner.run(inputs)
    classifier.first_results = None  # Free the memory.
    # Copy the results, because the original arrays would keep ONNX Runtime's memory in use.
    results = None if features is None else features[:n].copy(), logits[:n]
    if not valid_rows(results[1]).all():
        return runner, None  # `DomainExtraction.run` names the invalid row.
    # In a small batch, outputs can differ by rounding, so test a batch of `size` rows, too.
    sizes = [size] if few is None or few == size else [few, size]
    if not all(_moves_first_row(classifier, inputs, results[1], rows) for rows in sizes):
        return runner, results
    moved, largest = difference(runner.run(inputs)[1], results[1])
    if moved > _NOISE * largest:
        relative = moved / (largest or 1)
        raise CovcalError(
            f"{classifier.name} gives different outputs for the same rows (relative "
            f"difference {relative:.1g}): export the model without random operators, dropout or "
            "noise layers"
        )
    return BatchRunner(classifier, size, alone=True), None


def _moves_first_row(classifier: Classifier, inputs: Inputs, logits: Float32s, copies: int) -> bool:
    repeated = {name: np.repeat(values[:1], copies, axis=0) for name, values in inputs.items()}
    _, outputs = classifier.run(repeated)
    moved, _ = difference(outputs, np.broadcast_to(logits[0], outputs.shape))
    return moved > _NOISE * difference(logits, logits)[1]


class BatchRunner:
    """A runner of the classifier on batches of equal size."""

    def __init__(self, classifier: Classifier, size: int, *, alone: bool = False) -> None:
        self.classifier = classifier
        self.size = size  # Number of rows per run of the model.
        self._alone = alone  # Whether the model runs on one row at a time.

    @property
    def note(self) -> str | None:
        """A note if the model runs on one row at a time, else None."""
        if not self._alone:
            return None
        return (
            f"in {self.classifier.name}, rows of a batch change each other's logits, so each row "
            "runs alone, which is slower"
        )

    def run(self, inputs: Inputs) -> Results:
        """Return phi(x), (m, d), and logits, (m, K), of up to `size` rows."""
        rows = len(next(iter(inputs.values())))
        results = [
            self.classifier.run({name: values[places] for name, values in inputs.items()})
            for places in batches_of(1 if self._alone else self.size, rows)
        ]
        self._is_one_run = len(results) == 1
        logits = _joined([result[1] for result in results])[:rows]
        features = [result[0] for result in results if result[0] is not None]
        return _joined(features)[:rows] if features else None, logits

    def affine_difference(self, block: Block, *, is_latest: bool) -> float:
        """Return the largest |phi W^T + b - logits| of a batch; 0 without W or features.

        `is_latest` means that the batch is the last result of `run`.
        """
        weight, bias = self.classifier.weight, self.classifier.bias
        if weight is None or bias is None or "features" not in block:
            return 0.0
        logits = block["logits"]
        # If no logits were shifted, the check of the last layer has already computed this number.
        latest = self.classifier.proof.latest_difference
        if is_latest and self._is_one_run and latest is not None and logits.all():
            return latest
        computed = affine(block["features"], weight, bias)
        is_moved = logits.max(axis=1) == 0
        computed[is_moved] -= computed[is_moved].max(axis=1, keepdims=True)
        return difference(computed, logits)[0]


def _joined(arrays: Sequence[Float32s]) -> Float32s:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class OutputStatistics:
    """Statistics of the outputs of a domain's `n` rows."""

    def __init__(self, n: int) -> None:
        self.predictions = np.empty(n, dtype=np.int64)
        self.affine_difference = 0.0  # The largest |phi W^T + b - logits|.
        self.largest_logit = 0.0  # The largest |logit|, without masked classes.
        # The lowest confidence so far; values below `_SATURATED` are not exact.
        self.least_confidence = 1.0
        self._seen = 0

    def add(self, block: Block) -> None:
        """Add the outputs of more rows."""
        size = max(1, _COUNTED_VALUES // block["logits"].shape[1])
        for start in range(0, len(block["logits"]), size):
            logits = block["logits"][start : start + size]
            stop = self._seen + len(logits)
            self.predictions[self._seen : stop], highest = top_of_rows(logits)
            self._seen = stop
            self.largest_logit = max(self.largest_logit, difference(logits, logits)[1])
            if self.least_confidence > _SATURATED:
                exact = logits.astype(np.float64) - highest[:, None]
                confidence = 1 / np.exp(exact).sum(axis=1)
                self.least_confidence = float(confidence.min(initial=self.least_confidence))
