"""Run ``covcal extract`` on a Ray cluster, and write one features file.

    pip install "ray[data]"
    python examples/extract_with_ray.py MODEL SOURCE TARGET -o features.h5 --actors 8 --threads 4

The model and the data must have the same path on every node. Each Ray actor opens the model once
and checks its last layer. Ray Data sends pieces of the rows to the actors, in any order. The
outputs are sorted by row number, every id is checked, and the outputs are written to spool files.
Then ``covcal extract`` reads the spool files, makes all its checks, and writes the features file
without running the model. If all machines are of the same kind, the file has the same bytes as
without Ray. After an error, the spool files remain, and ``--resume`` runs the model only on the
missing rows.

`Extractor`, `pieces_of` and `Join` do not use Ray, so you can also use them with other cluster
software.
"""

import argparse
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.extract.extract import ExtractReport, extract
from covcal_cli.extract.parts import DomainSpool, open_spool
from covcal_cli.extract.plan import ExtractPlan, available_cores, prepare
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.files import check_output

Columns = Mapping[str, NDArray[Any]]
NUMBERS = ("features", "logits")
# Large pieces let the next batch be read while the model runs. Small pieces lose less work if a
# worker fails.
BATCHES_PER_PIECE = 8


class Piece(TypedDict):
    """Consecutive rows of a domain, numbered `first` to `last` - 1 among the rows to extract."""

    domain: str
    first: int
    last: int


class Extractor:
    """Runs the model on pieces of the rows. Every Ray worker has one instance.

    Parameters
    ----------
    model : str or Path
        A model file, or a Python function as ``module:function``.
    source, target : Path or None
        The data.
    settings : ExtractSettings
        How to extract.
    """

    def __init__(
        self,
        model: str | Path,
        source: Path | None,
        target: Path | None,
        settings: ExtractSettings,
    ) -> None:
        self._plan = prepare(model, source, target, settings)

    def __call__(self, pieces: Columns) -> dict[str, NDArray[Any]]:
        """Return the outputs of the model for all rows of the pieces.

        Parameters
        ----------
        pieces : mapping of str to array, shape (p,)
            The fields `domain`, `first` and `last` of p pieces.

        Returns
        -------
        dict of str to array, shape (m, ...)
            ``domain``, ``position`` and ``id`` of each row. ``reason`` is the error of a row that
            could not be read, else an empty text. ``logits`` and ``features`` (if the model has
            features) are NaN for such rows.
        """
        parts = [
            self._run(str(domain), int(first), int(last))
            for domain, first, last in zip(
                pieces["domain"], pieces["first"], pieces["last"], strict=True
            )
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _run(self, name: str, first: int, last: int) -> dict[str, NDArray[Any]]:
        plan, domain = self._plan, self._plan.domains[name]
        rows = domain.rows[first:last]
        reasons = np.full(len(rows), "", dtype=object)
        numbers = {
            array: np.full((len(rows), width), np.nan, dtype=np.float32)
            for array, width in plan.widths.items()
        }
        for batch in domain.batches(rows):
            for row, reason in batch.skipped:
                reasons[np.searchsorted(rows, row)] = reason
            if len(batch.rows):
                results = zip(NUMBERS, plan.runner.run(batch.inputs), strict=True)
                places = np.searchsorted(rows, batch.rows)
                for array, values in results:
                    if values is not None:
                        numbers[array][places] = values
        return {
            "domain": np.full(len(rows), name, dtype=object),
            "position": np.arange(first, last),
            "id": np.array([domain.data.ids[row] for row in rows], dtype=object),
            "reason": reasons,
            **numbers,
        }


def pieces_of(plan: ExtractPlan, spools: Mapping[str, DomainSpool]) -> list[Piece]:
    """Return the rows that are missing in the spool files, divided into pieces."""
    length = BATCHES_PER_PIECE * plan.runner.size
    return [
        {"domain": name, "first": first, "last": min(first + length, len(domain.rows))}
        for name, domain in plan.domains.items()
        for first in range(spools[name].done, len(domain.rows), length)
    ]


class Join:
    """Receives rows in any order, and writes the rows to the spool files in the right order.

    A row that arrives too early is kept in memory.
    """

    def __init__(self, plan: ExtractPlan, spools: Mapping[str, DomainSpool]) -> None:
        self._plan, self._spools = plan, spools
        self._waiting: dict[tuple[str, int], Columns] = {}
        # False after a worker returned NaN or infinity. Later outputs are not written. Then
        # ``extract`` runs the missing rows itself, and raises the usual error.
        self.sound = True

    def add(self, block: Columns) -> None:
        """Add the rows that an `Extractor` returned.

        Raises
        ------
        CovcalError
            If a worker has not read the same rows as this machine.
        """
        for run in _runs(block):
            self._waiting[str(run["domain"][0]), int(run["position"][0])] = run
        for name, spool in self._spools.items():
            while self.sound and (name, spool.done) in self._waiting:
                self._append(name, self._waiting.pop((name, spool.done)))

    def require_complete(self) -> None:
        """Raise an error if some rows never arrived.

        Raises
        ------
        CovcalError
            With the domain, the number of missing rows, and the remedy.
        """
        for name, spool in self._spools.items():
            missing = len(self._plan.domains[name].rows) - spool.done
            if self.sound and missing:
                raise CovcalError(
                    f"{missing} rows of the {name} did not come back from the workers: run the "
                    "same command with --resume"
                )

    def _append(self, name: str, run: Columns) -> None:
        spool, domain = self._spools[name], self._plan.domains[name]
        done = spool.done + len(run["id"])
        rows = domain.rows[spool.done : done]
        for row, found in zip(rows, run["id"], strict=True):
            if domain.data.ids[row] != found:
                raise CovcalError(
                    f"{domain.data.path}: row {row} is {domain.data.ids[row]} on this machine, "
                    f"but {found} on a worker: give every node the same data"
                )
        read = run["reason"] == ""
        arrays = {array: run[array][read] for array in spool.widths}
        if all(np.isfinite(values).all() for values in arrays.values()):
            skipped = zip(rows[~read].tolist(), run["reason"][~read], strict=True)
            left_out = [(row, str(reason)) for row, reason in skipped]
            error = self._plan.runner.affine_difference(arrays, is_latest=False)
            spool.append(arrays, done, left_out, error)
        else:
            self.sound = False


def _runs(block: Columns) -> Iterator[Columns]:
    """Split a block into parts with consecutive row numbers. Ray may put any rows into a block."""
    breaks = (np.diff(block["position"]) != 1) | (block["domain"][1:] != block["domain"][:-1])
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(block["position"])]
    for first, last in pairwise(edges):
        if first < last:
            yield {name: values[first:last] for name, values in block.items()}


def run_on_ray(
    pieces: list[Piece], actors: int, threads: int, job: tuple[Any, ...]
) -> Iterator[Columns]:
    """Run Ray actors with `threads` cores each, and yield their outputs in order of arrival.

    Raises
    ------
    CovcalError
        If a worker fails, with the worker's error message.
    """
    import ray
    from ray.exceptions import RayError

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    found = ray.data.from_items(pieces, override_num_blocks=len(pieces)).map_batches(
        Extractor,
        batch_size=1,
        batch_format="numpy",
        fn_constructor_args=job,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=threads,
    )
    try:
        yield from found.iter_batches(batch_size=None, batch_format="numpy")
    except RayError as error:
        raise CovcalError(
            f"a worker failed (--resume continues the run): {first_error(error)}"
        ) from error


def first_error(error: Exception) -> str:
    """Return the first error line of a traceback, such as ``module.SomeError: message``."""
    lines = str(error).strip().splitlines()
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)]
    return (named or lines or [type(error).__name__])[0]


def extract_with_ray(
    model: str | Path,
    source: Path | None,
    target: Path | None,
    output: Path,
    settings: ExtractSettings,
    *,
    actors: int,
    force: bool = False,
    resume: bool = False,
) -> ExtractReport:
    """Extract like `covcal_cli.extract.extract.extract`, but run the model in Ray actors.

    Parameters
    ----------
    actors : int
        Number of processes that open the model. Each process uses ``settings.threads`` cores.
    """
    model = Path(model).resolve() if Path(model).exists() else model
    source, target = (path and path.resolve() for path in (source, target))
    threads = settings.threads or available_cores()
    settings = replace(settings, threads=threads)  # the same number of threads on all nodes
    given = [Path(path) for path in (model, source, target) if path is not None]
    check_output(output, force=force, inputs=given)
    plan = prepare(model, source, target, settings)
    folder, _ = open_spool(output, plan.config(), resume=resume)
    with ExitStack() as stack:
        spools = {
            name: stack.enter_context(DomainSpool(folder, name, plan.widths))
            for name in plan.domains
        }
        join = Join(plan, spools)
        pieces = pieces_of(plan, spools)
        if pieces:
            job = (model, source, target, settings)
            for block in run_on_ray(pieces, actors, threads, job):
                join.add(block)
                if not join.sound:
                    break
        join.require_complete()
    return extract(model, source, target, output, settings, force=force, resume=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("features.h5"))
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--threads", type=int, default=available_cores(), help="cores per actor")
    parser.add_argument("--preprocess", help="as for covcal extract")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--force", action="store_true")
    given = parser.parse_args()
    try:
        report = extract_with_ray(
            given.model,
            given.source,
            given.target,
            given.output,
            ExtractSettings(threads=given.threads, preprocess=given.preprocess),
            actors=given.actors,
            force=given.force,
            resume=given.resume,
        )
    except CovcalError as error:
        raise SystemExit(f"error: {error}") from None
    for domain in report.domains:
        print(f"{domain.name:<8}  {sum(domain.rows.values())} rows")
    print(f"wrote {report.output}")


if __name__ == "__main__":
    main()
