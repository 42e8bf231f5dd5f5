"""The text that ``covcal extract`` prints: what was run and read, or would be."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing them would load Pillow
    from covcal_cli.extract.domain import DomainReport
    from covcal_cli.extract.dry_run import DryRun
    from covcal_cli.extract.extract import ExtractReport

_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_SHOWN_CLASSES = 8


def extract_summary(report: "ExtractReport") -> str:
    """Return what ``covcal extract`` ran and read."""
    lines = [("model", report.head), ("input", report.preprocessing), *_domains(report.domains)]
    if report.source_accuracy is not None:
        lines.append(("accuracy", f"{report.source_accuracy:.2%} of the labelled source rows"))
    return _aligned(lines)


def dry_run_summary(plan: "DryRun") -> str:
    """Return what ``covcal extract`` would do."""
    shown = ", ".join(plan.classes[:_SHOWN_CLASSES])
    more = len(plan.classes) - _SHOWN_CLASSES
    seconds = "unknown" if plan.seconds is None else _duration(plan.seconds)
    lines = [
        ("model", plan.head),
        ("input", plan.preprocessing),
        ("classes", f"{shown}, and {more} more" if more > 0 else shown),
        *_domains(plan.domains),
        ("batch", f"{plan.batch} rows, threads {plan.threads}"),
        ("size", f"{_size(plan.size)} on disk, twice that while running"),
        ("time", f"{seconds}, from a few batches"),
    ]
    return _aligned(lines)


def _domains(domains: Sequence["DomainReport"]) -> list[tuple[str, str]]:
    lines = []
    for domain in domains:
        rows = ", ".join(f"{name} {count}" for name, count in domain.rows.items())
        total = sum(domain.rows.values())
        skipped = f"; {len(domain.skipped)} files skipped" if domain.skipped else ""
        lines.append((domain.name, f"{total} rows ({rows}), {domain.labelled} labelled{skipped}"))
    return lines


def _aligned(lines: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def _size(count: float) -> str:
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"about {seconds:.2g} s"
    minutes = seconds / 60
    return f"about {minutes:.0f} min" if minutes < 90 else f"about {minutes / 60:.1f} h"
