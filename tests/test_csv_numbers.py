"""The numbers in CSV files: every float32 is read back as it was, to the last bit."""

import numpy as np
import pytest
from numpy.typing import NDArray

from covcal_cli.apply.rowfiles.csvnumbers import number_fields


def texts(values: NDArray[np.float32]) -> list[str]:
    return number_fields(values).tobytes().translate(None, b"\0").decode().split(",")[1:]


def test_every_kind_of_probability_is_read_back() -> None:
    """Random bit patterns of all float32 in [0, 1], and the neighbours of every power of ten."""
    patterns = np.random.default_rng(0).integers(0, 0x3F800001, size=200_000, dtype=np.uint32)
    powers = (10.0 ** -np.arange(46)).astype(np.float32)
    near = [np.nextafter(powers, np.float32(0)), powers, np.nextafter(powers, np.float32(2))]
    values = np.concatenate([patterns.view(np.float32), np.array([0, 1], np.float32), *near])
    found = texts(values)
    assert np.array(found, dtype=np.float64).astype(np.float32).tobytes() == values.tobytes()
    assert [float(text) for text in found] == [float(f"{value:.9g}") for value in values.tolist()]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1.00000000"),
        (0.5, "0.500000000"),
        (0.1, "0.100000001"),
        (0.0001, "9.99999975e-05"),
        (0.00012, "0.000119999997"),
        (1e-5, "9.99999975e-06"),
        (1e-45, "1.40129846e-45"),
        (1.0000001, "1.00000012"),
    ],
)
def test_how_they_look(value: float, text: str) -> None:
    """Nine digits; an exponent below 1e-4."""
    assert texts(np.array([value], np.float32)) == [text]


def test_shapes_are_kept() -> None:
    """Fields stand along a last axis of their own; no values, no fields."""
    assert number_fields(np.zeros((3, 2), np.float32)).shape == (3, 2, 24)
    assert number_fields(np.zeros((0, 2), np.float32)).shape == (0, 2, 24)
