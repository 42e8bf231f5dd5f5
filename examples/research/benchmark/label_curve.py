"""Measure how a few target labels improve the calibration and the estimated accuracy.

    python examples/research/benchmark/label_curve.py --data DIR [--output DIR]
        [--families office votes ...] [--seeds 2] [--draws 20] [--half choose] [--without-adapt]

README.md lists the data files in DIR. The labelled rows are drawn from the target's training and
validation rows. The ECE is measured on the target's test rows. Four ways to fit T are compared:

- `labels, T`: minimise the Brier score of randomly drawn labelled rows.
- `labels, matched`: make the mean confidence equal to the accuracy of randomly drawn labelled rows.
- `labelled`: run ``covcal calibrate`` with labelled rows from ``covcal pick``. If there are no
  labels, use the method ``auto``.
- `true accuracy`: make the mean confidence equal to the true accuracy.

If a target has too few rows, all its rows are labelled. Results in the output folder are used
again. The script prints progress to stderr, and the table to stdout.
"""

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
RESEARCH = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(RESEARCH), str(RESEARCH / "paper")]

import numpy as np  # noqa: E402
from reproduction.datasets import MissingDataError  # noqa: E402

from benchmark.families import FAMILIES, HALVES, Case, cases  # noqa: E402
from benchmark.labels import ece as binned_ece  # noqa: E402
from covcal_cli.adapt.settings import AdaptSettings  # noqa: E402
from covcal_cli.arrays import Booleans, Float32s, Float64s, Labels  # noqa: E402
from covcal_cli.calibrate.calibrate import calibrate_file  # noqa: E402
from covcal_cli.calibrate.problem import CalibrateSettings, Problem  # noqa: E402
from covcal_cli.compare.runs import CompareSettings, Run, record_of  # noqa: E402
from covcal_cli.estimators.inputs import Estimate, Z  # noqa: E402
from covcal_cli.estimators.matched_temperature import match_accuracy  # noqa: E402
from covcal_cli.files import write_text  # noqa: E402
from covcal_cli.formats.features import FeatureFile  # noqa: E402
from covcal_cli.labels.draws import Batch, Draw, drawn, inclusion_probabilities  # noqa: E402
from covcal_cli.labels.metrics import accuracy_and_size, difference_estimate  # noqa: E402
from covcal_cli.labels.posterior import MAX_FRAME, combined, posterior, representative_rows  # noqa: E402
from covcal_cli.labels.score import score  # noqa: E402
from covcal_cli.labels.target_labels import target_labels  # noqa: E402
from covcal_cli.maths.softmax import with_offsets  # noqa: E402
from covcal_cli.maths.temperature import MIN_ERRORS, fit_temperature  # noqa: E402

NUMBERS = 0, 10, 25, 50, 100, 200, 500
RANDOM, MATCHED, LABELLED, TRUE = "labels, T", "labels, matched", "labelled", "true accuracy"
METHODS = {
    RANDOM: "T with the lowest Brier score on random rows",
    MATCHED: "T whose mean confidence equals the accuracy of random rows",
    LABELLED: "`pick` and `calibrate`",
    TRUE: "T whose mean confidence equals the true accuracy",
}
MAX_TEST = 6000  # maximum number of test rows for the ECE


@dataclass(frozen=True)
class Point:
    """Mean results for one shift and one number of labelled rows."""

    family: str
    shift: str
    half: str
    labels: int
    ece: dict[str, float]  # ECE by method.
    error: dict[str, float]  # Error of the estimated accuracy, by method.
    covered: float | None = None  # Share of the intervals of `labelled` that contain the accuracy.
    width: float | None = None  # Mean width of the intervals of `labelled`.
    wilson: float | None = None  # Mean width of Wilson's intervals for random rows.


@dataclass(frozen=True)
class _Target:
    """Target rows of one file: rows that can be labelled, and test rows."""

    logits: Float32s
    labels: Labels
    right: Float64s  # 1 if the row is classified correctly, else 0.
    forecast: Float64s  # Probability that ``covcal pick`` gives to a right prediction.
    frame: Float32s  # Logits of a sample of the rows that can be labelled.
    test_logits: Float32s
    test_right: Booleans

    def ece(self, temperature: float, offset: float = 0.0) -> float:
        logits = with_offsets(self.test_logits, temperature, None, offset)
        return binned_ece(logits, self.test_right, temperature, self.test_logits.argmax(axis=1))


def curve(case: Case, path: Path, draws: int, seed: int) -> list[Point]:
    """Return the results of one file for every number of labels."""
    with FeatureFile(path) as file:
        problem = Problem(file, CalibrateSettings(seed=seed))
        auto, prior = calibrate_file(problem, CalibrateSettings(labels="none")), problem.accuracy
        target = file.require_target()
        rows = target.drawn(target.n, seed, "train", "validation")
        logits, labels = target.logits(rows), target_labels(target, rows)
        right = logits.argmax(axis=1) == labels
        test = target.drawn(MAX_TEST, seed, "test")
        test_logits, scores = target.logits(test), score(file, rows, seed=seed).right
        draws_from = _Target(
            logits,
            labels,
            right.astype(np.float64),
            scores,
            logits[representative_rows(scores, MAX_FRAME)],
            test_logits,
            test_logits.argmax(axis=1) == target_labels(target, test),
        )
    truth = float(draws_from.right.mean())
    ceiling = draws_from.ece(match_accuracy(draws_from.logits, truth).temperature)
    points = []
    for n in NUMBERS:
        rng = np.random.default_rng([seed, n])
        measured: dict[str, list[float]] = defaultdict(list)
        if n == 0:
            measured["ece " + LABELLED] = [draws_from.ece(auto.forecaster_temperature)]
            measured["error " + LABELLED] = [abs(prior.accuracy - truth)]
        for _ in range(draws if n else 0):
            _measure_random(draws_from, min(n, len(rows)), rng, measured)
            _measure_picked(draws_from, min(n, len(rows)), rng, measured, prior)
        mean = {name: float(np.mean(values)) for name, values in measured.items()}
        points.append(
            Point(
                case.family,
                case.shift,
                case.half,
                n,
                {TRUE: ceiling} | _by_method("ece ", mean),
                _by_method("error ", mean),
                *(mean.get(name) for name in ("covered", "width", "wilson")),
            )
        )
    return points


def _by_method(kind: str, mean: dict[str, float]) -> dict[str, float]:
    return {name.removeprefix(kind): v for name, v in mean.items() if name.startswith(kind)}


def _measure_random(
    target: _Target, n: int, rng: np.random.Generator, measured: dict[str, list[float]]
) -> None:
    """Measure the methods that use randomly drawn labelled rows."""
    rows = rng.choice(len(target.right), n, replace=False)
    right = target.right[rows]
    accuracy, truth = float(right.mean()), float(target.right.mean())
    fit = fit_temperature(
        target.logits[rows],
        target.labels[rows],
        allow_sharpening=n - int(right.sum()) >= MIN_ERRORS,
    )
    measured["ece " + RANDOM].append(target.ece(fit.temperature))
    measured["ece " + MATCHED].append(
        target.ece(match_accuracy(target.frame, accuracy).temperature)
    )
    measured["error " + MATCHED].append(abs(accuracy - truth))
    spread = accuracy * (1 - accuracy) / n + Z**2 / (4 * n**2)
    measured["wilson"].append(2 * Z * float(np.sqrt(spread)) / (1 + Z**2 / n))


def _measure_picked(
    target: _Target,
    n: int,
    rng: np.random.Generator,
    measured: dict[str, list[float]],
    prior: Estimate,
) -> None:
    """Measure the method `labelled`, which uses rows from ``covcal pick``."""
    order = np.argsort(target.forecast, kind="stable")
    inclusion = inclusion_probabilities(target.forecast[order], n)
    places = drawn(inclusion, rng)
    rows, truth = order[places], float(target.right.mean())
    draw = Draw(
        rows=rows,
        inclusion=inclusion[places],
        batch=np.zeros(n, dtype=np.int64),
        stratum=np.arange(n),
        labels=target.labels[rows],
        batches=(Batch(n, len(order), 0, ("train", "validation"), "confidence"),),
    )
    forecast = target.forecast
    interval = difference_estimate(draw, target.right[rows], forecast, forecast[rows])
    accuracy, *_ = combined(
        *accuracy_and_size(
            draw.weights,
            draw.variances,
            draw.population,
            target.right[rows],
            forecast,
            forecast[rows],
        ),
        prior,
    )
    scaling = posterior(target.frame, target.logits[rows], draw, accuracy)
    measured["ece " + LABELLED].append(target.ece(scaling.temperature, scaling.of_label))
    measured["error " + LABELLED].append(abs(accuracy - truth))
    measured["covered"].append(float(interval.low - 1e-9 <= truth <= interval.high + 1e-9))
    measured["width"].append(interval.high - interval.low)


def points_of(
    case: Case, folder: Path, *, seeds: int, draws: int, adapting: bool
) -> Iterator[Point]:
    """Yield the results of a shift for each seed and number of labels."""
    for seed in range(seeds):
        if seed and not (adapting or case.redrawn):
            return  # Seed 0 has measured this file.
        features = case.path(folder / "features", seed)
        if not features.is_file():
            features.parent.mkdir(parents=True, exist_ok=True)
            case.make(features, seed)
        if adapting:  # run.py uses the same adapted file
            settings = CompareSettings(adapt=AdaptSettings(device="cpu"))
            features = record_of(Run(case.shift, features, seed), folder, settings).measured
        kind = "label-curve" if adapting else "label-curve-without-adapt"
        path = folder / kind / f"{case.shift}-seed{seed}-draws{draws}.json"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            content = [asdict(point) for point in curve(case, features, draws, seed)]
            write_text(path, json.dumps(content, indent=1) + "\n", force=True)
            print(f"{case.family} {case.shift} seed {seed}", file=sys.stderr, flush=True)
        yield from (Point(**point) for point in json.loads(path.read_text("utf-8")))


def markdown(points: Sequence[Point]) -> str:
    """Return a Markdown table for each half of the benchmark, with means over shifts."""
    lines = []
    for half in dict.fromkeys(point.half for point in points):
        members = [point for point in points if point.half == half]
        shifts = len({(point.family, point.shift) for point in members})
        lines += [
            f"## {half}: {shifts} shifts",
            "",
            "| number of labels | " + _row(NUMBERS),
            "|---|" + "---|" * len(NUMBERS),
        ]
        for title, values in _rows(members):
            lines.append(f"| {title} | {_row(values)}")
        lines.append("")
    return "\n".join(lines)


def _row(values: Sequence[object]) -> str:
    return " | ".join(str(value) for value in values) + " |"


def _rows(points: Sequence[Point]) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the cells of each row of the table."""
    for method, title in METHODS.items():
        values = [over_shifts(points, "ece", n, method) for n in NUMBERS]
        yield f"ECE in %, {title}", _cells(values)
    for method, title in ((MATCHED, "random rows"), (LABELLED, METHODS[LABELLED])):
        values = [over_shifts(points, "error", n, method) for n in NUMBERS]
        yield f"error of the estimated accuracy in points, {title}", _cells(values)
    values = [over_shifts(points, "covered", n) for n in NUMBERS]
    yield "intervals from `pick` that contain the accuracy, %", _cells(values)
    worst = [min(by_shift(points, "covered", n).values(), default=None) for n in NUMBERS]
    yield "intervals from `pick` that contain the accuracy, on the worst shift, %", _cells(worst)
    values = [over_shifts(points, "width", n) for n in NUMBERS]
    yield "mean width of the intervals from `pick` in points", _cells(values)
    values = [over_shifts(points, "wilson", n) for n in NUMBERS]
    yield "mean width of Wilson's interval for random rows", _cells(values)


def by_shift(
    points: Sequence[Point], field: str, labels: int, method: str | None = None
) -> dict[str, float]:
    """Return the mean of one result over the seeds, for each shift that has this result."""
    numbers: dict[str, list[float]] = defaultdict(list)
    for point in points:
        value = getattr(point, field)
        if method is not None:
            value = value.get(method)
        if point.labels == labels and value is not None:
            numbers[f"{point.family} {point.shift}"].append(value)
    return {shift: float(np.mean(values)) for shift, values in numbers.items()}


def over_shifts(
    points: Sequence[Point], field: str, labels: int, method: str | None = None
) -> float | None:
    """Return the mean of one result over all shifts; None if no shift has this result."""
    means = by_shift(points, field, labels, method)
    return float(np.mean([*means.values()])) if means else None


def _cells(values: Sequence[float | None]) -> list[str]:
    return ["-" if value is None else f"{100 * value:.2f}" for value in values]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Measure the ECE and the estimated accuracy for several numbers of labels."
    )
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        required=True,
        help="folder that contains the data sets and the folder models",
    )
    add("--output", type=Path, default=Path("benchmark-results"), help="default: %(default)s")
    add("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES), metavar="FAMILY")
    add("--seeds", type=int, default=2, metavar="N", help="files per shift (default: %(default)s)")
    add(
        "--draws",
        type=int,
        default=20,
        metavar="N",
        help="random selections of labelled rows for each number of labels (default: %(default)s)",
    )
    add("--half", choices=HALVES, help="run only this part of the benchmark")
    add("--without-adapt", action="store_true", help="do not run covcal adapt")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.draws < 1:
        parser.error("--seeds and --draws must be at least 1")
    try:
        selected = cases(options.data, list(dict.fromkeys(options.families)), half=options.half)
    except MissingDataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    points = [
        point
        for case in selected
        for point in points_of(
            case,
            options.output,
            seeds=options.seeds,
            draws=options.draws,
            adapting=not options.without_adapt,
        )
    ]
    print(markdown(points), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
