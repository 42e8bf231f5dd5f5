"""A model of torch's on a full disk: torch itself would end the process."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli_runner import covcal, covcal_process

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(x)
"""


@pytest.mark.parametrize("size", [1000, pytest.param(4000, marks=pytest.mark.campaign)])
def test_one_line_and_the_old_file(size: int, tmp_path: Path) -> None:
    """A limit on the file size stands in for the disk."""
    rng = np.random.default_rng(0)
    (tmp_path / "net.py").write_text(NET)
    for name in ("source", "target"):
        x = rng.normal(size=(200, 6)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=rng.integers(0, 3, size=200))
    covcal("extract", "net:Net", "source.npz", "target.npz", cwd=tmp_path).require_success()
    fit = ("calibrate", "features.h5", "--method", "temp", "--force", "-o", "cal.json")
    covcal(*fit, cwd=tmp_path).require_success()
    old = tmp_path / "new.pt2"
    old.write_text("old")
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
    export = ("export", "net:Net", "-c", "cal.json", "-o", "new.pt2", "--force")
    done = covcal_process(*export, cwd=tmp_path, before=limit, modules=["torch"])
    line = done.error_line()
    assert line.startswith("no space left to write ")
    assert line.endswith("new.pt2: free some space, or pass another -o")
    assert old.read_text() == "old"
    assert not list(tmp_path.glob(".new*"))
