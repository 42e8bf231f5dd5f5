"""From shifts and seeds to results.json and table.md."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from benchmark.families import Case
from benchmark.runs import Record, run_case
from benchmark.summary import per_shift
from benchmark.table import markdown
from covcal_cli.calibrate.methods import AUTO
from covcal_cli.files import write_text

SCHEMA = "covcal-benchmark/2"


def benchmark(
    cases: Sequence[Case], output: Path, *, seeds: int, jobs: int = 1, adapting: bool = True
) -> str:
    """Run what has no record yet, and write results.json and table.md.

    Parameters
    ----------
    cases : sequence of Case
    output : Path
        Folder; ``records`` in it lets a run that was cut off go on.
    seeds : int
        Runs with seeds 0, 1, ... of every shift.
    jobs : int
        Processes at a time.
    adapting : bool
        Whether files are adapted; otherwise methods that need it refuse them, and everything that
        is written has another name.

    Returns
    -------
    str
        The content of table.md.
    """
    output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    found: dict[str, list[Record]] = {}
    for case, records in _runs(cases, output, list(range(seeds)), jobs, adapting):
        found[case.shift] = records
        errors = per_shift(records)[0].errors
        told = ", ".join(f"{name} {errors[name]:.2f}" for name in ("none", "temp", AUTO))
        seconds = time.perf_counter() - start
        print(
            f"[{len(found)}/{len(cases)}] {case.family} {case.shift}: ECE {told} ({seconds:.0f} s)",
            file=sys.stderr,
            flush=True,
        )
    records = [record for case in cases for record in found[case.shift]]
    content = {"schema": SCHEMA, "unit": "fractions", "bins": 15, "runs": records}
    ending = "" if adapting else "-without-adapt"
    write_text(output / f"results{ending}.json", json.dumps(content, indent=1) + "\n", force=True)
    text = markdown(records)
    write_text(output / f"table{ending}.md", text, force=True)
    return text


def _runs(
    cases: Sequence[Case], output: Path, seeds: Sequence[int], jobs: int, adapting: bool
) -> Iterator[tuple[Case, list[Record]]]:
    """Yield the records of every case as it is done; one process makes all seeds of a shift."""
    if jobs == 1:
        for case in cases:
            yield case, run_case(case, seeds, output, adapting=adapting)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures: dict[Future[list[Record]], Case] = {
            pool.submit(run_case, case, seeds, output, adapting=adapting): case for case in cases
        }
        for future in as_completed(futures):
            yield futures[future], future.result()
