"""Torch programs are code: none is opened, by any command, before its user says to trust it."""

import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.classifiers.torch.torch_modules import save
from tests.cli_runner import covcal

D_IN, K = 4, 3


class _Touch:
    """What makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


class _Writing(nn.Module):
    """A module whose TorchScript overwrites a file each time that it runs."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.layer = nn.Linear(D_IN, K)
        self.path = str(path)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, self.path)
        found: torch.Tensor = self.layer(x)
        return found


def _pickled(marker: Path) -> bytes:
    """Return a file of ``torch.save`` that makes `marker` where it is loaded as any pickle."""
    buffer = io.BytesIO()
    torch.save(_Touch(marker), buffer)
    return buffer.getvalue()


def _changed(path: Path, change: Callable[[str, bytes], bytes]) -> None:
    """Write every member of a zip file anew."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, change(name, content))


def sample_inputs(path: Path, marker: Path) -> None:
    """A torch.export file whose sample inputs are such a pickle."""
    save(nn.Linear(D_IN, K), "dynamic", path, torch.zeros(3, D_IN))
    _changed(path, lambda name, old: _pickled(marker) if "sample_inputs" in name else old)


def pickled_weights(path: Path, marker: Path) -> None:
    """A torch.export file one of whose weights is said to be a pickle."""
    save(nn.Linear(D_IN, K), "dynamic", path, torch.zeros(3, D_IN))
    places: list[str] = []

    def change(name: str, old: bytes) -> bytes:
        if name.endswith("weights_config.json"):
            config = json.loads(old)
            entry = config["config"]["bias"]
            entry["use_pickle"] = True
            places.append(entry["path_name"])
            return json.dumps(config).encode()
        return old

    _changed(path, change)
    _changed(path, lambda name, old: _pickled(marker) if name.endswith(places[0]) else old)


def writing_script(path: Path, marker: Path) -> None:
    """A TorchScript file that writes a file as it runs."""
    save(_Writing(marker), "scripted", path, torch.zeros(3, D_IN))


MAKERS = {"a.pt2": sample_inputs, "b.pt2": pickled_weights, "c.pt": writing_script}
COMMANDS = (
    ("extract", "MODEL", "source.npz", "target.npz", "-o", "new.h5"),
    ("extract", "MODEL", "source.npz", "target.npz", "--dry-run"),
    ("run", "MODEL", "source.npz", "target.npz", "-o", "out"),
    ("export", "MODEL", "-c", "cal.json", "-o", "new.pt2"),
)


@pytest.fixture
def folder(tmp_path: Path, small_files: Path) -> Path:
    """Data of the width that the programs take, and a calibration."""
    rng = np.random.default_rng(0)
    for name in ("source", "target"):
        labels = rng.integers(0, K, 60)
        x = rng.normal(size=(60, D_IN)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=labels)
    shutil.copy(small_files / "temp.json", tmp_path / "cal.json")
    return tmp_path


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_in_a_program_runs_unless_it_is_trusted(name: str, folder: Path) -> None:
    """Every command that opens a model says so, whatever the file is called, and writes nothing."""
    model, marker = folder / name, folder / "marker"
    MAKERS[name](model, marker)
    marker.unlink(missing_ok=True)
    before = {entry.name for entry in folder.iterdir()}
    renamed = folder / "other.ckpt"
    for path in (model, renamed):
        if not path.exists():
            shutil.copy(model, path)
        for command in COMMANDS:
            line = covcal(
                *(str(path) if word == "MODEL" else word for word in command), cwd=folder
            ).error_line()
            assert "can run any code." in line
            assert "ONNX" in line
            assert ".safetensors" in line
            assert not marker.exists()
    left = {entry.name for entry in folder.iterdir()} - before - {renamed.name}
    assert left <= {"out"}
    assert not list((folder / "out").glob("*")) if left else True
    # The marker is one that is made where the file is opened all the same.
    covcal("extract", model, "source.npz", "target.npz", "--trust-model", "--dry-run", cwd=folder)
    assert marker.exists()


def test_weights_of_any_content_run_nothing(folder: Path) -> None:
    """A program or a pickle in the place of weights is refused too, trusted or not."""
    marker = folder / "marker"
    for name, make in MAKERS.items():
        make(folder / name, marker)
    (folder / "pickle.pth").write_bytes(_pickled(marker))
    (folder / "raw.pth").write_bytes(pickle.dumps(_Touch(marker)))
    marker.unlink(missing_ok=True)
    (folder / "trusting_nets.py").write_text(
        f"from torch import nn\n\n\ndef net():\n    return nn.Linear({D_IN}, {K})\n"
    )
    for name in (*MAKERS, "pickle.pth", "raw.pth"):
        line = covcal(
            *("extract", "trusting_nets:net", "source.npz", "target.npz", "--trust-model"),
            *("--weights", name),
            cwd=folder,
        ).error_line()
        assert line.startswith(f"{name} ")
        assert not marker.exists()
