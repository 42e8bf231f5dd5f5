"""``covcal extract --dry-run``: what an extraction would do, from a few batches; writes nothing."""

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
_LONG_ENOUGH = 1.0  # seconds of a run that is worth extrapolating
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
    size: int  # bytes of the features file; while running, as many again lie beside it
    seconds: float | None  # estimated from a timed part; None where no row could be read
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
    given = [Path(path) for path in (model, source, target) if path is not None]
    check_output(output, force=True, inputs=given)
    in_the_way = None
    if output.exists() and not force:
        in_the_way = f"{output} exists already: without --dry-run, pass --force to replace it"
    plan = prepare(model, source, target, settings)
    domains, seen = plan.domains.values(), OutputEvidence()
    seconds = _seconds(plan, seen)
    plan.classifier.outputs.settle(seen)
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
            *(note for one in domains for note in one.data.notes),
        ),
        notes=once(*plan.notes, in_the_way),
    )


def _bytes(plan: ExtractPlan, domain: DomainExtraction) -> int:
    ids = max((len(domain.data.ids[row].encode()) for row in domain.rows[:10_000]), default=1)
    width = 4 * sum(plan.widths.values()) + _LABEL_AND_SPLIT + ids
    return len(domain.rows) * width


def _seconds(plan: ExtractPlan, seen: OutputEvidence) -> float | None:
    """Time more and more batches until it takes long enough to tell, and extrapolate.

    Their outputs are shown to the evidence of what they are.

    What the second of two runs takes longer is the price of a row, and the rest is paid once: to
    open a file, and to read the first of its windows, which holds many batches of a table.
    """
    total = sum(len(domain.rows) for domain in plan.domains.values())
    for domain in plan.domains.values():
        (few, short), (many, long) = (0, 0.0), (0, 0.0)
        while many < len(domain.rows) and long < _LONG_ENOUGH:
            (few, short), rows = (many, long), domain.rows[: max(plan.runner.size, _TIMES * many)]
            many, long = len(rows), _timed(plan, domain, rows, seen)
        if long > 0:
            return long + max(0.0, long - short) / (many - few) * (total - many)
    return None


def _timed(plan: ExtractPlan, domain: DomainExtraction, rows: Rows, seen: OutputEvidence) -> float:
    """Return the seconds to read and run some rows; 0 where none of them can be read."""
    start, ran = time.perf_counter(), False
    for piece in domain.batches(rows):
        if len(piece.rows):
            _, outputs = plan.runner.run(piece.inputs)
            seen.add(plan.classifier.outputs.shown(outputs))
            ran = True
    return time.perf_counter() - start if ran else 0.0
