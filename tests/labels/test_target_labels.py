"""covcal's promise: no label of the target reaches adapt, estimate or calibrate."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from covcal_cli.calibrate import methods
from covcal_cli.calibrate.methods import AUTO
from covcal_cli.evaluate import evaluate as evaluation
from covcal_cli.formats.features import read_labels
from covcal_cli.labels.draws import Batch, Draw
from tests.cli_runner import covcal
from tests.made_files import edited, put_in
from tests.short_training import short_training

METHODS = (AUTO, *methods.METHODS)
DRAW = Draw(
    rows=np.array([3, 5, 210]),
    inclusion=np.array([0.25, 1.0, 0.5]),
    batch=np.zeros(3, dtype=np.int64),
    stratum=np.arange(3),
    labels=np.zeros(3, dtype=np.int64),
    batches=(Batch(3, 270, 0, ("train", "validation"), "confidence"),),
)
GARBAGE = {"all unknown": -1, "all one class": 1, "no class at all": 12345}


def without_hashes(path: Path) -> dict[str, Any]:
    """Return a cal.json without the digests of its input and of itself."""
    content: dict[str, Any] = json.loads(path.read_text())
    return {
        name: value for name, value in content.items() if name not in ("inputs", "content_sha256")
    }


def chosen(method: str) -> tuple[str, ...]:
    """Return the options that choose a method, with a prior if the method needs it."""
    table = methods.METHODS
    prior = ("--target-prior", "uniform") if method in table and table[method].needs_prior else ()
    return "--method", method, *prior


def spoil(path: Path, value: int) -> None:
    with edited(path) as file:
        file["target/labels"][...] = value


@pytest.mark.parametrize("kind", GARBAGE)
def test_calibrate_does_not_see_them(small_files: Path, tmp_path: Path, kind: str) -> None:
    """Whatever stands in /target/labels, even what is no label, auto's file is the same.

    The methods are tried in test_calibrate.py.
    """
    shutil.copy(small_files / "adapted.h5", tmp_path)
    spoil(tmp_path / "adapted.h5", GARBAGE[kind])
    covcal("calibrate", "adapted.h5", "-q", "-o", "new.json", cwd=tmp_path).require_success()
    expected = without_hashes(small_files / "auto.json")
    assert without_hashes(tmp_path / "new.json") == expected


def test_a_logistic_discriminator_does_not_see_them(features: Path) -> None:
    """The same on a plain features file, where calibrate fits its own discriminator."""
    folder = features.parent
    arguments = ("calibrate", "features.h5", "--method", "iw+temp", "-q", "-o")
    covcal(*arguments, "before.json", cwd=folder).require_success()
    spoil(features, 12345)
    covcal(*arguments, "after.json", cwd=folder).require_success()
    assert without_hashes(folder / "before.json") == without_hashes(folder / "after.json")


@pytest.mark.parametrize("kind", GARBAGE)
def test_estimate_does_not_see_them(small_files: Path, tmp_path: Path, kind: str) -> None:
    """Every estimate is the same, whatever the target labels are."""
    shutil.copy(small_files / "adapted.h5", tmp_path)
    arguments = ("estimate", "adapted.h5", "-q", "-o")
    covcal(*arguments, "before.json", cwd=tmp_path).require_success()
    spoil(tmp_path / "adapted.h5", GARBAGE[kind])
    covcal(*arguments, "after.json", cwd=tmp_path).require_success()
    assert without_hashes(tmp_path / "before.json") == without_hashes(tmp_path / "after.json")


def test_pick_and_label_do_not_see_them(adapted: Path) -> None:
    """Rows are drawn, and labels of theirs put in, whatever stands where evaluate reads."""
    found = []
    for value in (1, 12345):
        spoil(adapted, value)
        covcal("pick", adapted, "-n", 9, "-o", adapted.with_name("x.csv"), "-f").require_success()
        lines = adapted.with_name("x.csv").read_text()
        adapted.with_name("y.csv").write_text(lines.replace(",,", ",class 1,"))
        covcal("label", adapted, adapted.with_name("y.csv")).require_success()
        with edited(adapted) as file:
            found.append(
                (lines, file["marked/rows"][:].tolist(), file["marked/labels"][:].tolist())
            )
            del file["marked"]
    assert found[0] == found[1]
    assert found[0][2] == [1] * 9


@pytest.mark.parametrize(
    "arguments",
    [
        ("calibrate", "adapted.h5", "--method", "cot", "-o", "-"),
        ("calibrate", "adapted.h5", "--labels", "none", "-o", "-"),
        ("evaluate", "adapted.h5", "-c", "temp.json", "-o", "-"),
        ("apply", "adapted.h5", "-c", "temp.json", "-o", "-"),
        ("pick", "adapted.h5", "-n", 9, "-o", "x.csv"),
    ],
)
def test_marked_labels_are_for_those_who_ask(
    small_files: Path, adapted: Path, arguments: tuple[str, ...]
) -> None:
    """Who was not asked to use the labels for calibration finds the same whatever they are."""
    shutil.copy(small_files / "temp.json", adapted.parent)
    results = []
    for value in (0, 12345):
        put_in(adapted, replace(DRAW, labels=np.full(3, value)))
        arguments = tuple(str(one) for one in arguments)
        done = covcal(*arguments, *(["-f"] if arguments[0] == "pick" else []), cwd=adapted.parent)
        results.append(done.require_success().out)
    assert len(set(results)) == 1


def test_adapt_does_not_see_them(features: Path) -> None:
    """The trained networks and every new logit are the same to the last bit."""
    folder = features.parent
    for name in ("before.h5", "after.h5"):
        with short_training(10):
            covcal("adapt", "--members", 1, "-q", "-o", name, cwd=folder).require_success()
        spoil(features, 12345)
    with h5py.File(folder / "before.h5") as first, h5py.File(folder / "after.h5") as second:
        assert first.attrs["networks_sha256"] == second.attrs["networks_sha256"]
        assert first.attrs["training"] == second.attrs["training"]
        differ = []

        def compare(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and not np.array_equal(item[()], second[name][()]):
                differ.append(name)

        first.visititems(compare)
    assert differ == ["target/labels"]


def test_nothing_asks_for_them(
    small_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If reading a target label is an error, calibrate still succeeds, and evaluate fails."""

    def read(domain: Any, rows: Any) -> Any:
        if domain.name == "target":
            raise AssertionError("a target label was read")
        return read_labels(domain, rows)

    monkeypatch.setattr("covcal_cli.formats.features.read_labels", read)
    monkeypatch.setattr(evaluation, "target_labels", read)
    monkeypatch.setattr("covcal_cli.labels.target_labels.read_labels", read)
    covcal("estimate", small_files / "adapted.h5").require_success()
    for method in METHODS:
        output = tmp_path / f"{method}.json"
        done = covcal("calibrate", small_files / "adapted.h5", *chosen(method), "-o", output)
        done.require_success()
    done = covcal("calibrate", small_files / "adapted.h5", "--labels", 9, "-o", "-")
    assert "a target label was read" in done.err
    assert "a target label was read" in covcal("evaluate", small_files / "adapted.h5").err


def test_the_calibration_says_so(small_files: Path) -> None:
    """cal.json states that no target label was used."""
    content = json.loads((small_files / "fl+iw+temp.json").read_text())
    assert content["used_target_labels"] is False
