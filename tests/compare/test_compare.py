"""``covcal compare``: what each run measures, what stands, and the table that comes of it."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata

from covcal_cli.compare.compare import CompareSettings, compare
from covcal_cli.compare.ranking import Comparison, Entry
from covcal_cli.compare.tables import as_csv, as_markdown, as_tex, rows
from covcal_cli.evaluate.metrics import METRICS
from tests.cli_runner import covcal, printed_json
from tests.made_files import made_domain, write_adapted, write_features
from tests.short_training import short_training

CORRECTNESS = ("correctness_brier", "correctness_nll", "correctness_auroc", "class_gap")


@pytest.fixture
def shifts(tmp_path: Path) -> Path:
    """A folder of three adapted files, so that nothing needs training."""
    for name, shift in (("near", 0.3), ("middle", 1.0), ("far", 2.0)):
        write_adapted(tmp_path / f"{name}.h5", shift=shift)
    return tmp_path


def made(scores: Mapping[str, Mapping[str, float]], metric: str = "ece") -> Comparison:
    """A comparison of given scores, by shift and method."""
    methods = tuple(dict.fromkeys(method for one in scores.values() for method in one))
    entries = {
        shift: {
            method: Entry(1.0, {metric: score}, {metric: 0.01}) for method, score in one.items()
        }
        for shift, one in scores.items()
    }
    return Comparison(METRICS[metric], 2, methods, entries, dict.fromkeys(scores, 100), {})


def test_a_run_is_what_the_commands_make_one_by_one(tmp_path: Path) -> None:
    """adapt, calibrate and evaluate by hand give the numbers of the table."""
    write_features(tmp_path / "far.h5", shift=2.0)
    with short_training(60, members=1):
        asked = ("--methods", "fl+iw+temp,cot", "--seeds", 2, "-o", "table.csv")
        covcal("compare", "far.h5", *asked, cwd=tmp_path).require_success()
        by_hand: dict[str, list[float]] = {"none": [], "fl+iw+temp": [], "cot": []}
        for seed in (0, 1):
            covcal("adapt", "far.h5", "--seed", seed, "-f", cwd=tmp_path).require_success()
            for method in ("fl+iw+temp", "cot"):
                options = ("--method", method, "--seed", seed, "-o", f"{method}.json", "-f")
                covcal("calibrate", "adapted.h5", *options, cwd=tmp_path).require_success()
            given = ("-c", "fl+iw+temp.json", "-c", "cot.json")
            found = printed_json("evaluate", "adapted.h5", *given, cwd=tmp_path)
            for method, values in by_hand.items():
                values.append(found["metrics"][method]["ece"])
    with (tmp_path / "table.csv").open(encoding="utf-8") as handle:
        table = {row["method"]: row for row in csv.DictReader(handle)}
    assert set(table) == {"none", "temp", "fl+iw+temp", "cot"}
    for method, values in by_hand.items():
        assert float(table[method]["ece"]) == pytest.approx(np.mean(values), abs=1e-12)
        assert float(table[method]["ece_sd"]) == pytest.approx(np.std(values, ddof=1), abs=1e-12)


def test_what_stands_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call reads records; more seeds and other methods adapt nothing twice."""
    write_features(tmp_path / "far.h5", shift=2.0)
    with short_training(40, members=1):
        asked = ("compare", "far.h5", "--methods", "fl+temp", "--seeds", 2)
        first = covcal(*asked, cwd=tmp_path).require_success()
        monkeypatch.setattr("covcal_cli.adapt.adapt.adapt", None)  # any further call fails
        assert covcal(*asked, cwd=tmp_path).require_success().out == first.out
        more = ("compare", "far.h5", "--methods", "fl+temp,atc", "--seeds", 2)
        assert "atc" in covcal(*more, cwd=tmp_path).require_success().out


@pytest.mark.parametrize("content", ["", "{", '{"schema": "covcal.compare-run/1"}', "other"])
def test_a_damaged_or_stale_record_is_made_again(shifts: Path, content: str) -> None:
    """A record counts only for the very file and settings that it was made of."""
    asked = ("compare", "near.h5", "--methods", "temp", "--seeds", 1)
    whole = covcal(*asked, cwd=shifts).require_success()
    record = shifts / "covcal-compare" / "near-seed0.json"
    kept = json.loads(record.read_text("utf-8"))
    kept["key"] = "0" * 64
    kept["metrics"]["temp"]["ece"] = 0.5
    record.write_text(json.dumps(kept) if content == "other" else content, encoding="utf-8")
    assert covcal(*asked, cwd=shifts).require_success().out == whole.out
    write_adapted(shifts / "near.h5", shift=1.5)
    assert covcal(*asked, cwd=shifts).require_success().out != whole.out


@pytest.mark.parametrize("metric", ["correctness_auroc", "class_gap"])
def test_what_can_rank(shifts: Path, metric: str) -> None:
    """By any metric of evaluate, in its direction: the best of a column is in bold."""
    asked = ("--methods", "fl+temp,fl+iw+temp", "--seeds", 1, "--metric", metric)
    done = covcal("compare", "near.h5", "far.h5", *asked, "-o", "table.md", cwd=shifts)
    done.require_success()
    with (shifts / "table.md").open(encoding="utf-8") as handle:
        heads, _, *lines = (line.strip("| \n").split(" | ") for line in handle if "|" in line)
    best = max if METRICS[metric].better == "higher" else min
    for column in (1, 2):
        cells = [line[column] for line in lines]
        numbers = [float(cell.strip("*")) for cell in cells]
        bold = [number for number, cell in zip(numbers, cells, strict=True) if "*" in cell]
        assert bold == [best(numbers)] * len(bold)
        assert bold
    assert heads[1:3] == ["near", "far"]


def test_a_record_without_a_metric_is_made_again(
    shifts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of before the metric was there would leave its column empty."""
    asked = ("compare", "near.h5", "--methods", "temp", "--seeds", 1)
    with monkeypatch.context() as earlier:
        fewer = {name: one for name, one in METRICS.items() if name not in CORRECTNESS}
        earlier.setattr("covcal_cli.compare.compare.METRICS", fewer)
        covcal(*asked, cwd=shifts).require_success()
    out = covcal(*asked, "--metric", "class_gap", cwd=shifts).require_success().out
    (line,) = (line for line in out.splitlines() if line.startswith("temp"))
    assert float(line.split()[1]) > 0


def test_no_order_of_rows_is_no_best_one() -> None:
    """Where every row is right no method has an AUROC, and none is in bold."""
    entries = {"a": {"none": Entry(1.0, {}, {}), "temp": Entry(1.0, {}, {})}}
    found = Comparison(METRICS["correctness_auroc"], 1, ("none", "temp"), entries, {"a": 5}, {})
    assert rows(found, bold=lambda text: f"**{text}**")[1] == [["none", "-"], ["temp", "-"]]


def test_several_processes_find_the_same(shifts: Path) -> None:
    """The table does not depend on how many runs go at a time."""
    paths = sorted(shifts.glob("*.h5"))
    alone, together = (
        compare(
            paths, shifts / f"{jobs}", CompareSettings(methods=("temp", "cot"), seeds=1, jobs=jobs)
        )
        for jobs in (1, 2)
    )
    assert alone == together


def test_one_run_that_fails_leaves_the_others(shifts: Path) -> None:
    """Records that are done stay, and the failing file is named."""
    target = made_domain("target")
    target["labels"][:] = -1
    write_features(shifts / "unlabelled.h5", target=target)
    line = covcal(
        "compare", "near.h5", "unlabelled.h5", "--methods", "temp", "--seeds", 1, cwd=shifts
    ).error_line()
    assert line.startswith("unlabelled.h5 holds no label")
    assert (shifts / "covcal-compare" / "near-seed0.json").exists()


def test_a_method_that_a_file_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    """Logits alone cannot be adapted; the methods on aligned logits have no cell."""
    source, target = (made_domain(name) for name in ("source", "target"))
    for domain in (source, target):
        del domain["features"]
    write_features(tmp_path / "logits.h5", source=source, target=target)
    asked = ("--methods", "fl+temp,cot", "--seeds", 1, "-v")
    done = covcal("compare", "logits.h5", *asked, cwd=tmp_path).require_success()
    assert "logits: fl+temp left out: " in done.err
    (line,) = (line for line in done.out.splitlines() if line.startswith("fl+temp"))
    assert line.split() == ["fl+temp", "-"]


# What the table says.

SCORES = {
    "a": {"none": 0.10, "temp": 0.08, "cot": 0.05},
    "b": {"none": 0.02, "temp": 0.04, "cot": 0.04},
    "c": {"none": 0.30, "temp": 0.10, "cot": 0.10},
}


@pytest.mark.parametrize("metric", ["ece", "accuracy", "correctness_auroc", "class_gap"])
def test_ranks_share_ties_as_scipy_does(metric: str) -> None:
    """The best has rank 1, whether low or high is better."""
    found = made(SCORES, metric)
    sign = 1 if metric in ("ece", "class_gap") else -1
    ranks = {
        shift: rankdata([sign * score for score in one.values()]) for shift, one in SCORES.items()
    }
    for shift, expected in ranks.items():
        assert list(found.ranks(shift).values()) == expected.tolist()
    means = np.mean(list(ranks.values()), axis=0)
    assert [found.mean_rank(method) for method in found.methods] == pytest.approx(means)


def test_harm_is_measured_from_the_better_baseline() -> None:
    """More than a point worse than the better of none and temp."""
    found = made(SCORES)
    assert found.harmed("cot") == ("b",)
    assert found.harmed("none") == ("a", "c")
    assert found.harm("a", "cot") == pytest.approx(-0.03)


def test_a_method_that_did_not_run_everywhere_has_no_mean() -> None:
    """Means over different shifts cannot be compared; ranks leave such a method out."""
    found = made({"a": {"none": 0.1, "temp": 0.2, "cot": 0.0}, "b": {"none": 0.1, "temp": 0.2}})
    assert found.everywhere() == ("none", "temp")
    assert found.mean_rank("none") == 1
    assert "| cot | **0.00 ± 1.00** | - | - | - | 0 |" in as_markdown(found)


def test_the_best_of_a_column_is_bold_in_markdown_and_latex() -> None:
    """Tied ones both."""
    found = made(SCORES)
    assert "| temp | 8.00 ± 1.00 | 4.00 ± 1.00 | **10.00 ± 1.00** | 7.33 |" in as_markdown(found)
    assert r"cot & \textbf{5.00 $\pm$ 1.00} & 4.00 $\pm$ 1.00 &" in as_tex(found)


def test_latex_survives_any_name() -> None:
    """Signs with a meaning there are escaped; columns and cells are equally many."""
    text = as_tex(made({"a_b&c%$#{}~^\\": {"none": 0.1, "temp": 0.2}}))
    assert r"a\_b\&c\%\$\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}" in text
    assert r"\begin{tabular}{lr}" in text


def test_csv_holds_every_metric_as_a_fraction() -> None:
    """A line per shift and method, for a data frame."""
    lines = list(csv.DictReader(io.StringIO(as_csv(made(SCORES)))))
    assert [(one["shift"], one["method"]) for one in lines][:2] == [("a", "none"), ("a", "temp")]
    assert float(lines[2]["ece"]) == 0.05
    assert float(lines[2]["harm"]) == pytest.approx(-0.03)
    assert set(METRICS) <= set(lines[0])


# What cannot be done.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--methods", "tmep"), "'tmep'"),
        (("--metric", "mean_confidence"), "'mean_confidence'"),
        (("-o", "table.xlsx"), ".csv, .md, .tex"),
    ],
)
def test_what_there_is_not_is_an_error_in_the_usage(
    shifts: Path, arguments: tuple[str, ...], said: str
) -> None:
    """Before anything runs."""
    assert said in covcal("compare", "near.h5", *arguments, cwd=shifts).usage_error()
    assert not (shifts / "covcal-compare").exists()


def test_two_files_of_one_name_are_refused(shifts: Path) -> None:
    """A shift is called like its file."""
    (shifts / "twin").mkdir()
    write_adapted(shifts / "twin" / "near.h5")
    line = covcal("compare", "near.h5", "twin/near.h5", cwd=shifts).error_line()
    assert line.startswith("near.h5 and twin/near.h5 are both called near")


def test_a_table_is_not_replaced_unasked(shifts: Path) -> None:
    """As every output."""
    (shifts / "table.md").write_text("mine", encoding="utf-8")
    line = covcal("compare", "near.h5", "-o", "table.md", cwd=shifts).error_line()
    assert "table.md exists already" in line
