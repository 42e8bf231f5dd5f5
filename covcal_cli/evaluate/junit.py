"""Gates as a JUnit report, which GitLab, Jenkins and others show as tests."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from covcal_cli.errors import CovcalError
from covcal_cli.files import write_text

_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class GateCase:
    """One gate applied to one calibration."""

    calibration: str
    gate: str  # such as ``ece <= 0.05``
    sentence: str  # what was found
    failed: bool


def junit_report(cases: Sequence[GateCase]) -> str:
    """Return the XML: one suite, one test case per gate and calibration; no times, no host."""
    root, suite = _suite(tests=len(cases), failures=sum(case.failed for case in cases), errors=0)
    for case in cases:
        name, sentence = _clean(f"{case.calibration}: {case.gate}"), _clean(case.sentence)
        element = ET.SubElement(suite, "testcase", {"classname": "covcal.evaluate", "name": name})
        if case.failed:
            failure = ET.SubElement(element, "failure", {"type": "gate", "message": sentence})
            failure.text = sentence
        else:
            ET.SubElement(element, "system-out").text = sentence
    return _text(root)


def error_report(message: str) -> str:
    """Return the XML of an evaluation that failed before any gate was judged: one error."""
    root, suite = _suite(tests=1, failures=0, errors=1)
    names = {"classname": "covcal.evaluate", "name": "evaluation"}
    case = ET.SubElement(suite, "testcase", names)
    error = ET.SubElement(case, "error", {"type": "error", "message": _clean(message)})
    error.text = _clean(message)
    return _text(root)


@contextmanager
def errors_reported(path: Path | None, *, force: bool) -> Iterator[None]:
    """Report a `CovcalError` of the block at `path` too, so that no earlier report looks green.

    Only an earlier report is replaced, and only with `force`: the block may fail before it is known
    which files are its inputs.
    """
    try:
        yield
    except CovcalError as error:
        if path is not None and _may_be_written(path, force=force):
            write_text(path, error_report(str(error)), force=force)
        raise


def _may_be_written(path: Path, *, force: bool) -> bool:
    if not path.exists():
        return path.parent.is_dir()
    if not (force and path.is_file()):
        return False
    with path.open("rb") as handle:
        return handle.read(len(_DECLARATION)) == _DECLARATION.encode()


def _suite(**counts: int) -> tuple[ET.Element, ET.Element]:
    """Return the root, and the one suite in it."""
    attributes = {"name": "covcal evaluate"}
    attributes |= {name: str(count) for name, count in counts.items()} | {"skipped": "0"}
    root = ET.Element("testsuites", attributes)
    return root, ET.SubElement(root, "testsuite", attributes)


def _text(root: ET.Element) -> str:
    ET.indent(root)
    return _DECLARATION + ET.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    """Replace what no XML document may hold; a calibration is named by its file."""
    return _NOT_XML.sub("\ufffd", text)
