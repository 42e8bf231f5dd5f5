"""Compare the time of ``covcal apply`` and ``evaluate`` on ten million rows with plain NumPy.

    python examples/research/benchmark_apply.py [--rows 10000000] [--classes 10] [--no-packages]

The plain NumPy code reads the same file in pieces. For every temperature, the plain NumPy code
computes the softmax and the counts of 15 confidence bins, and writes nothing. ``evaluate -c``
measures the classifier before and after calibration, so its time is compared with plain NumPy code
that computes two softmaxes. ``evaluate`` also computes metrics and the sha256 of the file.

Each measurement runs in its own process with one thread, and includes the time of imports. The peak
memory is measured too. Then covcal's fit of T and covcal's ECE are compared with other installed
packages, on at most a million rows (``benchmark_temperature.py``).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import benchmark_temperature
import h5py
import numpy as np

from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import FEATURES_SCHEMA
from covcal_cli.formats.writer import HDF5Writer, utf8
from covcal_cli.records import Input, write_document

BLOCK = 1 << 20
BINS = 15
TEMPERATURE = 2.0
MODEL = {"name": "made.onnx", "sha256": "0" * 64}


def write_features(path: Path, domain: str, split: int, rows: int, classes: int) -> None:
    """Write a features file with labelled rows, whose logits are twice the true logits."""
    rng = np.random.default_rng(0)
    names = [str(number) for number in range(classes)]
    attributes = {"seed": 0} | {f"model_{name}": value for name, value in MODEL.items()}
    size = max(1, BLOCK // classes)
    with HDF5Writer(path, schema=FEATURES_SCHEMA, classes=names, attributes=attributes) as writer:
        writer.allocate(f"{domain}/logits", (rows, classes))
        kinds: dict[str, Any] = {"labels": np.int64, "split": np.uint8, "ids": "S8"}
        for name, kind in kinds.items():
            writer.allocate(f"{domain}/{name}", (rows,), kind)
        for start in range(0, rows, size):
            truth = rng.normal(size=(min(size, rows - start), classes)).astype(np.float32)
            noise = rng.gumbel(size=truth.shape).astype(np.float32)
            ids = utf8([f"{row:08d}" for row in range(start, start + len(truth))])
            for name, values in (
                ("logits", 2 * truth),
                ("labels", (truth + noise).argmax(axis=1)),
                ("split", np.full(len(truth), split)),
                ("ids", ids),
            ):
                writer.fill(f"{domain}/{name}", values)
        writer.complete()


def write_halving(path: Path, features: Path, classes: int) -> None:
    """Write a cal.json with the temperature 2."""
    calibration = Calibration(
        method="temp",
        method_used="temp",
        reason="asked for",
        forecaster="original",
        forecaster_temperature=TEMPERATURE,
        discriminator_temperatures=(),
        discriminator=None,
        max_weight=1000.0,
        loss="brier",
        fit={"rows": 1, "errors": 0, "loss": 0.0, "loss_before": 0.0, "at_limit": None},
        weights=None,
        bound=None,
        estimates={"target_confidence_before": None, "target_confidence": None},
        seed=0,
        classes=tuple(str(number) for number in range(classes)),
        model=MODEL,
        networks_sha256=None,
        notes=(),
        warnings=(),
        inputs=(Input("features", features, "0" * 64),),
    )
    write_document(calibration, path, force=True)


def bare_pass(path: Path, temperatures: Sequence[float]) -> list[float]:
    """Return the ECE of softmax(z / T) for each T, computed with plain NumPy."""
    counts, hits, confidences = np.zeros((3, len(temperatures), BINS))
    with h5py.File(path) as file:
        logits, labels = file["target/logits"], file["target/labels"]
        n, classes = logits.shape
        size = max(1, BLOCK // classes)
        for start in range(0, n, size):
            block, truth = logits[start : start + size], labels[start : start + size]
            for number, temperature in enumerate(temperatures):
                scaled = block / np.float32(temperature)
                p = np.exp(scaled - scaled.max(axis=1, keepdims=True))
                p /= p.sum(axis=1, keepdims=True)
                top, confidence = p.argmax(axis=1), p.max(axis=1)
                bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
                counts[number] += np.bincount(bins, minlength=BINS)
                hits[number] += np.bincount(bins, top == truth, minlength=BINS)
                confidences[number] += np.bincount(bins, confidence, minlength=BINS)
    return [float(ece) for ece in np.abs(confidences - hits).sum(axis=1) / counts.sum(axis=1)]


def netcal_ece(path: Path) -> benchmark_temperature.Prepared:
    """Prepare to compute the ECE with netcal, from probabilities in memory."""
    ece = import_module("netcal.metrics").ECE(bins=BINS)
    probabilities, labels = benchmark_temperature.softmax_of(path)
    return lambda: float(ece.measure(probabilities, labels))


def probmetrics_fit(path: Path) -> benchmark_temperature.Prepared:
    """Prepare to fit T with probmetrics, on probabilities in memory."""
    fitted = import_module("probmetrics.calibrators").get_calibrator("temp-scaling").fit
    probabilities, labels = benchmark_temperature.softmax_of(path)
    return lambda: 1 / float(fitted(probabilities, labels).invtemp_)


MORE: dict[str, Callable[[Path], benchmark_temperature.Prepared]] = {
    "T, probmetrics, nll": probmetrics_fit,
    "ECE, netcal": netcal_ece,
}
PACKAGES = {"scikit-learn": "sklearn", "torchmetrics": "torchmetrics"} | {
    name: name for name in ("netcal", "probmetrics")
}

_LAUNCHER = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"out": done.stdout, "cpu": used.ru_utime + used.ru_stime,
                  "peak": used.ru_maxrss / 1024}))
"""


def measured(*arguments: str | Path | float) -> tuple[str, float, float]:
    """Run Python in a new process. Return stdout, processor seconds and peak memory in MB.

    A small process starts Python, because Linux counts the memory of the parent process.
    """
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, "-c", _LAUNCHER, sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | one_thread
    )
    found = json.loads(done.stdout)
    return str(found["out"]), float(found["cpu"]), float(found["peak"])


def compare_passes(folder: Path, rows: int, classes: int) -> None:
    """Print the time and memory of apply, evaluate and plain NumPy, and two values of the ECE."""
    features, document, metrics = (folder / name for name in ("f.h5", "cal.json", "metrics.json"))
    write_features(features, "target", 2, rows, classes)
    write_halving(document, features, classes)
    command = ("-m", "covcal_cli")
    text, bare, peak = measured(__file__, "--bare", features, TEMPERATURE)
    print(f"{rows} x {classes} float32 logits, {features.stat().st_size / 2**20:.0f} MiB")
    print("ratio 1: time divided by the time of plain NumPy with one softmax")
    print("ratio 2: time divided by the time of plain NumPy with the same number of softmaxes")
    print(f"{'':24}{'CPU s':>9}{'peak MB':>10}{'ratio 1':>8}{'ratio 2':>8}")

    def show(name: str, seconds: float, peak: float, like: float) -> None:
        print(f"{name:24}{seconds:9.2f}{peak:10.1f}{seconds / bare:8.2f}{seconds / like:8.2f}")

    show("NumPy, 1 softmax", bare, peak, bare)
    _, bare_twice, peak = measured(__file__, "--bare", features, 1.0, TEMPERATURE)
    show("NumPy, 2 softmaxes", bare_twice, peak, bare_twice)
    for ending in ("h5", "npz", "parquet", "csv"):
        if ending == "parquet" and find_spec("pyarrow") is None:
            continue
        output = folder / f"probs.{ending}"
        _, seconds, peak = measured(*command, "apply", "-q", features, "-c", document, "-o", output)
        show(f"apply, {ending}", seconds, peak, bare)
        output.unlink()
    _, seconds, peak = measured(*command, "evaluate", "-q", features)
    show("evaluate", seconds, peak, bare)
    _, seconds, peak = measured(*command, "evaluate", "-q", features, "-c", document, "-o", metrics)
    show("evaluate -c", seconds, peak, bare_twice)
    ece = json.loads(metrics.read_text())["metrics"]["temp"]["ece"]
    numpy_ece = float(json.loads(text)[0])
    print(f"The ECE is {ece:.6f} by covcal evaluate, and {numpy_ece:.6f} by plain NumPy")


def compare_packages(folder: Path, rows: int, classes: int) -> None:
    """Print the measurements of covcal and of other installed packages."""
    features = folder / "source.h5"
    write_features(features, "source", 1, rows, classes)
    print(f"\n{rows} x {classes} float32 logits; time and memory do not include imports")
    print(f"{'':24}{'value':>10}{'CPU s':>9}{'extra MB':>10}")
    for name in sorted(benchmark_temperature.CONTENDERS | MORE, reverse=True):
        package = PACKAGES.get(name.split(", ")[1])
        if package is None or find_spec(package) is not None:
            benchmark_temperature.compared(__file__, name, features)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--packages", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--bare", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        path, *temperatures = options.bare
        print(json.dumps(bare_pass(Path(path), [float(value) for value in temperatures])))
    elif options.measure:
        benchmark_temperature.CONTENDERS.update(MORE)
        benchmark_temperature.measure(options.measure[0], Path(options.measure[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare_passes(Path(folder), options.rows, options.classes)
            if options.packages:
                compare_packages(Path(folder), min(options.rows, 1_000_000), options.classes)


if __name__ == "__main__":
    main()
