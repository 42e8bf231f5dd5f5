"""Mutated inputs of every kind through the command line.

    python -m tests.campaign.fuzz --count 10000 --seed 0 --keep faults/

No input may give a traceback, a signal, a hang, a message that no terminal can show, an input that
is changed, or an output that is neither the old one nor whole. JSON that must be refused is, and
JSON in other clothes gives the same result. A fault is kept with its command in ``--keep``.
"""

import argparse
import hashlib
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py

from covcal_cli.hdf5 import File
from covcal_cli.records import parsed_json
from tests.campaign.bench import Ended, prepare, run
from tests.campaign.mutations import (
    Mutation,
    mutated_bytes,
    mutated_json,
    mutated_text,
    mutated_zip,
    same_json,
)

OLD = "an old output"
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
LONGEST = 1300  # characters of a line on stderr


@dataclass(frozen=True)
class Kind:
    """A file to damage, the commands that read it, and what goes with it."""

    name: str
    file: str
    commands: tuple[str, ...]  # OUT stands for the output
    beside: tuple[str, ...]  # files and folders
    mutation: Mutation | None = None  # None: of JSON
    strict: bool = True  # whether a value that JSON must not hold is always looked at
    weight: int = 1


_ONNX = ("model.onnx", "source.npz")
_FLAT = ("flat-source.npz", "flat-target.npz", "flat.onnx")
_READ = "extract model.onnx source.npz {} -o OUT.h5"
_TRUSTED = "extract {} flat-source.npz flat-target.npz --trust-model -o OUT.h5"
_WEIGHTS = "extract campaign_nets:net flat-source.npz flat-target.npz --weights {} -o OUT.h5"
_IMAGES = "extract model.onnx source.npz {} -o OUT.h5"
_LOGITS = "extract --logits source-logits.csv {} -o OUT.h5"

KINDS = (
    Kind(
        "cal.json",
        "cal.json",
        (
            "apply features.h5 -c cal.json -o OUT.csv",
            "evaluate features.h5 -c cal.json -o OUT.json",
            "inspect cal.json",
            "report features.h5 -c cal.json -o OUT.html",
            "estimate features.h5 -c cal.json",
        ),
        ("features.h5",),
        weight=5,
    ),
    Kind(
        "auto.json",
        "auto.json",
        ("report adapted.h5 -c auto.json -o OUT.html", "inspect auto.json"),
        ("adapted.h5",),
        weight=3,
    ),
    Kind("f.json", "f.json", ("export model.onnx -c f.json -o OUT.onnx",), ("model.onnx", "f.h5")),
    Kind("estimate.json", "estimate.json", ("inspect estimate.json",), (), weight=3),
    Kind(
        "metrics.json",
        "metrics.json",
        (
            "inspect metrics.json",
            "evaluate features.h5 -c cal.json --baseline metrics.json --fail-regression ece=0.01",
        ),
        ("features.h5", "cal.json"),
        weight=3,
    ),
    Kind(
        "run.json",
        "run/run.json",
        ("inspect run/run.json", "run model.onnx source.npz target.npz -o run --method temp -q"),
        ("model.onnx", "source.npz", "target.npz", "run"),
    ),
    Kind(
        "class file",
        "classes.json",
        ("extract model.onnx source.npz target.npz --classes classes.json -o OUT.h5",),
        ("model.onnx", "source.npz", "target.npz"),
        weight=2,
    ),
    Kind(
        "id2label",
        "id2label.json",
        ("extract model.onnx source.npz target.npz --classes id2label.json -o OUT.h5",),
        ("model.onnx", "source.npz", "target.npz"),
    ),
    Kind(
        "class list",
        "classes.txt",
        ("extract model.onnx source.npz target.npz --classes classes.txt -o OUT.h5",),
        ("model.onnx", "source.npz", "target.npz"),
        mutated_text,
    ),
    Kind(
        "prior",
        "prior.json",
        ("calibrate features.h5 --method label-shift --target-prior prior.json -o OUT.json",),
        ("features.h5",),
    ),
    Kind(
        "preprocessor_config.json",
        "preprocessor_config.json",
        ("extract model.onnx source target --preprocess preprocessor_config.json -o OUT.h5",),
        ("model.onnx", "source", "target"),
        weight=2,
    ),
    Kind(
        "timm config.json",
        "timm.json",
        ("extract model.onnx source target --preprocess timm.json -o OUT.h5",),
        ("model.onnx", "source", "target"),
    ),
    Kind(
        "features.h5",
        "features.h5",
        (
            "calibrate features.h5 --method temp -o OUT.json",
            "evaluate features.h5 -c cal.json -o OUT.json",
            "apply features.h5 -c cal.json -o OUT.npz",
            "inspect features.h5",
            "merge features.h5 -o OUT.h5",
        ),
        ("cal.json",),
        mutated_bytes,
        weight=6,
    ),
    Kind(
        "adapted.h5",
        "adapted.h5",
        (
            "calibrate adapted.h5 --method fl+temp -o OUT.json",
            "report adapted.h5 -c auto.json -o OUT.html",
            "estimate adapted.h5 -o OUT.json",
        ),
        ("auto.json",),
        mutated_bytes,
        weight=3,
    ),
    Kind("data .h5", "target.h5", (_READ.format("target.h5"),), _ONNX, mutated_bytes, weight=2),
    Kind("npz", "target.npz", (_READ.format("target.npz"),), _ONNX, mutated_zip, weight=2),
    Kind("npy", "target.npy", (_READ.format("target.npy"),), _ONNX, mutated_bytes),
    Kind(
        "csv",
        "target.csv",
        ("extract flat.onnx flat-source.npz target.csv -o OUT.h5",),
        _FLAT,
        mutated_text,
        weight=2,
    ),
    Kind(
        "logits table",
        "target-logits.csv",
        (_LOGITS.format("target-logits.csv"),),
        ("source-logits.csv",),
        mutated_text,
        weight=2,
    ),
    Kind(
        "Parquet",
        "target.parquet",
        (_LOGITS.format("target.parquet"),),
        ("source-logits.csv",),
        mutated_bytes,
        weight=2,
    ),
    Kind("tar", "target.tar", (_IMAGES.format("target.tar"),), _ONNX, mutated_bytes),
    Kind("images", "target/*", (_IMAGES.format("target"),), (*_ONNX, "target"), mutated_bytes),
    Kind(
        "ONNX",
        "model.onnx",
        (_READ.format("target.npz"), "export model.onnx -c f.json -o OUT.onnx"),
        ("source.npz", "target.npz", "f.json", "f.h5"),
        mutated_bytes,
        weight=3,
    ),
    Kind(".pt", "model.pt", (_TRUSTED.format("model.pt"),), _FLAT, mutated_zip),
    Kind(".pt2", "model.pt2", (_TRUSTED.format("model.pt2"),), _FLAT, mutated_zip),
    Kind(".pth", "w.pth", (_WEIGHTS.format("w.pth"),), (*_FLAT, "campaign_nets.py"), mutated_zip),
    Kind(
        ".safetensors",
        "w.safetensors",
        (_WEIGHTS.format("w.safetensors"),),
        (*_FLAT, "campaign_nets.py"),
        mutated_bytes,
    ),
)  # fmt: skip


def fuzz(count: int, seed: int, keep: Path | None = None) -> Counter[str]:
    """Run `count` mutated inputs; return counts of runs and of faults by kind, and print both."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        seeds = Path(made) / "seeds"
        prepare(seeds)
        before = _digests(seeds)
        known: dict[str, str] = {}
        for number in range(count):
            kind = rng.choices(KINDS, [kind.weight for kind in KINDS])[0]
            folder = Path(made) / "case"
            command, found, ended = _case(kind, seeds, folder, rng, known)
            counts[kind.name] += 1
            accepted[kind.name] += ended.code == 0
            if found:
                faults[kind.name] += 1
                print(f"{number} {kind.name}: {command}: {found}", flush=True)
                if keep is not None:
                    kept = keep / f"{number:05d}"
                    shutil.copytree(folder, kept, symlinks=True, dirs_exist_ok=True)
                    (kept / "COMMAND").write_text(f"{command}\n{found}\n{ended.err}\n")
            shutil.rmtree(folder)
        if _digests(seeds) != before:
            faults["inputs changed"] += 1
    for name in counts:
        print(f"{name}: {counts[name]} inputs, {accepted[name]} accepted, {faults[name]} faults")
    seconds = time.monotonic() - start
    print(f"in all: {count} inputs, {faults.total()} faults, {seconds:.0f} s (seed {seed})")
    return faults


def _case(
    kind: Kind, seeds: Path, folder: Path, rng: random.Random, known: dict[str, str]
) -> tuple[str, str, Ended]:
    """Run one command on one damaged file; return it, what was wrong, and how it ended."""
    folder.mkdir()
    for name in kind.beside:
        _linked(seeds / name, folder / name)
    victim = rng.choice(sorted(seeds.glob(kind.file.replace("/*", "/*/*"))))
    damaged = folder / victim.relative_to(seeds)
    content, refused, same = victim.read_bytes(), False, False
    if kind.mutation is not None:
        content = kind.mutation(content, rng)
    elif rng.random() < 0.05:
        content, same = same_json(content, rng), True
    else:
        content, refused = mutated_json(content, rng)
    damaged.parent.mkdir(exist_ok=True, parents=True)
    damaged.unlink(missing_ok=True)
    damaged.write_bytes(content)
    command = rng.choice(kind.commands)
    arguments = [word.replace("OUT", "out") for word in command.split()]
    output = next((folder / word for word in arguments if word.startswith("out.")), None)
    if output is not None and rng.random() < 0.5:
        output.write_text(OLD)
        arguments.append("-f")
    listing = _names(folder)
    ended = run(tuple(arguments), folder)
    found = _wrong(ended, folder, listing, output, "run" in arguments[:1])
    if not found and refused and ended.code == 0:
        found = "accepted JSON that must be refused"
    if not found and same:
        expected = known.get(command)
        if expected is None:
            damaged.write_bytes(victim.read_bytes())
            if output is not None:
                output.unlink()
            expected = known[command] = run(tuple(arguments), folder).out
            damaged.write_bytes(content)
        if ended.out != expected:
            found = "the same JSON gives another result"
    if not found and _digest(damaged) != hashlib.sha256(content).hexdigest():
        found = "" if "run" in arguments[:1] else "the damaged input was changed"
    return " ".join(arguments), found, ended


def _wrong(ended: Ended, folder: Path, listing: set[str], output: Path | None, keeps: bool) -> str:
    """Return what is wrong with the way in which a command ended; nothing if all is well."""
    if not ended.in_time:
        return "did not end"
    if ended.code not in (0, 1, 2, 3):
        return f"ended with {ended.code}"
    if "Traceback" in ended.err or "this is a bug" in ended.err:
        last = [line for line in ended.err.splitlines() if line and "this is a bug" not in line]
        return f"traceback: {last[-1][:150]}"
    if UNSEEN.search(ended.err) or UNSEEN.search(ended.out):
        return "printed a character that is none"
    lines = ended.err.splitlines()
    if ended.code == 1 and not (lines and lines[-1].startswith("error: ")):
        return f"an error without a line: {ended.err[-150:]}"
    if any(len(line) > LONGEST for line in lines):
        return f"a message of {max(map(len, lines))} characters"
    if any(re.match(r"\S*Warning|.*\.py:\d+:", line) for line in lines):
        return f"a warning of a library: {ended.err[:150]}"
    added = _names(folder) - listing - ({output.name} if output is not None else set())
    if added and not keeps:
        return f"left {', '.join(sorted(added))}"
    return "" if output is None else _wrong_output(ended.code, output)


def _wrong_output(code: int, output: Path) -> str:
    there = output.exists()
    old = there and output.stat().st_size == len(OLD) and output.read_text() == OLD
    if code in (1, 2):
        return "" if old or not there else "wrote an output and failed"
    if old or not there:
        return "" if code else "succeeded and wrote nothing"
    try:
        if output.suffix == ".json":
            parsed_json(output.read_text())
        elif output.suffix == ".h5":
            with File(output, remedy="") as file:
                assert h5py.is_hdf5(output)
                assert file.attrs["complete"] == 1
        else:
            assert output.stat().st_size > 0
    except Exception as error:
        return f"wrote a broken output: {error!r}"[:200]
    return ""


def _linked(origin: Path, place: Path) -> None:
    if origin.is_dir():
        shutil.copytree(origin, place)
    else:
        os.link(origin, place)


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()} - {"__pycache__"}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digests(folder: Path) -> dict[str, str]:
    return {str(path): _digest(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign as the command line says; 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args(arguments)
    return int(fuzz(asked.count, asked.seed, asked.keep).total() > 0)


if __name__ == "__main__":
    sys.exit(main())
