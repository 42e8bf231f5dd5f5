"""From what was asked for to files: extract, run every seed, write table and figures."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from covcal_cli.files import write_text
from reproduction.datasets import MissingDataError
from reproduction.experiment import EXACT, Place, Preset, Record, adapt_batch, run_exact, run_seed
from reproduction.features import Data, Extracted, extracted, find_shift
from reproduction.figures import draw_weights
from reproduction.shifts import METHODS, SHIFTS
from reproduction.summary import document, summarise
from reproduction.table import markdown


@dataclass(frozen=True)
class Request:
    """What to reproduce."""

    data: Path  # folder to read from
    output: Path  # folder to write to
    shifts: tuple[str, ...] = ()  # names in `SHIFTS`; empty: all whose data is there
    seeds: int = 10  # runs with seeds 0, 1, ... of every method that involves chance
    preset: Preset = field(default_factory=lambda: Preset("default"))
    exact_only: bool = False  # only none and temp, without any training
    office31_model: Path | None = None
    jobs: int = 1  # processes at a time
    keep: bool = False  # the adapted files


def reproduce(request: Request) -> str:
    """Run what was asked for and write table.md, table.json and the figures.

    Returns
    -------
    str
        The content of table.md.

    Raises
    ------
    MissingDataError
        If data of a shift that was named, or of every shift, is missing; before any work.
    """
    data = Data(request.data, request.output / "features", request.office31_model)
    place = Place(request.output / request.preset.tag)
    for folder in (data.features, *(place.folder / n for n in ("records", "figures", "adapted"))):
        folder.mkdir(parents=True, exist_ok=True)
    names = _available(request, data)
    prepared = [_extract(name, data) for name in names]
    exact = {one.shift.name: run_exact(one, request.preset, place) for one in prepared}
    runs: dict[str, list[tuple[int, Record]]] = {name: [] for name in names}
    if not request.exact_only:
        for one, seed, record in _runs(request, prepared, place):
            runs[one.shift.name].append((seed, record))
    methods = EXACT if request.exact_only else METHODS
    shifts = {}
    for one in prepared:
        name = one.shift.name
        runs[name].sort(key=lambda run: run[0])
        shifts[name] = summarise(one, exact[name], runs[name], methods)
        if runs[name]:
            weights = {seed: np.load(place.weights(name, seed)) for seed, _ in runs[name]}
            draw_weights(weights, place.boxes(name), title=f"{name}, fl+iw+temp")
    content = document(shifts, request.preset)
    text = markdown(content)
    stem = place.folder / ("exact" if request.exact_only else "table")
    write_text(stem.with_suffix(".json"), json.dumps(content, indent=1) + "\n", force=True)
    write_text(stem.with_suffix(".md"), text, force=True)
    tell(f"wrote {stem}.md, {stem}.json and figures in {place.folder}")
    return text


def tell(text: str) -> None:
    """Print a sign of life to stderr."""
    print(text, file=sys.stderr, flush=True)


def _available(request: Request, data: Data) -> list[str]:
    """Return the shifts to run, refusing those that were named and cannot be run."""
    found, missing = [], {}
    for name in request.shifts or tuple(SHIFTS):
        try:
            find_shift(SHIFTS[name], data)
            found.append(name)
        except MissingDataError as error:
            missing[name] = str(error)
    # Shifts that share a data set say the same: said once.
    lines = [
        f"{', '.join(n for n, other in missing.items() if other == text)}: {text}"
        for text in dict.fromkeys(missing.values())
    ]
    if missing and (request.shifts or not found):
        raise MissingDataError("\n".join(lines))
    for line in lines:
        tell(f"left out {line}")
    return found


def _extract(name: str, data: Data) -> Extracted:
    start = time.perf_counter()
    one = extracted(SHIFTS[name], data)
    tell(f"{name}: features in {one.path} ({time.perf_counter() - start:.0f} s)")
    return one


def _runs(
    request: Request, prepared: Sequence[Extracted], place: Place
) -> Iterator[tuple[Extracted, int, Record]]:
    if request.preset.batched is not None:
        for one in prepared:
            seconds = adapt_batch(one, request.preset, place)
            if seconds is not None:
                tell(f"{one.shift.name}: all seeds adapted in one batch ({seconds:.0f} s)")
    tasks = [(one, seed) for one in prepared for seed in range(request.seeds)]
    if request.jobs == 1:
        for done, (one, seed) in enumerate(tasks, start=1):
            record = _run(request, one, place, seed)
            yield one, seed, _told(record, seed, done, len(tasks))
        return
    with ProcessPoolExecutor(request.jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_run, request, one, place, seed) for one, seed in tasks]
        for done, ((one, seed), future) in enumerate(zip(tasks, futures, strict=True), start=1):
            yield one, seed, _told(future.result(), seed, done, len(tasks))


def _run(request: Request, one: Extracted, place: Place, seed: int) -> Record:
    return run_seed(one, request.preset, place, seed, draw=seed == 0, keep=request.keep)


def _told(record: Record, seed: int, done: int, total: int) -> Record:
    errors = ", ".join(
        f"{name} {100 * record['methods'][name]['ece']:.2f}"
        for name in METHODS
        if name not in EXACT
    )
    tell(f"[{done}/{total}] {record['shift']} seed {seed}: ECE {errors}")
    return record
