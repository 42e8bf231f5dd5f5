"""``covcal extract --dry-run``: what an extraction would do, from a few batches; writes nothing."""

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from covcal_cli.extract.domainextraction import DomainExtraction, DomainReport
from covcal_cli.extract.plan import ExtractPlan, prepare
from covcal_cli.extract.sampling import Rows
from covcal_cli.extract.settings import ExtractSettings, SettingsGiven
from covcal_cli.files import check_output

_LABEL_AND_SPLIT = 9  # bytes per row
_LONG_ENOUGH = 0.4  # seconds of a run that is worth extrapolating
_TOO_LONG = 1.5  # seconds of a first run after which there is no second one
_TIMES = 8
_LEAST_SHARE = 0.1  # of a run that its last rows must have taken, however noisy the clock


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
        Estimated from a timed part; None where no row could be read.
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
    """Prepare an extraction, prove the head and time a part of it; see `extraction.extract`.

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
    """Time more and more batches until it takes long enough to tell, and extrapolate.

    What the second of two runs takes longer is the price of a row, and the rest is paid once: to
    open a file, and to read the first of its windows, which holds many batches of a table.
    """
    total = sum(len(domain.rows) for domain in plan.domains.values())
    for domain in plan.domains.values():
        measured = [(0, 0.0)]
        count = plan.runner.size
        while measured[-1][0] < len(domain.rows) and _is_too_short(measured):
            rows = domain.rows[:count]
            measured.append((len(rows), _timed(plan, domain, rows)))
            count *= _TIMES
        if len(measured) > 1 and measured[-1][1] > 0:
            (few, short), (many, long) = measured[-2:]
            per_row = max(long - short, _LEAST_SHARE * long) / (many - few)
            return max(0.0, long - per_row * many) + per_row * total
    return None


def _is_too_short(measured: list[tuple[int, float]]) -> bool:
    """Return whether to time more rows: a second run, unless the first says it would take long."""
    return measured[-1][1] < (_LONG_ENOUGH if len(measured) > 2 else _TOO_LONG)


def _timed(plan: ExtractPlan, domain: DomainExtraction, rows: Rows) -> float:
    """Return the seconds to read and run some rows; 0 where none of them can be read."""
    start, ran = time.perf_counter(), False
    batches = domain.data.batches(plan.pipeline, rows, size=plan.runner.size, threads=plan.threads)
    with closing(batches):
        for piece in batches:
            if len(piece.rows):
                plan.runner.run(piece.inputs)
                ran = True
    return time.perf_counter() - start if ran else 0.0
