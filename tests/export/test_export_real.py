"""The exported LeNet of the paper, run by bare ONNX Runtime on USPS: evaluate's own figures."""

import json
from pathlib import Path

import h5py
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.cli_runner import covcal
from tests.real_data import real_data
from tests.short_training import short_training

pytestmark = pytest.mark.real

MODEL = "models/park2020_lenet_mnist.onnx"
ROWS = 1500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of MNIST and USPS test images, and the raw images of USPS."""
    made = tmp_path_factory.mktemp("lenet")
    for name in ("mnist", "usps"):
        with np.load(real_data(f"{name}.npz"), allow_pickle=False) as arrays:
            np.savez(made / f"{name}.npz", x=arrays["test_x"][:ROWS], y=arrays["test_y"][:ROWS])
    covcal(
        "extract", real_data(MODEL), "mnist.npz", "usps.npz", "-o", "features.h5", cwd=made
    ).require_success()
    return made


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def pixels(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return images as the model takes them: 28 x 28 by Pillow's bilinear filter, 0 to 1."""
    sized = [Image.fromarray(image).resize((28, 28), Image.Resampling.BILINEAR) for image in images]
    stacked: NDArray[np.float32] = np.stack([np.asarray(image, np.float32) for image in sized])
    return stacked[:, None] / np.float32(255)


def ece_by_hand(confidence: NDArray[np.float64], correct: NDArray[np.bool_]) -> float:
    """Return the expected calibration error of 15 bins closed on the right."""
    bins = np.clip(np.ceil(confidence * 15) - 1, 0, 14).astype(int)
    gaps = [
        abs(confidence[bins == number].sum() - correct[bins == number].sum())
        for number in range(15)
    ]
    return float(sum(gaps) / len(confidence))


@pytest.mark.parametrize("method", ["temp", "fl+temp"])
def test_its_confidences_are_those_that_evaluate_judged(folder: Path, method: str) -> None:
    """ECE to 1e-4, labels to the bit; psi and the averaged heads run inside the model."""
    features = "features.h5"
    if method == "fl+temp":
        features = "adapted.h5"
        with short_training(200, members=2):
            covcal("adapt", "features.h5", "-o", features, "-f", cwd=folder).require_success()
    cal, output = f"{method}.json", f"{method}.onnx"
    for command in (
        ("calibrate", features, "--method", method, "-o", cal),
        ("export", real_data(MODEL), "-c", cal, "-o", output),
        ("evaluate", features, "-c", cal, "-o", f"{method}.metrics.json"),
    ):
        covcal(*command, cwd=folder).require_success()
    with h5py.File(folder / "features.h5") as file:
        test = file["target/split"][:] == 2
    with np.load(folder / "usps.npz") as arrays:
        x, y = arrays["x"][test], arrays["y"][test]
    before, after = session(real_data(MODEL)), session(folder / output)
    x = pixels(x)
    (only,) = before.get_inputs()
    assert [value.name for value in after.get_inputs()] == [only.name]
    names = [value.name for value in after.get_outputs()]
    found = dict(zip(names, after.run(names, {only.name: x}), strict=True))
    logits = np.asarray(before.run(None, {only.name: x})[0])
    np.testing.assert_array_equal(found[names[0]], logits)
    np.testing.assert_array_equal(found["label"], logits.argmax(axis=1))
    content = json.loads((folder / f"{method}.metrics.json").read_text(encoding="utf-8"))
    confidence = np.asarray(found["confidence"], dtype=np.float64)
    ece = ece_by_hand(confidence, found["label"] == y)
    assert content["n"] == len(y) > 200
    assert ece == pytest.approx(content["metrics"][method]["ece"], abs=1e-4)
    assert ece != pytest.approx(content["metrics"]["none"]["ece"], abs=1e-2)
