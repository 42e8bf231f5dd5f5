"""Compare covcal's speed on a million rows with scikit-learn (fit of T) and torchmetrics (ECE).

    python examples/research/benchmark_temperature.py [--rows 1000000] [--classes 10]

covcal reads the logits block by block from a features file. The other packages get the logits in
memory, and the loading time is not counted. Each call runs in its own process with one thread. The
processor seconds and the increase of the peak memory are measured.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from covcal_cli.evaluate.bins import GroupBins, bin_edges, confidence_block
from covcal_cli.formats.features import FEATURES_SCHEMA, FeatureFile
from covcal_cli.formats.writer import HDF5Writer, utf8
from covcal_cli.maths.temperature import Loss, fit_temperature

BLOCK = 50_000
BINS = 15
Prepared = Callable[[], float]


def write_features(path: Path, rows: int, classes: int) -> None:
    """Write logits that are twice the true logits, so that the best T is about 2."""
    rng = np.random.default_rng(0)
    names = [str(number) for number in range(classes)]
    labels = np.empty(rows, dtype=np.int64)
    with HDF5Writer(path, schema=FEATURES_SCHEMA, classes=names, attributes={"seed": 0}) as writer:
        writer.allocate("source/logits", (rows, classes))
        for start in range(0, rows, BLOCK):
            truth = rng.normal(size=(min(BLOCK, rows - start), classes))
            noisy = truth + rng.gumbel(size=truth.shape)
            labels[start : start + len(truth)] = noisy.argmax(axis=1)
            writer.fill("source/logits", (2 * truth).astype(np.float32))
        writer.write("source/labels", labels)
        writer.write("source/split", np.ones(rows, np.uint8))
        writer.write("source/ids", utf8([f"{row:08d}" for row in range(rows)]))
        writer.complete()


def covcal_fit(path: Path, loss: Loss) -> Prepared:
    """Prepare to fit T block by block from a file, as ``covcal calibrate`` does."""

    def run() -> float:
        with FeatureFile(path) as file:
            source = file.require_source()
            rows = source.require_rows("validation")
            return fit_temperature(
                lambda: (source.logits(block) for block in source.blocks(rows, "logits")),
                source.labels(rows),
                loss=loss,
            ).temperature

    return run


def sklearn_fit(path: Path) -> Prepared:
    """Prepare to fit T with scikit-learn, by the negative log-likelihood."""
    from sklearn.calibration import _TemperatureScaling

    logits, labels = loaded(path)
    return lambda: 1 / float(_TemperatureScaling().fit(logits, labels).beta_)


def covcal_ece(path: Path) -> Prepared:
    """Prepare to compute the ECE with covcal, from probabilities in memory."""
    probabilities, labels = softmax_of(path)

    def run() -> float:
        bins, edges = GroupBins(BINS), bin_edges(BINS)
        for start in range(0, len(labels), BLOCK):
            block = probabilities[start : start + BLOCK]
            top = block.argmax(axis=1)
            confidence = np.take_along_axis(block, top[:, None], axis=1)[:, 0]
            bins.add(confidence_block(confidence, top == labels[start : start + BLOCK], edges))
        return bins.together().ece()

    return run


def torchmetrics_ece(path: Path) -> Prepared:
    """Prepare to compute the ECE with torchmetrics, from one tensor."""
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    torch.set_num_threads(1)
    probabilities, labels = (torch.from_numpy(array) for array in softmax_of(path))
    classes = probabilities.shape[1]
    return lambda: float(
        multiclass_calibration_error(probabilities, labels, num_classes=classes, n_bins=BINS)
    )


CONTENDERS: dict[str, Callable[[Path], Prepared]] = {
    "T, covcal, brier": lambda path: covcal_fit(path, "brier"),
    "T, covcal, nll": lambda path: covcal_fit(path, "nll"),
    "T, scikit-learn, nll": sklearn_fit,
    "ECE, covcal": covcal_ece,
    "ECE, torchmetrics": torchmetrics_ece,
}


def loaded(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the logits (n, K) and labels (n,) of a file."""
    with FeatureFile(path) as file:
        source = file.require_source()
        rows = source.require_rows("validation")
        return source.logits(rows), source.labels(rows)


def softmax_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read a file, and return the float32 softmax (n, K) and labels (n,)."""
    logits, labels = loaded(path)
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    return logits, labels


def memory(field: str) -> float:
    """Return the memory of this process in MB: VmRSS (now) or VmHWM (peak). NaN without /proc."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    sizes = [float(line.split()[1]) / 1024 for line in lines if line.startswith(field)]
    return sizes[0] if sizes else float("nan")


def measure(name: str, path: Path) -> None:
    """Run one package, and print its result, processor seconds and memory as JSON."""
    warnings.simplefilter("ignore")
    run = CONTENDERS[name](path)
    resets = Path("/proc/self/clear_refs")
    if resets.exists():
        resets.write_text("5")  # reset the recorded peak memory
    before, start = memory("VmRSS"), time.process_time()
    value = run()
    seconds = time.process_time() - start
    print(json.dumps({"value": value, "cpu": seconds, "extra": memory("VmHWM") - before}))


def compared(script: str, name: str, path: Path) -> dict[str, float] | None:
    """Measure one package in a new process, print its line, and return its numbers.

    If a package does not work, print a dash and the reason, and return None.
    """
    done = subprocess.run(
        [sys.executable, script, "--measure", name, str(path)],
        capture_output=True,
        text=True,
        env=os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        print(f"{name:24}{'-':>10}{'-':>9}{'-':>10}  {reason}")
        if "covcal" in name:
            raise SystemExit(f"covcal failed: {reason}")
        return None
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{name:24}{found['value']:10.5f}{found['cpu']:9.2f}{found['extra']:10.1f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], Path(options.measure[1]))
        return
    results: dict[str, dict[str, float] | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        features = Path(folder) / "features.h5"
        write_features(features, options.rows, options.classes)
        print(f"{options.rows} x {options.classes} float32 logits")
        print(f"{'':24}{'value':>10}{'CPU s':>9}{'extra MB':>10}")
        for name in CONTENDERS:
            results[name] = compared(__file__, name, features)
    theirs = results["T, scikit-learn, nll"]
    for loss in ("brier", "nll"):
        ours = results[f"T, covcal, {loss}"]
        if ours and theirs:
            ratio = ours["cpu"] / theirs["cpu"]
            print(
                f"the {loss} fit of covcal takes {ratio:.2f} of the processor time of scikit-learn"
            )


if __name__ == "__main__":
    main()
