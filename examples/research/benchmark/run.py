"""Compare every method of covcal on families of real shifts.

    python examples/research/benchmark/run.py --data DIR [--output DIR]
        [--families office votes ...] [--seeds 3] [--jobs 2] [--half choose]

README.md describes the files in DIR and the columns of the table. If a run is interrupted, the same
command continues it. The script prints progress to stderr, and the table to stdout.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Use one thread per process. With several threads, sums would differ in the last bits. BLAS reads
# these variables when it is loaded.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
RESEARCH = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(RESEARCH), str(RESEARCH / "paper")]

from reproduction.datasets import MissingDataError  # noqa: E402

from benchmark.driver import STATES, benchmark  # noqa: E402
from benchmark.families import FAMILIES, HALVES, cases  # noqa: E402
from covcal_cli.cli.console import Console  # noqa: E402
from covcal_cli.compare.runs import ALL  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare every method on families of shifts.")
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        required=True,
        help="folder that contains the data sets and the folder models",
    )
    add("--output", type=Path, default=Path("benchmark-results"), help="default: %(default)s")
    add(
        "--families",
        nargs="+",
        choices=FAMILIES,
        default=list(FAMILIES),
        metavar="FAMILY",
        help=f"default: all of {', '.join(FAMILIES)}",
    )
    add("--seeds", type=int, default=3, metavar="N", help="runs per shift (default: %(default)s)")
    add("--jobs", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    add(
        "--half",
        choices=HALVES,
        help='run only this part of the benchmark. Rules were chosen on the part "choose", and '
        'tested once on the part "test". The parts "seen-once" and "seen" were tested earlier.',
    )
    add("--without-adapt", action="store_true", help="do not run covcal adapt")
    add(
        "--methods",
        nargs="+",
        choices=ALL,
        default=list(ALL),
        metavar="METHOD",
        help='methods to run besides "none" and "temp"; default: all. The tables need "auto"',
    )
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    families = list(dict.fromkeys(options.families))
    try:
        selected = cases(options.data, families, half=options.half)
    except MissingDataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not selected:
        parser.error(
            f'--families: the part "{options.half}" of the benchmark has none of these families. '
            "Choose other families"
        )
    try:
        with Console().progress() as progress:
            text = benchmark(
                selected,
                options.output,
                seeds=options.seeds,
                states=(None,) if options.without_adapt else STATES,
                methods=tuple(options.methods),
                jobs=options.jobs,
                progress=progress,
            )
    except KeyboardInterrupt:
        print("interrupted: run the same command to continue", file=sys.stderr)
        return 130
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
