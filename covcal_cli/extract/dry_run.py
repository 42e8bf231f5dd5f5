"""``covcal extract --dry-run``: run a few batches, say what a run would do, and write nothing."""

import time
from dataclasses import dataclass
from pathlib import Path

from covcal_cli.arrays import Rows
from covcal_cli.extract.domain import DomainExtraction, DomainReport
from covcal_cli.extract.doubts import once
from covcal_cli.extract.plan import ExtractPlan, prepare
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.files import check_output
from covcal_cli.maths.output_form import OutputEvidence

_LABEL_AND_SPLIT = 9  # bytes per row
_INDEX_BYTES = 3400  # of a dataset's chunks, about
_LONG_ENOUGH = 1.0  # seconds; a shorter run is too noisy to extrapolate
_TIMES = 8


@dataclass(frozen=True)
class DryRun:
    """What an extraction would do."""

    reading: str  # as in `ExtractReport`
    head: str  # the last linear layer and its proof on one batch
    preprocessing: str  # what is done to every image, in one line
    holds_images: bool
    classes: tuple[str, ...]  # in the order of the logits
    domains: tuple[DomainReport, ...]  # rows to run, per split; source first
    batch: int  # rows per run of the model
    threads: int
    size: int  # bytes of the features file; a run needs as many again beside it
    seconds: float | None  # estimated from the timed batches; None if no row could be read
    warnings: tuple[str, ...]  # as in `ExtractReport`
    notes: tuple[str, ...]


def dry_run(
    model: str | Path | None,
    source: Path | None,
    target: Path | None,
    output: Path,
    settings: ExtractSettings,
    *,
    force: bool = False,
) -> DryRun:
    """Prepare an extraction and time a part of it; the arguments are those of `extract`."""
    inputs = [Path(path) for path in (model, source, target) if path is not None]
    check_output(output, force=True, inputs=inputs)
    in_the_way = None
    if output.exists() and not force:
        in_the_way = f"{output} exists already: without --dry-run, pass --force to replace it"
    plan = prepare(model, source, target, settings)
    domains, evidence = plan.domains.values(), OutputEvidence()
    seconds = _seconds(plan, evidence)
    plan.classifier.outputs.settle(evidence)
    return DryRun(
        reading=plan.reading(),
        head=plan.classifier.describe(),
        preprocessing=plan.preprocessing(),
        holds_images=plan.pipeline is not None,
        classes=plan.classes.names,
        domains=tuple(domain.report() for domain in domains),
        batch=plan.runner.size,
        threads=plan.threads,
        size=sum(_bytes(plan, domain) for domain in domains),
        seconds=seconds,
        warnings=once(
            *plan.classifier.outputs.warnings,
            *plan.warnings,
            *(note for domain in domains for note in domain.data.notes),
        ),
        notes=once(*plan.notes, in_the_way),
    )


def _bytes(plan: ExtractPlan, domain: DomainExtraction) -> int:
    ids = max((len(domain.data.ids[row].encode()) for row in domain.rows[:10_000]), default=1)
    width = 4 * sum(plan.widths.values()) + _LABEL_AND_SPLIT + ids
    datasets = len(plan.widths) + len(("labels", "split", "ids")) + len(domain.data.columns)
    return len(domain.rows) * width + datasets * _INDEX_BYTES


def _seconds(plan: ExtractPlan, evidence: OutputEvidence) -> float | None:
    """Time more and more batches until the time is long enough, and extrapolate.

    The extra time of the longer of two runs is the price of its extra rows. The rest is paid once:
    opening a file and reading its first window, which holds many batches of a table. The outputs
    are added to `evidence`.
    """
    total = sum(len(domain.rows) for domain in plan.domains.values())
    for domain in plan.domains.values():
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
    """Return the seconds to read and run some rows; 0 if none of them can be read."""
    start, ran = time.perf_counter(), False
    for piece in domain.batches(rows):
        if len(piece.rows):
            _, outputs = plan.runner.run(piece.inputs)
            evidence.add(plan.classifier.outputs.shown(outputs))
            ran = True
    return time.perf_counter() - start if ran else 0.0
