"""The numerical proof beside masked classes: others are held to the rest, a mask to its size."""

import numpy as np
import pytest

from covcal_cli.arrays import Floats
from covcal_cli.classifiers.proof import Proof, affine, difference, relative_error, tail_error

LOWEST = float(np.finfo(np.float32).min)
MASKS = (-np.inf, LOWEST, -1e9, -1e6)


def made(value: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return phi, W, b and logits of 20 rows, class 2 of 4 masked."""
    rng = np.random.default_rng(0)
    features, weight, bias = rng.normal(size=(20, 5)), rng.normal(size=(4, 5)), rng.normal(size=4)
    weight[2], bias[2] = 0, value
    return features, weight, bias, features @ weight.T + bias


@pytest.mark.parametrize("value", MASKS)
def test_a_mask_hides_no_other_error(value: float) -> None:
    """An error of one thousandth of the largest other logit is found beside any mask."""
    features, weight, bias, logits = made(value)
    assert Proof().add(features, weight, bias, logits, 1e-5, 0.0) is None
    wrong = logits.copy()
    wrong[3, 1] += 1e-3 * float(np.abs(logits[:, [0, 1, 3]]).max())
    error = Proof().add(features, weight, bias, wrong, 1e-5, 0.0)
    assert error == pytest.approx(1e-3, rel=0.1)
    assert relative_error(wrong, logits) == pytest.approx(1e-3, rel=0.1)


@pytest.mark.parametrize("value", MASKS)
def test_a_mask_that_is_none_is_an_error(value: float) -> None:
    """Where the model masks and W and b do not, nothing is proved."""
    features, weight, _, logits = made(value)
    assert Proof().add(features, weight, np.zeros(4), logits, 1e-5, 0.0) is not None
    assert relative_error(np.where(logits == logits.min(), 0.0, logits), logits) > 0.1


def test_what_is_off_by_rounding_is_held_to_its_size() -> None:
    """A mask rounded to float32 is equal, and the largest of the others is reported."""
    logits = made(-1e9)[3]
    moved = logits.copy()
    moved[:, 2] += 64
    worst, largest = difference(moved, logits)
    assert worst <= 1e-6
    assert largest == np.abs(logits[:, [0, 1, 3]]).max()


@pytest.mark.parametrize("tail", ["softmax", "log_softmax"])
def test_tails_of_masked_logits(tail: str) -> None:
    """The softmax of -inf is 0, its logarithm -inf, without a warning."""
    logits = made(-np.inf)[3]
    z = logits - logits.max(axis=1, keepdims=True)
    output = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    if tail == "log_softmax":
        output = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    assert tail_error(tail, logits, output) <= 1e-12


@pytest.mark.parametrize(
    "shape", [(0, 5, 4), (1, 5, 4), (70_001, 5, 4), (300, 90, 7), (9, 700, 90)]
)
def test_the_product_is_exact_in_any_number_of_blocks(shape: tuple[int, int, int]) -> None:
    """The last block may be short, there may be no rows, and a wide head is not divided."""
    m, d, k = shape
    rng = np.random.default_rng(0)
    features, weight = (rng.normal(size=size).astype(np.float32) for size in ((m, d), (k, d)))
    bias = rng.normal(size=k)
    exact = np.einsum("md,kd->mk", features.astype(np.float64), weight.astype(np.float64)) + bias
    np.testing.assert_allclose(affine(features, weight, bias), exact, rtol=0, atol=1e-12)


def test_products_are_small_enough_for_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a larger product, other threads of OpenBLAS wait actively: twice the processor time."""
    multiply, sizes = np.matmul, []

    def counted(a: Floats, b: Floats, out: Floats) -> Floats:
        sizes.append(a.size * b.shape[1])
        return np.asarray(multiply(a, b, out=out))

    monkeypatch.setattr(np, "matmul", counted)
    affine(np.ones((2048, 50)), np.ones((10, 50)), np.ones(10))
    assert sum(sizes) == 2048 * 50 * 10
    assert max(sizes) <= 1 << 18
