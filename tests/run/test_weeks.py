"""Weeks of ``covcal run --from`` with labels: no calibration replaces a better calibration."""

import json
from pathlib import Path

import pytest

from tests.cli_runner import covcal
from tests.made_files import clusters_domain


def write_table(path: Path, name: str, week: int, moved: float) -> None:
    """Write logits and labels of rows that moved so far towards one class."""
    domain = clusters_domain(name, sizes=(200, 200, 0), moved=moved, seed=week)
    lines = [",".join([*(f"logit_{number}" for number in range(5)), "label"])]
    for row, label in zip(domain["logits"], domain["labels"], strict=True):
        lines.append(",".join([*(f"{value:.9g}" for value in row), str(label)]))
    path.write_text("\n".join(lines) + "\n")


def ece_of(folder: Path, *calibrations: str) -> list[float]:
    """Return the ECE of calibrations on the rows in use."""
    named = [word for name in calibrations for word in ("-c", f"{name}=out/{name}.json")]
    arguments = ("out/features.h5", *named, "--split", "all", "-o", "-")
    done = covcal("evaluate", *arguments, cwd=folder).require_success()
    metrics = json.loads(done.out)["metrics"]
    return [metrics[name]["ece"] for name in calibrations]


@pytest.mark.parametrize("weeks", [2, pytest.param(26, marks=pytest.mark.campaign)])
def test_weeks_of_honest_drift(weeks: int, tmp_path: Path) -> None:
    """The rows move a little every week; labels tell when a new calibration is better."""
    write_table(tmp_path / "source.csv", "source", 0, 0.0)
    write_table(tmp_path / "week0.csv", "target", 0, 0.0)
    arguments = ("--logits", "source.csv", "week0.csv", "-o", "out", "--method", "none")
    covcal("run", *arguments, cwd=tmp_path).require_success()
    replaced = 0
    for week in range(1, weeks + 1):
        write_table(tmp_path / f"week{week}.csv", "target", week, 0.6 * week / weeks)
        before = (tmp_path / "out/cal.json").read_bytes()
        method = ("--method", "temp") if week == 1 else ()  # later weeks go on with it
        arguments = ("--from", "out", f"week{week}.csv", "--history", "w.jsonl", *method)
        done = covcal("run", *arguments, cwd=tmp_path).require_success()
        if (tmp_path / "out/cal.json").read_bytes() == before:
            assert "Kept the old calibration" in done.out
            continue
        replaced += 1
        assert "the new calibration is better" in " ".join(done.out.split())
        old, new = ece_of(tmp_path, f"cal.{replaced}", "cal")
        assert new < old
        assert (tmp_path / f"out/cal.{replaced}.json").read_bytes() == before
    assert replaced > 0
