"""The same input, seed and machine give the same bytes, step by step."""

import shutil
from pathlib import Path

import pytest

from covcal_cli.files import sha256_of
from tests.cli_runner import covcal
from tests.short_training import TRAINED_STEPS, short_training


def test_extract(digits: Path, tmp_path: Path) -> None:
    """features.h5 is the same on a second run, however the batches are cut and threads run."""
    inputs = [digits / name for name in ("digits.onnx", "source.npz", "target.npz")]
    hashes = set()
    for number, threads in enumerate((1, 1, 2)):
        path = tmp_path / f"{number}.h5"
        covcal(
            "extract", *inputs, "-o", path, "--threads", threads, "--limit", 200
        ).require_success()
        hashes.add(sha256_of(path))
    assert len(hashes) == 1


def test_adapt(trained: Path, features: Path) -> None:
    """adapted.h5 is the same on a second run."""
    with short_training(TRAINED_STEPS):
        covcal("adapt", "--members", 1, cwd=features.parent).require_success()
    assert sha256_of(features.with_name("adapted.h5")) == sha256_of(trained)


@pytest.mark.parametrize("name", ["features.h5", "adapted.h5"])
def test_calibrate_and_evaluate(small_files: Path, tmp_path: Path, name: str) -> None:
    """cal.json and metrics.json are the same on a second run, in another folder too."""
    hashes = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        shutil.copy(small_files / name, folder)
        covcal("calibrate", name, cwd=folder).require_success()
        covcal("evaluate", "-o", "metrics.json", cwd=folder).require_success()
        hashes.append((sha256_of(folder / "cal.json"), sha256_of(folder / "metrics.json")))
    assert hashes[0] == hashes[1]
