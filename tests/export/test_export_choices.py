"""What extract was told with --phi and --model-output, export finds out by itself."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.special import softmax

from covcal_cli.records import write_document
from tests.classifiers.onnx.onnx_graphs import D_IN, HIDDEN, WEIGHTS, Graph, K, node
from tests.classifiers.opening import open_classifier
from tests.cli_runner import covcal
from tests.export.export_cases import (
    calibrated,
    expected_probabilities,
    made_networks,
    rows,
    run_bare,
    tensors_of,
)

RNG = np.random.default_rng(4)
CONSTANTS = {
    "wa": RNG.normal(size=(K, 5)).astype(np.float32),
    "wb": RNG.normal(size=(K, 5)).astype(np.float32),
}
TWO = Graph(
    [
        *HIDDEN,
        node("Gemm", "phi wa b", "main", transB=1),
        node("Gemm", "phi wb b", "aux", transB=1),
        node("Softmax", "aux", "p", axis=1),
    ],
    outputs=("main", "p"),
    constants=CONSTANTS,
)
TORCH = """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU())
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        h = self.body(x)
        return {"main": self.a(h), "aux": self.b(h)}

def two():
    return Two().eval()

class Shares(Two):
    def forward(self, x):
        shares = nn.functional.softplus(self.a(self.body(x)))
        return shares / shares.sum(1, keepdim=True)

def shares():
    return Shares().eval()
"""


def extracted(folder: Path, model: str, *options: str) -> None:
    """Extract made rows and calibrate them by one temperature."""
    for name in ("s.npz", "t.npz"):
        np.savez(folder / name, x=rows(n=120), y=np.arange(120) % 3)
    covcal("extract", model, "s.npz", "t.npz", *options, cwd=folder).require_success()
    fit = ("calibrate", "features.h5", "--method", "temp", "-o", "cal.json", "--force")
    covcal(*fit, cwd=folder).require_success()


def temperature(folder: Path) -> float:
    from covcal_cli.formats.calibration import read_calibration

    return read_calibration(folder / "cal.json").forecaster_temperature


@pytest.mark.parametrize(("output", "logits"), [("main", "main"), ("p", "aux")])
def test_the_output_that_was_extracted(output: str, logits: str, tmp_path: Path) -> None:
    """Of two heads export takes the one that the features file was made from."""
    TWO.save(tmp_path)
    extracted(tmp_path, "model.onnx", "--model-output", output)
    covcal("export", "model.onnx", cwd=tmp_path).require_success()
    after = run_bare(tmp_path / "calibrated.onnx", {"x": rows()})
    (z,) = tensors_of(tmp_path / "model.onnx", [logits], {"x": rows()})
    expected = softmax(z.astype(np.float64) / temperature(tmp_path), axis=1)
    np.testing.assert_array_equal(after["label"], z.argmax(axis=1))
    np.testing.assert_allclose(after["probabilities"], expected, atol=1e-6)


def test_without_the_features_file_an_older_calibration_asks(tmp_path: Path) -> None:
    """Such a calibration does not name the head that it was fitted on; --model-output names it."""
    TWO.save(tmp_path)
    extracted(tmp_path, "model.onnx", "--model-output", "p")
    (tmp_path / "features.h5").unlink()
    covcal("export", "model.onnx", "-o", "known.onnx", cwd=tmp_path).require_success()
    content = json.loads((tmp_path / "cal.json").read_text())
    del content["reading"]
    write_document(content, tmp_path / "cal.json", force=True)
    line = covcal("export", "model.onnx", cwd=tmp_path).error_line()
    assert line.endswith("choose one with --model-output NAME")
    covcal("export", "model.onnx", "--model-output", "p", cwd=tmp_path).require_success()


def test_another_output_than_the_one_extracted_is_refused(tmp_path: Path) -> None:
    TWO.save(tmp_path)
    extracted(tmp_path, "model.onnx", "--model-output", "p")
    line = covcal("export", "model.onnx", "--model-output", "main", cwd=tmp_path).error_line()
    assert "was made from the logits aux of model.onnx, but the model's logits are now main" in line


# Probabilities that no softmax at the end gives away: rows tell, and export takes their word.
PLAIN_PROBABILITIES = {
    "shares": [node("Softplus", "z", "s"), node("ReduceSum", "s last", "sum", keepdims=1)],
    "percentages": [node("Softmax", "z", "s", axis=1), node("Reciprocal", "hundred", "sum")],
}


@pytest.mark.parametrize(("kind", "phi"), [("shares", "none"), ("percentages", "input")])
def test_probabilities_that_rows_told(kind: str, phi: str, tmp_path: Path) -> None:
    """A calibration of settled probabilities fits the model that it was made from."""
    Graph(
        [
            *HIDDEN,
            node("Gemm", "phi wa b", "z", transB=1),
            *PLAIN_PROBABILITIES[kind],
            node("Div", "s sum", "y"),
        ],
        outputs=("y",),
        constants=CONSTANTS | {"last": np.array([1]), "hundred": np.array(100, np.float32)},
    ).save(tmp_path)
    extracted(tmp_path, "model.onnx", "--phi", phi)
    covcal("export", "model.onnx", cwd=tmp_path).require_success()
    after = run_bare(tmp_path / "calibrated.onnx", {"x": rows()})
    expected = softmax(np.log(after["y"].astype(np.float64)) / temperature(tmp_path), axis=1)
    np.testing.assert_allclose(after["probabilities"], expected, atol=1e-6)


@pytest.mark.parametrize("phi", ["phi", "input"])
def test_the_features_that_were_extracted(phi: str, tmp_path: Path) -> None:
    """The networks of an fl method read the phi that was chosen, of the head that was chosen."""
    path = TWO.save(tmp_path)
    classifier = open_classifier(path, output="p", phi=phi)
    width = D_IN if phi == "input" else len(WEIGHTS["b1"])
    networks = made_networks(width, K)
    case = calibrated(
        path,
        method="fl+temp",
        phi=str(classifier.features_tensor),
        logits=classifier.logits_tensor,
        width=width,
        networks=networks,
    )
    case.export().require_success()
    after = run_bare(case.output, {"x": rows()})
    z, features = tensors_of(path, ["aux", "phi"], {"x": rows()})
    features = rows() if phi == "input" else features
    expected = expected_probabilities(z, case.temperature, networks, features)
    np.testing.assert_array_equal(after["label"], z.argmax(axis=1))
    np.testing.assert_allclose(after["probabilities"], expected, atol=1e-5)


def test_the_same_for_torch(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    (tmp_path / "covcal_made_nets.py").write_text(TORCH)
    model, output = "covcal_made_nets:two", "aux"
    extracted(tmp_path, model, "--model-output", output, "--phi", "body.1")
    covcal("export", model, cwd=tmp_path).require_success()
    exported = torch.export.load(tmp_path / "calibrated.pt2").module()
    with torch.inference_mode():
        answer = exported(torch.from_numpy(rows()))
    after = {name: value.numpy() for name, value in answer.items()}
    z = after[output].astype(np.float64)
    expected = softmax(z / temperature(tmp_path), axis=1)
    np.testing.assert_array_equal(after["label"], z.argmax(axis=1))
    np.testing.assert_allclose(after["probabilities"], expected, atol=1e-6)
    with h5py.File(tmp_path / "features.h5") as file:
        assert file.attrs["features_tensor"] == "body.1.output"


def test_probabilities_of_torch_that_rows_told(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    (tmp_path / "covcal_made_nets.py").write_text(TORCH)
    model = "covcal_made_nets:shares"
    extracted(tmp_path, model, "--phi", "none")
    covcal("export", model, cwd=tmp_path).require_success()
    exported = torch.export.load(tmp_path / "calibrated.pt2").module()
    with torch.inference_mode():
        after = exported(torch.from_numpy(rows()))
    logits = after["output"].double().log().numpy()
    expected = softmax(logits / temperature(tmp_path), axis=1)
    np.testing.assert_allclose(after["probabilities"].numpy(), expected, atol=1e-6)
