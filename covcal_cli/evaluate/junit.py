"""Gates as a JUnit report, which GitLab, Jenkins and others show as tests."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class GateCase:
    """One gate applied to one calibration.

    Attributes
    ----------
    calibration, gate : str
        As ``temp`` and ``ece <= 0.05``.
    sentence : str
        What was found.
    failed : bool
    """

    calibration: str
    gate: str
    sentence: str
    failed: bool


def junit_report(cases: Sequence[GateCase]) -> str:
    """Return the XML: one suite, one test case per gate and calibration; no times, no host."""
    failures = str(sum(case.failed for case in cases))
    counts = {"tests": str(len(cases)), "failures": failures, "errors": "0", "skipped": "0"}
    root = ET.Element("testsuites", {"name": "covcal evaluate", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": "covcal evaluate", **counts})
    for case in cases:
        name, sentence = _clean(f"{case.calibration}: {case.gate}"), _clean(case.sentence)
        element = ET.SubElement(suite, "testcase", {"classname": "covcal.evaluate", "name": name})
        if case.failed:
            failure = ET.SubElement(element, "failure", {"type": "gate", "message": sentence})
            failure.text = sentence
        else:
            ET.SubElement(element, "system-out").text = sentence
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    """Replace what no XML document may hold; a calibration is named by its file."""
    return _NOT_XML.sub("\ufffd", text)
