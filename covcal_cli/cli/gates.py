"""Print results, and report which gates failed.

A gate is a limit on a metric, such as ``--fail-above ece=0.05``. If a gate fails, the exit code is
3. The command computes a `GateResult` for each gate, and `GatedOutput` writes and prints
everything.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from covcal_cli.cli.console import Console
from covcal_cli.errors import CovcalError, LimitExceededError, printable
from covcal_cli.files import check_output, moved_together, write_text

if TYPE_CHECKING:
    from covcal_cli.estimators.metrics import Wanted
    from covcal_cli.evaluate.gates import GateResult
    from covcal_cli.records import Document
    from covcal_cli.report.metric_estimates import MetricLimit

T = TypeVar("T")
_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
_ELEMENTS = {"failed": "failure", "not proved": "skipped", "skipped": "skipped", "error": "error"}
_COUNTERS = {"failure": "failures", "error": "errors", "skipped": "skipped"}
_TYPES = {"failure": "gate", "error": "error"}
# File endings that -o refuses, and the --format to use instead.
_PRINTED = {".md": "markdown", ".tex": "latex"}
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def parsed(texts: Sequence[str] | None, parse: Callable[[str], T], option: str) -> list[T]:
    """Parse the values of a repeated option. An invalid value is a usage error."""
    try:
        return [parse(text) for text in texts or []]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def metrics_and_limits(
    metrics: str | None,
    fail_below: Sequence[str] | None,
    fail_above: Sequence[str] | None,
    costs: Path | None,
    end: StrEnum | None,
) -> "tuple[tuple[Wanted, ...], list[MetricLimit]]":
    """Parse options such as --metrics and --fail-below.

    Return the metrics to estimate, and limits.
    """
    from covcal_cli.estimators.metrics import parse_metrics
    from covcal_cli.report.metric_estimates import cost_limit, metric_limit

    (wanted,) = parsed([metrics] if metrics else None, parse_metrics, "--metrics") or [()]
    limits = parsed(fail_below, metric_limit, "--fail-below")
    wanted = tuple(dict.fromkeys([*wanted, *(metric for metric, _, _ in limits)]))
    limits += parsed(fail_above, cost_limit, "--fail-above")
    if fail_above and costs is None:
        raise typer.BadParameter("needs --cost", param_hint="--fail-above")
    if end is not None and not limits:
        raise typer.BadParameter("needs --fail-below or --fail-above", param_hint="--end")
    return wanted, limits


@dataclass(frozen=True, kw_only=True)
class GatedOutput:
    """Writes and prints the result of a command that can have gates."""

    command: str
    output: Path | None  # The path given with -o.
    format: StrEnum
    junit: Path | None
    force: bool
    has_gates: bool
    gate_options: str  # Names of the options that set a gate, for messages.
    more: Mapping[str, Path | None] = field(default_factory=dict)
    appended: Mapping[str, Path | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise an error if options contradict each other."""
        if self.prints_json and self.format not in ("table", "json"):
            raise typer.BadParameter(
                "-o - always prints JSON: leave out --format", param_hint="--format"
            )
        if self.document is not None and self.document.suffix.lower() in _PRINTED:
            kind = _PRINTED[self.document.suffix.lower()]
            raise typer.BadParameter(
                f"-o writes JSON: give a name that ends in .json. To save the {kind} table, run "
                f"with --format {kind} > {self.document}",
                param_hint="-o",
            )
        if self.junit is not None and not self.has_gates:
            raise typer.BadParameter(f"needs {self.gate_options}", param_hint="--junit")
        options: dict[Path, str] = {}
        for option, path in self._by_option.items():
            if path is not None and path in options:
                raise typer.BadParameter(
                    f"this file has the same name as the file of {options[path]}: give another "
                    "name",
                    param_hint=option,
                )
            if path is not None:
                options[path] = option

    @property
    def document(self) -> Path | None:
        """The JSON file to write, or None."""
        return None if self.prints_json else self.output

    @property
    def prints_json(self) -> bool:
        """Whether ``-o -`` prints JSON instead of the table."""
        return str(self.output) == "-"

    @property
    def _by_option(self) -> dict[str, Path | None]:
        files = {"-o": self.document, **self.more, "--junit": self.junit}
        return {**files, **self.appended}

    def check(self, inputs: Sequence[Path]) -> None:
        """Raise an error if an output already exists, or is also an input."""
        for option, path in self._by_option.items():
            if path is not None and option not in self.appended:
                check_output(path, force=self.force, inputs=inputs, option=option)

    @contextmanager
    def errors_in_report(self) -> Iterator[None]:
        """Write a `CovcalError` of the block into the JUnit report, and raise it again."""
        try:
            yield
        except CovcalError as error:
            if self.junit is not None and _may_be_written(self.junit, force=self.force):
                report = _junit([("evaluation", "error", str(error))], self.command)
                write_text(self.junit, report, force=self.force)
            raise

    def publish(
        self,
        console: Console,
        render: Callable[[str], str],
        gates: "Sequence[GateResult]",
        *,
        content: "Callable[[Path], Document | Mapping[str, Any]]",
        write_more: Callable[[], None] = lambda: None,
    ) -> None:
        """Write all files, and print the result, the gates and the names of the files.

        - `render`: maps a format (``table``, ``markdown``, ``github``, ``latex``) to the result as
          text.
        - `content`: maps the path of the JSON file to its content.
        - `write_more`: a function that writes the other output files.

        Raises `LimitExceededError` if a gate failed, after everything is written.
        """
        from covcal_cli.records import document_text, write_document

        with self.errors_in_report(), moved_together():
            if self.document is not None:
                write_document(content(self.document), self.document, force=self.force)
            write_more()
            if self.junit is not None:
                write_text(self.junit, junit_report(gates, self.command), force=self.force)
        kind = "json" if self.prints_json else self.format.value
        if kind == "json":
            # Paths in the printed JSON are relative to the current folder.
            printed = Path(f"{self.command}.json")
            console.result(document_text(content(printed), printed))
        else:
            show = console.screen if kind == "table" else console.result
            show(_with_gates(render(kind), gates, kind))
        if self.format == "github":
            _append_to_step_summary(_with_gates(render("markdown"), gates, "markdown"))
        for path in self._by_option.values():
            if path is not None:
                console.wrote(path)
        if any(gate.failed for gate in gates):
            raise LimitExceededError


def _with_gates(text: str, gates: "Sequence[GateResult]", kind: str) -> str:
    from covcal_cli.report.tables import in_markdown

    if not gates:
        return text
    sentences = [gate.sentence for gate in gates]
    if kind == "latex":
        return "\n".join([text, *(f"% {printable(sentence)}" for sentence in sentences)])
    if kind == "table":
        return "\n".join([*sentences, "", text])
    listed = "\n".join(f"- {in_markdown(sentence)}" for sentence in sentences)
    return "\n".join([f"{listed}\n\n{text}", *(_annotations(gates) if kind == "github" else [])])


def _annotations(gates: "Iterable[GateResult]") -> list[str]:
    return [
        f"::{'error' if gate.failed else 'warning'}::covcal: {printable(gate.sentence)}"
        for gate in gates
        if gate.outcome != "passed"
    ]


def _append_to_step_summary(text: str) -> None:
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


def junit_report(gates: "Sequence[GateResult]", command: str = "evaluate") -> str:
    """Return a JUnit report (XML) with one test case per gate.

    The same results always give the same file.
    """
    return _junit(
        ((f"{gate.subject}: {gate.gate}", gate.outcome, gate.sentence) for gate in gates), command
    )


def _may_be_written(path: Path, *, force: bool) -> bool:
    if not path.exists():
        return path.parent.is_dir()
    if not (force and path.is_file()):
        return False
    with path.open("rb") as handle:
        return handle.read(len(_DECLARATION)) == _DECLARATION.encode()


def _junit(cases: Iterable[tuple[str, str, str]], command: str) -> str:
    import xml.etree.ElementTree as ET

    counts = dict.fromkeys(("tests", *_COUNTERS.values()), 0)
    root = ET.Element("testsuites")
    suite = ET.SubElement(root, "testsuite")
    for name, outcome, sentence in cases:
        tag = _ELEMENTS.get(outcome, "system-out")
        attributes = {"classname": f"covcal.{command}", "name": _xml_text(name)}
        element = ET.SubElement(ET.SubElement(suite, "testcase", attributes), tag)
        element.text = _xml_text(sentence)
        counts["tests"] += 1
        if tag in _COUNTERS:
            counts[_COUNTERS[tag]] += 1
            element.attrib |= {"message": element.text}
        if tag in _TYPES:
            element.attrib |= {"type": _TYPES[tag]}
    for element in (root, suite):
        element.attrib |= {"name": f"covcal {command}"}
        element.attrib |= {name: str(count) for name, count in counts.items()}
    ET.indent(root)
    return _DECLARATION + ET.tostring(root, encoding="unicode") + "\n"


def _xml_text(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
