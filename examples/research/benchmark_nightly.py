"""Run nightly.sh on simulated nights, and count mails, failures and new calibrations.

    python examples/research/benchmark_nightly.py --nannyml WHEEL [--nights 50] [--rows 250 1000]

The rows are census rows with the outputs of a classifier, from the wheel of nannyml 0.13. In the
first series of nights, the model does not change. In the second series, the logits become larger
after half of the nights, so the model is far too confident. All rows have labels.
"""

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from watch_streams import Stream, employment, write

_NIGHTLY = Path(__file__).parents[1] / "nightly.sh"
_LEAST = 1e-6


def night(path: Path, stream: Stream, rows: int, sharper: float, seed: int) -> None:
    """Write a features file of random rows, with logits multiplied by `sharper`."""
    probabilities, labels = stream.later
    chosen = np.random.default_rng(seed).choice(len(labels), rows, replace=False)
    logits = sharper * np.log(np.clip(probabilities[chosen], _LEAST, 1))
    sharp = np.exp(logits - logits.max(axis=1, keepdims=True))
    sharp /= sharp.sum(axis=1, keepdims=True)
    write(path, stream.source, (sharp, labels[chosen]), [], with_labels=True)


def series(stream: Stream, rows: int, nights: int, sharper: float) -> str:
    """Simulate one series of nights, and return a row of the table."""
    counts = dict.fromkeys(("honest mailed", "honest failed", "broken mailed", "broken failed"), 0)
    first: int | None = None
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name) / "job", Path(name) / "night.h5"
        begins, used = nights // 2 if sharper != 1 else nights, set()
        for number in range(nights):
            is_broken = number >= begins
            night(path, stream, rows, sharper if is_broken else 1.0, 1000 * rows + number)
            day = np.datetime64("2026-01-01") + number
            done = subprocess.run(
                ["bash", str(_NIGHTLY), str(path), str(folder)],
                env={**os.environ, "PERIOD": str(day), "METHOD": "temp"},
                capture_output=True,
                check=False,
                text=True,
            )
            if done.returncode not in (0, 3):
                raise SystemExit(done.stdout + done.stderr)
            kind = "broken" if is_broken else "honest"
            counts[f"{kind} mailed"] += bool(done.stdout + done.stderr)
            counts[f"{kind} failed"] += done.returncode == 3
            if is_broken and done.returncode == 3 and first is None:
                first = number - begins
            if (folder / "cal.json").exists():
                used.add((folder / "cal.json").read_bytes())
    delay = "-" if first is None else str(first)
    cells = [rows, begins, *list(counts.values())[:2], nights - begins, *list(counts.values())[2:]]
    return f"| {' | '.join(map(str, cells))} | {delay} | {len(used)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nannyml", type=Path, required=True, help="wheel of nannyml")
    parser.add_argument("--nights", type=int, default=50, help="nights of each series")
    parser.add_argument(
        "--rows", type=int, nargs="+", default=(250, 1000), help="rows of each night"
    )
    parser.add_argument("--sharper", type=float, default=3, help="factor of the broken logits")
    asked = parser.parse_args()
    stream = employment(asked.nannyml)
    print(
        "| rows | nights with a good model | mailed | failed | nights with a damaged model | "
        "mailed | failed | nights until the first failure | calibrations used |"
    )
    print("|---:|" + "---:|" * 8, flush=True)
    for rows in asked.rows:
        for sharper in (1.0, asked.sharper):
            print(series(stream, rows, asked.nights, sharper), flush=True)


if __name__ == "__main__":
    main()
