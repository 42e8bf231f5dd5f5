"""``--phi`` on models that declare little: what is learnt from the first batch instead."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covcal_cli.errors import CovcalError
from covcal_cli.extract.extract import extract
from covcal_cli.extract.settings import ExtractSettings
from tests.classifiers.onnx.onnx_case import head_of, inputs_of
from tests.classifiers.onnx.onnx_chosen_cases import tree
from tests.classifiers.onnx.onnx_float_cases import SOFTMAX, WT
from tests.classifiers.onnx.onnx_graphs import (
    CHANNELS,
    CONV_HIDDEN,
    D_IN,
    GEMM,
    HIDDEN,
    WEIGHTS,
    D,
    Graph,
    K,
    Node,
    node,
)
from tests.classifiers.onnx.onnx_wide_cases import slice_of
from tests.classifiers.opening import open_onnx
from tests.classifiers.settled import settled

W, B = WEIGHTS["w"], WEIGHTS["b"]


def free_width() -> Graph:
    hidden = [node("MatMul", "rows w1", "h1"), *HIDDEN[1:]]
    return Graph(
        [node("Reshape", "x size", "rows"), *hidden, GEMM, SOFTMAX],
        constants={"size": np.array([0, -1], np.int64)},
        shape=("N", "width"),
    )


def test_features_of_unknown_width_are_known_after_the_first_batch(tmp_path: Path) -> None:
    opened = open_onnx(free_width().save(tmp_path), phi="rows")
    assert opened.prove(None).n_features is None
    assert opened.prove(None).weight is None
    x = np.random.default_rng(0).normal(size=(9, D_IN)).astype(np.float32)
    classifier = opened.prove({"x": x})
    features, _ = classifier.run({"x": x})
    assert classifier.n_features == D_IN
    np.testing.assert_array_equal(features, x)
    assert classifier.weight is None  # a relu lies between


def test_rows_of_another_size_than_the_first_are_refused(tmp_path: Path) -> None:
    nodes = [*CONV_HIDDEN, node("GlobalAveragePool", "maps", "m"), node("Flatten", "m", "phi")]
    graph = Graph([*nodes, GEMM, SOFTMAX], shape=("N", CHANNELS, "H", "W"))
    small, large = (np.ones((4, CHANNELS, side, side), np.float32) for side in (4, 5))
    classifier = open_onnx(graph.save(tmp_path), phi="input").prove({"x": small})
    assert classifier.n_features == CHANNELS * 4 * 4
    with pytest.raises(CovcalError, match="gives 50 features per row on this batch, but 32"):
        classifier.run({"x": large})


def test_an_affine_map_of_unknown_width_is_found_on_the_first_batch(tmp_path: Path) -> None:
    graph = Graph(
        [
            node("Reshape", "x size", "rows"),
            node("Gemm", "rows w55 b5", "phi", transB=1),
            GEMM,
            SOFTMAX,
        ],
        constants={
            "size": np.array([0, -1], np.int64),
            "w55": np.random.default_rng(2).normal(size=(D, D)).astype(np.float32),
            "b5": np.ones(D, np.float32),
        },
        shape=("N", "width"),
    )
    opened = open_onnx(graph.save(tmp_path), phi="input")
    x = np.random.default_rng(0).normal(size=(9, D)).astype(np.float32)
    classifier = opened.prove({"x": x})
    w55, b5 = graph.constants["w55"], graph.constants["b5"]
    np.testing.assert_allclose(head_of(classifier)[0], W @ w55, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(head_of(classifier)[1], W @ b5 + B, rtol=1e-4, atol=1e-5)
    assert classifier.proof.error < 1e-5


def moved(graph: Graph) -> list[Node]:
    """Return the nodes, which read c in place of x."""
    return [
        (op, ["c" if name == "x" else name for name in inputs], output, attributes)
        for op, inputs, output, attributes in graph.nodes
    ]


def natural_tree() -> Graph:
    """A tree on columns in natural units: constant wherever made numbers lie."""
    graph = tree()
    op, inputs, output, attributes = graph.nodes[0]
    values = {"nodes_values": [52000.0, 0.0, 0.0]}
    return replace(graph, nodes=[(op, inputs, output, attributes | values)])


CLIPPED = Graph(
    [node("Clip", "x low high", "y")],
    constants={"low": np.array(-1e6, np.float32), "high": np.array(1e6, np.float32)},
    shape=("N", K),
    shapes={"y": ["N", K]},
)


@pytest.mark.parametrize(("graph", "width"), [(natural_tree(), D_IN), (CLIPPED, K)])
def test_chosen_features_that_do_not_give_the_scores_have_no_linear_head(
    graph: Graph, width: int, tmp_path: Path
) -> None:
    """Made numbers may show an affine map, or a constant, where real rows show neither."""
    x = np.random.default_rng(0).normal(scale=3, size=(9, width)).astype(np.float32)
    classifier = open_onnx(graph.save(tmp_path), phi="input").prove({"x": x})
    assert (classifier.weight is None) == (width == D_IN)
    features, _ = classifier.run({"x": 1e6 * x})
    np.testing.assert_array_equal(features, 1e6 * x)
    assert classifier.weight is None
    assert "no linear head" in classifier.describe()
    assert open_onnx(graph.save(tmp_path), phi="input").prove({"x": 1e6 * x}).weight is None


def test_probabilities_alone_become_logarithms_with_a_note(tmp_path: Path) -> None:
    opened = open_onnx(tree().save(tmp_path), phi="none")
    classifier = opened.prove(inputs_of(tree()))
    _, logits = settled(classifier, inputs_of(tree()))
    found = {tuple(row) for row in np.round(np.exp(logits.astype(np.float64)), 6)}
    assert found == {(0.7, 0.3, 0.0), (0.0, 0.2, 0.8)}
    assert np.isfinite(logits).all()
    assert any("below 1e-38 count as 1e-38" in note for note in classifier.notes)


def test_scores_between_zero_and_one_are_read_as_logits_with_a_warning(tmp_path: Path) -> None:
    graph = Graph([node("Abs", "x", "y")], shape=("N", K), shapes={"y": ["N", K]})
    opened = open_onnx(graph.save(tmp_path), phi="none")
    x = np.array([[0.2, 0.9, 0.5]], np.float32)
    classifier = opened.prove({"x": x})
    _, logits = settled(classifier, {"x": x})
    np.testing.assert_array_equal(logits, x)
    assert "all outputs of 1 rows lie between 0 and 1" in classifier.outputs.warnings[0]


@pytest.mark.parametrize(
    ("graph", "takes"),
    [
        (tree(), True),
        (replace(tree(), nodes=[node("Cast", "x", "c", to=1), *moved(tree())]), True),
        (Graph([*HIDDEN, GEMM, SOFTMAX]), False),
        (replace(tree(), nodes=[node("Relu", "x", "c"), *moved(tree())]), False),
        (Graph([node("Abs", "x", "y")], shape=("N", K), shapes={"y": ["N", K]}), False),
    ],
)
def test_trees_take_missing_values(graph: Graph, takes: bool, tmp_path: Path) -> None:
    assert open_onnx(graph.save(tmp_path), phi="none").inputs[0].takes_missing == takes


@pytest.mark.parametrize("output", [None, "phi", "y"])
def test_an_embedding_beside_the_one_logit_made_of_it_asks_which(
    output: str | None, tmp_path: Path
) -> None:
    row = WEIGHTS["w"][:1]
    nodes = [*HIDDEN, node("Gemm", "phi row", "z", transB=1), node("Squeeze", "z axis", "y")]
    constants = {"row": row, "axis": np.array([1], np.int64)}
    shapes: dict[str, list[Any]] = {"phi": ["N", D], "y": ["N"]}
    graph = Graph(nodes, constants=constants, outputs=("phi", "y"), shapes=shapes)
    path = graph.save(tmp_path)
    if output is None:
        with pytest.raises(CovcalError, match=r"may hold the classes: choose --model-output y"):
            open_onnx(path)
        return
    assert open_onnx(path, output=output).n_classes == (2 if output == "y" else D)


def test_a_confidence_beside_its_scores_is_none_of_the_classes(tmp_path: Path) -> None:
    nodes = [*HIDDEN, GEMM, node("ReduceMax", "z", "top", axes=[1], keepdims=0)]
    graph = Graph(nodes, outputs=("z", "top"), shapes={"z": ["N", K], "top": ["N"]})
    assert open_onnx(graph.save(tmp_path)).n_classes == K


def test_an_opened_classifier_stays_as_it_declared_itself(tmp_path: Path) -> None:
    """What the first batch shows is the proved classifier's, and another batch may show more."""
    nodes = [*HIDDEN, node("MatMul", "phi wt", "m"), node("Slice", "m from to axis", "y")]
    graph = Graph(nodes, constants=slice_of(0, 2) | WT, shapes={"y": ["N", "K"]})
    opened = open_onnx(graph.save(tmp_path), phi="none")
    declared = dict(vars(opened))
    x = np.random.default_rng(0).normal(size=(9, D_IN)).astype(np.float32)
    proved, unproved = opened.prove({"x": x}), opened.prove(None)
    assert vars(opened) == declared
    assert (opened.n_classes, unproved.n_classes, proved.n_classes) == (3, 3, 2)
    assert (unproved.tail, proved.tail) == (None, "none")
    assert "output = " not in unproved.describe()


def test_a_first_batch_that_is_no_number_proves_nothing(tmp_path: Path) -> None:
    opened = open_onnx(Graph([*HIDDEN, GEMM, SOFTMAX]).save(tmp_path))
    classifier = opened.prove({"x": np.full((2, D_IN), np.nan, np.float32)})
    assert classifier.tail is None
    assert np.isnan(classifier.run({"x": np.full((2, D_IN), np.nan, np.float32)})[1]).all()


def test_classes_that_only_the_first_batch_shows_are_refused(tmp_path: Path) -> None:
    """The columns of the file must be the classes that it names; nothing is written otherwise."""
    nodes = [*HIDDEN, node("MatMul", "phi wt", "m"), node("Slice", "m from to axis", "y")]
    graph = Graph(nodes, constants=slice_of(0, 2) | WT, shapes={"y": ["N", "K"]})
    x = np.random.default_rng(0).normal(size=(60, D_IN)).astype(np.float32)
    np.savez(tmp_path / "source.npz", x=x, y=np.arange(60) % 3)
    output = tmp_path / "features.h5"
    settings = ExtractSettings(phi="none")
    with pytest.raises(CovcalError, match="gives 2 scores per row, but its last linear"):
        extract(graph.save(tmp_path), tmp_path / "source.npz", None, output, settings)
    assert list(tmp_path.glob("*features*")) == []
