"""Softmax arithmetic: what reaches it keeps its digits."""

import numpy as np
import pytest

from covcal_cli.maths.softmax import to_float32


class TestToFloat32:
    """Logits keep their digits whatever is added to all of a row."""

    Z = 3 * np.random.default_rng(0).normal(size=(200, 5))

    @pytest.mark.parametrize("offset", [1e3, -1e5, 1e8, -1e12])
    @pytest.mark.parametrize("scale", [1e-5, 1, 1e4])
    def test_an_offset_loses_no_digits(self, offset: float, scale: float) -> None:
        rows = scale * self.Z
        moved = to_float32(rows + offset).astype(np.float64)
        expected = rows - rows.max(axis=1, keepdims=True)
        rounding = 1e-3 * scale + 4e-16 * abs(offset)
        np.testing.assert_allclose(
            moved - moved.max(axis=1, keepdims=True), expected, atol=rounding, rtol=0
        )

    def test_masks_do_not_hide_an_offset(self) -> None:
        for mask in (-np.inf, -1e9, np.finfo(np.float64).min):
            rows = self.Z + 1e8
            rows[:, 0] = mask
            moved = to_float32(rows)
            assert (moved[:, 0] < -1e7).all()
            expected = self.Z[:, 1:] - self.Z[:, 1:].max(axis=1, keepdims=True)
            np.testing.assert_allclose(moved[:, 1:], expected, atol=1e-6)

    def test_usual_logits_stay_as_they_are(self) -> None:
        for rows in (self.Z, self.Z.astype(np.float32), self.Z.round(), 1e6 * self.Z.round()):
            np.testing.assert_array_equal(to_float32(rows), rows.astype(np.float32))
        integers = np.arange(20).reshape(4, 5) + 10**6
        np.testing.assert_array_equal(to_float32(integers), integers)


@pytest.mark.filterwarnings("error")
def test_infinite_logits_stay_what_they_are() -> None:
    """The caller refuses them by name; no warning of NumPy comes first."""
    rows = np.array([[np.inf, 0.0, 1.0], [np.nan, 0.0, 1.0], [1.0, 2.0, 3.0]])
    moved = to_float32(rows)
    assert not np.isfinite(moved[:2]).all(axis=1).any()
    np.testing.assert_array_equal(moved[2], rows[2])
