"""Use covcal from Python: functions for files, and a calibrator and a watch for arrays.

    python examples/use_the_library.py FEATURES.H5

The script uses the functions and the classes, and prints the results.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import covcal_cli.api as covcal


def on_a_file(features: Path, folder: Path) -> None:
    """Calibrate and estimate without target labels, write rows, and evaluate with labels."""
    calibration = covcal.calibrate(features, covcal.CalibrateSettings(method="auto"))
    print(calibration.reason)
    expected = covcal.estimate(features).estimates[0]
    print(f"accuracy {expected.accuracy:.1%}, {expected.low:.1%} to {expected.high:.1%}")
    covcal.write_document(calibration, folder / "cal.json", force=True)
    covcal.apply(features, folder / "cal.json", folder / "probabilities.csv")
    evaluation = covcal.evaluate(
        features, {"auto": calibration}, covcal.EvaluateSettings(resamples=500)
    )
    for name, metrics in evaluation.metrics.items():
        low, high = evaluation.intervals[name]["ece"]
        print(f"{name}: ECE {metrics.ece:.2%} (true value {low:.2%} to {high:.2%})")


def on_arrays() -> None:
    """Calibrate a classifier with logits twice too large, given as arrays."""
    rng = np.random.default_rng(0)
    source, target = 2 * rng.normal(size=(2, 2000, 5))
    labels = (source / 2 + rng.gumbel(size=source.shape)).argmax(axis=1)
    calibrator = covcal.Calibrator(method="auto").fit(source, labels, target)
    confidence = calibrator.predict_proba(target).max(axis=1)
    print(f"arrays: T {calibrator.temperature_:.3f}, mean confidence {confidence.mean():.1%}")
    # Watch later rows: did they change, and is the confidence off by more than 10 points?
    watch = covcal.Watch(calibrator, source, labels, target, tolerance=0.1)
    later = watch.observe(1.5 * target, period="2026-W48")
    print(f"watch: {later.answer}; {later.change}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        on_a_file(Path(sys.argv[1]), Path(place))
    on_arrays()
