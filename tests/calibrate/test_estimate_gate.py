"""``covcal estimate --fail-below``: the end of the interval that is judged, and its reports."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from tests.cli_runner import covcal
from tests.made_files import clusters_domain, made_domain, write_features


@pytest.mark.parametrize("end", ["low", "middle", "high"])
def test_the_end_that_is_asked_for_is_judged(end: str, small_files: Path) -> None:
    """Strictly below fails; at the limit is kept."""
    done = covcal("estimate", "features.h5", "-o", "-", cwd=small_files).require_success()
    best = json.loads(done.out)["estimates"][0]
    value = best["accuracy" if end == "middle" else end]
    ended = ("--end", end) if end != "low" else ()
    for limit, code in ((value, 0), (min(value + 1e-6, 1.0), 3)):
        gate = ("--fail-below", f"accuracy={limit!r}")
        assert covcal("estimate", "features.h5", *gate, *ended, cwd=small_files).code == code


def test_reports_are_whole(
    small_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, junit = tmp_path / "summary.md", tmp_path / "gate.xml"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    gate = ("--fail-below", "accuracy=0.99", "--junit", junit, "--format", "github")
    done = covcal("estimate", "features.h5", *gate, cwd=small_files)
    assert done.code == 3
    assert "::error::covcal: gate accuracy >= 0.99 FAILED by the low end" in done.out
    assert "| combined |" in summary.read_text()
    (suite,) = ET.parse(junit).getroot()
    assert (suite.get("name"), suite.get("failures")) == ("covcal estimate", "1")


def test_a_doubtful_estimate_is_named(tmp_path: Path) -> None:
    """If its estimators disagree, also beside a gate that passed."""
    source, target = (
        clusters_domain(name, sizes=(300, 300, 100), moved=moved)
        for name, moved in (("source", 0.0), ("target", 1.0))
    )
    write_features(tmp_path / "f.h5", source=source, target=target)
    gate = ("--fail-below", "accuracy=0.01", "--junit", "gate.xml", "--format", "github")
    done = covcal("estimate", "f.h5", *gate, cwd=tmp_path).require_success()
    assert "| no: the estimators disagree |" in done.out
    (warning,) = (line for line in done.err.splitlines() if line.startswith("warning: "))
    assert warning.endswith("label some target rows with covcal pick")
    said = f"); {warning.removeprefix('warning: ')}"
    assert said in done.out
    assert said in (tmp_path / "gate.xml").read_text()


def test_an_error_is_no_green_report(tmp_path: Path) -> None:
    junit = tmp_path / "gate.xml"
    gate = ("--fail-below", "accuracy=0.9", "--junit", junit)
    covcal("estimate", tmp_path / "missing.h5", *gate).error_line()
    (suite,) = ET.parse(junit).getroot()
    assert suite.get("errors") == "1"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--fail-below", "ece=0.1"),
        ("--fail-below", "agreement=0.1"),
        ("--fail-below", "accuracy=80"),
        ("--fail-below", "recall:0"),
        ("--fail-below", "recall,f1=0.5"),
        ("--metrics", "ece"),
        ("--by", "site"),
        ("--junit", "x.xml"),
        ("--end", "high"),
        ("-o", "estimate.md"),
        ("-o", "estimate.TEX"),
        ("--fail-above", "cost=2"),
        ("--fail-below", "cost=2"),
        ("--cost", "costs.json", "--fail-above", "accuracy=0.5"),
        ("--cost", "costs.json", "--fail-above", "cost=-1"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], small_files: Path) -> None:
    covcal("estimate", "features.h5", *arguments, cwd=small_files).usage_error()


def test_a_class_can_have_a_gate(small_files: Path) -> None:
    """The low end decides, and every metric of a gate is in the JSON and in the table."""
    done = covcal("estimate", "features.h5", "--metrics", "f1", "-o", "-", cwd=small_files)
    entries = json.loads(done.require_success().out)["metrics"]
    mean, of_class = entries[:2]
    assert mean["class"] is None
    assert mean["low"] < mean["value"] < mean["high"]
    for name, entry in ((f"f1:{of_class['class']}", of_class), ("f1", mean)):
        for limit, code in ((entry["low"], 0), (entry["low"] + 1e-6, 3)):
            gates = ("--fail-below", f"{name}={limit!r}", "--fail-below", "accuracy=0.01")
            done = covcal(
                "estimate", "features.h5", *gates, "--junit", "g.xml", "-f", cwd=small_files
            )
            assert done.code == code
            assert f"gate {name} >= " in done.out
            (suite,) = ET.parse(small_files / "g.xml").getroot()
            assert (suite.get("tests"), suite.get("failures")) == ("2", "1" if code else "0")


def test_a_cost_has_a_gate(small_files: Path) -> None:
    """The high end decides; the cost is in the answer, the JSON and every table."""
    (small_files / "costs.json").write_text('{"wrong": 10}')
    asked = ("estimate", "features.h5", "--cost", "costs.json")
    done = covcal(*asked, "-o", "-", cwd=small_files).require_success()
    content = json.loads(done.out)
    (entry,) = content["metrics"]
    assert (entry["metric"], entry["class"]) == ("cost", None)
    assert entry["value"] == pytest.approx(10 * (1 - content["estimates"][0]["accuracy"]))
    assert content["inputs"][1]["role"] == "costs"
    for limit, code in ((entry["high"], 0), (entry["high"] * 0.999, 3)):
        done = covcal(*asked, "--fail-above", f"cost={limit!r}", cwd=small_files)
        assert done.code == code
        assert f"gate cost <= {limit:g}" in done.out
    shown = f"{entry['value']:.3g} ({entry['low']:.3g} to {entry['high']:.3g})"
    assert f"Expected cost       {shown} per row. This is the mean cost if every" in done.out
    one_class = (*asked, "--metrics", f"recall:{content['classes'][0]}")
    assert 'The rows "all classes"' not in covcal(*one_class, cwd=small_files).require_success().out
    for kind, row in (("markdown", f"| all classes | {shown} |"), ("latex", f"& {shown} ")):
        assert row in covcal(*asked, "--format", kind, cwd=small_files).require_success().out


def test_the_table_of_metrics(small_files: Path) -> None:
    """One row for the mean and one for each class, in each format."""
    asked = ("estimate", "features.h5", "--metrics", "recall,auroc")
    out = covcal(*asked, cwd=small_files).require_success().out
    assert 'In the rows "all classes", a metric is the mean over the classes' in out
    assert "ranges of metrics are rules of thumb" in out
    out = covcal(*asked, "--format", "markdown", cwd=small_files).require_success().out
    assert "| class | recall | auroc |" in out
    assert "| all classes | " in out
    out = covcal(*asked, "--format", "latex", cwd=small_files).require_success().out
    assert "class & recall & auroc" in out


def test_many_classes_are_shown_with_v(tmp_path: Path) -> None:
    source, target = (
        made_domain(name, sizes=(100, 100, 0), classes=30) for name in ("source", "target")
    )
    names = [f"{number:02}" for number in range(30)]
    path = write_features(tmp_path / "f.h5", source=source, target=target, class_names=names)
    asked = ("estimate", path)
    short = covcal(*asked, "--metrics", "recall").require_success().out
    assert "The table has the 20 classes with the lowest metrics. -v shows all classes." in short
    long = covcal(*asked, "--metrics", "recall", "-v").require_success().out
    shown = [sum(line[:2] in names for line in text.splitlines()) for text in (short, long)]
    assert shown == [20, 30]


def test_metrics_by_a_column(tmp_path: Path) -> None:
    source, target = (made_domain(name) for name in ("source", "target"))
    n = len(target["labels"])
    target["columns/site"] = np.array([b"Bern", b"Rome"])[np.arange(n) % 2]
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    asked = ("estimate", path, "--metrics", "accuracy,recall", "--by", "site")
    out = covcal(*asked).require_success().out
    assert [line.split()[0] for line in out.splitlines() if "all classes  " in line] == [
        "all",
        "Bern",
        "Rome",
    ]
    entries = json.loads(covcal(*asked, "-o", "-").require_success().out)["metrics"]
    assert {entry["group"] for entry in entries} == {None, "Bern", "Rome"}
    means = [entry["group"] for entry in entries if entry["metric"] == "recall"]
    assert means == [None, None, None, None, *["Bern"] * 3, *["Rome"] * 3]
    assert "A group has a mean over classes only if there are labels" in out
    line = covcal("estimate", path, "--metrics", "f1", "--by", "town").error_line()
    assert "no target column 'town' to group by: use site" in line


def test_two_classes_need_a_name_and_too_few_rows_have_no_number(tmp_path: Path) -> None:
    source, target = (made_domain(name, classes=2) for name in ("source", "target"))
    path = write_features(
        tmp_path / "f.h5", source=source, target=target, class_names=["ok", "fraud"]
    )
    out = covcal("estimate", path, "--fail-below", "recall=0.5").error_line()
    assert "recall:ok or recall:fraud" in out
    target["logits"] = target["logits"] + np.array([0.0, -200.0], dtype=np.float32)
    write_features(path, source=source, target=target, class_names=["ok", "fraud"])
    out = covcal("estimate", path, "--metrics", "precision").out
    assert "too few rows" in out
    assert '"Too few rows" means fewer than 5 rows of the class' in out
    out = covcal("estimate", path, "--fail-below", "precision:fraud=0.5").error_line()
    assert "precision:fraud cannot be estimated" in out
