"""The proof over many batches: what it holds every batch to, and what it says afterwards."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from covcal_cli.arrays import Inputs
from covcal_cli.classifiers import proof
from covcal_cli.classifiers.onnx.classifier import OriginalModel
from covcal_cli.classifiers.onnx.runner import Runner
from covcal_cli.errors import CovcalError
from tests.classifiers.onnx.onnx_case import Array, inputs_of
from tests.classifiers.onnx.onnx_float_cases import FLOAT_CASES
from tests.classifiers.onnx.onnx_graphs import D_IN, GEMM, HIDDEN, WEIGHTS, Graph, node
from tests.classifiers.onnx.onnx_quantised_cases import QUANTISED_CASES
from tests.classifiers.opening import open_onnx

SOFTMAX = FLOAT_CASES["softmax"].graph


NO_BIAS = {"b1": np.zeros(5, np.float32), "b": np.zeros(3, np.float32)}


def rows(n: int, scale: float = 1.0) -> dict[str, Array]:
    values = np.random.default_rng(4).normal(size=(n, D_IN)) * scale
    return {"x": values.astype(np.float32)}


def test_the_proofs_numbers_depend_on_the_rows_and_not_on_the_batches(tmp_path: Path) -> None:
    path = SOFTMAX.save(tmp_path)
    x = rows(60)["x"]
    whole = open_onnx(path).prove({"x": x})
    pieces = open_onnx(path).prove({"x": x[:7]})
    for start in range(0, 60, 7):
        pieces.run({"x": x[start : start + 7]})
    assert whole.proof.largest_difference == pieces.proof.largest_difference
    assert whole.proof.largest_logit == pieces.proof.largest_logit
    assert whole.proof.error == pieces.proof.error
    assert whole.proof.error == whole.proof.largest_difference / whole.proof.largest_logit


def test_shards_of_the_rows_merge_to_the_whole(tmp_path: Path) -> None:
    path = SOFTMAX.save(tmp_path)
    x = rows(60)["x"]
    whole = open_onnx(path).prove({"x": x})
    shards = [open_onnx(path).prove({"x": x[index::3]}) for index in range(3)]
    difference = max(shard.proof.largest_difference for shard in shards)
    assert difference == whole.proof.largest_difference
    assert max(shard.proof.largest_logit for shard in shards) == whole.proof.largest_logit


def test_a_soft_cap_on_the_logits_is_refused(tmp_path: Path) -> None:
    nodes = [
        *HIDDEN,
        GEMM,
        node("Div", "z cap", "small"),
        node("Tanh", "small", "bounded"),
        node("Mul", "bounded cap", "y"),
    ]
    graph = Graph(nodes, constants={"cap": np.array(30, np.float32)})
    with pytest.raises(CovcalError, match=r"computed from the logits .* Tanh changes"):
        open_onnx(graph.save(tmp_path)).prove(rows(8))


def test_a_cap_that_small_logits_do_not_show_is_caught_when_they_grow(tmp_path: Path) -> None:
    """tanh(z) is z where z is small: the first batch cannot tell."""
    graph = Graph([*HIDDEN, GEMM, node("Tanh", "z", "y")], constants=NO_BIAS)
    opened = open_onnx(graph.save(tmp_path))
    classifier = opened.prove(rows(8, 1e-4))
    assert classifier.tail == "none"
    with pytest.raises(CovcalError, match=r"computed from the logits .* Tanh changes"):
        classifier.run(rows(8))


@pytest.mark.parametrize("phi", [None, "none", "input"])
@pytest.mark.parametrize("first", [1e-3, 1e5])
def test_a_sum_of_exponentials_may_be_off_by_what_large_logits_are_rounded(
    first: float, phi: str | None, tmp_path: Path
) -> None:
    """A naive Bayes adds up long documents, and exp(z - log sum exp z) sums to 1 within 1e-3."""
    nodes = [
        *HIDDEN,
        GEMM,
        node("ReduceLogSumExp", "z", "sum", axes=[1], keepdims=1),
        node("Sub", "z sum", "logs"),
        node("Exp", "logs", "y"),
    ]
    small = {name: values * np.float32(1e-4) for name, values in WEIGHTS.items() if name == "w"}
    offset = {"b": WEIGHTS["b"] + np.float32(1e4)}
    graph = Graph(nodes, constants=NO_BIAS | small | offset)
    classifier = open_onnx(graph.save(tmp_path), phi=phi).prove(rows(1, first))
    for scale in (1e-3, 1.0, 1e5):
        classifier.run(rows(30, scale))
    assert classifier.tail == "softmax"


def test_a_single_row_with_cancelling_logits_is_no_error() -> None:
    """Logits near zero can be the difference of large terms, whose rounding is not theirs."""
    difference = np.float32(1e-5)
    found = proof.Proof()
    phi, weight = np.ones((1, 1)), np.full((1, 1), 10.0)
    error = found.add(phi, weight, np.array([-10.0]), np.array([[difference]]), 1e-5, 0.0)
    assert error is None


@pytest.mark.parametrize("step", [0.0, 0.5])
def test_a_step_is_allowed_and_no_more(step: float) -> None:
    phi, weight, bias = np.ones((2, 3)), np.ones((4, 3)), np.zeros(4)
    logits = phi @ weight.T
    assert proof.Proof().add(phi, weight, bias, logits + 0.9 * step, 1e-5, step) is None
    off = proof.Proof()
    assert off.add(phi, weight, bias, logits + 1.1 * step + 1e-3, 1e-5, step) is not None
    assert (off.largest_difference, off.largest_logit) == (0.0, 0.0)


def test_not_a_number_is_never_proved() -> None:
    phi, weight, bias = np.ones((2, 3)), np.ones((4, 3)), np.zeros(4)
    logits = np.full((2, 4), np.nan)
    assert proof.Proof().add(phi, weight, bias, logits, 1e-5, 0.0) is not None


def test_labels_alone_are_held_to_the_largest_logit() -> None:
    logits = np.array([[1.0, 3.0, 2.0], [5.0, 4.0, 0.0]])
    assert proof.tail_error(proof.ARGMAX, logits, np.array([[1], [0]])) == 0
    assert proof.tail_error(proof.ARGMAX, logits, np.array([[1], [1]])) > 0.1
    assert proof.tail_error(proof.ARGMAX, logits, np.array([[1], [3]])) == float("inf")


def test_notes_say_how_the_output_is_to_be_read(tmp_path: Path) -> None:
    def notes(name: str) -> str:
        case = FLOAT_CASES[name]
        opened = open_onnx(case.save(tmp_path))
        classifier = opened.prove(inputs_of(case.graph))
        return " ".join(classifier.notes)

    assert "gives one sigmoid per class, but covcal uses the softmax" in notes(
        "a sigmoid per class"
    )
    assert "one number per row. covcal uses this number" in notes("one logit and its sigmoid")
    assert "returns only a label" in notes("argmax alone")
    assert notes("softmax") == ""


def test_logits_of_one_sigmoid_are_zero_and_its_argument(tmp_path: Path) -> None:
    case = FLOAT_CASES["one logit and its sigmoid"]
    opened = open_onnx(case.save(tmp_path))
    classifier = opened.prove(inputs_of(case.graph))
    features, logits = classifier.run(inputs_of(case.graph))
    assert features is not None
    assert classifier.weight is not None
    assert classifier.bias is not None
    assert not logits[:, 0].any()
    assert not classifier.weight[0].any()
    assert classifier.bias[0] == 0
    np.testing.assert_allclose(
        features @ classifier.weight.T + classifier.bias, logits, rtol=1e-5, atol=1e-6
    )


def test_a_model_whose_fused_operators_round_differently_is_read_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch decides, and its rows are then read in the same way as all others."""
    case = QUANTISED_CASES["QDQ"]
    opened = open_onnx(case.save(tmp_path))
    measured = [0.1, 0.1, 0.0]  # as it is against fused; without fusing against fused, unfused
    fused = opened._reading.runner

    def error(*_: object) -> float:
        return measured.pop(0)

    read: list[bool] = []
    run = Runner.run

    def recorded(runner: Runner, names: Sequence[str], batch: Inputs) -> dict[str, Array]:
        read.append(runner is fused)
        return run(runner, names, batch)

    monkeypatch.setattr(OriginalModel, "difference", error)
    monkeypatch.setattr(OriginalModel, "require_same", lambda *_, **__: None)
    monkeypatch.setattr(OriginalModel, "require_repeatable", lambda *_: None)
    monkeypatch.setattr(Runner, "run", recorded)
    classifier = opened.prove(inputs_of(case.graph))
    assert measured == []
    assert read == [True, True, False, False]
    assert classifier.exposure_error == 0.0
    assert any(
        "rounding changes the model's output by up to 0.1" in note for note in classifier.notes
    )


def test_a_model_that_changes_when_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OriginalModel, "difference", lambda *_, **__: 0.1)
    opened = open_onnx(SOFTMAX.save(tmp_path))
    with pytest.raises(CovcalError, match="reading tensors inside this model changes"):
        opened.prove(rows(5))


@pytest.mark.parametrize("phi", [None, "none"])
def test_a_quantised_model_is_held_to_itself_on_every_batch(
    phi: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators that reading keeps from being fused may move some rows only, in a later batch."""
    case = QUANTISED_CASES["QDQ"]
    opened = open_onnx(case.save(tmp_path), phi=phi)
    batch = inputs_of(case.graph)
    classifier = opened.prove(batch)
    classifier.run(batch)
    monkeypatch.setattr(OriginalModel, "difference", lambda *_: 0.3)
    remedy = "pass --phi none to keep only the logits, or " if phi is None else ""
    told = rf"changes its output by 0\.3 \(relative\): {remedy}extract from"
    with pytest.raises(CovcalError, match=told) as error:
        classifier.run(batch)
    assert str(error.value).endswith("extract from the model before quantisation")


@pytest.mark.parametrize("name", FLOAT_CASES)
def test_a_float_model_is_run_twice_on_its_first_batch_alone(name: str, tmp_path: Path) -> None:
    """There reading is exact, and twice the time would buy nothing."""
    case = FLOAT_CASES[name]
    opened = open_onnx(case.save(tmp_path), **case.options)
    classifier = opened.prove(inputs_of(case.graph))
    assert classifier._original is None


def test_a_model_with_dice_inside_is_told_from_one_that_reading_changes(tmp_path: Path) -> None:
    """Dropout that was left on, as its exporters write it."""
    constants = {"ratio": np.array(0.5, np.float32), "training": np.array(True)}
    nodes = [
        node("Gemm", "x w1 b1", "hidden"),
        node("Dropout", "hidden ratio training", "phi"),
        node("Gemm", "phi w b", "y", transB=1),
    ]
    path = Graph(nodes, constants=constants).save(tmp_path)
    with pytest.raises(CovcalError, match=r"different outputs for the same rows .*model\.eval\(\)"):
        open_onnx(path).prove(rows(5))


def test_a_number_that_an_embedding_does_not_know_is_called_that(tmp_path: Path) -> None:
    """Neither the preprocessing nor the batch has anything to do with it."""
    case = FLOAT_CASES["tokens and a mask"]
    opened = open_onnx(case.save(tmp_path))
    batch = inputs_of(case.graph)
    classifier = opened.prove(batch)
    batch["input_ids"][3] = 500
    with pytest.raises(
        CovcalError, match=r"does not know a category number .*idx=500 .*: number the categories"
    ):
        classifier.run(batch)
