"""The benchmark: its arithmetic recomputed from the records, its ceilings, resuming, and marks."""

import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import choose_adapt_settings as builders
import h5py
import numpy as np
import pytest
from benchmark import driver
from benchmark.families import (
    FAMILIES,
    HALVES,
    SHIFT_KINDS,
    Case,
    ShiftKind,
    cases,
    corrupted_digits,
)
from benchmark.harm import cause_of_harm
from benchmark.kinds import by_kind
from benchmark.labels import CEILINGS, Results, Truth, read_truth
from benchmark.run import main
from benchmark.table import markdown_text

from covcal_cli.calibrate import calibrate as calibration
from covcal_cli.compare.compare import Comparison
from covcal_cli.compare.runs import Fit, Record
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.records import Guard
from tests.short_training import short_training

Result = dict[str, Any]
SHIFTS = {"near": 0.4, "far": 2.0}
SEEDS = 2
COMPARED = ("iw+temp", "fl+temp", "cot", "auto")  # a few of all methods


def made_side(rng: np.random.Generator, move: float) -> builders.Side:
    centres = np.random.default_rng(1).normal(size=(3, 6)) * 1.3
    labels = rng.integers(3, size=300)
    rows = centres[labels] + rng.normal(size=(300, 6)) + move * centres[0]
    logits = 2 * (rows @ centres.T - 0.5 * (centres**2).sum(axis=1))
    split = rng.choice(3, size=300, p=[0.4, 0.3, 0.3]).astype(np.uint8)
    return builders.Side(rows.astype(np.float32), logits.astype(np.float32), labels, split)


def write_made(move: float, path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shift = builders.Shift("made", "made", made_side(rng, 0.0), made_side(rng, move))
    builders.write_features(path, shift)


def made_cases() -> list[Case]:
    near, far = (partial(write_made, move) for move in SHIFTS.values())
    return [
        Case("first", "near", "choose", make=near, redrawn=True),
        Case("first", "far", "choose", make=far, redrawn=True),
        Case("second", "far again", "test", make=far),
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder and the table of a run over three made shifts with short training."""
    folder = tmp_path_factory.mktemp("benchmark")
    with pytest.MonkeyPatch.context() as patch, short_training(20, members=1):
        patch.setattr("benchmark.labels._POINTS", 21)  # temperatures that the oracle tries
        text = driver.benchmark(made_cases(), folder, methods=COMPARED, seeds=SEEDS)
        check_resuming(patch, folder, text)
    return folder, text


def check_resuming(patch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """Remove one record and run again: it alone is measured, and the table is the same."""
    measured: list[str] = []
    calibrate: Callable[..., Any] = calibration.calibrate

    def counted(path: Path, settings: Any) -> Any:
        measured.append(path.name)
        return calibrate(path, settings)

    patch.setattr("covcal_cli.compare.runs.calibrate", counted)
    patch.setattr("covcal_cli.adapt.adapt.adapt", None)  # nothing is adapted again
    (folder / "default" / "far-draw1-seed1.json").unlink()
    assert driver.benchmark(made_cases(), folder, methods=COMPARED, seeds=SEEDS) == text
    assert set(measured) == {"far-draw1-seed1.h5"}


def results_of(folder: Path) -> list[Result]:
    document = json.loads((folder / "results.json").read_text("utf-8"))
    assert document["schema"] == "covcal-benchmark/3"
    found: list[Result] = document["runs"]
    return found


def tables(text: str, state: str) -> dict[str, list[dict[str, str]]]:
    """Return the tables of a state by their titles, their rows by the heads of columns."""
    found = {}
    (part,) = (p for p in text.split("## State: ")[1:] if p.startswith(state))
    for section in part.split("\n### ")[1:]:
        title, *lines = section.splitlines()
        cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
        if cells:
            found[title] = [dict(zip(cells[0], row, strict=False)) for row in cells[2:]]
    return found


def test_errors_regret_and_harm_follow_from_the_records(finished: tuple[Path, str]) -> None:
    folder, text = finished
    results = results_of(folder)
    assert [(one["state"], one["shift"], one["found"]["seed"]) for one in results] == [
        (state, shift, seed)
        for state in ("default", "without-adapt")
        for shift in ("near", "far", "far again")
        for seed in range(SEEDS)
    ]
    assert text == (folder / "table.md").read_text("utf-8")
    for state in ("default", "without-adapt"):
        errors: dict[str, dict[str, float]] = {shift: {} for shift in ("near", "far", "far again")}
        for shift, those in errors.items():
            runs_of = [r for r in results if (r["state"], r["shift"]) == (state, shift)]
            for method in runs_of[0]["found"]["metrics"]:
                values = [100 * r["found"]["metrics"][method]["ece"] for r in runs_of]
                those[method] = float(np.mean(values))
            for ceiling, key in zip(CEILINGS, ("matched_ece", "oracle_ece"), strict=True):
                those[f"*{ceiling}*"] = float(np.mean([100 * r["truth"][key] for r in runs_of]))
        drawn = tables(text, state)
        for title, shifts in (
            ("Calibration error: choose (2)", ("near", "far")),
            ("Calibration error: test (1)", ("far again",)),
            ("first (choose, 2)", ("near", "far")),
            ("second (test, 1)", ("far again",)),
        ):
            table = {row["method"]: row for row in drawn[title]}
            assert set(table) == set(errors["near"])
            assert ("fl+temp" in table) == (state == "default")
            single = [m for m in table if m != "auto" and not m.startswith("*")]
            means = {m: np.mean([errors[s][m] for s in shifts]) for m in table}
            for method, row in table.items():
                assert float(row["mean"].strip("*")) == pytest.approx(means[method], abs=0.0051)
                worst = max(shifts, key=lambda s: errors[s][method])
                assert row["worst"] == f"{errors[worst][method]:.2f} ({worst})"
                if method.startswith("*"):
                    continue
                each = [errors[s][method] - min(errors[s][m] for m in single) for s in shifts]
                assert float(row["regret"]) == pytest.approx(np.mean(each), abs=0.0051)
                harm = [
                    errors[s][method] - min(errors[s]["none"], errors[s]["temp"]) for s in shifts
                ]
                for points in (1, 3, 5):
                    assert int(row[f"> {points}"]) == sum(h > points for h in harm)
            (best,) = (m for m, row in table.items() if row["mean"].startswith("**"))
            assert means[best] == min(means[m] for m in single)


def test_coverage_follows_from_the_records(finished: tuple[Path, str]) -> None:
    folder, text = finished
    results = [r for r in results_of(folder) if r["state"] == "default" and r["half"] == "choose"]
    (row,) = (
        row
        for row in tables(text, "default")["The estimated accuracy: choose (2)"]
        if row["family"].startswith("choose")
    )
    combined = [r["found"]["estimates"][0] for r in results]
    truths = [r["truth"]["accuracy"] for r in results]
    held = [e["low"] <= t <= e["high"] for e, t in zip(combined, truths, strict=True)]
    misses = [abs(e["accuracy"] - t) for e, t in zip(combined, truths, strict=True)]
    assert row["error"] == f"{100 * np.mean(misses):.1f}"
    assert row["contained"] == f"{np.mean(held):.0%}"
    assert row["width"] == f"{100 * np.mean([e['high'] - e['low'] for e in combined]):.1f}"


def test_truths_and_the_uncalibrated_error_follow_from_the_files(
    finished: tuple[Path, str],
) -> None:
    folder, _ = finished
    result = next(r for r in results_of(folder) if r["shift"] == "far" and r["found"]["seed"] == 1)
    with h5py.File(folder / "features" / "far-draw1.h5") as file:
        logits, labels, split = (file["target"][n][:] for n in ("logits", "labels", "split"))
        source_labels = file["source/labels"][file["source/split"][:] == 1]
    right = logits.argmax(axis=1) == labels
    assert result["truth"]["accuracy"] == pytest.approx(right[split < 2].mean())
    assert result["truth"]["test_accuracy"] == pytest.approx(right[split == 2].mean())
    shares = [np.bincount(y, minlength=3) / len(y) for y in (source_labels, labels[split < 2])]
    assert result["truth"]["prior_drift"] == pytest.approx(abs(shares[0] - shares[1]).sum() / 2)
    chances = np.exp(logits.astype(float) - logits.max(axis=1, keepdims=True))
    confidence = (1 / chances.sum(axis=1))[split == 2]
    place = np.ceil(confidence * 15).astype(int) - 1
    gaps = [(confidence - right[split == 2])[place == b].sum() for b in range(15)]
    error = np.abs(gaps).sum() / (split == 2).sum()
    assert result["found"]["metrics"]["none"]["ece"] == pytest.approx(error)


def test_no_method_on_the_classifiers_logits_beats_the_oracle(finished: tuple[Path, str]) -> None:
    for result in results_of(finished[0]):
        metrics = result["found"]["metrics"]
        others = [metrics[name]["ece"] for name in ("none", "temp", "iw+temp")]
        assert result["truth"]["oracle_ece"] <= min(*others, result["truth"]["matched_ece"]) + 1e-12


def test_the_oracle_tries_the_temperatures_of_methods_and_the_true_accuracy_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a grid of two extreme temperatures, the temperature of a method is the best."""
    monkeypatch.setattr("benchmark.labels._POINTS", 2)
    write_made(0.4, tmp_path / "f.h5", 0)
    truth = read_truth(tmp_path / "f.h5", [1.5])
    assert truth.oracle_temperature == 1.5
    with h5py.File(tmp_path / "f.h5") as file:
        logits = file["target/logits"][file["target/split"][:] != 2].astype(float)
    chances = np.exp((logits - logits.max(axis=1, keepdims=True)) / truth.matched_temperature)
    confidence = (1 / chances.sum(axis=1)).mean()
    assert confidence == pytest.approx(truth.accuracy, abs=1e-3)


GUARD = Guard("estimators disagree", 0.3, 0.1, False, "they differ")


def made_record(auto: float = 0.075, *, passed: bool = False) -> Record:
    guard = replace(GUARD, passed=passed)
    fit = Fit("consensus", "why", "original", 2.0, None, (guard,), ("estimators differ",))
    scores = {"none": 0.05, "temp": 0.04, "auto": auto}
    return Record(
        key="",
        seed=0,
        measured=Path("made.h5"),
        n=100,
        metrics={name: {"ece": ece, "accuracy": 0.84} for name, ece in scores.items()},
        fits={"auto": fit},
        refused={},
        estimates=(Estimate("combined", 0.7, 0.6, 0.8, "an assumption"),),
        seconds={},
    )


def made_truth(accuracy: float = 0.85) -> Truth:
    return Truth(0.9, 0.3, accuracy, 0.84, 2.0, 0.01, 1.5, 0.02)


def table_of(*records: Record) -> str:
    by_shift = {f"s{number}": (record,) for number, record in enumerate(records)}
    found = Comparison(METRICS["ece"], tuple(records[0].metrics), by_shift)
    cases = [Case("f", shift, "choose", make=partial(write_made, 0.0)) for shift in by_shift]
    truths = {shift: (made_truth(),) for shift in by_shift}
    return markdown_text(cases, [Results("default", found, truths)])


def test_a_harmed_shift_is_named_with_its_guard_and_warning() -> None:
    text = table_of(made_record())
    assert (
        "| s0 | +3.50 | consensus | 70.0 [60.0, 80.0] / 85.0 | estimators disagree "
        "| estimators disagree 0.3 (0.1) | estimators differ |" in text
    )
    assert "On 1 of 1 shifts, `auto` is more than 1 point worse than the baseline. On 0 of" in text
    assert "On 0 of 1 shifts, `auto` is more than 5 points worse" in text
    assert "On 1 of these shifts, there is no warning" in table_of(made_record(passed=True))
    assert "| harmed shift |" not in table_of(made_record(0.045))


def test_a_method_that_refused_a_shift_is_no_best_method() -> None:
    partly = made_record()
    whole = replace(partly, metrics={**partly.metrics, "cot": {"ece": 0.01}})
    text = table_of(whole, partly)
    assert "| cot | 1.00 (on 1) | 1.00 (s0) |  | 0.00 | 0 | 0 | 0 |" in text
    assert "| temp | **4.00** |" in text


def test_the_table_of_kinds_separates_needed_warnings_from_idle_ones() -> None:
    harmed, near = made_record(auto=0.078), made_record(auto=0.045)
    silent = replace(near, fits={"auto": replace(near.fits["auto"], warnings=())})
    kinds: dict[str, tuple[ShiftKind, Record]] = {
        "a": ("streams", harmed),
        "b": ("streams", near),
        "c": ("streams", silent),
        "d-none": ("mild", silent),
    }
    records = {shift: (record,) for shift, (_, record) in kinds.items()}
    comparison = Comparison(METRICS["ece"], ("none", "temp", "auto"), records)
    truths = {shift: (made_truth(0.75),) for shift in kinds}
    made = [
        Case("f", shift, "choose", make=partial(write_made, 0.0), shift_kind=kind)
        for shift, (kind, _) in kinds.items()
    ]
    grid = by_kind(made, Results("without-adapt", comparison, truths))
    rows = {row[0]: dict(zip(grid.columns, row, strict=True)) for row in grid.rows}
    assert list(rows) == ["streams", "mild", "without a shift", "all"]
    streams = rows["streams"]
    assert (streams["shifts"], streams["none"], streams["auto"]) == ("3", "5.00", "5.60")
    assert streams["ratio"] == "1.40"  # 5.6 divided by 4, the mean of temp
    assert [streams[f"> {points}"] for points in (1, 3, 5)] == ["1", "1", "0"]
    assert (streams["error"], streams["contained"], streams["width"]) == ("5.0", "100%", "20.0")
    assert (streams["warned within 3"], streams["warned beyond 3"]) == ("50%", "100%")
    assert (rows["mild"]["warned within 3"], rows["mild"]["warned beyond 3"]) == ("0%", "")


@pytest.mark.parametrize(
    ("accuracy", "passed", "guard"),
    [
        (0.70, True, "chance"),
        (0.85, True, "estimate too low"),
        (0.50, True, "estimate too high"),
        (0.50, False, "estimators disagree"),
    ],
)
def test_why_a_shift_was_harmed(accuracy: float, passed: bool, guard: str) -> None:
    assert cause_of_harm([made_record(passed=passed)], [made_truth(accuracy)]) == guard


def everything(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """Return all shifts, with empty files for the data and no package asked for."""
    for family in FAMILIES.values():
        for name in family.files:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).touch()
    (folder / "models" / "park2020_lenet_usps.onnx").touch()
    monkeypatch.setattr("benchmark.families.require_package", lambda *_: None)
    return cases(folder)


def test_the_halves_are_whole_families_of_every_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = everything(tmp_path, monkeypatch)
    assert len({case.shift for case in found}) == len(found) >= 120
    assert all(case.half == FAMILIES[case.family].half for case in found)
    by_half = {half: cases(tmp_path, half=half) for half in HALVES}
    assert {c.shift for c in by_half["seen"]} == {"U-M", "M-U", "M-M", "M-S", "S-M"}
    assert sum(map(len, by_half.values())) == len(found)
    new = [case for case in found if case.shift_kind != "mixed"]
    assert {case.half for case in new} == {"choose", "test"}
    for half in ("choose", "test"):
        kinds = Counter(case.shift_kind for case in new if case.half == half)
        assert kinds.keys() == set(SHIFT_KINDS) - {"mixed"}
        assert kinds.total() >= 60
        assert min(kinds.values()) >= 7
        assert sum(case.half == half and case.unshifted for case in new) >= 10
    mixed = {case.family for case in found if case.shift_kind == "mixed"}
    assert {FAMILIES[name].kind for name in mixed} == {"digits", "images", "tables", "text"}


def test_every_case_can_be_made_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for case in everything(tmp_path, monkeypatch):
        assert pickle.loads(pickle.dumps(case)).shift == case.shift


def test_missing_data_is_named_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for family, entry in FAMILIES.items():
        if not (entry.files or entry.extracted):
            continue
        asked = ["--data", str(tmp_path), "--output", str(tmp_path / "o"), "--families", family]
        assert main(asked) == 1
        assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "o").exists()


def test_a_missing_package_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmark.makers.packages.find_spec", lambda _: None)
    assert main(["--data", str(tmp_path), "--families", "votes"]) == 1
    assert capsys.readouterr().err == (
        "error: the family votes needs the package pandas: "
        "pip install -r examples/research/benchmark/requirements.txt\n"
    )


def test_a_half_without_any_of_the_families_is_a_usage_error(tmp_path: Path) -> None:
    asked = ["--data", str(tmp_path), "--families", "corruptions", "--half", "test"]
    with pytest.raises(SystemExit, match="2"):
        main(asked)


def test_a_seed_redraws_corrupted_digits() -> None:
    first, other = (corrupted_digits("noise", seed) for seed in (0, 1))
    assert not np.array_equal(first.target.split, other.target.split)
    assert np.array_equal(first.source.split, first.target.split)
