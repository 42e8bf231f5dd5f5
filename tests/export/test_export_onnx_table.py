"""The ONNX classifiers that extract reads can be exported, and the result is right."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.classifiers.onnx.onnx_case import inputs_of
from tests.classifiers.onnx.onnx_chosen_cases import CHOSEN_CASES, TABULAR_CASES
from tests.classifiers.onnx.onnx_float_cases import FLOAT_CASES
from tests.classifiers.onnx.onnx_quantised_cases import QUANTISED_CASES
from tests.classifiers.onnx.onnx_wide_cases import WIDE_CASES
from tests.classifiers.opening import open_onnx
from tests.classifiers.settled import settled
from tests.export.export_cases import (
    Array,
    calibrated,
    expected_probabilities,
    made_networks,
    run_bare,
)

# What extract finds in every float model is in test_onnx_table.py. The models below are exported,
# because they differ in what export adds to: the type and the shape of the logits, the batch, and
# the inputs.
FLOAT = (
    *("logits", "softmax [1, N, K]", "one logit squeezed to a vector", "argmax and softmax"),
    *("a sigmoid per class", "one sigmoid made two probabilities", "casts to double and back"),
    *("half precision", "batch fixed at 1", "tokens and a mask", "cosine scale"),
    *("the last classes alone", "head on all tokens, averaged", "mean of two heads"),
)
QUANTISED = (
    *("QDQ", "QDQ, 1x1 convolution", "QGemm and QLinearSoftmax", "QLinearConv"),
    *("dynamic, MatMul", "dynamic and fused"),
)
TABLE = (
    {name: (FLOAT_CASES | WIDE_CASES)[name] for name in FLOAT}
    | {name: QUANTISED_CASES[name] for name in QUANTISED}
    | TABULAR_CASES
    | CHOSEN_CASES
)


def same(before: Any, after: Any) -> bool:
    if isinstance(before, np.ndarray):
        return np.array_equal(before, after)
    return bool(before == after)


def fed_in_pieces(path: Path, rows: dict[str, Array], batch: int | None) -> list[dict[str, Any]]:
    """Run a model in plain ONNX Runtime on all rows, or on full batches if its batch is fixed."""
    n = len(next(iter(rows.values())))
    size = batch or n
    return [
        run_bare(path, {name: values[start : start + size] for name, values in rows.items()})
        for start in range(0, n - size + 1, size)
    ]


FL = [name for name in TABLE if TABLE[name].d is not None]
TEMP = [name for name in TABLE if TABLE[name].d is None]


@pytest.mark.parametrize(
    ("name", "fl"), [*((name, True) for name in FL), *((name, False) for name in TEMP)]
)
def test_the_exported_model(name: str, fl: bool, tmp_path: Path) -> None:
    """The outputs are as before, the rest is what phi and the logits of extraction give."""
    case = TABLE[name]
    path = case.save(tmp_path)
    rows = inputs_of(case.graph)
    opened = open_onnx(path, **case.options)
    classifier = opened.prove(rows)
    phi, logits = settled(classifier, rows)
    width = 4 if phi is None else phi.shape[1]
    networks = made_networks(width, case.classes) if fl else None
    made = calibrated(
        path,
        method="fl+temp" if fl else "temp",
        phi=classifier.features_tensor or "",
        logits=classifier.logits_tensor,
        width=width,
        classes=case.classes,
        networks=networks,
        temperature=2.5,
        attributes={"model_sha256": opened.sha256, "tail": str(classifier.tail)},
    )
    output = ["--model-output", case.options["output"]] if "output" in case.options else []
    made.export(*output).require_success()
    expected = expected_probabilities(logits, 2.5, networks, phi)
    pieces = fed_in_pieces(made.output, rows, opened.fixed_batch)
    originals = fed_in_pieces(path, rows, opened.fixed_batch)
    start = 0
    for before, after in zip(originals, pieces, strict=True):
        probabilities, label, confidence = list(after.values())[len(before) :]
        n = len(label)
        if name not in QUANTISED_CASES:
            assert all(same(value, after[key]) for key, value in before.items())
        np.testing.assert_allclose(
            probabilities, expected[start : start + n], rtol=0, atol=1e-5, err_msg=name
        )
        np.testing.assert_array_equal(label, logits[start : start + n].argmax(axis=1))
        np.testing.assert_array_equal(confidence, probabilities[np.arange(n), label])
        start += n
    assert start > 0
