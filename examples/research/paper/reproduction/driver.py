"""Run the paper's experiments with every seed, and write tables and figures."""

import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from covcal_cli.adapt.settings import AdaptSettings
from covcal_cli.compare.compare import compare_runs
from covcal_cli.compare.runs import CompareSettings, Run
from covcal_cli.compare.tables import write_comparison
from covcal_cli.files import write_text
from covcal_cli.progress import ProgressCallback, silent
from reproduction.batch import adapt_in_one_batch
from reproduction.datasets import MissingDataError
from reproduction.features import Data, Extracted, extracted, find_shift
from reproduction.figures import draw_reliability, draw_weights, source_weights
from reproduction.shifts import METHODS, SHIFTS
from reproduction.table import markdown


@dataclass(frozen=True)
class Request:
    """Settings of the experiments to run."""

    data: Path  # Folder with the data sets and ``models``.
    output: Path  # Folder for all results.
    shifts: tuple[str, ...] = ()  # Names in `SHIFTS`; if empty, all shifts whose data exist.
    seeds: int = 10  # Number of seeds (0, 1, ...) for methods that depend on random numbers.
    # Settings of ``covcal adapt``. If None, only ``none`` and ``temp`` are compared.
    adapt: AdaptSettings | None = field(default_factory=AdaptSettings)
    batched: bool = False  # whether to train all seeds in one run
    office31_model: Path | None = None
    jobs: int = 1  # number of parallel processes

    @property
    def settings(self) -> CompareSettings:
        """Settings of ``covcal compare``."""
        if self.adapt is None:
            return CompareSettings(methods=METHODS[:2], seeds=1, adapt=None, jobs=self.jobs)
        adapt = replace(self.adapt, members=1) if self.batched else self.adapt
        return CompareSettings(
            methods=(*METHODS, "auto"), seeds=self.seeds, adapt=adapt, jobs=self.jobs
        )

    @property
    def kept(self) -> Path:
        """Folder for the files of ``covcal compare``."""
        return self.output / "batched" if self.batched else self.output


def reproduce(request: Request, progress: ProgressCallback = silent) -> str:
    """Run the paper's experiments, and write table.md, table.csv and the figures.

    Returns
    -------
    str
        The content of table.md.

    Raises
    ------
    MissingDataError
        If data of a named shift, or of all shifts, are missing. The data are checked before any
        work.
    """
    settings = request.settings
    data = Data(request.data, request.output / "features", request.office31_model)
    place = request.kept / settings.state
    for folder in (data.features, place / "figures"):
        folder.mkdir(parents=True, exist_ok=True)
    prepared = {name: _extract(name, data) for name in _available(request, data)}
    if request.batched and settings.adapt is not None:
        for name, one in prepared.items():
            outputs = [place / f"{one.path.stem}-seed{seed}.h5" for seed in range(request.seeds)]
            seconds = adapt_in_one_batch(one.path, outputs, settings.adapt)
            if seconds is not None:
                tell(f"{name}: adapted all seeds in one batch ({seconds:.0f} s)")
    runs = [
        Run(name, one.path, seed)
        for name, one in prepared.items()
        for seed in range(settings.seeds)
    ]
    found = compare_runs(runs, request.kept, settings, progress=progress)
    if settings.adapt is not None:
        for name, records in found.records.items():
            adapted = [record.measured for record in records]
            title = f"{name}, target test rows, seed 0, preset {settings.state}"
            draw_reliability(adapted[0], place / f"figures/{name}-reliability.png", title=title)
            weights = {one.seed: source_weights(one.measured) for one in records}
            boxes = place / f"figures/{name}-weights.png"
            draw_weights(weights, boxes, title=f"{name}, fl+iw+temp")
    text = markdown(found, prepared, settings.adapt)
    write_text(place / "table.md", text, force=True)
    write_comparison(found, place / "table.csv", force=True)
    tell(f"wrote table.md, table.csv and figures in {place}")
    return text


def tell(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def _available(request: Request, data: Data) -> list[str]:
    """Return the shifts to run. Raise an error if data of a named shift are missing."""
    found, missing = [], {}
    for name in request.shifts or tuple(SHIFTS):
        try:
            find_shift(SHIFTS[name], data)
            found.append(name)
        except MissingDataError as error:
            missing[name] = str(error)
    # Several shifts can lack the same file, so print each message once.
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
