"""Use covcal from Python, once with files and once with NumPy arrays.

    python examples/use_the_library.py FEATURES.H5

FEATURES.H5 is a file that ``covcal extract`` wrote.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import covcal_cli.api as covcal


def on_a_file(features: Path, folder: Path) -> None:
    """Calibrate a features file, estimate the accuracy, write calibrated rows, and evaluate."""
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
    """Calibrate a simulated classifier whose logits are twice too large."""
    rng = np.random.default_rng(0)
    source, target = 2 * rng.normal(size=(2, 2000, 5))
    labels = (source / 2 + rng.gumbel(size=source.shape)).argmax(axis=1)
    calibrator = covcal.Calibrator(method="auto").fit(source, labels, target)
    confidence = calibrator.predict_proba(target).max(axis=1)
    print(f"arrays: T {calibrator.temperature_:.3f}, mean confidence {confidence.mean():.1%}")
    # Watch checks whether the confidence of later rows is wrong by over 10 points.
    watch = covcal.Watch(calibrator, source, labels, target, tolerance=0.1)
    later = watch.observe(1.5 * target, period="2026-W48")
    print(f"watch: {later.answer}; {later.change}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        on_a_file(Path(sys.argv[1]), Path(place))
    on_arrays()
