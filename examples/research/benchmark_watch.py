"""Measure how often `covcal watch` raises false alarms, and how soon it detects a drift.

    python examples/research/benchmark_watch.py [--years 200] [--runs 20]

A small network is trained on one half of scikit-learn's digits. The target is the other half of the
digits, turned by about ten degrees. In each simulated year, new target rows are drawn for the
calibration and for every week. In years without drift, every alarm is false. In years with drift,
the drift begins in week nine. For these years, the table has the median number of weeks until an
alarm. Years with an alarm before week nine are left out. `covcal watch` is compared with three
common thresholds (README.md).
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from covcal_cli.arrays import Float64s, Floats, Labels
from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.problem import CalibrateSettings
from covcal_cli.forecast import ScaledLogits
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import FEATURES_SCHEMA, FeatureFile
from covcal_cli.formats.writer import HDF5Writer, utf8
from covcal_cli.maths.odds import confidences
from covcal_cli.watch.measurement import distances, signals_of
from covcal_cli.watch.period import WatchSettings
from covcal_cli.watch.reference import Reference
from covcal_cli.watch.sketches import moments, reference_of
from covcal_cli.watch.verdict import alarm_of

SIZES = (56, 250, 1000, 2683)
WEEKS, START = 52, 8
KEPT = 1000  # Number of target rows for the calibration of a year.
TOLERANCE = 1e-4  # Tolerance when the network is trained.
THRESHOLD = WatchSettings().threshold
RULES = ("covcal", "confidence", "AUC > 0.6", "reference weeks")


@dataclass(frozen=True)
class Rows:
    """Rows with the features and logits of the network."""

    features: Floats
    logits: Floats
    labels: Labels

    def drawn(self, n: int, rng: np.random.Generator, shares: Float64s | None = None) -> "Rows":
        """Draw `n` rows with replacement. `shares`, (10,), multiply the class frequencies."""
        p = None
        if shares is not None:
            p = shares[self.labels]
            p = p / p.sum()
        places = rng.choice(len(self.labels), n, p=p)
        return Rows(self.features[places], self.logits[places], self.labels[places])


class Network:
    """A network with one hidden layer, whose outputs are the features."""

    def __init__(self, inputs: Floats, labels: Labels, width: int) -> None:
        self.model = MLPClassifier((width,), tol=TOLERANCE, max_iter=1000, random_state=0)
        self.model.fit(inputs, labels)

    def rows(self, inputs: Floats, labels: Labels) -> Rows:
        """Return rows with the network's features and logits."""
        first, last = zip(self.model.coefs_, self.model.intercepts_, strict=True)
        features = np.maximum(inputs @ first[0] + first[1], 0).astype(np.float32)
        logits = (features @ last[0] + last[1]).astype(np.float32)
        if logits.shape[1] == 1:
            logits = np.hstack([np.zeros_like(logits), logits])
        return Rows(features, logits, labels)


def write(path: Path, source: Rows, target: Rows) -> None:
    """Write a features file. All source rows and a fifth of the target rows are validation rows."""
    classes = [str(number) for number in range(source.logits.shape[1])]
    attributes: dict[str, str | int | float] = {
        "model_name": "network",
        "model_sha256": "0" * 64,
        "seed": 0,
    }
    with HDF5Writer(path, schema=FEATURES_SCHEMA, classes=classes, attributes=attributes) as file:
        for name, rows in (("source", source), ("target", target)):
            n = len(rows.labels)
            held = np.arange(n) >= (0 if name == "source" else n * 4 // 5)
            file.write(f"{name}/features", rows.features)
            file.write(f"{name}/logits", rows.logits)
            file.write(f"{name}/labels", rows.labels if name == "source" else np.full(n, -1))
            file.write(f"{name}/split", held.astype(np.uint8))
            file.write(f"{name}/ids", utf8([str(row) for row in range(n)]))
        file.complete()


@cache
def _digits() -> tuple[Network, Floats, Labels]:
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = pixels[order].reshape(-1, 8, 8) / 16, labels[order].astype(np.int64)
    half = len(labels) // 3
    network = Network(images[:half].reshape(half, -1), labels[:half], 32)
    return network, images[half:], labels[half:]


@cache
def digits(angle: int | None, noise: float = 0.0) -> Rows:
    """Turn every digit six times, by `angle` plus 5 to 15 degrees. With None, turn no digit."""
    network, images, labels = _digits()
    if angle is None:
        half = len(images) // 2
        return network.rows(images[:half].reshape(half, -1), labels[:half])
    images, labels = images[len(images) // 2 :], labels[len(labels) // 2 :]
    rng = np.random.default_rng(1)
    turned = [
        ndimage.rotate(images, by, axes=(1, 2), reshape=False, order=1)
        for by in angle + np.linspace(5, 15, 6)
    ]
    found = np.concatenate(turned)
    found = np.clip(found + noise * rng.normal(size=found.shape), 0, 1)
    return network.rows(found.reshape(len(found), -1), np.tile(labels, 6))


def _favoured(times: float) -> Float64s:
    shares = np.ones(10)
    shares[[3, 5, 8]] = times
    return shares


# From the weeks since the drift began, each function returns rows and class-frequency factors.
DRIFTS: Mapping[str, Callable[[int], tuple[Rows, Float64s | None]]] = {
    "rotation, 1 degree a week": lambda week: (digits(min(week + 1, 40)), None),
    "prior, 10 % a week": lambda week: (digits(0), _favoured(1.1 ** (week + 1))),
    "sudden noise": lambda _week: (digits(0, 0.2), None),
    "label shift": lambda _week: (digits(0), _favoured(2.0)),
}


@dataclass(frozen=True)
class Standard:
    """The calibration of one year, and the statistics that the fixed thresholds need."""

    calibration: Calibration
    reference: Reference
    confidence: Float64s  # confidence of the target rows


def calibrated(rng: np.random.Generator, folder: Path) -> Standard:
    """Draw target rows, and calibrate on these rows."""
    path = folder / "features.h5"
    path.unlink(missing_ok=True)
    source, target = digits(None).drawn(500, rng), digits(0).drawn(KEPT, rng)
    write(path, source, target)
    found = calibrate(path, CalibrateSettings(method="temp", allow_limit=True))
    with FeatureFile(path) as file:
        reference = reference_of(file, ScaledLogits(found.scaling), found.seed, "0" * 64)
    assert reference is not None
    confidence = confidences(target.logits, found.forecaster_temperature)
    return Standard(found, reference, confidence)


def first_alarms(standard: Standard, weeks: Sequence[Rows]) -> dict[str, int | None]:
    """Return the week of the first alarm by each rule; None without an alarm."""
    n = len(weeks[0].labels)
    usual, row = float(standard.confidence.mean()), float(standard.confidence.std())
    chunks = [standard.confidence[i : i + n] for i in range(0, KEPT - n + 1, n)]
    means = [float(chunk.mean()) for chunk in chunks]
    # The standard deviation over weeks needs at least two weeks.
    of_weeks = float(np.std(means, ddof=1)) if len(means) > 1 else np.inf
    signals, weeks_of_alarms = [], dict.fromkeys(RULES)
    for number, rows in enumerate(weeks):
        reference, temperature = standard.reference, standard.calibration.forecaster_temperature
        confidence = confidences(rows.logits, temperature)
        compared = reference.coordinates.axes.located(rows.features)
        of_rows = signals_of(reference, rows.logits, confidence, compared)
        signals.append((n, {name: mean for name, mean, _ in of_rows}))
        away = abs(float(confidence.mean()) - usual)
        auc = distances(reference, moments(compared))[1]
        raised = {
            "covcal": alarm_of(signals, reference, THRESHOLD)[0].raised,
            "confidence": away > 3 * row / np.sqrt(n),
            "AUC > 0.6": auc is not None and auc > 0.6,
            "reference weeks": away > 3 * of_weeks,
        }
        for rule, alarmed in raised.items():
            if alarmed and weeks_of_alarms[rule] is None:
                weeks_of_alarms[rule] = number
    return weeks_of_alarms


def years(n: int, count: int, drift: str | None) -> list[dict[str, int | None]]:
    """Simulate `count` years with `n` rows a week. Return the first alarms of each year."""
    alarms = []
    with tempfile.TemporaryDirectory() as folder:
        for year in range(count):
            rng = np.random.default_rng([n, year])
            standard = calibrated(rng, Path(folder))
            weeks = []
            for week in range(WEEKS if drift is None else 36):
                drifted = drift is not None and week >= START
                world, shares = DRIFTS[drift or ""](week - START) if drifted else (digits(0), None)
                weeks.append(world.drawn(n, rng, shares))
            alarms.append(first_alarms(standard, weeks))
    return alarms


def delay(alarms: Sequence[Mapping[str, int | None]], rule: str) -> str:
    """Return the median delay of alarms and the number of years without an early alarm, as text."""
    ended = [of_year[rule] for of_year in alarms]
    alive = [week for week in ended if week is None or week >= START]
    if not alive:
        return f"- (0 of {len(alarms)})"
    delays = sorted(np.inf if week is None else week - START for week in alive)
    middle = delays[(len(delays) - 1) // 2]
    text = "never" if middle == np.inf else f"{middle:.0f}"
    return text if len(alive) == len(alarms) else f"{text} ({len(alive)} of {len(alarms)})"


def table(sizes: Sequence[int], count: int, runs: int) -> str:
    """Simulate all years, and return the results as a Markdown table."""
    lines = ["| drift | rows a week | " + " | ".join(RULES) + " |", "|---|---:|" + "---:|" * 4]
    for n in sizes:
        found = years(n, count, None)
        cells = [f"{sum(one[rule] is not None for one in found) / count:.1%}" for rule in RULES]
        lines.append(_line("no drift", n, cells))
    for drift in DRIFTS:
        for n in sizes:
            found = years(n, runs, drift)
            lines.append(_line(drift, n, [delay(found, rule) for rule in RULES]))
    return "\n".join(lines)


def _line(drift: str, n: int, cells: Sequence[str]) -> str:
    """Return a row of the table. The last cell is a dash if the rows fill less than two weeks."""
    *others, weeks = cells
    return f"| {drift} | {n} | {' | '.join(others)} | {weeks if 2 * n <= KEPT else '-'} |"


def main() -> None:
    """Print the table for the chosen numbers of years and runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--years",
        type=int,
        default=200,
        help="number of simulated years without drift, for each value of --sizes",
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=20,
        help="number of simulated years for each kind of drift and each value of --sizes",
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="rows per week")
    asked = parser.parse_args()
    print(table(asked.sizes, asked.years, asked.runs))


if __name__ == "__main__":
    main()
