"""The numbers in CSV files: every float32 is read back as it was, to the last bit."""

import io

import numpy as np
import pytest

from covcal_cli.apply.writers import AppliedRows, Layout, write_csv
from covcal_cli.arrays import Float32s


def texts(values: Float32s) -> list[str]:
    n = len(values)
    ids, labels = np.array([b"an id"] * n, dtype="S5"), np.zeros(n, dtype=np.int64)
    layout = Layout(n, ("cat", "dog"), ids.dtype, with_probabilities=True, provenance={})
    stream = io.BytesIO()
    write_csv(stream, layout, [AppliedRows(ids, labels, values, np.stack([values] * 2, axis=1))])
    header, *lines = stream.getvalue().decode().splitlines()
    assert header == "id,label,label_index,confidence,prob_cat,prob_dog"
    found = [line.removeprefix("an id,cat,0,").split(",") for line in lines]
    assert all(row == row[:1] * 3 for row in found)
    return [row[0] for row in found]


def test_every_kind_of_probability_is_read_back() -> None:
    """Random bit patterns of all float32 in [0, 1], and the neighbours of every power of ten."""
    patterns = np.random.default_rng(0).integers(0, 0x3F800001, size=40_000, dtype=np.uint32)
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
