"""Networks that are missing an array, or hold one that cannot be, are told by its name."""

from collections.abc import Callable

import numpy as np
import pytest

from covcal_cli.arrays import AnyArray
from covcal_cli.maths.networks import unfit

SHAPES = {
    "projection/mean": (5,),
    "projection/components": (5, 3),
    "projection/scale": (1,),
    "psi/output_relu": (1,),
    "psi/weight_0": (2, 3, 4),
    "psi/bias_0": (2, 4),
    "head/weight_0": (2, 4, 6),
    "head/bias_0": (2, 6),
    "head/weight_1": (2, 6, 7),
    "head/bias_1": (2, 7),
}


def arrays() -> dict[str, AnyArray]:
    return {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}


def test_networks_that_fit() -> None:
    assert unfit(arrays()) is None
    plain = arrays() | {"psi/weight_0": np.ones((2, 5, 4), np.float32)}
    del plain["projection/components"]
    assert unfit(plain) is None


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    "change",
    [
        lambda values: np.full_like(values, np.nan),
        lambda values: np.full_like(values, np.inf),
        lambda values: values[None],
        lambda values: values.astype("S1"),
        lambda values: np.concatenate([values, values], axis=-1),
    ],
)
def test_an_array_that_cannot_be(name: str, change: Callable[[AnyArray], AnyArray]) -> None:
    networks = arrays()
    networks[name] = change(networks[name])
    if name == "head/weight_1":
        assert unfit(networks) in (name, "head/bias_1")
    elif unfit(networks) != name:  # what follows a wider array fits it no more
        assert unfit(networks) is not None


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "projection/components"])
def test_an_array_that_is_missing(name: str) -> None:
    networks = arrays()
    del networks[name]
    assert unfit(networks) is not None
