"""From cases and seeds to table.md and results.json, by `covcal compare` on the files of cases."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import starmap
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmark.families import Case
from benchmark.labels import Measured, Truth, read_truth
from benchmark.table import markdown_text
from covcal_cli.adapt.settings import AdaptSettings
from covcal_cli.compare.compare import compare_runs
from covcal_cli.compare.runs import CompareSettings, Record, Run
from covcal_cli.files import write_text
from covcal_cli.progress import ProgressCallback, silent
from covcal_cli.records import document_text

SCHEMA = "covcal-benchmark/3"
# Every file is measured in both states.
STATES = (AdaptSettings(device="cpu"), None)


def benchmark(
    cases: Sequence[Case],
    output: Path,
    *,
    seeds: int,
    jobs: int = 1,
    progress: ProgressCallback = silent,
) -> str:
    """Run what has no record yet, and write results.json and table.md.

    Parameters
    ----------
    cases : sequence of Case
    output : Path
        Folder; what is in it already is not made again.
    seeds : int
        Runs with seeds 0, 1, ... of every shift.
    jobs : int
        Processes at a time.
    progress : callable
        As that of `compare`.

    Returns
    -------
    str
        The content of table.md.
    """
    features = output / "features"
    features.mkdir(parents=True, exist_ok=True)
    tasks = [(case, features, seed) for case in cases for seed in range(seeds)]
    firsts = [task for task in tasks if task[0].redrawn or not task[2]]
    _each(_features, firsts, jobs)
    runs = [Run(case.shift, case.path(folder, seed), seed) for case, folder, seed in tasks]
    states = [_measured(runs, output, adapt, jobs, progress) for adapt in STATES]
    place = output / "results.json"
    content = {"schema": SCHEMA, "unit": "fractions", "runs": list(_results(cases, states))}
    write_text(place, document_text(content, place) + "\n", force=True)
    text = markdown_text(cases, states)
    write_text(output / "table.md", text, force=True)
    return text


def _features(case: Case, folder: Path, seed: int) -> None:
    """Make a features file where it is not there yet."""
    path = case.path(folder, seed)
    if not path.is_file():
        case.make(path, seed)


def _measured(
    runs: Sequence[Run],
    output: Path,
    adapt: AdaptSettings | None,
    jobs: int,
    progress: ProgressCallback,
) -> Measured:
    settings = CompareSettings(adapt=adapt, jobs=jobs)
    found = compare_runs(runs, output, settings, progress=progress)
    records = [record for shift in found.records.values() for record in shift]
    tasks = [(run.path, _temperatures(one)) for run, one in zip(runs, records, strict=True)]
    truths: dict[str, tuple[Truth, ...]] = {}
    for run, truth in zip(runs, _each(read_truth, tasks, jobs), strict=True):
        truths[run.shift] = (*truths.get(run.shift, ()), truth)
    return Measured(settings.state, found, truths)


def _temperatures(record: Record) -> list[float]:
    """Return those of methods that scale the classifier's logits."""
    fits = record.fits.values()
    return [1.0, *(fit.temperature for fit in fits if fit.forecaster == "original")]


def _each(work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], jobs: int) -> list[Any]:
    """Return what a function makes of tasks, several at a time."""
    if jobs == 1:
        return list(starmap(work, tasks))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return list(pool.map(work, *zip(*tasks, strict=True)))


def _results(cases: Sequence[Case], states: Sequence[Measured]) -> Any:
    for one in states:
        for case in cases:
            pairs = zip(one.found.records[case.shift], one.truths[case.shift], strict=True)
            for record, truth in pairs:
                named = {"state": one.state, "family": case.family, "shift": case.shift}
                yield {**named, "half": case.half, "truth": truth, "found": record}
