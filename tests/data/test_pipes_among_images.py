"""A pipe or device among images is skipped and named; it is never waited for."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.classifiers.onnx.onnx_graphs import SIDE, grey_classifier
from tests.cli_runner import covcal

ROWS = 120


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("named", [False, True])
def test_it_is_skipped_and_named(kind: str, named: bool, tmp_path: Path) -> None:
    grey_classifier(tmp_path)
    folder = tmp_path / "tgt"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(ROWS):
        pixels = rng.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:03d}.png")
    if kind == "pipe":
        os.mkfifo(folder / "z.png")
    else:
        (folder / "z.png").symlink_to("/dev/zero")
    target = "tgt"
    if named:
        names = [path.name for path in sorted(folder.iterdir())]
        np.savez(folder / "rows.npz", path=np.array(names))
        target = "tgt/rows.npz"
    done = covcal("extract", "model.onnx", "--target", target, "-o", "f.h5", cwd=tmp_path)
    done.require_success()
    assert "z.png (it is a pipe or device, not a file)" in done.err
