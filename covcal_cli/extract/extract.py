"""``covcal extract``: make features.h5 from a classifier and two domains, in batches.

- Plan: open the classifier and the data, choose all settings, and refuse most bad inputs.
- Check: test the last layer on a first batch, and test whether the rows influence each other.
- Store: write outputs to files beside features.h5, so that an interrupted run can be continued.
- Decide: use the values of all rows to decide whether the outputs are logits or probabilities.
- Join: write features.h5 from the stored files. ``covcal merge`` uses the same code
  (`parts.Join`).

Rows are in a stable order, and the file has no dates. Equal inputs give equal bytes.
"""

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import Float32s, Rows
from covcal_cli.errors import CovcalError, percent
from covcal_cli.extract.domain import DomainExtraction, DomainReport
from covcal_cli.extract.parts import (
    BLOCK_BYTES,
    DomainSpool,
    complete,
    open_spool,
    require_same_settings,
)
from covcal_cli.extract.plan import NO_SHIFT, ExtractPlan, class_list, is_one_place, once, prepare
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.files import atomic_output, check_output, require_hdf5_name
from covcal_cli.formats.features import FEATURES_SCHEMA, FeatureFile
from covcal_cli.formats.writer import HDF5Writer
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.output_form import OutputEvidence
from covcal_cli.maths.source_accuracy import FEW_ROWS, SourceAccuracy
from covcal_cli.multilabel import CLASSES
from covcal_cli.multilabel import SCHEMA as MULTILABEL_SCHEMA
from covcal_cli.progress import ProgressCallback

_DEFAULTS = ExtractSettings()
# Minimum rise of the mean confidence that suggests exchanged domains. On all 41 shifts of the
# benchmark, the mean confidence was lower on the target than on the source.
_SURER, _SURER_DEVIATIONS = 0.05, 5
# Minimum number and share of repeated target rows for a warning. The share must exceed
# `_PER_REPEAT` times the share of repeated rows within a domain.
_FEWEST_SHARED, _LEAST_SHARED, _PER_REPEAT = 20, 0.1, 3
_COMPARED_ROWS = 4096  # Maximum number of rows of each domain to compare.


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The fields that the reports of an extraction and of a dry run share."""

    reading: str  # How the classifier's output is read.
    head: str  # The last linear layer and its error, in one line.
    preprocessing: str  # The preprocessing of images, in one line.
    holds_images: bool  # Whether the data are images.
    classes: tuple[str, ...]  # The class names in the order of the logits.
    domains: tuple[DomainReport, ...]  # The source first.
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ExtractReport(Summary):
    """The result of an extraction."""

    output: Path
    source_accuracy: SourceAccuracy | None  # Accuracy on the source; None without source labels.
    is_multilabel: bool  # Whether rows can have several labels.

    @property
    def facts(self) -> dict[str, str]:
        """The summary for the screen: at most six lines, by name."""
        facts = {domain.name: str(domain) for domain in self.domains}
        if self.source_accuracy is not None:
            facts["accuracy"] = str(self.source_accuracy)
        facts["model"] = self.reading
        if self.holds_images:
            facts["images"] = self.preprocessing
        return facts | {"labels" if self.is_multilabel else "classes": class_list(self.classes)}

    @property
    def details(self) -> dict[str, str]:
        """Details on the last layer and on the splits."""
        splits = {f"{domain.name} splits": domain.splits for domain in self.domains}
        return {"last layer": self.head, **splits}


def extract(
    model: str | Path | None,
    source: str | Path | None,
    target: str | Path | None,
    output: str | Path,
    settings: ExtractSettings = _DEFAULTS,
    *,
    force: bool = False,
    resume: bool = False,
    beside: Path | None = None,
    progress: ProgressCallback | None = None,
) -> ExtractReport:
    """Run a classifier on one or two domains, and write features, logits, labels and splits.

    Parameters
    ----------
    model : str, Path or None
        The classifier: a file, or ``module:function``. `model` is None for tables of outputs.
    source, target : str, Path or None
        The data of each domain. One domain may be missing.
    output : str or Path
        The features file to write.
    settings : ExtractSettings
        The settings of the extraction.
    force : bool
        Replace `output` if it exists.
    resume : bool
        Continue an interrupted run with the same settings.
    beside : Path, optional
        A features file; the new file must have the same model and settings.
    progress : callable, optional
        Called with a `Progress` after every batch.

    Raises
    ------
    CovcalError
        If the model, the data or the output cannot be used.
    """
    source, target = (None if path is None else Path(path) for path in (source, target))
    inputs = [Path(path) for path in (model, source, target) if path is not None]
    output = Path(output)
    require_hdf5_name(output)
    check_output(output, force=force, inputs=inputs)
    plan = prepare(model, source, target, settings)
    if beside is not None:
        with FeatureFile(beside) as file:
            data = target or source or output
            require_same_settings(file, data, plan.classes.names, plan.attributes())
    # The configuration in the plan decides whether an earlier run can be continued.
    with atomic_output(output, force=force) as partial:
        folder, note = open_spool(output, plan.config(), resume=resume)
        try:
            doubt = _run(plan, folder, partial, progress)
        except Exception:  # After Ctrl-C, --resume needs the folder.
            if not resume:
                shutil.rmtree(folder, ignore_errors=True)
            raise
    shutil.rmtree(folder, ignore_errors=True)
    domains = plan.domains
    has_features = plan.classifier.n_features is not None
    warnings = [
        text for domain in domains.values() for text in domain.warnings(has_features=has_features)
    ]
    warnings += _doubts_on_order(plan)
    return ExtractReport(
        output=output,
        source_accuracy=domains["source"].accuracy if "source" in domains else None,
        is_multilabel=plan.settings.multilabel,
        **_summary(plan, [*warnings, doubt], note),
    )


def _doubts_on_order(plan: ExtractPlan) -> list[str | None]:
    source = plan.domains.get("source")
    if source is not None and source.has_order_of_classes:
        return []
    doubts = {name: domain.doubt_on_order for name, domain in plan.domains.items()}
    # With two classes, all rows of a target can have the same predicted class.
    if source is not None and doubts["source"] is None and plan.classifier.n_classes == 2:
        del doubts["target"]
    return [plan.classifier.outputs.doubt_on_order, *doubts.values()]


def _summary(plan: ExtractPlan, warnings: Sequence[str | None], note: str | None) -> dict[str, Any]:
    return {
        "reading": plan.reading(),
        "head": plan.classifier.describe(),
        "preprocessing": plan.preprocessing(),
        "holds_images": plan.pipeline is not None,
        "classes": plan.classes.names,
        "domains": tuple(domain.report() for domain in plan.domains.values()),
        "warnings": once(*plan.classifier.outputs.warnings, *plan.warnings, *warnings),
        "notes": once(*plan.notes, note),
    }


def _run(
    plan: ExtractPlan, folder: Path, partial: Path, progress: ProgressCallback | None
) -> str | None:
    classifier, domains, shard = plan.classifier, plan.domains, plan.settings.selection.shard
    outputs, evidence = classifier.outputs, OutputEvidence()
    with ExitStack() as stack:
        # Store the outputs of all rows in files first, so that an interrupted run loses no row.
        spools = {
            name: stack.enter_context(DomainSpool(folder, name, plan.widths)) for name in domains
        }
        for name, domain in domains.items():
            domain.run(spools[name], plan.runner, progress)
        # Decide from all rows of both domains whether the outputs are logits.
        for spool in spools.values():
            for values in spool.numbers()["logits"].blocks():
                evidence.add(outputs.shown(values))
        _require_one_form(plan, spools, evidence)
        outputs.settle(evidence)
        # Write the features file once, from beginning to end.
        attributes, classes = plan.attributes(), plan.classes.names
        several = plan.settings.multilabel
        writer = stack.enter_context(
            HDF5Writer(
                partial,
                schema=MULTILABEL_SCHEMA if several else FEATURES_SCHEMA,
                classes=CLASSES if several else classes,
                attributes=attributes,
            )
        )
        joins = [
            join
            for name, domain in domains.items()
            for join in domain.write(writer, spools[name], classifier, classes)
        ]
        if classifier.weight is not None and classifier.bias is not None and not several:
            writer.write("head/weight", classifier.weight)
            writer.write("head/bias", classifier.bias)
        if shard is not None:
            for domain in domains.values():
                domain.write_shard(writer)
        paths = {name: domain.data.path for name, domain in domains.items()}
        doubt = None
        # If both paths are equal, one table has both domains, or the user has been warned already.
        if len(paths) == 2 and not is_one_place(paths["source"], paths["target"]):
            rows = {name: domain.content for name, domain in domains.items()}
            doubt = _doubt_on_rows(rows, paths)
        statistics = [domain.statistics for domain in domains.values()]
        complete(
            writer,
            joins,
            classes,
            attributes,
            tail=str(classifier.tail),
            worst=max(counts.affine_difference for counts in statistics),
            largest=max(counts.largest_logit for counts in statistics),
            shard=None if shard is None else str(shard),
        )
    return doubt


def _require_one_form(
    plan: ExtractPlan, spools: Mapping[str, DomainSpool], evidence: OutputEvidence
) -> None:
    if (
        plan.settings.multilabel
        or evidence.form != "mixed"
        or not plan.classifier.outputs.is_open
        or evidence.first_off is None
    ):
        return
    row, total = evidence.first_off
    name = "source" if "source" in spools and row < spools["source"].kept else "target"
    domain = plan.domains[name]
    if name == "target" and "source" in spools:
        row -= spools["source"].kept
    skipped = {number for number, _ in spools[name].skipped}
    number = [number for number in domain.rows.tolist() if number not in skipped][row]
    raise CovcalError(
        f"{domain.data.path}: {plan.classifier.name} gives probabilities in "
        f"{evidence.summing} of {evidence.rows} rows, but row {domain.data.ids[number]} has "
        f"the sum {total:g}: remove such rows, or export the model with its logits"
    )


_LABEL_AND_SPLIT = 9  # Bytes of the label and the split of a row.
_HEADER_BYTES = 1500  # Approximate bytes of the file headers, per dataset.
_LONG_ENOUGH = 1.0  # Minimum time of a run, in seconds; shorter times are too noisy.
_TIMES = 8


@dataclass(frozen=True, kw_only=True)
class DryRun(Summary):
    """A description of an extraction before it runs."""

    batch: int  # Number of rows in a run of the model.
    threads: int
    size: int  # Bytes of the features file; the extraction needs twice as much space.
    seconds: float | None  # Estimated time in seconds; None if no row is readable.


def dry_run(
    model: str | Path | None,
    source: Path | None,
    target: Path | None,
    output: Path,
    settings: ExtractSettings,
    *,
    force: bool = False,
) -> DryRun:
    """Prepare an extraction, and time a few batches. The arguments are the same as in `extract`."""
    inputs = [Path(path) for path in (model, source, target) if path is not None]
    check_output(output, force=True, inputs=inputs)
    in_the_way = None
    if output.exists() and not force:
        in_the_way = (
            f"{output} already exists. To replace the file, pass --force when you run covcal "
            "extract without --dry-run"
        )
    plan = prepare(model, source, target, settings)
    domains, evidence = plan.domains.values(), OutputEvidence()
    seconds = _seconds(plan, evidence)
    plan.classifier.outputs.settle(evidence)
    return DryRun(
        batch=plan.runner.size,
        threads=plan.threads,
        size=sum(_bytes(plan, domain) for domain in domains),
        seconds=seconds,
        **_summary(plan, [note for domain in domains for note in domain.data.notes], in_the_way),
    )


def _bytes(plan: ExtractPlan, domain: DomainExtraction) -> int:
    ids = max((len(domain.data.ids[row].encode()) for row in domain.rows[:10_000]), default=1)
    columns = domain.data.columns.values()
    width = 4 * sum(plan.widths.values()) + _LABEL_AND_SPLIT + ids
    width += sum(
        values.dtype.itemsize // (4 if values.dtype.kind == "U" else 1) for values in columns
    )
    datasets = len(plan.widths) + len(("labels", "split", "ids")) + len(columns)
    return len(domain.rows) * width + datasets * _HEADER_BYTES


def _seconds(plan: ExtractPlan, evidence: OutputEvidence) -> float | None:
    """Estimate the time of an extraction by timing more and more batches.

    The difference between two runs gives the time per row; the rest is constant.
    """
    total = sum(len(domain.rows) for domain in plan.domains.values())
    for domain in plan.domains.values():
        domain.forget_begun()  # Include the time for the first rows.
        (few, short), (many, long) = (0, 0.0), (0, 0.0)
        while many < len(domain.rows) and long < _LONG_ENOUGH:
            (few, short), rows = (many, long), domain.rows[: max(plan.runner.size, _TIMES * many)]
            many, long = len(rows), _timed(plan, domain, rows, evidence)
        if long > 0:
            return long + max(0.0, long - short) / (many - few) * (total - many)
    return None


def _timed(
    plan: ExtractPlan, domain: DomainExtraction, rows: Rows, evidence: OutputEvidence
) -> float:
    start, ran = time.perf_counter(), False
    for piece in domain.batches(rows):
        if len(piece.rows):
            _, outputs = plan.runner.run(piece.inputs)
            evidence.add(plan.classifier.outputs.shown(outputs))
            ran = True
    return time.perf_counter() - start if ran else 0.0


def _doubt_on_rows(rows: Mapping[str, Mapping[str, Any]], paths: Mapping[str, Path]) -> str | None:
    """Return a warning if the domains seem equal or exchanged, else None."""
    source, target = rows["source"], rows["target"]
    logits = _some(source["logits"]), _some(target["logits"])
    # Compare outputs too, because a corrupted copy of the data has the same ids and labels.
    are_same = bool(len(logits[0])) and np.array_equal(*logits)
    are_same = are_same and np.array_equal(source["ids"], target["ids"])
    if are_same and "features" in source:
        are_same = np.array_equal(_some(source["features"]), _some(target["features"]))
    if are_same:
        return f"{paths['target']} has the same rows as {paths['source']}, so {NO_SHIFT}"
    shared = _shared_rows(*logits, len(source["ids"]))
    if shared is not None:
        return (
            f"{percent(shared, 0)} of the rows of {paths['target']} have the same outputs as "
            f"rows of {paths['source']}, but the target should hold new data: leave these "
            "rows out"
        )
    ours, theirs = (confidences(values, 1.0) for values in logits)
    if min(len(ours), len(theirs)) < FEW_ROWS:
        return None
    gain = float(theirs.mean() - ours.mean())
    noise = math.sqrt(ours.var() / len(ours) + theirs.var() / len(theirs))
    if gain < _SURER or gain <= _SURER_DEVIATIONS * noise:
        return None
    return (
        f"the classifier is more confident on the target {paths['target']} "
        f"({percent(theirs.mean(), 1)}) than on the source {paths['source']} "
        f"({percent(ours.mean(), 1)}), which is unusual: check that SOURCE comes before TARGET"
    )


def _shared_rows(source: Float32s, target: Float32s, n_source: int) -> float | None:
    """Return the share of target rows that are also source rows; None if chance can explain it.

    `source` and `target` are samples of rows. Rounded outputs and outputs of trees are often equal
    by chance.
    """
    keys = [[hash(row.tobytes()) for row in logits] for logits in (source, target)]
    distinct = [set(rows) for rows in keys]
    matched = sum(row in distinct[0] for row in keys[1])
    if matched < _FEWEST_SHARED:
        return None
    scale = n_source / len(source)
    chance = max(1 - len(values) / len(rows) for values, rows in zip(distinct, keys, strict=True))
    share = scale * matched / len(target)
    return min(share, 1.0) if share > _LEAST_SHARED + _PER_REPEAT * scale * chance else None


def _some(dataset: Any) -> Float32s:
    n, width = dataset.shape
    step = max(1, -(-n // _COMPARED_ROWS))
    size = step * max(1, BLOCK_BYTES // (4 * width * step))
    blocks = [dataset[start : min(start + size, n)][::step] for start in range(0, n, size)]
    return np.concatenate(blocks) if blocks else np.empty((0, width), np.float32)
