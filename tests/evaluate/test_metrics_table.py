"""The one table of metrics: what it says is shown, and documented, everywhere."""

from collections.abc import Mapping
from html import unescape
from pathlib import Path

import pytest

import covcal_cli
from covcal_cli.evaluate.metrics import METRICS, Display, Metric, Metrics
from tests.cli_runner import covcal, printed_json

DOCUMENTATION = Path(covcal_cli.__file__).parent / "formats" / "README.md"
HIDDEN_ON_SCREEN = {"calibration", "sharpness"}
HIDDEN_IN_REPORT = HIDDEN_ON_SCREEN | {"agreement"}


@pytest.fixture(scope="module")
def places(small_files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What every place where metrics are shown says of them."""
    page = tmp_path_factory.mktemp("page") / "report.html"
    arguments = ("adapted.h5", "-c", "temp.json")
    covcal("report", *arguments, "-o", page, cwd=small_files).require_success()
    screen = covcal("evaluate", *arguments, "--metrics", "all", cwd=small_files)
    content = printed_json("evaluate", *arguments, cwd=small_files)
    return {
        "screen": screen.require_success().out,
        "report": unescape(page.read_text(encoding="utf-8")),
        "metrics.json": "\n".join(content["metrics"]["temp"]),
        "documentation": DOCUMENTATION.read_text(encoding="utf-8"),
    }


def missing(metrics: Mapping[str, Metric], places: Mapping[str, str]) -> list[str]:
    """Return every place that lacks a metric of a table."""
    lacking = []
    heads = [line for line in places["screen"].splitlines() if line.startswith("calibration ")]
    for name, metric in metrics.items():
        if metric.screen is not None and not any(metric.screen.label in head for head in heads):
            lacking.append(f"{name} on screen")
        if metric.report is not None and f"<td>{metric.report.label}</td>" not in places["report"]:
            lacking.append(f"{name} in the report")
        if name not in places["metrics.json"].splitlines():
            lacking.append(f"{name} in metrics.json")
        if f"`{name}`" not in places["documentation"]:
            lacking.append(f"{name} in the documentation")
    return lacking


def test_every_metric_is_shown_everywhere(places: dict[str, str]) -> None:
    """On screen, on the page, in metrics.json and in the documentation of the files."""
    assert missing(METRICS, places) == []


def test_a_metric_that_is_shown_nowhere_would_be_found(places: dict[str, str]) -> None:
    """The check above is not blind."""
    made = Metric("spread", Display("spread"), Display("Spread of gaps"))
    assert missing({"spread": made}, places) == [
        "spread on screen",
        "spread in the report",
        "spread in metrics.json",
        "spread in the documentation",
    ]


def test_what_is_hidden_is_hidden_on_purpose() -> None:
    """The parts of the Brier score are for JSON alone; the agreement says nothing of honesty."""
    assert {name for name, metric in METRICS.items() if not metric.screen} == HIDDEN_ON_SCREEN
    assert {name for name, metric in METRICS.items() if not metric.report} == HIDDEN_IN_REPORT


def test_every_metric_is_one_of_metrics() -> None:
    """Each name is an attribute of `Metrics`."""
    known = {*dir(Metrics), *Metrics.__dataclass_fields__}
    assert set(METRICS) <= known
