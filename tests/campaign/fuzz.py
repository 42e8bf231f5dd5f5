"""Mutated inputs of every kind through the command line.

    python -m tests.campaign.fuzz --count 10000 --seed 0 --keep faults/

No input may give a traceback, a signal, a hang, a message that no terminal can show, an input that
is changed, or an output that is neither the old one nor whole. Nor may it give a wrong number: what
no reader can make sense of is refused, or does not count and gives the numbers of the whole file;
what says the same in other clothes, or in bytes that mean nothing, gives them too. So numbers may
differ only where an independent reader sees other values as well.
A fault is kept with its command in ``--keep``.
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
from typing import Any

import h5py
import numpy as np

from covcal_cli.hdf5 import File
from covcal_cli.records import parsed_json
from tests.campaign.bench import Ended, answer, prepare, run, warm
from tests.campaign.mutations import (
    Mutation,
    Verdict,
    mutated_bytes,
    mutated_hdf5,
    mutated_image,
    mutated_json,
    mutated_npy,
    mutated_npz,
    mutated_pth,
    mutated_safetensors,
    mutated_sheet,
    mutated_text,
    mutated_zip,
)
from tests.campaign.numbers import READERS, equal, hdf5_arrays, other_rows, written

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
    mutation: Mutation = mutated_json
    reader: str = "json"  # of `READERS`: what the file says; "" where only the command can tell
    weight: int = 2  # its share of the inputs


_ONNX = ("model.onnx", "source.npz")
_FLAT = ("flat-source.npz", "flat-target.npz", "flat.onnx")
_MODULE = ("flat-source.npz", "flat-target.npz", "campaign_nets.py")
_READ = "extract model.onnx source.npz {} -o OUT.h5"
_TRUSTED = "extract {} flat-source.npz flat-target.npz --trust-model -o OUT.h5"
_WEIGHTS = "extract campaign_nets:net flat-source.npz flat-target.npz --weights {} -o OUT.h5"
_LOGITS = "extract --logits source-logits.csv {} -o OUT.h5"
_SHARES = "extract source.jsonl {} -o OUT.h5"
_ALONE = "extract --target {} -o OUT.h5"  # the damaged file tells what it holds
_COMPARE = "compare features.h5 --no-adapt --seeds 1"
_SEVERAL = "extract --logits --multilabel several-source.csv several-target.csv -o OUT.h5"
_LABEL = "label features.h5 sheet.csv -o OUT.h5"

KINDS = (
    Kind(
        "cal.json",
        "cal.json",
        (
            "apply features.h5 -c cal.json -o OUT.csv",
            "evaluate features.h5 -c cal.json -o OUT.json",
            "inspect cal.json",
            "report features.h5 -c cal.json --bootstrap 0 -o OUT.html",
            "estimate features.h5 -c cal.json",
        ),
        ("features.h5",),
        weight=10,
    ),
    Kind(
        "auto.json",
        "auto.json",
        ("report adapted.h5 -c auto.json --bootstrap 0 -o OUT.html", "inspect auto.json"),
        ("adapted.h5",),
        weight=6,
    ),
    Kind("f.json", "f.json", ("export model.onnx -c f.json -o OUT.onnx",), ("model.onnx", "f.h5")),
    Kind("estimate.json", "estimate.json", ("inspect estimate.json",), (), weight=6),
    Kind(
        "metrics.json",
        "metrics.json",
        (
            "inspect metrics.json",
            "evaluate features.h5 -c cal.json --baseline metrics.json --fail-regression ece=0.01",
        ),
        ("features.h5", "cal.json"),
        weight=6,
    ),
    Kind(
        "run.json",
        "run/run.json",
        ("inspect run/run.json", "run model.onnx source.npz target.npz -o run --method temp -q"),
        ("model.onnx", "source.npz", "target.npz", "run"),
    ),
    Kind(
        "reference of watch",
        "cal.reference.json",
        ("watch features.h5 -c cal.json",),
        ("features.h5", "cal.json"),
        weight=4,
    ),
    Kind(
        "record of compare",
        "covcal-compare/without-adapt/features-seed0.json",
        (_COMPARE,),
        ("features.h5", "covcal-compare"),
    ),
    Kind(
        "history of watch",
        "watch.jsonl",
        ("watch --history watch.jsonl --plot OUT.html",),
        (),
        mutated_text,
        "",
    ),
    Kind(
        "decide.json",
        "decide.json",
        (
            "inspect decide.json",
            "apply features.h5 -c cal.json --decide decide.json -o OUT.csv",
            "watch features.h5 -c cal.json --decide decide.json",
            "pick features.h5 -c cal.json -n 10 --for decide.json -o OUT.csv",
        ),
        ("features.h5", "cal.json", "cal.reference.json"),
        weight=6,
    ),
    Kind(
        "calibration of several labels",
        "several.json",
        (
            "apply several.h5 -c several.json -o OUT.csv",
            "evaluate several.h5 -c several.json -o OUT.json",
            "inspect several.json",
        ),
        ("several.h5",),
        weight=4,
    ),
    Kind(
        "features of several labels",
        "several.h5",
        (
            "calibrate several.h5 --method temp -o OUT.json",
            "evaluate several.h5 -c several.json -o OUT.json",
            "estimate several.h5 -o OUT.json",
        ),
        ("several.json",),
        mutated_hdf5,
        "",
        4,
    ),
    Kind(
        "table of several labels",
        "several-target.csv",
        (_SEVERAL,),
        ("several-source.csv",),
        mutated_text,
        "csv",
    ),
    Kind("sheet", "sheet.csv", (_LABEL,), ("features.h5",), mutated_sheet, "", 4),
    Kind(
        "class file",
        "classes.json",
        ("extract model.onnx source.npz target.npz --classes classes.json -o OUT.h5",),
        ("model.onnx", "source.npz", "target.npz"),
        weight=4,
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
        "lines",
    ),
    Kind(
        "prior",
        "prior.json",
        ("calibrate features.h5 --method prior --target-prior prior.json -o OUT.json",),
        ("features.h5",),
    ),
    Kind(
        "preprocessor_config.json",
        "preprocessor_config.json",
        ("extract model.onnx source target --preprocess preprocessor_config.json -o OUT.h5",),
        ("model.onnx", "source", "target"),
        weight=4,
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
        mutated_hdf5,
        "covcal",
        weight=12,
    ),
    Kind(
        "adapted.h5",
        "adapted.h5",
        (
            "calibrate adapted.h5 --method fl+temp -o OUT.json",
            "report adapted.h5 -c auto.json --bootstrap 0 -o OUT.html",
            "estimate adapted.h5 -o OUT.json",
        ),
        ("auto.json",),
        mutated_hdf5,
        "covcal",
        weight=6,
    ),
    Kind("data .h5", "target.h5", (_READ.format("target.h5"),), _ONNX, mutated_hdf5, "h5", 4),
    Kind("npz", "target.npz", (_READ.format("target.npz"),), _ONNX, mutated_npz, "npz", 4),
    Kind("npy", "target.npy", (_READ.format("target.npy"),), _ONNX, mutated_npy, "npy"),
    Kind(
        "csv",
        "target.csv",
        ("extract flat.onnx flat-source.npz target.csv -o OUT.h5",),
        _FLAT,
        mutated_text,
        "csv",
        4,
    ),
    Kind(
        "logits table",
        "target-logits.csv",
        (_LOGITS.format("target-logits.csv"),),
        ("source-logits.csv",),
        mutated_text,
        "csv",
        4,
    ),
    Kind(
        "Parquet",
        "target.parquet",
        (_LOGITS.format("target.parquet"),),
        ("source-logits.csv",),
        mutated_bytes,
        "parquet",
        4,
    ),
    Kind(
        "JSON lines",
        "target.jsonl",
        (_SHARES.format("target.jsonl"), _ALONE.format("target.jsonl")),
        ("source.jsonl",),
        mutated_text,
        "json lines",
        4,
    ),
    Kind(
        "log with logprobs",
        "target-log.jsonl",
        (_SHARES.format("target-log.jsonl"),),
        ("source.jsonl",),
        mutated_text,
        "json lines",
        4,
    ),
    Kind(
        "confidence table",
        "target-confidence.csv",
        ("extract --confidence source-confidence.csv target-confidence.csv -o OUT.h5",),
        ("source-confidence.csv",),
        mutated_text,
        "",
    ),
    Kind(
        "JSON list",
        "target.json",
        (_SHARES.format("target.json"), _ALONE.format("target.json")),
        ("source.jsonl",),
        mutated_text,
        "json list",
    ),
    Kind("tar", "target.tar", (_READ.format("target.tar"),), _ONNX, mutated_bytes, "tar"),
    Kind("images", "target/*", (_READ.format("target"),), (*_ONNX, "target"), mutated_image, ""),
    Kind(
        "ONNX",
        "model.onnx",
        (_READ.format("target.npz"), "export model.onnx -c f.json -o OUT.onnx"),
        ("source.npz", "target.npz", "f.json", "f.h5"),
        mutated_bytes,
        "",
        6,
    ),
    # Last, as what torch leaves behind in the parent slows down every fork.
    Kind(".pt", "model.pt", (_TRUSTED.format("model.pt"),), _FLAT, mutated_zip, "zip", weight=1),
    Kind(".pt2", "model.pt2", (_TRUSTED.format("model.pt2"),), _FLAT, mutated_zip, "zip", weight=1),
    Kind(".pth", "w.pth", (_WEIGHTS.format("w.pth"),), _MODULE, mutated_pth, "pth", weight=1),
    Kind(
        ".safetensors",
        "w.safetensors",
        (_WEIGHTS.format("w.safetensors"),),
        _MODULE,
        mutated_safetensors,
        "safetensors",
        1,
    ),
)  # fmt: skip


# Their values have defaults, and one number stands for a list of as many as there are channels.
_SETTINGS = ("preprocessor_config.json", "timm config.json")


@dataclass(frozen=True)
class Whole:
    """What a command makes of the file as it is."""

    ended: Ended
    numbers: Any


def fuzz(count: int, seed: int, keep: Path | None = None, only: Sequence[str] = ()) -> Counter[str]:
    """Run some `count` mutated inputs; print counts by kind, and return the faults."""
    kinds = [kind for kind in KINDS if not only or kind.name in only]
    weights = sum(kind.weight for kind in kinds)
    faults: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        seeds = Path(made) / "seeds"
        prepare(seeds)
        before = _digests(seeds)
        folder = Path(made) / "case"
        for kind in kinds:
            began = time.monotonic()
            whole = {command: _whole(kind, command, seeds, folder) for command in kind.commands}
            counts: Counter[str] = Counter()
            for number in range(round(count * kind.weight / weights)):
                rng = random.Random(f"{seed} {kind.name} {number}")
                command, found, outcome, ended = _case(kind, whole, seeds, folder, rng)
                counts["inputs"] += 1
                counts[outcome] += 1
                if found:
                    faults[kind.name] += 1
                    counts["faults"] += 1
                    print(f"{kind.name} {number}: {command}: {found}", flush=True)
                    if keep is not None:
                        kept = keep / f"{kind.name.replace(' ', '-')}-{seed}-{number:04d}"
                        shutil.copytree(folder, kept, symlinks=True, dirs_exist_ok=True)
                        (kept / "COMMAND").write_text(f"{command}\n{found}\n{ended.err}\n")
                shutil.rmtree(folder)
            sums += counts
            print(f"{kind.name}: {_shown(counts)}, {time.monotonic() - began:.0f} s", flush=True)
        if _digests(seeds) != before:
            faults["inputs changed"] += 1
    print(f"in all: {_shown(sums)}, {time.monotonic() - start:.0f} s (seed {seed})")
    return faults


def _shown(counts: Counter[str]) -> str:
    names = ("inputs", "refused", "the same numbers", "other numbers", "faults")
    return ", ".join(f"{name} {counts[name]}" for name in names)


def _laid_out(kind: Kind, seeds: Path, folder: Path) -> None:
    """Fill a new folder with what a command needs."""
    folder.mkdir()
    names = {*kind.beside, *(() if "*" in kind.file else (kind.file,))}
    for name in sorted(names):
        place = folder / name
        if (seeds / name).is_dir():
            shutil.copytree(seeds / name, place, copy_function=os.link)
        elif not place.exists():
            place.parent.mkdir(exist_ok=True, parents=True)
            os.link(seeds / name, place)


def _arguments(command: str, folder: Path) -> tuple[list[str], Path | None]:
    words = [word.replace("OUT", "out") for word in command.split()]
    return words, next((folder / word for word in words if word.startswith("out.")), None)


def _whole(kind: Kind, command: str, seeds: Path, folder: Path) -> Whole:
    """Run a command on the unchanged file, after its imports."""
    arguments, output = _arguments(command, folder)
    _laid_out(kind, seeds, folder)
    warm(tuple(arguments), folder)
    shutil.rmtree(folder)
    _laid_out(kind, seeds, folder)
    ended = run(tuple(arguments), folder)
    if ended.code not in (0, 3):
        raise RuntimeError(f"{command}: {ended.err}")
    numbers = written(ended.out, output)
    shutil.rmtree(folder)
    return Whole(ended, numbers)


def _case(
    kind: Kind, whole: dict[str, Whole], seeds: Path, folder: Path, rng: random.Random
) -> tuple[str, str, str, Ended]:
    """Run a command on one damaged file; return it, what was wrong, the outcome and the end."""
    _laid_out(kind, seeds, folder)
    victim = rng.choice(sorted(seeds.glob(kind.file.replace("/*", "/*/*"))))
    damaged = folder / victim.relative_to(seeds)
    content, verdict = kind.mutation(victim.read_bytes(), rng)
    damaged.unlink()
    damaged.write_bytes(content)
    command = rng.choice(kind.commands)
    arguments, output = _arguments(command, folder)
    if output is not None and rng.random() < 0.5:
        output.write_text(OLD)
        arguments.append("-f")
    listing = _names(folder)
    ended = run(tuple(arguments), folder)
    keeps = arguments[0] in ("run", "compare")
    found = _wrong(ended, folder, listing, output, keeps)
    if not found and not keeps and _digest(damaged) != hashlib.sha256(content).hexdigest():
        found = "the damaged input was changed"
    if ended.code not in (0, 3):
        outcome = "refused"
        if not found and verdict is Verdict.SAME:
            found = f"refused what says the same: {ended.err[-200:]}"
    elif found:
        outcome = "other numbers"
    else:
        numbers = written(ended.out, output)
        same = ended.code == whole[command].ended.code and equal(numbers, whole[command].numbers)
        outcome = "the same numbers" if same else "other numbers"
        found = _silent(kind, verdict, same, victim, damaged, command)
        if not found and not same and kind.name in ("images", "tar"):
            found = _other_row(kind, victim, damaged, numbers, whole[command].numbers)
    return " ".join(arguments), found, outcome, ended


def _silent(
    kind: Kind, verdict: Verdict, same: bool, victim: Path, damaged: Path, command: str
) -> str:
    """Return how an input that was accepted should have been refused, or read otherwise."""
    if verdict is Verdict.REFUSED and command == _COMPARE:  # a damaged record is made anew
        return "" if same else "a damaged record gives other numbers"
    if verdict is Verdict.REFUSED:
        return "accepted what must be refused"
    output = damaged.parent / "out.h5"
    if kind.name == "ONNX":
        return (
            answer(lambda: _unlike_onnxruntime(damaged, output)).strip() if output.exists() else ""
        )
    if same:
        return ""
    if verdict is Verdict.SAME:
        return "the same in other clothes gives other numbers"
    verb = command.split()[0]
    if verb == "merge":  # which copies what the commands behind it judge
        return answer(lambda: _unlike_copy(damaged, output)).strip()
    # These commands show what they read, and name what is missing. What older versions did not
    # write is not compared.
    shows = verb == "inspect" or (kind.reader == "json" and verb == "report")
    optional = kind.name in _SETTINGS or (
        verdict is Verdict.LESS and kind.name in ("metrics.json", "run.json")
    )
    if verdict in (Verdict.BROKEN, Verdict.LESS):
        return "" if shows or optional else "what is broken gives other numbers"
    if not kind.reader:
        return ""
    read = answer(lambda: _meaning(kind, victim, damaged))
    return "" if read == "other" else f"other numbers of a file that is {read}"


def _meaning(kind: Kind, victim: Path, damaged: Path) -> str:
    """Return what a damaged file says to an independent reader: other, the same, or nothing."""
    reader = READERS[kind.reader]
    try:
        said = reader(damaged.read_bytes())
    except Exception as error:
        return f"unreadable: {error!r}"[:200]
    return "the same" if equal(said, reader(victim.read_bytes())) else "other"


def _unlike_copy(damaged: Path, output: Path) -> str:
    """Return whether a merged file holds other numbers than the one that was merged."""
    one, other = (hdf5_arrays(path.read_bytes())[0] for path in (damaged, output))
    return "\n" if equal(one, other) else "other numbers than the file holds"


def _unlike_onnxruntime(model: Path, output: Path) -> str:
    """Compare logits with the logits of ONNX Runtime alone; return how they differ."""
    import onnxruntime

    with np.load(model.parent / "source.npz") as data, h5py.File(output) as file:
        x, logits = data["x"].astype(np.float32) / np.float32(255), file["source/logits"][()]
    try:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        fed = session.get_inputs()[0]
        outputs = session.run(None, {fed.name: x.reshape(len(x), *fed.shape[1:])})
    except Exception as error:
        return f"accepted, and ONNX Runtime says {error!r}"[:200]
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    near = [
        found.shape == logits.shape and np.allclose(found, values, rtol=1e-3, atol=1e-3)
        for found in outputs
        for values in (logits, shares)
    ]
    return "\n" if any(near) else "other logits than those of ONNX Runtime"


def _other_row(kind: Kind, victim: Path, damaged: Path, numbers: Any, expected: Any) -> str:
    """Return which row of an undamaged image has other numbers."""
    ids = {name.decode() for name in expected["target/ids"].tolist()}
    if kind.name == "images":
        unchanged = {name for name in ids if not name.endswith(victim.name)}
    else:
        try:
            before, after = (READERS["tar"](path.read_bytes()) for path in (victim, damaged))
        except Exception:
            return ""
        unchanged = {name for name in before if after.get(name) == before[name]}
        unchanged = {name for name in ids if Path(name).stem in unchanged}
    row = other_rows(numbers, expected, unchanged)
    return f"other numbers of the undamaged {row}" if row else ""


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
    parser.add_argument("--only", action="append", default=[], help="a kind, by name")
    asked = parser.parse_args(arguments)
    return int(fuzz(asked.count, asked.seed, asked.keep, asked.only).total() > 0)


if __name__ == "__main__":
    sys.exit(main())
