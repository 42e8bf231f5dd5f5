"""When importance weights help, and when they hurt: the table behind the warnings on them.

    python examples/choose_auto_thresholds.py [--data DIR] [--seeds 2]

For every shift of `choose_adapt_settings` (no MNIST shift is among them) it adapts with the default
preset and prints, sorted by the weights' effective sample size, what a weighted fit of T changes:
ECE in % on target test rows of fl+temp and fl+iw+temp, and of temp and iw+temp.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

from choose_adapt_settings import shifts, write_features

from covcal_cli.adapt.adapt import adapt
from covcal_cli.adapt.settings import AdaptSettings
from covcal_cli.calibrate.calibrate import CalibrateSettings, calibrate
from covcal_cli.evaluate.evaluate import evaluate


@dataclass(frozen=True)
class Pair:
    """One fit of T with weights beside the same without."""

    shift: str
    method: str
    rows: int
    ess_share: float
    ess_fit: float
    plain: float
    weighted: float


def pairs(name: str, features: Path, adapted: Path) -> list[Pair]:
    """Judge both pairs of methods on an adapted file, and iw+temp on its features file."""
    found = []
    for file, weighted, plain in (
        (adapted, "fl+iw+temp", "fl+temp"),
        (adapted, "iw+temp", "temp"),
        (features, "iw+temp", "temp"),
    ):
        with_weights = calibrate(file, CalibrateSettings(method=weighted, allow_limit=True))
        without = calibrate(file, CalibrateSettings(method=plain, allow_limit=True))
        metrics = evaluate(file, {"weighted": with_weights, "plain": without}).metrics
        health = with_weights.weights or {}
        label = weighted if file == adapted else "iw+temp, logistic"
        found.append(
            Pair(
                name,
                label,
                int(health["n"]),
                float(health["ess_share"]),
                float(health["ess_fit"]),
                metrics["plain"].ece,
                metrics["weighted"].ece,
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Print when importance weights help.")
    parser.add_argument("--data", type=Path, help="Folder of the real data; see the module.")
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    found: list[Pair] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, make in shifts(arguments.data).items():
            features, adapted = Path(folder) / "features.h5", Path(folder) / "adapted.h5"
            features.unlink(missing_ok=True)
            write_features(features, make())
            for seed in range(arguments.seeds):
                adapt(features, adapted, AdaptSettings(seed=seed), force=True)
                found += pairs(name, features, adapted)
    print(f"{'method':18} {'shift':20} {'n':>5} {'ess':>6} {'ess_fit':>8} {'plain':>6} {'iw':>6}")
    for one in sorted(found, key=lambda pair: (pair.method, pair.ess_share)):
        print(
            f"{one.method:18} {one.shift:20} {one.rows:5} {one.ess_share:6.1%} "
            f"{one.ess_fit:8.1f} {100 * one.plain:6.2f} {100 * one.weighted:6.2f}"
        )


if __name__ == "__main__":
    main()
