"""The benchmark: its arithmetic recomputed from the records, its ceilings, resuming, and marks."""

import json
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import choose_adapt_settings as builders
import h5py
import numpy as np
import pytest
from benchmark import driver, runs
from benchmark.families import FAMILIES, HALVES, Case, cases, corrupted_digits
from benchmark.harm import harmed, to_blame
from benchmark.run import main
from benchmark.runs import CEILINGS, ORACLE
from benchmark.summary import best_single, coverage, groups, per_shift, rows
from benchmark.table import markdown

from tests.short_training import short_training

Record = dict[str, Any]
SHIFTS = {"near": 0.4, "far": 2.0}
SEEDS = 2


def made_side(rng: np.random.Generator, move: float) -> builders.Side:
    centres = np.random.default_rng(1).normal(size=(3, 6)) * 1.3
    labels = rng.integers(3, size=400)
    rows = centres[labels] + rng.normal(size=(400, 6)) + move * centres[0]
    logits = 2 * (rows @ centres.T - 0.5 * (centres**2).sum(axis=1))
    split = rng.choice(3, size=400, p=[0.4, 0.3, 0.3]).astype(np.uint8)
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
    with pytest.MonkeyPatch.context() as patch, short_training(40, members=1):
        text = driver.benchmark(made_cases(), folder, seeds=SEEDS)
        check_resuming(patch, folder, text)
    return folder, text


def check_resuming(patch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """Remove one record and run again: it alone is measured, and the table is the same."""
    measured: list[Path] = []
    measure: Callable[[Path, int], Record] = runs.measure

    def counted(adapted: Path, seed: int) -> Record:
        measured.append(adapted)
        return measure(adapted, seed)

    patch.setattr(runs, "measure", counted)
    patch.setattr("benchmark.prepare.adapt", None)  # nothing is adapted again
    (folder / "records" / "far-seed1.json").unlink()
    assert driver.benchmark(made_cases(), folder, seeds=SEEDS) == text
    assert [path.name.split("-")[:3] for path in measured] == [["far", "draw1", "seed1"]]


def records_of(folder: Path) -> list[Record]:
    document = json.loads((folder / "results.json").read_text("utf-8"))
    assert document["schema"] == "covcal-benchmark/2"
    found: list[Record] = document["runs"]
    return found


def means(records: list[Record]) -> dict[str, dict[str, float]]:
    """Return ECE in % by shift and method, averaged over seeds, by plain loops."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for name, entry in record["methods"].items():
            found[record["shift"]][name].append(100 * entry["ece"])
    return {
        shift: {name: sum(values) / SEEDS for name, values in table.items()}
        for shift, table in found.items()
    }


def test_regret_and_harm_follow_from_the_records(finished: tuple[Path, str]) -> None:
    records = records_of(finished[0])
    assert [(one["shift"], one["seed"]) for one in records] == [
        (shift, seed) for shift in ("near", "far", "far again") for seed in range(SEEDS)
    ]
    errors = means(records)
    grouped = groups(per_shift(records))
    assert list(grouped) == ["first", "choose", "second", "test"]
    for name, members in grouped.items():
        shifts = ["near", "far"] if name in ("first", "choose") else ["far again"]
        single = [m for m in errors["near"] if m not in ("auto", "true accuracy", ORACLE)]
        assert {"none", "temp", "fl+iw+temp"} <= set(single)
        over = {m: np.mean([errors[s][m] for s in shifts]) for m in errors["near"]}
        best = min(single, key=lambda m: over[m])
        assert best_single(members) == best
        table = {row.method: row for row in rows(members)}
        assert set(table) == set(errors["near"])
        for method, row in table.items():
            assert row.mean == pytest.approx(over[method])
            assert row.worst == pytest.approx(max(errors[s][method] for s in shifts))
            assert errors[row.worst_shift][method] == pytest.approx(row.worst)
            assert row.over_none == pytest.approx(over[method] - over["none"])
            assert row.over_temp == pytest.approx(over[method] - over["temp"])
            assert row.over_best == pytest.approx(over[method] - over[best])
            each = [errors[s][method] - min(errors[s][m] for m in single) for s in shifts]
            assert row.over_each == pytest.approx(np.mean(each))
            assert row.harmed == tuple(
                s
                for s in shifts
                if errors[s][method] > min(errors[s]["none"], errors[s]["temp"]) + 1
            )


def test_coverage_follows_from_the_records(finished: tuple[Path, str]) -> None:
    records = records_of(finished[0])
    hits: dict[str, dict[str, list[bool]]] = {"accuracy": {}, "test_accuracy": {}}
    for record in records:
        interval = record["estimates"]["combined"]
        for which, by_shift in hits.items():
            truth = record["truth"][which]
            held = interval["low"] <= truth <= interval["high"]
            by_shift.setdefault(record["shift"], []).append(held)
    found = coverage(records)
    assert found.shifts == 3
    assert found.seen == pytest.approx(np.mean([*hits["accuracy"].values()]))
    assert found.test == pytest.approx(np.mean([*hits["test_accuracy"].values()]))
    assert found.missed == tuple(s for s, held in hits["accuracy"].items() if not any(held))


def test_truths_and_the_uncalibrated_error_follow_from_the_files(
    finished: tuple[Path, str],
) -> None:
    folder, _ = finished
    record = next(r for r in records_of(folder) if r["shift"] == "far" and r["seed"] == 1)
    with h5py.File(folder / "features" / "far-draw1.h5") as file:
        logits, labels, split = (file["target"][n][:] for n in ("logits", "labels", "split"))
        source_labels = file["source/labels"][file["source/split"][:] == 1]
    right = logits.argmax(axis=1) == labels
    assert record["truth"]["accuracy"] == pytest.approx(right[split < 2].mean())
    assert record["truth"]["test_accuracy"] == pytest.approx(right[split == 2].mean())
    shares = [np.bincount(y, minlength=3) / len(y) for y in (source_labels, labels[split < 2])]
    assert record["truth"]["prior_drift"] == pytest.approx(abs(shares[0] - shares[1]).sum() / 2)
    chances = np.exp(logits.astype(float) - logits.max(axis=1, keepdims=True))
    confidence = (1 / chances.sum(axis=1))[split == 2]
    place = np.ceil(confidence * 15).astype(int) - 1
    gaps = [(confidence - right[split == 2])[place == b].sum() for b in range(15)]
    error = np.abs(gaps).sum() / (split == 2).sum()
    assert record["methods"]["none"]["ece"] == pytest.approx(error)


def test_no_method_on_the_classifiers_logits_beats_the_oracle(finished: tuple[Path, str]) -> None:
    for record in records_of(finished[0]):
        methods = record["methods"]
        others = [methods[name]["ece"] for name in ("none", "temp", "iw+temp", *CEILINGS)]
        assert methods[ORACLE]["ece"] <= min(others) + 1e-12


def test_the_table_keeps_the_halves_apart(finished: tuple[Path, str]) -> None:
    folder, text = finished
    assert text == (folder / "table.md").read_text("utf-8")
    assert "| method | choose (2) | test (1) |" in text
    for title in ("first (choose, 2)", "second (test, 1)"):
        assert f"\n### {title}\n" in text
        assert f"\n| {title} | " in text
    for record in records_of(folder):
        for method in record["methods"]:
            assert f"| {f'*{method}*' if method in CEILINGS else method} |" in text


def made_record(**changes: Any) -> Record:
    record: Record = {
        "family": "f",
        "shift": "s",
        "seed": 0,
        "half": "choose",
        "methods": {"none": {"ece": 0.05}, "temp": {"ece": 0.04}, "auto": {"ece": 0.07}},
        "auto": {
            "method_used": "consensus",
            "guards": [
                {"name": "contradiction", "value": 0.3, "threshold": 0.1, "passed": False},
            ],
        },
        "truth": {
            "source_accuracy": 0.9,
            "prior_drift": 0.3,
            "accuracy": 0.85,
            "test_accuracy": 0.84,
        },
        "estimates": {
            "combined": {"accuracy": 0.7, "low": 0.6, "high": 0.8},
            "cot": {"accuracy": 0.7, "low": 0.65, "high": 0.75},
        },
    }
    return record | changes


def test_a_harmed_shift_is_named_with_its_guard() -> None:
    record = made_record()
    (found,) = harmed([record])
    assert found.points == pytest.approx(3.0)
    assert (found.shift, found.guard, found.took) == ("s", "contradiction", {"consensus": 1})
    assert found.guards == {"contradiction": (0.3, 0.1)}
    text = markdown([record])
    assert (
        "| s (f) | +3.00 | consensus 1x | 70.0 / 85.0 | contradiction | contradiction 0.3 (0.1) |"
        in text
    )
    assert not harmed([made_record(methods=record["methods"] | {"auto": {"ece": 0.05}})])


@pytest.mark.parametrize(
    ("accuracy", "passed", "guard"),
    [
        (0.70, True, "none: noise"),
        (0.85, True, "none: doubt taken for errors"),
        (0.50, True, "none: errors that no witness sees"),
        (0.50, False, "contradiction"),
    ],
)
def test_why_a_shift_was_harmed(accuracy: float, passed: bool, guard: str) -> None:
    record = made_record()
    record["truth"]["accuracy"] = accuracy
    record["auto"]["guards"][0]["passed"] = passed
    assert to_blame(record) == guard


def test_a_method_that_refused_a_shift_is_no_best_method() -> None:
    whole, partly = made_record(), made_record(shift="other")
    whole["methods"]["cot"] = {"ece": 0.01}
    partly["methods"]["cot"] = {"error": "no"}
    members = per_shift([whole, partly])
    assert best_single(members) == "temp"
    cot = next(row for row in rows(members) if row.method == "cot")
    assert (cot.shifts, cot.over_best) == (1, None)
    assert cot.mean == pytest.approx(1.0)
    assert "| cot | 1.00 / 1.00 (on 1) |" in markdown([whole, partly])


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
    for half in ("choose", "test"):
        assert len(by_half[half]) >= 55
        kinds = {FAMILIES[case.family].kind for case in by_half[half]}
        assert kinds == {"digits", "images", "tables", "text"}


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
        "error: the family votes reads the package pandas: "
        "pip install -r examples/benchmark/requirements.txt\n"
    )


def test_a_half_without_any_of_the_families_is_a_usage_error(tmp_path: Path) -> None:
    asked = ["--data", str(tmp_path), "--families", "corruptions", "--half", "test"]
    with pytest.raises(SystemExit, match="2"):
        main(asked)


def test_a_seed_redraws_corrupted_digits() -> None:
    first, other = (corrupted_digits("noise", seed) for seed in (0, 1))
    assert not np.array_equal(first.target.split, other.target.split)
    assert np.array_equal(first.source.split, first.target.split)
