"""A disk that fills up while features are written: one line, and nothing left behind."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.classifiers.onnx.onnx_graphs import grey_classifier

SCRIPT = """
import resource, sys
from pathlib import Path
from covcal_cli.errors import CovcalError
from covcal_cli.extract.extract import extract

limit = int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
model, target, output = map(Path, sys.argv[1:4])
try:
    extract(model, None, target, output)
except CovcalError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [100_000, 4_000_000])
def test_a_full_disk_is_one_line_and_leaves_nothing(limit: int, tmp_path: Path) -> None:
    model = grey_classifier(tmp_path)
    x = np.random.default_rng(0).random((60_000, 1, 4, 4), dtype=np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    output = tmp_path / "f.h5"
    arguments = [str(model), str(tmp_path / "x.npz"), str(output), str(limit)]
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith(f"no space left to write {output}: free some space")
    assert run.stderr == ""
    assert not list(tmp_path.glob("*f.h5*"))
