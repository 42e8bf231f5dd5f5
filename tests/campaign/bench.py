"""Files of every kind that covcal reads, and commands run in forked children.

Imports are paid once, in the parent; a child has a folder, a memory and a time limit of its own.
"""

import contextlib
import importlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from PIL import Image

from covcal_cli.cli import app
from covcal_cli.demo import __file__ as demo
from tests.classifiers.torch.torch_modules import save
from tests.cli_runner import COMMANDS, covcal
from tests.made_files import made_domain, write_adapted, write_features

SECONDS = 60
MEMORY = 12 << 30  # of addresses; libraries reserve several GB of them
SIZES = (60, 60, 40)
D_IN, K = 64, 10


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int  # negative: by that signal
    out: str
    err: str
    seconds: float
    in_time: bool


def run(
    arguments: tuple[str, ...], folder: Path, kill: Callable[[int], None] | None = None
) -> Ended:
    """Run a command in a forked child; `kill` may end it, given its process id."""
    out, err = folder / ".out", folder / ".err"
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        _act(arguments, folder, out, err)
    if kill is not None:
        kill(child)
    in_time, code = True, None
    pause = 0.001
    while code is None:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
        elif time.monotonic() - start > SECONDS:
            os.kill(child, signal.SIGKILL)
            in_time = False
        time.sleep(pause)
        pause = min(0.02, 1.3 * pause)
    texts = [
        path.read_text(encoding="utf-8", errors="backslashreplace") if path.exists() else ""
        for path in (out, err)
    ]
    for path in (out, err):
        path.unlink(missing_ok=True)
    return Ended(code, texts[0], texts[1], time.monotonic() - start, in_time)


def _act(arguments: tuple[str, ...], folder: Path, out: Path, err: Path) -> None:
    """Be the child: run the command line and end."""
    code = 99
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(folder)
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8") for number in (1, 2)
        )
        vars(app)["app"] = COMMANDS  # made once
        code = app.run(arguments)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
    finally:
        os._exit(code)


def prepare(folder: Path) -> None:
    """Write a file of every kind into `folder`, and everything that goes with it."""
    folder.mkdir(parents=True)
    source = made_domain("source", sizes=SIZES)
    target = made_domain("target", sizes=SIZES, shift=0.7)
    write_features(folder / "features.h5", source=source, target=target)
    write_adapted(folder / "adapted.h5", source=source, target=target, shift=0.7)
    where = Path(str(demo)).parent
    shutil.copy(where / "digits.onnx", folder / "model.onnx")
    for name in ("source", "target"):
        with np.load(where / f"{name}.npz") as data:
            x, y = data["x"][:120], data["y"][:120]
        np.savez(folder / f"{name}.npz", x=x, y=y)
        flat = x.reshape(len(x), -1).astype(np.float32)
        np.save(folder / f"{name}.npy", x)
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["x"], file["y"] = x, y
            file["id"] = np.arange(len(x)).astype("S")
        _write_folder(folder / name, x[:40], y[:40])
        with tarfile.open(folder / f"{name}.tar", "w") as archive:
            for i, path in enumerate(sorted((folder / name).rglob("*.png"))):
                archive.add(path, f"{i:04d}.png")
                _add_text(archive, f"{i:04d}.cls", path.parent.name)
                _add_text(archive, f"{i:04d}.json", json.dumps({"label": path.parent.name}))
        np.savez(folder / f"flat-{name}.npz", x=flat / 16, y=y)
        _write_tables(folder, name, source if name == "source" else target)
    _write_models(folder)
    done = (
        ("calibrate", "features.h5", "--method", "temp", "-o", "cal.json"),
        ("calibrate", "adapted.h5", "-o", "auto.json"),
        ("estimate", "features.h5", "-o", "estimate.json"),
        ("evaluate", "features.h5", "-c", "cal.json", "-o", "metrics.json"),
        ("run", "model.onnx", "source.npz", "target.npz", "-o", "run", "--method", "temp", "-q"),
        ("extract", "model.onnx", "source.npz", "target.npz", "-o", "f.h5"),
        ("calibrate", "f.h5", "--method", "temp", "-o", "f.json"),
    )
    for command in done:
        covcal(*command, cwd=folder).require_success()
    names = [f"class {i}" for i in range(3)]
    digits = [str(i) for i in range(K)]
    texts: dict[str, Any] = {
        "prior.json": dict(zip(names, (0.2, 0.3, 0.5), strict=True)),
        "classes.json": digits,
        "id2label.json": {"id2label": {str(i): name for i, name in enumerate(digits)}},
        "preprocessor_config.json": {
            "image_processor_type": "ViTImageProcessor",
            "resample": 2,
            "size": {"height": 8, "width": 8},
            "do_rescale": True,
            "rescale_factor": 0.00392,
            "image_mean": [0.5],
            "image_std": [0.5],
        },
        "timm.json": {
            "architecture": "x",
            "num_classes": K,
            "pretrained_cfg": {
                "input_size": [1, 8, 8],
                "mean": [0.5],
                "std": [0.5],
                "crop_pct": 1.0,
                "interpolation": "bilinear",
            },
        },
    }
    for name, content in texts.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    (folder / "classes.txt").write_text("\n".join(digits) + "\n")


def _write_folder(folder: Path, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
    for i, (row, label) in enumerate(zip(x, y, strict=True)):
        path = folder / str(label) / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((row * 15).clip(0, 255).astype(np.uint8)).save(path)


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(text)
    archive.addfile(member, io.BytesIO(text.encode()))


def _write_tables(folder: Path, name: str, domain: dict[str, Any]) -> None:
    import pyarrow
    import pyarrow.parquet

    columns: dict[str, Any] = {"id": [f"row{i}" for i in range(len(domain["labels"]))]}
    columns["label"] = domain["labels"]
    for k in range(3):
        columns[f"logit_{k}"] = domain["logits"][:, k].astype(np.float64)
    lines = [",".join(columns)]
    lines += [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    (folder / f"{name}-logits.csv").write_text("\n".join(lines) + "\n")
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")
    with np.load(folder / f"{name}.npz") as data:
        flat, y = data["x"].reshape(len(data["x"]), -1), data["y"]
    header = ",".join([f"x{i}" for i in range(flat.shape[1])] + ["label"])
    rows = [",".join(map(str, [*row, label])) for row, label in zip(flat, y, strict=True)]
    (folder / f"{name}.csv").write_text("\n".join([header, *rows]) + "\n")


def _write_models(folder: Path) -> None:
    import safetensors.torch as safetensors

    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = torch.nn.Sequential(torch.nn.Linear(D_IN, 16), torch.nn.ReLU(), torch.nn.Linear(16, K))
    save(module, "traced", folder / "model.pt", torch.zeros(2, D_IN))
    save(module, "dynamic", folder / "model.pt2", torch.zeros(2, D_IN))
    torch.save(module.state_dict(), folder / "w.pth")
    safetensors.save_file(module.state_dict(), folder / "w.safetensors")
    (folder / "campaign_nets.py").write_text(
        "from torch import nn\n\n\ndef net():\n"
        f"    return nn.Sequential(nn.Linear({D_IN}, 16), nn.ReLU(), nn.Linear(16, {K}))\n"
    )
    (folder / "flat.py").touch()
    to_onnx: Any = importlib.import_module("skl2onnx").to_onnx
    from sklearn.linear_model import LogisticRegression

    with np.load(folder / "flat-source.npz") as data:
        x, y = data["x"], data["y"]
    fitted = LogisticRegression(max_iter=50, tol=1.0).fit(x, y)
    (folder / "flat.onnx").write_bytes(
        to_onnx(fitted, x[:1], options={"zipmap": False}).SerializeToString()
    )
