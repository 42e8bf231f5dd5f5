"""What commands with gates share: a limit among the options, and where what failed is shown."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from covcal_cli.evaluate.gates import GateCase

T = TypeVar("T")


def parsed(texts: Sequence[str] | None, parse: Callable[[str], T], option: str) -> list[T]:
    """Return what `parse` makes of the values of an option, and what it refuses as bad usage."""
    try:
        return [parse(text) for text in texts or []]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def require_different(written: Mapping[str, Path | None]) -> None:
    """Refuse one file for two outputs."""
    seen: dict[Path, str] = {}
    for option, path in written.items():
        if path in seen:
            raise typer.BadParameter(f"is the file of {seen[path]} too", param_hint=option)
        if path is not None:
            seen[path] = option


def with_gates(text: str, cases: "Sequence[GateCase]", kind: str) -> str:
    """Return a result of a kind of ``--format`` with what its gates found; JSON has none."""
    from covcal_cli.cli import tables

    if kind == "json" or not cases:
        return text
    sentences = [case.sentence for case in cases]
    if kind == "table":
        return "\n".join([text, "", *sentences])
    shown = "\n".join(f"- {tables.in_markdown(sentence)}" for sentence in sentences)
    return "\n".join([f"{text}\n\n{shown}", *(annotations(cases) if kind == "github" else [])])


def annotations(cases: "Iterable[GateCase]") -> list[str]:
    """Return the lines by which GitHub shows beside a job what failed, or was not judged."""
    from covcal_cli.errors import printable

    return [
        f"::{'error' if case.failed else 'warning'}::covcal: {printable(case.sentence)}"
        for case in cases
        if case.failed or not case.judged
    ]


def append_to_step_summary(text: str) -> None:
    """Append Markdown to the summary of a GitHub job, where this is one."""
    from covcal_cli.errors import CovcalError

    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as summary:
            summary.write(f"{text}\n\n")
    except OSError as error:
        raise CovcalError(
            f"{path} cannot be written ({error.strerror}): unset GITHUB_STEP_SUMMARY, or pass "
            "--format markdown"
        ) from error
