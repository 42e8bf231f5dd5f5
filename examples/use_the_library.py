"""covcal as a library: calibrate without labels, judge with them, no command line.

python examples/use_the_library.py FEATURES.H5
"""

import sys
from pathlib import Path

import numpy as np

from covcal_cli.calibrate.calibrate import CalibrateSettings, calibrate
from covcal_cli.evaluate.bootstrap import intervals
from covcal_cli.evaluate.evaluate import evaluate
from covcal_cli.evaluate.metrics import MetricsAccumulator
from covcal_cli.maths.softmax import class_major, softmax


def judge_file(path: Path) -> None:
    """Fit a temperature on a features file, and print what it is worth where labels are known."""
    calibration = calibrate(path, CalibrateSettings(method="temp"))
    evaluation = evaluate(path, {"temp": calibration}, resamples=500, by="class")
    for name, metrics in evaluation.metrics.items():
        low, high = evaluation.intervals[name]["ece"]
        print(f"{name}: ECE {metrics.ece:.2%} (true value {low:.2%} to {high:.2%})")
    for group in evaluation.groups["temp"]:
        print(f"  {group.name}: {group.n} rows, accuracy {group.accuracy or 0:.1%}")


def judge_arrays() -> None:
    """Measure logits that never were in a file."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(2000, 5))
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    accumulator = MetricsAccumulator(bins=15, n_classes=5, keep_losses=True)
    accumulator.add(softmax(class_major(logits), 1.0), logits.argmax(axis=1), labels)
    metrics = accumulator.result()
    low, high = intervals(metrics, resamples=500, seed=0)["ece"]
    print(f"arrays: ECE {metrics.ece:.2%} ({low:.2%} to {high:.2%}), AURC {metrics.aurc:.3f}")


if __name__ == "__main__":
    judge_file(Path(sys.argv[1]))
    judge_arrays()
