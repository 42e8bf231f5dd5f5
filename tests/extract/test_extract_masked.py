"""A masked class from the model to the report: as with the class left out, whatever masks it."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from covcal_cli.formats.calibration import read_calibration
from tests.classifiers.onnx.onnx_graphs import Graph, node
from tests.cli_runner import covcal, printed_json

D, K = 6, 4
MASKED = 2
LOWEST = float(np.finfo(np.float32).min)


def write_data(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write source and target arrays, no row of the masked class; return W and b."""
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(K, D)).astype(np.float32), np.zeros(K, np.float32)
    for name, shift in (("source", 0.0), ("target", 0.3)):
        x = (rng.normal(size=(600, D)) + shift).astype(np.float32)
        noisy = x @ weight.T / 2 + rng.gumbel(size=(600, K))
        noisy[:, MASKED] = -np.inf
        np.savez(folder / f"{name}.npz", x=x, y=noisy.argmax(axis=1))
    return weight, bias


@pytest.mark.parametrize(
    ("value", "tail"),
    [
        (-np.inf, "logits"),
        (LOWEST, "logits"),
        (-1e9, "softmax"),
    ],
)
def test_from_the_model_to_the_report(value: float, tail: str, tmp_path: Path) -> None:
    """Every step accepts infinity; T and metrics equal the results without the masked class."""
    weight, bias = write_data(tmp_path)
    mask = np.where(np.arange(K) == MASKED, value, 0).astype(np.float32)
    nodes = [node("Gemm", "x wk bk", "z", transB=1), node("Add", "z mk", "m")]
    nodes[1:] = [node("Add", "z mk", "y")] if tail == "logits" else nodes[1:]
    nodes += [node("Softmax", "m", "y", axis=-1)] if tail == "softmax" else []
    graph = Graph(nodes, constants={"wk": weight, "bk": bias, "mk": mask}, shape=("N", D))
    model = graph.save(tmp_path, "model.onnx")
    features, calibration = tmp_path / "f.h5", tmp_path / "cal.json"
    data = (tmp_path / "source.npz", tmp_path / "target.npz")
    shown = covcal("extract", model, *data, "-o", features).require_success()
    assert "largest error of the last layer 0e+00" not in shown.err
    covcal("calibrate", features, "--method", "temp", "-o", calibration).require_success()
    # The same without the class.
    with h5py.File(features) as file:
        for name in ("source", "target"):
            logits, labels = file[f"{name}/logits"][:], file[f"{name}/labels"][:]
            np.savez(
                tmp_path / f"{name}_left.npz",
                logits=np.delete(logits, MASKED, axis=1),
                y=labels - (labels > MASKED),
                split=file[f"{name}/split"][:],
            )
    left, other = (tmp_path / "left.h5"), tmp_path / "left.json"
    tables = [tmp_path / f"{name}_left.npz" for name in ("source", "target")]
    covcal("extract", "--logits", *tables, "-o", left).require_success()
    covcal("calibrate", left, "--method", "temp", "-o", other).require_success()
    found, expected = read_calibration(calibration), read_calibration(other)
    assert found.forecaster_temperature == pytest.approx(expected.forecaster_temperature, rel=1e-4)
    assert found.fit["loss"] == pytest.approx(expected.fit["loss"], rel=1e-5)
    # And on.
    both = ("-c", calibration)
    metrics = printed_json("evaluate", features, *both, "-o", "-")["metrics"]["temp"]
    without = printed_json("evaluate", left, "-c", other, "-o", "-")["metrics"]["temp"]
    for name in ("ece", "nll", "brier", "smooth_ece", "calibration", "sharpness"):
        assert metrics[name] == pytest.approx(without[name], abs=1e-4), name
    covcal("apply", features, *both, "-o", tmp_path / "p.npz").require_success()
    with np.load(tmp_path / "p.npz") as applied:
        assert (applied["probabilities"][:, MASKED] == 0).all()
    if np.isinf(value):
        covcal("estimate", features).require_success()
        covcal("report", features, *both, "-o", tmp_path / "r.html").require_success()
    if value != LOWEST:
        exported = covcal("export", model, *both, "-o", tmp_path / "e.onnx").require_success()
        assert "labels identical" in exported.err + exported.out
