"""What an ONNX file says of its classes: metadata, and labels of its operators."""

from dataclasses import replace
from pathlib import Path

import pytest

from covcal_cli.classifiers.onnx.classifier import OpenedOnnx
from tests.classifiers.onnx.onnx_chosen_cases import NAMES, W6, linear_classifier, tree
from tests.classifiers.onnx.onnx_float_cases import B
from tests.classifiers.onnx.onnx_graphs import GEMM, HIDDEN, Graph, node
from tests.classifiers.opening import open_onnx

SOFTMAX = Graph([*HIDDEN, GEMM, node("Softmax", "z", "y", axis=1)])


def opened(folder: Path, **metadata: str) -> OpenedOnnx:
    return open_onnx(replace(SOFTMAX, metadata=metadata).save(folder))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("names", "{0: 'cat', 1: 'dog', 2: 'eel'}"),
        ("names", '{"0": "cat", "1": "dog", "2": "eel"}'),
        ("names", "['cat', 'dog', 'eel']"),
        ("classes", '["cat", "dog", "eel"]'),
        ("labels", '["cat", "dog", "eel"]'),
        ("class_names", '["cat", "dog", "eel"]'),
        ("id2label", '{"2": "eel", "0": "cat", "1": "dog"}'),
        ("character", "cat\ndog\neel"),  # PaddleOCR
        ("character", "cat\r\ndog\r\neel\r\n"),
        ("names", "cat\ndog\neel"),
    ],
)
def test_names_in_the_metadata_are_read(key: str, text: str, tmp_path: Path) -> None:
    classifier = opened(tmp_path, **{key: text})
    assert classifier.class_names == ("cat", "dog", "eel")
    assert classifier.metadata == {key: text}
    assert classifier.notes == ()


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("['cat', 'dog']", "holds 2 class names instead of 3, so covcal does not use these names"),
        (
            "['crane', 'dog', 'crane']",
            "has the class name 'crane' twice, so covcal does not use these names",
        ),
    ],
)
def test_names_that_do_not_fit_are_left_out_with_a_note(
    text: str, note: str, tmp_path: Path
) -> None:
    classifier = opened(tmp_path, names=text)
    assert classifier.class_names is None
    assert [value for value in classifier.notes if value.endswith(note)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cat, dog, eel",
        "cat\n\ndog",
        "__import__('os').getcwd()",
        "{0: 'cat', 1: 'dog', 3: 'eel'}",
        "{'a': 'cat'}",
        "[[1], [2], [3]]",
        "('('" * 500,
        "3",
    ],
)
def test_what_is_no_list_of_names_is_ignored(text: str, tmp_path: Path) -> None:
    classifier = opened(tmp_path, names=text)
    assert classifier.class_names is None
    assert classifier.notes == ()


@pytest.mark.parametrize("zipped", [True, False])
def test_labels_of_a_linear_classifier_are_names(zipped: bool, tmp_path: Path) -> None:
    graph = linear_classifier("SOFTMAX", W6, B, zipped=zipped)
    assert open_onnx(graph.save(tmp_path)).class_names == tuple(NAMES)


def test_labels_of_a_tree_are_names(tmp_path: Path) -> None:
    assert open_onnx(tree().save(tmp_path), phi="none").class_names == tuple(NAMES)


def test_a_model_that_says_nothing_has_no_names(tmp_path: Path) -> None:
    classifier = opened(tmp_path)
    assert classifier.class_names is None
    assert classifier.metadata == {}
