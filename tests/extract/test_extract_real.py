"""Real classifiers on real digits: the published errors, to the second decimal."""

from pathlib import Path

import numpy as np
import pytest

from covcal_cli.classifiers.open import open_classifier
from covcal_cli.extract.extract import ExtractReport, extract
from covcal_cli.extract.settings import ExtractSettings
from tests.real_data import real_data

pytestmark = pytest.mark.real

MNIST_NET, USPS_NET = "models/park2020_lenet_mnist.onnx", "models/park2020_lenet_usps.onnx"


def run(model: str, data: str, folder: Path) -> ExtractReport:
    with np.load(real_data(data), allow_pickle=False) as arrays:
        x, y = arrays["test_x"], arrays["test_y"]
    np.savez(folder / "test.npz", x=x, y=y)
    settings = ExtractSettings(fractions=(0.0, 0.0, 1.0))  # all of them are unseen
    return extract(real_data(model), folder / "test.npz", None, folder / "f.h5", settings)


@pytest.mark.parametrize(
    ("model", "data", "error"),
    [
        (MNIST_NET, "mnist.npz", "0.89"),
        (MNIST_NET, "usps.npz", "22.52"),
        (USPS_NET, "mnist.npz", "47.44"),
    ],
)
def test_the_papers_classifiers_give_the_papers_errors(
    model: str, data: str, error: str, tmp_path: Path
) -> None:
    report = run(model, data, tmp_path)
    assert report.source_accuracy is not None
    assert f"{100 * (1 - report.source_accuracy.share):.2f}" == error
    assert "phi 84, 10 classes, output = logits" in report.head


def test_an_output_of_features_is_not_taken_for_the_classes() -> None:
    opened = open_classifier(real_data("models/svhnnet.onnx"))
    with np.load(real_data("svhn.npz"), allow_pickle=False) as arrays:
        x, y = arrays["x"][:500], arrays["y"][:500]
    pixels = np.moveaxis(x, 3, 1).astype(np.float32) / 255
    classifier = opened.prove({opened.inputs[0].name: pixels})
    _, logits = classifier.run({opened.inputs[0].name: pixels})
    assert (classifier.features_tensor, classifier.n_features) == ("features", 256)
    assert classifier.logits_tensor == "logits"
    assert classifier.proof.error <= 1e-5
    assert (logits.argmax(axis=1) == y).mean() > 0.9
