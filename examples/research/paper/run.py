"""Reproduce the experiments of Park et al. 2020 (Table 1, its figures and running times).

    python examples/research/paper/run.py --data DIR [--output DIR] [--shifts M-U ...] [--seeds 10]
        [--preset default|paper] [--weight-decay X] [--batched] [--exact-only] [--jobs 2]

README.md describes the files in DIR and the outputs. If a run is interrupted, the same command
continues it. The script prints progress to stderr, and the table to stdout.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reproduction.datasets import MissingDataError
from reproduction.driver import Request, reproduce
from reproduction.shifts import SHIFTS

from covcal_cli.adapt.settings import AdaptSettings
from covcal_cli.cli.console import Console
from covcal_cli.errors import CovcalError


def parse(arguments: Sequence[str] | None = None) -> Request:
    """Parse the options of the command line."""
    parser = argparse.ArgumentParser(description="Reproduce Table 1 of Park et al. 2020.")
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        required=True,
        help="folder that contains the data sets and the folder models",
    )
    add("--output", type=Path, default=Path("paper-results"), help="default: %(default)s")
    add(
        "--shifts",
        nargs="+",
        choices=list(SHIFTS),
        default=[],
        metavar="SHIFT",
        help="some of " + ", ".join(SHIFTS) + "; default: all shifts whose data exist",
    )
    add("--seeds", type=int, default=10, metavar="N", help="runs per shift (default: %(default)s)")
    add("--preset", choices=["default", "paper"], default="default", help="preset of covcal adapt")
    add("--weight-decay", type=float, metavar="X", help="needs --preset paper; default: 5e-4")
    add("--batched", action="store_true", help="train all seeds in one run, which is faster")
    add("--exact-only", action="store_true", help='only the methods "none" and "temp", no training')
    add(
        "--office31-model",
        type=Path,
        metavar="ONNX",
        help="a ResNet-50 in ONNX for the images of Office31",
    )
    add("--jobs", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    given = parser.parse_args(arguments)
    if given.weight_decay is not None and given.preset != "paper":
        parser.error("--weight-decay needs --preset paper")
    if given.seeds < 1 or given.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    adapt = AdaptSettings(preset=given.preset, weight_decay=given.weight_decay, device="cpu")
    return Request(
        data=given.data,
        output=given.output,
        shifts=tuple(dict.fromkeys(given.shifts)),
        seeds=given.seeds,
        adapt=None if given.exact_only else adapt,
        batched=given.batched,
        office31_model=given.office31_model,
        jobs=given.jobs,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiments, print the table, and return the exit code."""
    try:
        request = parse(arguments)
        with Console().progress() as progress:
            table = reproduce(request, progress)
    except (CovcalError, MissingDataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: run the same command to continue", file=sys.stderr)
        return 130
    print(table, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
