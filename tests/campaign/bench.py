"""Files of every kind that covcal reads, and commands run in forked children.

What a command imports is imported once, in the parent (`warm`), which never runs torch: a child
forked behind that would wait for threads that it does not have. A child has a folder, a memory and
a time limit of its own.
"""

import contextlib
import csv
import gc
import importlib
import io
import json
import math
import os
import resource
import select
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
from PIL import Image

from covcal_cli.__main__ import heed_interrupts, ignore_interrupts, was_interrupted
from covcal_cli.cli import app
from covcal_cli.demo import __file__ as demo
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
    in_time = _wait(child, SECONDS)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seconds = time.monotonic() - start
    texts = [
        path.read_text(encoding="utf-8", errors="backslashreplace") if path.exists() else ""
        for path in (out, err)
    ]
    for path in (out, err):
        path.unlink(missing_ok=True)
    return Ended(code, texts[0], texts[1], seconds, in_time)


def _wait(child: int, seconds: float) -> bool:
    """Wait until a child ends; False if it has not within `seconds`."""
    descriptor = os.pidfd_open(child)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def answer(question: Callable[[], str], seconds: float = SECONDS) -> str:
    """Return what a function returns in a forked child, or why it returned nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            answered = question()
        except BaseException as error:
            answered = f"failed: {error!r}"
        with contextlib.suppress(BaseException):
            os.write(writing, answered.encode()[:4000])
        os._exit(0)
    os.close(writing)
    if not _wait(child, seconds):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return pipe.read() or "died"


def warm(arguments: tuple[str, ...], folder: Path) -> None:
    """Import here whatever a command imports."""

    def modules() -> str:
        os.chdir(folder)
        known = set(sys.modules)
        covcal(*arguments)
        (folder / ".modules").write_text(
            "\n".join(name for name in sys.modules if name not in known)
        )
        return "done"

    answer(modules, 10 * SECONDS)
    listed = folder / ".modules"
    for name in listed.read_text().splitlines():
        if not name.startswith(("campaign_nets", "__")):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    listed.unlink()
    gc.collect()
    gc.freeze()  # pages of what is never freed stay shared


def _act(arguments: tuple[str, ...], folder: Path, out: Path, err: Path) -> None:
    """Be the child: run the command line and end."""
    code = 99
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        heed_interrupts()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(folder)
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8") for number in (1, 2)
        )
        vars(app)["app"] = COMMANDS  # made once
        code = app.run(arguments, was_interrupted)
        ignore_interrupts()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
    except KeyboardInterrupt:  # before covcal listens for it, as in __main__
        code = app.INTERRUPTED
    finally:
        os._exit(code)


def prepare(folder: Path) -> None:
    """Write a file of every kind into `folder`, and everything that goes with it."""

    def prepared() -> str:
        _prepare(folder)
        return "done"

    done = answer(prepared, 10 * SECONDS)
    if done != "done":
        raise RuntimeError(f"the seeds could not be made: {done}")


_SEVERAL = ("several-source.csv", "several-target.csv")  # three independent labels


def _prepare(folder: Path) -> None:
    folder.mkdir(parents=True)
    source = made_domain("source", sizes=SIZES)
    target = made_domain("target", sizes=SIZES, shift=0.7)
    reading: dict[str, Any] = {
        "features_tensor": "phi",
        "logits_tensor": "scores",
        "tail": "softmax",
        "preprocessing": json.dumps(
            {"layout": "NCHW", "color": "L", "dtype": "float32", "size": [8, 8], "scale": 1.0}
            | {"mean": [0.0], "std": [1.0], "resample": "bilinear", "exif": False}
            | {"crop_rule": "never"}
            | {"resize": {"fill": [], "policy": "squash", "short": None, "size": [8, 8]}}
        ),
        "options": "[]",
        "affine_difference": 1e-6,
        "affine_error": 1e-7,
        "largest_logit": 9.0,
        "fractions": "[0.6, 0.2, 0.2]",
        "source_fractions": "[0.6, 0.4, 0.0]",
        "source_rows": "all",
        "target_rows": "all",
    }
    write_features(folder / "features.h5", source=source, target=target, attributes=reading)
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
        count = 40 if name == "source" else 120  # of 120, one image may be damaged
        _write_folder(folder / name, x[:count], y[:count])
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
        ("watch", "features.h5", "-c", "cal.json"),  # cal.reference.json
        ("watch", "P=features.h5", "-c", "cal.json", "--history", "watch.jsonl"),
        ("compare", "features.h5", "--no-adapt", "--seeds", "1"),
        ("pick", "features.h5", "-n", "24", "-o", "sheet.csv"),
        ("decide", "features.h5", "-c", "cal.json", "--error", "0.4", "-o", "decide.json"),
        ("extract", "--logits", "--multilabel", *_SEVERAL, "-o", "several.h5"),
        ("calibrate", "several.h5", "--method", "temp", "-o", "several.json"),
    )
    for command in done:
        covcal(*command, cwd=folder).require_success()
    _fill_in(folder / "sheet.csv", target["labels"])
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


def _fill_in(sheet: Path, labels: np.ndarray[Any, Any]) -> None:
    """Label the rows of a sheet of pick."""
    with sheet.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        row["label"] = f"class {labels[number]}"
    with sheet.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _write_folder(folder: Path, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
    for i, (row, label) in enumerate(zip(x, y, strict=True)):
        path = folder / str(label) / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((row * 15).clip(0, 255).astype(np.uint8)).save(path)


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(text)
    archive.addfile(member, io.BytesIO(text.encode()))


def _write_json(folder: Path, name: str, labels: Any, logits: Any) -> None:
    """Write probabilities as JSON lines and as a list, confidences, and a log with logprobs."""
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rows: list[dict[str, Any]] = []
    log = []
    for number, (label, row) in enumerate(zip(labels.tolist(), shares.tolist(), strict=True)):
        names = [f"class {k}" for k in range(len(row))]
        of_row = {"id": f"row{number}", "label": names[label % len(row)], "site": "a"}
        rows.append(of_row | {"probs": dict(zip(names, row, strict=True))})
        top = [{"token": n, "logprob": math.log(p)} for n, p in zip(names, row, strict=True)]
        token = top[int(np.argmax(row))] | {"top_logprobs": top}
        log.append(of_row | {"response": {"choices": [{"logprobs": {"content": [token]}}]}})
    for file, records in ((name, rows), (f"{name}-log", log)):
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / f"{name}.json").write_text(json.dumps(rows, indent=1))
    lines = ["id,prediction,confidence,label"]
    for row in rows:
        best = max(row["probs"], key=row["probs"].__getitem__)
        lines.append(f"{row['id']},{best},{row['probs'][best]},{row['label']}")
    (folder / f"{name}-confidence.csv").write_text("\n".join(lines) + "\n")


def _several_labels(columns: dict[str, Any]) -> str:
    """Return a table of three independent labels, true where a noisy logit is above 0."""
    rng = np.random.default_rng(len(columns["id"]))
    logits = np.stack([columns[f"logit_{k}"] for k in range(3)], axis=1)
    labels = (logits / 2 + rng.logistic(size=logits.shape) > 0).astype(int)
    lines = ["id,logit_a,logit_b,logit_c,label_a,label_b,label_c"]
    for identity, row, truth in zip(columns["id"], logits.tolist(), labels.tolist(), strict=True):
        lines.append(",".join(map(str, [identity, *row, *truth])))
    return "\n".join(lines) + "\n"


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
    (folder / f"several-{name}.csv").write_text(_several_labels(columns))
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")
    _write_json(folder, name, domain["labels"], domain["logits"][:, :3].astype(np.float64))
    with np.load(folder / f"{name}.npz") as data:
        flat, y = data["x"].reshape(len(data["x"]), -1), data["y"]
    header = ",".join([f"x{i}" for i in range(flat.shape[1])] + ["label"])
    rows = [",".join(map(str, [*row, label])) for row, label in zip(flat, y, strict=True)]
    (folder / f"{name}.csv").write_text("\n".join([header, *rows]) + "\n")


def _write_models(folder: Path) -> None:
    import safetensors.torch as safetensors
    import torch

    from tests.classifiers.torch.torch_modules import save

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
