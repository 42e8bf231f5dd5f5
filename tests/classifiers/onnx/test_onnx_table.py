"""Every kind of ONNX classifier: the head that is found, checked against bare ONNX Runtime."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from scipy import special

from covcal_cli.errors import CovcalError
from tests.classifiers.onnx.onnx_case import Array, Case, inputs_of
from tests.classifiers.onnx.onnx_chosen_cases import CHOSEN_CASES, NAMES, TABULAR_CASES
from tests.classifiers.onnx.onnx_float_cases import FLOAT_CASES
from tests.classifiers.onnx.onnx_quantised_cases import QUANTISED_CASES
from tests.classifiers.onnx.onnx_refused_cases import REFUSED
from tests.classifiers.onnx.onnx_wide_cases import WIDE_CASES
from tests.classifiers.opening import open_onnx
from tests.classifiers.settled import settled

FLOAT = FLOAT_CASES | WIDE_CASES
TABLE = FLOAT | QUANTISED_CASES | TABULAR_CASES | CHOSEN_CASES


def bare(path: Path, output: str, rows: dict[str, Array], batch: int | None) -> Array:
    """Run the file as it is in ONNX Runtime, one output, batch by batch where that is fixed."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    count = len(next(iter(rows.values())))
    size = batch or count
    found: list[Any] = []
    for start in range(0, count, size):
        index = np.minimum(np.arange(start, start + size), count - 1)
        fed = {name: array[index] for name, array in rows.items()}
        found += list(session.run([output], fed)[0])[: count - start]
    if isinstance(found[0], dict):
        found = [[row[name] for name in NAMES] for row in found]
    return np.asarray(found)


def printed(tail: str, logits: Array, single: bool) -> Array:
    """Return what a model with this tail prints, by SciPy."""
    z = logits.astype(np.float64)
    if tail == "argmax":
        return np.asarray(z.argmax(axis=1))
    if single and tail in ("none", "sigmoid"):
        z = z[:, 1:] - z[:, :1]
    made: dict[str, Array] = {
        "none": z,
        "softmax": special.softmax(z, axis=1),
        "log_softmax": special.log_softmax(z, axis=1),
        "sigmoid": special.expit(z),
    }
    return np.asarray(made[tail])


def close(case: Case) -> float:
    halves = case.graph.half or any(
        value.dtype == np.float16 for value in case.graph.constants.values()
    )
    return 5e-3 if halves else 1e-5


@pytest.mark.parametrize("name", TABLE)
def test_the_head_is_found_and_gives_what_the_model_prints(name: str, tmp_path: Path) -> None:
    case = TABLE[name]
    path = case.save(tmp_path)
    rows = inputs_of(case.graph)
    opened = open_onnx(path, **case.options)
    classifier = opened.prove(rows)
    features, logits = settled(classifier, rows)
    assert classifier.describe().startswith(case.layer)
    assert classifier.tail == case.tail
    assert (classifier.n_classes, classifier.n_features) == (case.classes, case.d)
    assert logits.shape == (13, case.classes)
    relative = close(case)
    expected = bare(path, case.output, rows, opened.fixed_batch)
    found = printed(case.tail, logits, single=expected.shape[1:] in [(), (1,)])
    scale = max(1.0, float(np.abs(expected).max()))
    assert np.abs(found.reshape(expected.shape) - expected).max() <= (
        relative * scale + case.tail_step
    )
    if features is None:
        assert case.d is None
        assert classifier.features_tensor is None
    else:
        assert features.shape == (13, case.d)
    if not case.head:
        assert classifier.weight is None
        assert classifier.bias is None
        return
    assert features is not None
    assert classifier.weight is not None
    assert classifier.bias is not None
    assert classifier.weight.shape == (case.classes, case.d)
    step = case.step(onnx.load(path)) if case.step else 0.0
    affine = features.astype(np.float64) @ classifier.weight.T + classifier.bias
    assert np.abs(affine - logits).max() <= relative * np.abs(logits).max() + step
    assert classifier.proof.largest_logit > 0


def test_the_table_has_a_row_for_every_kind() -> None:
    assert len(TABLE) + len(REFUSED) >= 70
    assert len(FLOAT) >= 35


@pytest.mark.parametrize("name", [name for name in FLOAT if not FLOAT[name].graph.half])
def test_reading_tensors_changes_no_output_of_a_float_model(name: str, tmp_path: Path) -> None:
    case = FLOAT[name]
    opened = open_onnx(case.save(tmp_path), **case.options)
    rows = inputs_of(case.graph)
    classifier = opened.prove(rows)
    _, logits = classifier.run(rows)
    assert classifier.exposure_error == 0.0
    if classifier.tail == "none" and "one logit" not in name:
        original = bare(tmp_path / "model.onnx", case.output, rows, opened.fixed_batch)
        np.testing.assert_array_equal(logits, original.reshape(logits.shape))


@pytest.mark.parametrize("name", QUANTISED_CASES)
def test_a_quantised_model_is_held_to_the_step_of_its_own_scales(name: str, tmp_path: Path) -> None:
    case = QUANTISED_CASES[name]
    path = case.save(tmp_path)
    opened = open_onnx(path)
    classifier = opened.prove(inputs_of(case.graph))
    step = case.step(onnx.load(path)) if case.step else 0.0
    assert classifier.proof.largest_difference <= step + 1e-5 * classifier.proof.largest_logit
    wrong = np.array(classifier.weight, dtype=np.float64)
    wrong[0] *= 1.5
    head = replace(classifier.reading.head, weight=wrong)
    classifier.reading = replace(classifier.reading, head=head)
    told = r"so the last layer is not linear: quantise with reduce_range=True .* rows"
    with pytest.raises(CovcalError, match=told):
        classifier.run(inputs_of(case.graph))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_usable_classifier_is_refused_with_the_reason_and_the_choice(
    name: str, tmp_path: Path
) -> None:
    case = REFUSED[name]
    path, rows = case.graph.save(tmp_path), inputs_of(case.graph)
    with pytest.raises(CovcalError, match=case.message) as caught:
        settled(open_onnx(path, **case.options).prove(rows), rows)
    assert "model.onnx" in str(caught.value)
    assert "\n" not in str(caught.value)
