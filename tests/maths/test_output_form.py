"""What outputs are shows in all rows, in whatever batches they come."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, softmax

from covcal_cli.maths.output_form import Form, OutputEvidence, log_probabilities

Array = NDArray[Any]
N = 400


def logits(k: int) -> Array:
    return 2 * np.random.default_rng(k).normal(size=(N, k))


def forest(k: int) -> Array:
    """A sure row comes first, as float32 sums of leaves print it."""
    p: Array = softmax(logits(k), axis=1)
    p[0] = 0
    p[0, :2] = 1 + 4e-7, -4e-7
    return p


def failed(k: int) -> Array:
    p: Array = softmax(logits(k), axis=1)
    p[N // 2] = 0
    return p


def cosines(k: int) -> Array:
    return np.random.default_rng(k).uniform(0.1, 0.4, size=(N, k))


MADE: dict[str, tuple[Array, Form]] = {
    "logits": (logits(4), "logits"),
    "one logit": (logits(1), "logits"),
    "log-probabilities": (np.log(softmax(logits(4), axis=1)), "logits"),
    "probabilities": (softmax(logits(4), axis=1), "probabilities"),
    "of a forest": (forest(3), "probabilities"),
    "of a binary forest": (forest(2), "probabilities"),
    "half precision": (softmax(logits(50), axis=1).astype(np.float16), "probabilities"),
    "answers alone": (np.eye(3)[np.arange(N) % 3], "probabilities"),
    "long float32 sums": (softmax(logits(2), axis=1) * (1 + 3e-4), "probabilities"),
    "tenths": (softmax(logits(4), axis=1).round(1), "probabilities"),
    "hundredths of many classes": (softmax(2 * logits(40), axis=1).round(2), "probabilities"),
    "percentages": (100 * softmax(logits(4), axis=1), "percentages"),
    "whole percentages": ((100 * softmax(logits(9), axis=1)).round(), "percentages"),
    "votes": (np.random.default_rng(0).multinomial(100, [0.5, 0.3, 0.2], N), "percentages"),
    "clipped": (softmax(2 * logits(10), axis=1).clip(0.01, 0.99), "clipped"),
    "clipped above": (softmax(4 * logits(3), axis=1).clip(0, 0.9), "clipped"),
    "one failed row": (failed(4), "mixed"),
    "sigmoids": (expit(logits(4)), "bounded"),
    "sigmoids with two decimals": (expit(logits(4)).round(2), "bounded"),
    "cosines": (cosines(5), "bounded"),
    "one column": (expit(logits(1)), "bounded"),
    "multi-hot": ((expit(logits(4)) > 0.5).astype(float), "bounded"),
}  # fmt: skip


def seen(values: Array, batch: int) -> OutputEvidence:
    found = OutputEvidence()
    for start in range(0, len(values), batch):
        found.add(values[start : start + batch])
    return found


@pytest.mark.parametrize("batch", [1, 7, N])
@pytest.mark.parametrize("name", MADE)
def test_the_form_is_that_of_all_rows_in_any_batches_and_order(name: str, batch: int) -> None:
    values, form = MADE[name]
    assert seen(values, batch).form == form
    assert seen(values[::-1], batch).form == form


@pytest.mark.parametrize("scale", [0.999, 1.04])
def test_a_last_row_that_is_no_distribution_counts(scale: float) -> None:
    values = softmax(logits(4), axis=1)
    values[-1] *= 1 + 10 * (scale - 1)
    found = seen(values, 50)
    assert (found.form == "probabilities") == (scale == 0.999)
    if scale != 0.999:
        row, total = found.unit.first_off or (-1, 0.0)
        assert row == N - 1
        assert total == pytest.approx(1.4)


@pytest.mark.parametrize("k", [3, 10])
def test_the_softmax_of_probabilities_is_noticed(k: int) -> None:
    once = softmax(4 * logits(k), axis=1)
    assert seen(softmax(once, axis=1), 64).may_be_squashed_twice
    assert not seen(once, 64).may_be_squashed_twice
    assert not seen(softmax(0.1 * logits(k), axis=1), 64).may_be_squashed_twice


def test_nothing_seen_is_taken_for_logits() -> None:
    assert OutputEvidence().form == "logits"


@pytest.mark.parametrize("unit", [1, 100])
def test_logarithms_are_those_of_rows_that_sum_to_1(unit: float) -> None:
    p = softmax(logits(4), axis=1)
    np.testing.assert_allclose(log_probabilities(unit * p), np.log(p), rtol=1e-12)
    one = expit(logits(1))
    np.testing.assert_allclose(np.exp(log_probabilities(one)), np.hstack([1 - one, one]))
    assert np.isfinite(log_probabilities(np.array([[1 + 4e-7, -4e-7]]))).all()
