"""``covcal compare``: what each run measures, what stands, and the table that comes of it."""

import csv
import io
import json
import os
import shutil
import statistics
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata

from covcal_cli.compare.compare import Comparison, compare, compare_runs
from covcal_cli.compare.runs import CompareSettings, Fit, Record, Run, finished, record_of
from covcal_cli.compare.tables import as_csv, as_markdown, as_tex, grids
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.records import Guard, read_document, write_document
from tests.cli_runner import covcal, printed_json
from tests.made_files import made_domain, write_adapted, write_features
from tests.short_training import short_training

SIZES = (100, 150, 120)
ASKED = ("compare", "near.h5", "--methods", "temp,cot", "--seeds", 1)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two adapted files, and the record of one, after `ASKED`; not to be changed."""
    folder = tmp_path_factory.mktemp("shifts")
    for name, shift in (("near", 0.3), ("far", 2.0)):
        source = made_domain("source", sizes=SIZES)
        target = made_domain("target", sizes=SIZES, shift=shift)
        write_adapted(folder / f"{name}.h5", source=source, target=target, shift=shift)
    (folder / "whole.txt").write_text(covcal(*ASKED, cwd=folder).require_success().out)
    return folder


@pytest.fixture
def recorded(written: Path, tmp_path: Path) -> Path:
    """A copy of both files, of the record and of the table, for a test to change."""
    return Path(shutil.copytree(written, tmp_path / "recorded"))


@pytest.fixture
def shifts(recorded: Path) -> Path:
    """A folder of two adapted files, so that nothing needs training."""
    shutil.rmtree(recorded / "covcal-compare")
    return recorded


# What auto and its estimate of the accuracy say in `made` records.
GUARD = Guard("estimators disagree", 0.2, 0.1, False, "they differ")
FIT = Fit("consensus", "why", "original", 2.0, None, (GUARD,), ("they differ",))
ESTIMATE = Estimate("combined", 0.7, 0.6, 0.85, "an assumption")


def made(
    scores: Mapping[str, Mapping[str, float]],
    metric: str = "ece",
    accuracy: Mapping[str, float] | None = None,
) -> Comparison:
    """A comparison of given scores, by shift and method, with a deviation of a point."""
    found = {}
    for shift, one in scores.items():
        beside = {"accuracy": (accuracy or {}).get(shift, 0.8)}
        found[shift] = tuple(
            Record(
                key="",
                seed=seed,
                measured=Path("made.h5"),
                n=100,
                metrics={m: {**beside, metric: score + move} for m, score in one.items()},
                fits={"auto": FIT},
                refused={},
                estimates=(ESTIMATE,),
                seconds={},
            )
            for seed, move in enumerate((-(0.5**0.5) / 100, 0.5**0.5 / 100))
        )
    methods = tuple(dict.fromkeys(method for one in scores.values() for method in one))
    return Comparison(METRICS[metric], methods, found)


def test_a_run_is_what_the_commands_make_one_by_one(tmp_path: Path) -> None:
    """adapt, calibrate and evaluate by hand give the numbers of the table."""
    source = made_domain("source", sizes=SIZES)
    target = made_domain("target", sizes=SIZES, shift=2.0)
    write_features(tmp_path / "far.h5", source=source, target=target)
    with short_training(20, members=1):
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


def test_what_stands_is_not_made_again(tmp_path: Path) -> None:
    """A second call reads records; other methods adapt nothing twice, other settings do.

    Files as they come, and other settings, have records and adapted files of their own.
    """
    write_features(tmp_path / "far.h5", shift=2.0)
    asked = ("compare", "far.h5", "--methods", "temp,fl+temp", "--seeds", 2)
    more = (*asked, "--methods", "fl+temp,atc")
    with short_training(20, members=1):
        first = covcal(*asked, cwd=tmp_path).require_success()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("covcal_cli.adapt.adapt.adapt", None)  # any further call fails
            assert covcal(*asked, cwd=tmp_path).require_success().out == first.out
            assert "atc" in covcal(*more, cwd=tmp_path).require_success().out
            without = covcal(*asked, "--no-adapt", cwd=tmp_path).require_success()
    assert not any(line.startswith("fl+temp") for line in without.out.splitlines())
    assert "These methods could not run: fl+temp." in without.out
    # Only methods on adapted features depend on the seed.
    assert "test rows, with the same values for each of 2 seeds; lower is better" in without.out
    assert "(values without a deviation are the same with every seed); lower" in first.out
    kept = tmp_path / "covcal-compare" / "default" / "far-seed0.h5"
    before = kept.read_bytes()
    with short_training(20, members=2):  # another setting under the same name is no such file
        covcal(*asked, "--seeds", 1, "--methods", "fl+temp,cot", cwd=tmp_path).require_success()
    assert kept.read_bytes() != before
    names = {path.name for path in (tmp_path / "covcal-compare").iterdir()}
    assert names == {"default", "without-adapt"}


def test_a_record_keeps_what_was_said(shifts: Path) -> None:
    """Choice, guards and warnings of calibrations, estimates with their intervals, seconds."""
    methods = ("--methods", "auto,cot")
    covcal("compare", "far.h5", *methods, "--seeds", 1, cwd=shifts).require_success()
    covcal("calibrate", "far.h5", cwd=shifts).require_success()
    path = shifts / "covcal-compare" / "default" / "far-seed0.json"
    kept, said = (json.loads(p.read_text("utf-8")) for p in (path, shifts / "cal.json"))
    fit: dict[str, Any] = kept["fits"]["auto"]
    for name in ("method_used", "reason", "guards", "warnings"):
        assert fit[name] == said[name]
    estimated = printed_json("estimate", "far.h5", cwd=shifts)["estimates"]
    assert kept["estimates"] == estimated
    assert set(kept["seconds"]) == set(kept["fits"])
    assert all(spent["wall"] > 0 for spent in kept["seconds"].values())


def test_seeds_may_have_files_of_their_own(shifts: Path) -> None:
    """A shift that is drawn anew for every seed."""
    runs = [Run("drawn", shifts / f"{name}.h5", seed) for seed, name in enumerate(("near", "far"))]
    settings = CompareSettings(methods=("temp",))
    found = compare_runs(runs, shifts / "kept", settings)
    alone = compare([run.path for run in runs], shifts / "other", replace(settings, seeds=1))
    scores = [alone.score(run.path.stem, "temp") or 0.0 for run in runs]
    assert found.score("drawn", "temp") == pytest.approx(statistics.fmean(scores))
    assert found.seeds == 2


@pytest.mark.parametrize("content", ["", "other", "edited"])
def test_a_damaged_or_stale_record_is_made_again(recorded: Path, content: str) -> None:
    """A record counts only for the very file and settings that it was made of."""
    record = recorded / "covcal-compare" / "default" / "near-seed0.json"
    kept = json.loads(record.read_text("utf-8"))
    if content == "other":
        kept["key"] = "0" * 64
    kept["metrics"]["temp"]["ece"] = 0.5
    if content == "other":
        write_document(kept, record, force=True)
    else:
        record.write_text(json.dumps(kept) if content == "edited" else content, encoding="utf-8")
    again = covcal(*ASKED, cwd=recorded).require_success()
    assert again.out == (recorded / "whole.txt").read_text()


def test_a_record_of_another_file_is_made_again(recorded: Path) -> None:
    (recorded / "far.h5").replace(recorded / "near.h5")
    again = covcal(*ASKED, cwd=recorded).require_success()
    assert again.out != (recorded / "whole.txt").read_text()


EDITS: dict[str, Any] = {
    "ece of -5": lambda c: c["metrics"]["temp"].update(ece=-5),
    "brier of 3": lambda c: c["metrics"]["temp"].update(brier=3),
    "no rows": lambda c: c.update(n=-3),
    "no none": lambda c: c["metrics"].pop("none"),
    "fitted, not measured": lambda c: c["metrics"].pop("temp"),
    "a method that is missing": lambda c: (c["metrics"].pop("cot"), c["fits"].pop("cot")),
    "a metric that is missing": lambda c: c["metrics"]["temp"].pop("ece"),
    "an ECE that is not the sum of its parts": lambda c: c["metrics"]["cot"].update(ece=1e-4),
    "another accuracy": lambda c: c["metrics"]["cot"].update(accuracy=0.5),
    "a Brier score below that of correctness": lambda c: c["metrics"]["cot"].update(brier=1e-3),
    "one row more": lambda c: c.update(n=c["n"] + 1),
    "no combined estimate": lambda c: c["estimates"].pop(0),
    "negative T": lambda c: c["fits"]["temp"].update(temperature=-1),
    "negative seconds": lambda c: c["seconds"]["temp"].update(wall=-1),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_record_that_cannot_be_true_is_not_believed(
    recorded: Path, edit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one with a right digest is checked; the run is repeated, and a note says why."""
    path = recorded / "covcal-compare" / "default" / "near-seed0.json"
    content = json.loads(path.read_text("utf-8"))
    whole = json.loads(path.read_text("utf-8"))
    EDITS[edit](content)
    right = read_document(Record, path, remedy="")
    monkeypatch.setattr("covcal_cli.compare.runs._measured", lambda *_: right)
    write_document(content, path, force=True)
    settings = CompareSettings(methods=("temp", "cot"), seeds=1)
    again = record_of(Run("near", recorded / "near.h5", 0), recorded / "covcal-compare", settings)
    assert again.note.startswith("the run is repeated, because its stored record is not valid: ")
    assert json.loads(path.read_text("utf-8"))["metrics"] == whole["metrics"]


def test_a_repeated_run_is_told_once(recorded: Path) -> None:
    path = recorded / "covcal-compare" / "default" / "near-seed0.json"
    content = json.loads(path.read_text("utf-8"))
    EDITS["no none"](content)
    write_document(content, path, force=True)
    again = covcal(*ASKED, cwd=recorded).require_success()
    assert (
        "near, seed 0: the run is repeated, because its stored record is not valid: " in again.err
    )
    assert "repeated" not in covcal(*ASKED, cwd=recorded).require_success().err


def test_more_jobs_than_runs(shifts: Path) -> None:
    """More processes than runs are no error; impossible numbers are, in one line."""
    asked = ("compare", "near.h5", "--methods", "temp", "--seeds", 1)
    covcal(*asked, "--jobs", 1000, cwd=shifts).require_success()
    assert "is too large" in covcal(*asked, "--jobs", 10**20, cwd=shifts).usage_error()
    many = ("compare", "near.h5", "--seeds", 10**6)
    assert "at most 10000 seeds" in covcal(*many, cwd=shifts).usage_error()


def test_what_can_rank(shifts: Path) -> None:
    """By any metric of evaluate, in its direction: the best of a column is in bold."""
    metric = "correctness_auroc"
    asked = ("--methods", "fl+temp,fl+iw+temp", "--seeds", 1, "--metric", metric)
    done = covcal("compare", "near.h5", "far.h5", *asked, "-o", "table.md", cwd=shifts)
    done.require_success()
    with (shifts / "table.md").open(encoding="utf-8") as handle:
        heads, _, *lines = (line.strip("| \n").split(" | ") for line in handle if "|" in line)
    for column in (1, 2):
        cells = [line[column] for line in lines]
        numbers = [float(cell.strip("*")) for cell in cells]
        bold = [number for number, cell in zip(numbers, cells, strict=True) if "*" in cell]
        assert bold == [max(numbers)] * len(bold)
        assert bold
    assert heads[1:3] == ["near", "far"]


def test_no_order_of_rows_is_no_best_one() -> None:
    """Where every row is right no method has an AUROC, and none is in bold."""
    found = made({"a": {"none": 0.5, "temp": 0.5}}, "correctness_auroc")
    records = [
        replace(one, metrics={method: {"correctness_auroc": None} for method in one.metrics})
        for one in found.records["a"]
    ]
    found = replace(found, records={"a": tuple(records)})
    (grid,) = grids(found, bold=lambda text: f"**{text}**")
    assert "**" not in str(grid.rows)


def test_several_processes_find_the_same(shifts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table does not depend on how many runs go at a time, nor does anything stay changed."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    paths = sorted(shifts.glob("*.h5"))
    alone, together = (
        compare(
            paths, shifts / f"{jobs}", CompareSettings(methods=("temp", "cot"), seeds=1, jobs=jobs)
        )
        for jobs in (1, 2)
    )
    assert alone.shifts == together.shifts
    assert "OMP_NUM_THREADS" not in os.environ


def test_nothing_waits_to_begin_when_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pool holds in advance would begin even after Ctrl-C."""
    given: list[int] = []

    class Threads(ThreadPoolExecutor):
        def __init__(self, jobs: int, **_: object) -> None:
            super().__init__(jobs)

        def submit(self, work: Any, /, *given_to: Any, **more: Any) -> Any:
            given.append(given_to[0].seed)
            return super().submit(work, *given_to, **more)

    monkeypatch.setattr("covcal_cli.compare.runs.ProcessPoolExecutor", Threads)
    monkeypatch.setattr("covcal_cli.compare.runs.record_of", lambda run, *_: run.seed)
    runs = [Run("made", Path("made.h5"), seed) for seed in range(6)]
    begun = finished(runs, Path(), CompareSettings(jobs=2))
    next(begun)
    begun.close()
    assert given == [0, 1]
    assert {run.seed for run, _ in finished(runs, Path(), CompareSettings(jobs=2))} == set(range(6))


def test_one_run_that_fails_leaves_the_others(shifts: Path) -> None:
    """Records that are done stay, and the failing file is named."""
    target = made_domain("target")
    target["labels"][:] = -1
    write_features(shifts / "unlabelled.h5", target=target)
    line = covcal(
        "compare", "near.h5", "unlabelled.h5", "--methods", "temp", "--seeds", 1, cwd=shifts
    ).error_line()
    assert line.startswith("unlabelled.h5: none of its 200 target test rows has a label")
    assert (shifts / "covcal-compare" / "default" / "near-seed0.json").exists()


def test_a_method_that_a_file_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    """Logits alone cannot be adapted; the methods on aligned logits have no cell."""
    source, target = (made_domain(name) for name in ("source", "target"))
    for domain in (source, target):
        del domain["features"]
    write_features(tmp_path / "logits.h5", source=source, target=target)
    asked = ("--methods", "fl+temp,cot", "--seeds", 1, "-v")
    done = covcal("compare", "logits.h5", *asked, cwd=tmp_path).require_success()
    assert "logits: fl+temp left out: " in done.err
    assert "These methods could not run: fl+temp." in done.out


# What the table says.

SCORES = {
    "a": {"none": 0.10, "temp": 0.08, "cot": 0.05},
    "b": {"none": 0.02, "temp": 0.04, "cot": 0.04},
    "c": {"none": 0.30, "temp": 0.10, "cot": 0.10},
}


@pytest.mark.parametrize("metric", ["ece", "correctness_auroc", "class_gap"])
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
    """By more than one, three and five points, the worst shift first."""
    found = made(SCORES)
    assert found.harmed("cot") == ("b",)
    assert found.harmed("none") == ("c", "a")
    assert found.harmed("none", 0.05) == ("c",)
    assert found.harm("a", "cot") == pytest.approx(-0.03)
    assert "| none | 14.00 | 30.00 | 2.3 | 6 | 3 | 3 |" in as_markdown(wide(SCORES))


def wide(scores: Mapping[str, Mapping[str, float]]) -> Comparison:
    """A comparison of the same scores three times over, too many shifts to be columns."""
    return made({f"{shift}{n}": one for n in range(3) for shift, one in scores.items()})


def test_many_shifts_are_rows_behind_all_together() -> None:
    """Sixty columns could be pasted nowhere."""
    text = as_markdown(wide(SCORES))
    assert "| method | mean | worst | rank | > 1 | > 3 | > 5 |" in text
    assert "| none | 14.00 | 30.00 |" in text
    assert "| shift | none | temp | cot |" in text
    assert "| a2 | 10.00 ± 1.00 | 8.00 ± 1.00 | **5.00 ± 1.00** |" in text
    assert as_tex(wide(SCORES)).count(r"\begin{tabular}") == 2


def test_regret_and_the_best_single_method_leave_auto_out() -> None:
    """auto always uses one of the other methods."""
    found = made(
        {
            "a": {"auto": 0.01, "none": 0.10, "temp": 0.05},
            "b": {"auto": 0.06, "none": 0.02, "temp": 0.04},
        }
    )
    assert found.best() == "temp"
    assert found.regret("auto") == pytest.approx((-0.04 + 0.04) / 2)
    assert found.worst("none") == "a"
    assert found.mean("temp") == pytest.approx(0.045)
    assert found.of(["b"]).best() == "none"


def test_how_the_estimates_fared() -> None:
    """Error, coverage and width over shifts; what auto took, and the guards that failed."""
    scores = {shift: {"auto": 0.1, "none": 0.1, "temp": 0.2} for shift in ("a", "b", "c")}
    found = made(scores, accuracy={"a": 0.7, "b": 0.9, "c": 0.5})
    fared = found.coverage()
    assert fared is not None
    assert (fared.shifts, fared.missed) == (3, ("b", "c"))
    assert (fared.error, fared.held, fared.width) == pytest.approx((0.4 / 3, 1 / 3, 0.25))
    other = found.coverage(lambda _: 0.8)
    assert other is not None
    assert (other.error, other.held) == pytest.approx((0.1, 1))
    text = as_markdown(found)
    assert "| b | consensus | 70.0 [60.0, 85.0] | 90.0 | the estimators disagree |" in text
    assert "off by 13.3 points on average. The ranges of the estimates contain 33 % of" in " ".join(
        text.split()
    )
    without = {s: tuple(replace(r, estimates=()) for r in rs) for s, rs in found.records.items()}
    assert replace(found, records=without).coverage() is None


def test_a_method_that_did_not_run_everywhere_has_no_mean() -> None:
    """Means over different shifts cannot be compared; ranks leave such a method out."""
    found = made({"a": {"none": 0.1, "temp": 0.2, "cot": 0.02}, "b": {"none": 0.1, "temp": 0.2}})
    assert found.everywhere == ("none", "temp")
    assert found.mean_rank("none") == 1
    assert "| cot | **2.00 ± 1.00** | - | - | - | - | 0 | 0 | 0 |" in as_markdown(found)


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
        (("--no-adapt", "--preset", "paper"), "--preset is a setting of adapt"),
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
