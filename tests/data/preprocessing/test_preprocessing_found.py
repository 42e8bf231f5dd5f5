"""Preprocessing that a model brings along: in its metadata, or in a file beside it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from covcal_cli.classifiers.open import open_classifier
from covcal_cli.data.preprocessing.configs import found_preprocessing, load_preprocessing
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.errors import CovcalError
from tests.classifiers.onnx.onnx_graphs import Graph, node
from tests.made_rows import row_of

VIT = {"image_processor_type": "ViTImageProcessor"}


def save(content: Any, folder: Path) -> Path:
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_file_beside_the_model_is_found_and_named(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    assert found_preprocessing({}, model) is None
    assert found_preprocessing({}, None) is None
    (tmp_path / "config.json").write_text('{"model_type": "vit"}', encoding="utf-8")
    assert found_preprocessing({}, model) is None
    expected = load_preprocessing(str(save({**VIT, "size": 8}, tmp_path)), metadata={})
    found = found_preprocessing({}, model)
    assert found is not None
    assert found[0] == expected
    assert found[1] == f"{tmp_path}/preprocessor_config.json (beside the model)"
    # Exports for the browser keep the model in a folder of its own.
    (tmp_path / "onnx").mkdir()
    assert found_preprocessing({}, tmp_path / "onnx" / "model.onnx") == found
    (tmp_path / "other").mkdir()
    assert found_preprocessing({}, tmp_path / "other" / "model.onnx") is None


def test_a_file_beside_the_model_that_cannot_be_followed_is_an_error(tmp_path: Path) -> None:
    save({**VIT, "do_pad": True}, tmp_path)
    with pytest.raises(CovcalError, match=r"the settings do_pad.*pass --preprocess none"):
        found_preprocessing({}, tmp_path / "model.onnx")


def test_preprocessing_that_a_model_brings_along_gives_its_own_answers(tmp_path: Path) -> None:
    """Users report that exported models give other answers than their own framework.

    The classifier compares the left and the right of the centre. The input size alone suggests
    squashing a wide image, and this moves the edges of the image into view.
    """
    weight = np.zeros((2, 16), np.float32)
    weight[0].reshape(4, 4)[:, :2] = weight[1].reshape(4, 4)[:, 2:] = 1
    constants = {"wk": weight, "bk": np.zeros(2, np.float32)}
    nodes = [node("Flatten", "x", "phi", axis=1), node("Gemm", "phi wk bk", "y", transB=1)]
    proto = Graph(nodes, constants=constants, shape=("N", 1, 4, 4)).model()
    onnx.helper.set_model_props(proto, {"imgsz": "[4, 4]", "task": "classify"})
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())

    image = np.zeros((4, 12), np.uint8)
    image[:, :4], image[:, 6:8] = 255, 100  # bright far left, grey right of the centre
    classifier = open_classifier(path)
    (wanted,) = classifier.inputs

    def logits(asked: Preprocessing) -> Any:
        pipeline = asked.resolve(wanted.shape, wanted.dtype)
        row = row_of(pipeline, Image.fromarray(image))
        batch = {wanted.name: row[None]}
        return classifier.prove(batch).run(batch)[1][0]

    found = found_preprocessing(classifier.metadata, path)
    assert found is not None
    np.testing.assert_allclose(logits(found[0]), [0, 8 * 100 / 255], rtol=1e-6)
    squashed = logits(Preprocessing())
    assert squashed[0] > squashed[1]
