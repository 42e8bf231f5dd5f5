"""Commands killed at random moments, and run again.

    python -m tests.campaign.kills --count 1000 --seed 0

Whatever the signal and the moment: an output is the old one or whole, inputs are as they were, and
the same command, killed several times and then run again, gives the bytes of an undisturbed run and
leaves nothing else behind.
"""

import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaign.bench import prepare, run, warm
from tests.campaign.fuzz import OLD

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_H5 = ("out.h5",)
_RUN = "run model.onnx source.npz target.npz -o out --method temp -q"


@dataclass(frozen=True)
class Operation:
    """A command and what it writes."""

    command: str
    outputs: tuple[str, ...]
    resumes: bool = False  # whether what was done stays beside the output


OPERATIONS = (
    Operation("extract model.onnx source.npz target.npz -o out.h5 --batch 8 -q", _H5, True),
    Operation("extract model.onnx source target -o out.h5 --batch 8 -q --resume", _H5, True),
    Operation("extract --logits source-logits.csv target-logits.csv -o out.h5 -q", _H5, True),
    Operation(
        "extract model.pt flat-source.npz flat-target.npz --trust-model -o out.h5 -q", _H5, True
    ),
    Operation("merge f.h5 -o out.h5", ("out.h5",)),
    Operation("calibrate features.h5 -o out.json -q", ("out.json",)),
    Operation("calibrate features.h5 --labels 30 -o out.json -q", ("out.json",)),
    Operation("estimate adapted.h5 -o out.json -q", ("out.json",)),
    Operation(
        "evaluate features.h5 -c cal.json -o out.json --diagram out.svg --junit out.xml "
        "--fail-above ece=1 -q",
        ("out.json", "out.svg", "out.xml"),
    ),
    Operation("apply features.h5 -c cal.json -o out.csv -q", ("out.csv",)),
    Operation("apply features.h5 -c cal.json -o out.npz -q", ("out.npz",)),
    Operation("apply features.h5 -c cal.json -o out.parquet -q", ("out.parquet",)),
    Operation("export model.onnx -c f.json -o out.onnx -q", ("out.onnx",)),
    Operation("apply features.h5 -c cal.json --decide decide.json -o out.h5 -q", _H5),
    Operation("decide features.h5 -c cal.json --error 0.4 -o out.json -q", ("out.json",)),
    Operation(
        "pick features.h5 -c cal.json -n 12 -o out.csv --page out.html -q", ("out.csv", "out.html")
    ),
    Operation("label features.h5 sheet.csv -o out.h5 -q", _H5),
    Operation("watch A=features.h5 -c cal.json --history out.jsonl -q", ()),
    Operation("watch --history watch.jsonl --plot out.html -q", ("out.html",)),
    Operation("extract --logits --multilabel several-source.csv several-target.csv -o out.h5 -q",
        _H5, True),
    Operation("calibrate several.h5 --method temp -o out.json -q", ("out.json",)),
    Operation("compare features.h5 --no-adapt --methods temp,cot --folder out -q", ()),
    Operation("adapt features.h5 --members 1 -o out.h5 -q", _H5),
    Operation("report adapted.h5 -c auto.json -o out.html -q", ("out.html",)),
    Operation(_RUN, ()),
    Operation("run --from results target.h5 --force -q", ()),
)  # fmt: skip


def kills(count: int, seed: int) -> Counter[str]:
    """Kill `count` commands; print counts by command, and return the faults."""
    sums: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        seeds, case = Path(made) / "seeds", Path(made) / "case"
        prepare(seeds)
        made_first = run(tuple(_RUN.replace("-o out", "-o results").split()), seeds)
        if made_first.code != 0:
            raise RuntimeError(made_first.err)
        for index, operation in enumerate(OPERATIONS):
            rng = random.Random(f"{seed} {operation.command}")
            arguments = tuple(operation.command.split())
            warm(arguments, _fresh(seeds, case))
            ended = run(arguments, _fresh(seeds, case))
            if ended.code != 0:
                raise RuntimeError(f"{operation.command}: {ended.err}")
            expected = (_contents(case, seeds), ended.seconds)
            counts: Counter[str] = Counter()
            share = count * (index + 1) // len(OPERATIONS) - count * index // len(OPERATIONS)
            while counts["kills"] < share:
                folder = _fresh(seeds, case)
                found = _killed(operation, folder, seeds, expected, rng, share, counts)
                if found:
                    counts["faults"] += 1
                    faults[operation.command] += 1
                    print(f"{operation.command}: {found}", flush=True)
            sums += counts
            print(f"{operation.command}: {_shown(counts)}", flush=True)
    print(f"in all: {_shown(sums)}, {time.monotonic() - start:.0f} s (seed {seed})")
    return faults


def _shown(counts: Counter[str]) -> str:
    names = (
        "kills",
        "SIGKILL",
        "SIGTERM",
        "SIGINT",
        "too late",
        "old",
        "whole",
        "reruns",
        "faults",
    )
    return ", ".join(f"{name} {counts[name]}" for name in names)


def _killed(
    operation: Operation,
    folder: Path,
    seeds: Path,
    expected: tuple[dict[str, bytes], float],
    rng: random.Random,
    most: int,
    counts: Counter[str],
) -> str:
    """Kill a command several times on the way, then run it again; return what was wrong."""
    whole, seconds = expected
    there = dict.fromkeys(operation.outputs, False)
    hidden: set[str] = set()  # what kills have left
    arguments = operation.command.split()
    if operation.outputs and rng.random() < 0.7:
        for name in operation.outputs:
            (folder / name).write_text(OLD)
            there[name] = True
        arguments.append("-f")
    elif operation.outputs:
        arguments.append("-f")
    for _ in range(rng.choice((2, 4, 8, 12))):
        if counts["kills"] >= most:
            break
        sent = rng.choice(SIGNALS)
        ended = run(tuple(arguments), folder, _at_random(sent, seconds, rng))
        too_late = ended.code == 0
        counts["too late" if too_late else "kills"] += 1
        counts[sent.name] += not too_late
        if not ended.in_time:
            return "did not end"
        if "Traceback" in ended.err or "this is a bug" in ended.err:
            return f"traceback: {ended.err[-3000:]}"
        if not too_late and ended.code not in (-sent, 130):
            return f"ended with {ended.code}: {ended.err[-200:]}"
        found = _contents(folder, seeds)
        for name in operation.outputs:
            old = found.get(name) == OLD.encode()
            if name in found and not old and found[name] != whole[name]:
                return f"half an output after {sent.name}: {name}"
            if name not in found and there[name]:
                return f"lost an output after {sent.name}: {name}"
            there[name] = name in found
            counts["old" if old else "whole"] += name in found
        if sent == signal.SIGINT and not operation.resumes and operation.outputs:
            left = sorted({name for name in found if name.startswith(".")} - hidden)
            if left:
                return f"left after Ctrl-C: {left}"
        hidden = {name for name in found if name.startswith(".")}
    ended = run(tuple(arguments), folder)
    counts["reruns"] += 1
    if ended.code != 0:
        return f"the rerun failed: {ended.err[-200:]}"
    found = {name: held for name, held in _contents(folder, seeds).items() if not _is_free(name)}
    whole = {name: held for name, held in whole.items() if not _is_free(name)}
    if found.keys() != whole.keys():
        return f"the rerun left other files: {sorted(found.keys() ^ whole.keys())}"
    other = [name for name in whole if found[name] != whole[name]]
    other = [name for name in other if not name.endswith("/run.json")]
    return f"the rerun has other bytes: {other}" if other else ""


def _is_free(name: str) -> bool:
    """Return whether two undisturbed runs may differ in a file.

    ``run --from`` keeps earlier results under numbers, and a record of ``compare`` holds seconds.
    """
    return re.search(r"^results/.*\.\d+\.\w+$|/features-seed\d+\.json$", name) is not None


def _at_random(sent: signal.Signals, seconds: float, rng: random.Random) -> Callable[[int], None]:
    moment = rng.uniform(0, seconds)

    def kill(child: int) -> None:
        time.sleep(moment)
        os.kill(child, sent)  # a child that has ended is not waited for yet

    return kill


def _fresh(seeds: Path, folder: Path) -> Path:
    """Return a folder with links to all files of the seeds."""
    shutil.rmtree(folder, ignore_errors=True)
    own = shutil.ignore_patterns("run", "results")
    shutil.copytree(seeds, folder, copy_function=os.link, ignore=own)
    if (seeds / "results").exists():
        shutil.copytree(seeds / "results", folder / "results")  # ``run --from`` changes them
    return folder


def _contents(folder: Path, seeds: Path) -> dict[str, bytes]:
    """Return what a folder contains beside the unchanged seeds; a changed input counts too."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        origin = seeds / path.relative_to(folder)
        if not origin.exists() or not path.samefile(origin):
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign as the command line says; 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    return int(kills(asked.count, asked.seed).total() > 0)


if __name__ == "__main__":
    sys.exit(main())
