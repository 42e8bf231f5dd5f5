"""``covcal extract --dry-run``: what an extraction would do, from one batch; writes nothing."""

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from covcal_cli.extract.domainextraction import DomainExtraction, DomainReport
from covcal_cli.extract.plan import ExtractPlan, prepare
from covcal_cli.extract.settings import ExtractSettings, SettingsGiven
from covcal_cli.files import check_output

_LABEL_AND_SPLIT = 9  # bytes per row


@dataclass(frozen=True)
class DryRun:
    """What an extraction would do.

    Attributes
    ----------
    head : str
        The last linear layer and its proof on one batch.
    preprocessing : str
        What is done to every image, in one line.
    classes : tuple of str
        Class names in the order of the logits.
    domains : tuple of DomainReport
        Rows to run, per split; source first.
    batch, threads : int
        Rows per run of the model, and threads.
    size : int
        Bytes of the features file. While running, as many again lie beside it.
    seconds : float or None
        Estimated from one timed batch; None where no row could be read.
    warnings, notes : tuple of str
        As in `ExtractReport`.
    """

    head: str
    preprocessing: str
    classes: tuple[str, ...]
    domains: tuple[DomainReport, ...]
    batch: int
    threads: int
    size: int
    seconds: float | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def dry_run(
    model: str | Path | None,
    source: Path | None,
    target: Path | None,
    output: Path,
    *,
    force: bool = False,
    **settings: Unpack[SettingsGiven],
) -> DryRun:
    """Prepare an extraction, prove the head and time one batch; see `extraction.extract`.

    Raises
    ------
    CovcalError
        If the extraction would be refused.
    """
    given = [Path(path) for path in (model, source, target) if path is not None]
    check_output(output, force=True, inputs=given)
    in_the_way = (
        [f"{output} exists already: without --dry-run, pass --force to replace it"]
        if output.exists() and not force
        else []
    )
    plan = prepare(model, source, target, ExtractSettings(**settings))
    plan.probe()
    domains = plan.domains.values()
    return DryRun(
        head=plan.classifier.describe(),
        preprocessing=plan.preprocessing(),
        classes=plan.classes.names,
        domains=tuple(domain.report() for domain in domains),
        batch=plan.runner.size,
        threads=plan.threads,
        size=sum(_bytes(plan, domain) for domain in domains),
        seconds=_seconds(plan),
        warnings=(*plan.warnings, *(text for domain in domains for text in domain.data.notes)),
        notes=(*plan.notes, *in_the_way),
    )


def _bytes(plan: ExtractPlan, domain: DomainExtraction) -> int:
    ids = max((len(domain.data.ids[row].encode()) for row in domain.rows[:10_000]), default=1)
    width = 4 * sum(plan.widths.values()) + _LABEL_AND_SPLIT + ids
    return len(domain.rows) * width


def _seconds(plan: ExtractPlan) -> float | None:
    """Time the second batch, or the first again where there is one only, and extrapolate."""
    total = sum(len(domain.rows) for domain in plan.domains.values())
    size = plan.runner.size
    for domain in plan.domains.values():
        rows = domain.rows[size : 2 * size] if len(domain.rows) > size else domain.rows
        start = time.perf_counter()
        batches = domain.data.batches(
            plan.classifier.inputs, plan.pipeline, rows, size=size, threads=plan.threads
        )
        with closing(batches):
            for piece in batches:
                if len(piece.rows):
                    plan.runner.run(piece.inputs)
                    return (time.perf_counter() - start) / len(rows) * total
    return None
