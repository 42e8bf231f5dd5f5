"""Run the benchmark: make features files, compare all methods, and write the results."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import starmap
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmark.families import Case
from benchmark.labels import Results, Truth, read_truth
from benchmark.table import markdown_text
from covcal_cli.adapt.settings import AdaptSettings
from covcal_cli.compare.compare import compare_runs
from covcal_cli.compare.runs import ALL, CompareSettings, Record, Run
from covcal_cli.files import write_text
from covcal_cli.progress import ProgressCallback, silent
from covcal_cli.records import document_text

SCHEMA = "covcal-benchmark/3"
STATES = (AdaptSettings(device="cpu"), None)


def benchmark(
    cases: Sequence[Case],
    output: Path,
    *,
    seeds: int,
    states: Sequence[AdaptSettings | None] = STATES,
    methods: tuple[str, ...] = ALL,
    jobs: int = 1,
    progress: ProgressCallback = silent,
) -> str:
    """Run the benchmark, and write results.json and table.md.

    Features files and results that are already in the folder are used again.

    Parameters
    ----------
    cases : sequence of Case
    output : Path
        Folder for all files.
    seeds : int
        Number of runs per shift, with seeds 0, 1, ...
    states : sequence of AdaptSettings or None
        Settings of ``covcal adapt``; None means without ``covcal adapt``.
    methods : tuple of str
        Methods to compare with ``none`` and ``temp``.
    jobs : int
        Number of parallel processes.
    progress : callable
        Called with a `Progress` after each run.

    Returns
    -------
    str
        The content of table.md.
    """
    features = output / "features"
    features.mkdir(parents=True, exist_ok=True)
    tasks = [(case, features, seed) for case in cases for seed in range(seeds)]
    # If all seeds use the same rows, one features file is enough.
    draws = [(case, folder, seed) for case, folder, seed in tasks if case.redrawn or seed == 0]
    _map(_make_features, draws, jobs)
    runs = [Run(case.shift, case.path(folder, seed), seed) for case, folder, seed in tasks]
    settings = [CompareSettings(methods=methods, adapt=adapt, jobs=jobs) for adapt in states]
    results = [_results(runs, output, each, progress) for each in settings]
    path = output / "results.json"
    content = {"schema": SCHEMA, "unit": "fractions", "runs": list(_entries(cases, results))}
    write_text(path, document_text(content, path) + "\n", force=True)
    text = markdown_text(cases, results)
    write_text(output / "table.md", text, force=True)
    return text


def _make_features(case: Case, folder: Path, seed: int) -> None:
    path = case.path(folder, seed)
    if not path.is_file():
        case.make(path, seed)


def _results(
    runs: Sequence[Run],
    output: Path,
    settings: CompareSettings,
    progress: ProgressCallback,
) -> Results:
    comparison = compare_runs(runs, output, settings, progress=progress)
    records = [record for shift in comparison.records.values() for record in shift]
    tasks = [(run.path, _temperatures(record)) for run, record in zip(runs, records, strict=True)]
    truths: dict[str, tuple[Truth, ...]] = {}
    for run, truth in zip(runs, _map(read_truth, tasks, settings.jobs), strict=True):
        truths[run.shift] = (*truths.get(run.shift, ()), truth)
    return Results(settings.state, comparison, truths)


def _temperatures(record: Record) -> list[float]:
    """Return the temperatures of all methods that scale the classifier's logits."""
    fits = record.fits.values()
    return [1.0, *(fit.temperature for fit in fits if fit.forecaster == "original")]


def _map(work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], jobs: int) -> list[Any]:
    if jobs == 1:
        return list(starmap(work, tasks))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return list(pool.map(work, *zip(*tasks, strict=True)))


def _entries(cases: Sequence[Case], states: Sequence[Results]) -> Any:
    """Yield the entries of results.json, one per run."""
    for results in states:
        for case in cases:
            records, truths = results.comparison.records[case.shift], results.truths[case.shift]
            for record, truth in zip(records, truths, strict=True):
                yield {
                    "state": results.state,
                    "family": case.family,
                    "shift": case.shift,
                    "half": case.half,
                    "truth": truth,
                    "found": record,
                }
