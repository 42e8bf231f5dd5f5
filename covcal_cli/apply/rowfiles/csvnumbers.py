"""Floats as text, a million at a time: nine significant digits, enough for every float32.

``"%.9g" % x`` takes half a microsecond, and a file of a hundred million probabilities a minute.
Here digits come from look-up tables, in 24-byte fields that are filled up with NUL bytes; the
writer deletes those from whole blocks of text.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

FIELD = 24
"""Bytes of a field: comma, ``0.`` and zeros, nine digits with a point, exponent."""

_LEAST_EXPONENT = -46  # the smallest float32 is 1.4e-45
_FIXED_FROM = -4  # below 1e-4 an exponent is written: 1.23456789e-05


def _table(texts: list[str], width: int) -> NDArray[Any]:
    return np.array([text.encode("ascii") for text in texts], dtype=f"S{width}")


# Indexed by minus the decimal exponent.
_PREFIX = _table(
    [
        "," + ("0." + "0" * (e - 1) if 0 < e <= -_FIXED_FROM else "")
        for e in range(1 - _LEAST_EXPONENT)
    ],
    8,
).view(np.uint64)
_SUFFIX = _table(
    [f"e-{e:02d}" if e > -_FIXED_FROM else "" for e in range(1 - _LEAST_EXPONENT)], 4
).view(np.uint32)
_POINTED = np.array(
    [1000 if e == 0 or e > -_FIXED_FROM else 0 for e in range(1 - _LEAST_EXPONENT)], dtype=np.uint32
)
_POWERS = 10.0 ** np.arange(8, 9 - _LEAST_EXPONENT)
_TRIPLE = _table([f"{number:03d}" for number in range(1000)], 4).view(np.uint32)
_HEAD = _table(
    [f"{number:03d}" for number in range(1000)]
    + [f"{number // 100}.{number % 100:02d}" for number in range(1000)],
    4,
).view(np.uint32)
_ZERO = _table([",0"], 8).view(np.uint64)[0]


def number_fields(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Write floats as ``,0.123456789``.

    Parameters
    ----------
    values : array of float32, any shape
        Between 0 and 1, up to rounding (below 10).

    Returns
    -------
    array of uint8, shape (*values.shape, FIELD)
        ASCII; NUL bytes stand for nothing. Read as float32, each text is its value to the last bit.
    """
    is_zero = values == 0
    has_zeros = bool(is_zero.any())
    exact = (np.where(is_zero, 1, values) if has_zeros else values).astype(np.float64)
    exponent = np.floor(np.log10(exact)).astype(np.intp)
    digits = np.rint(exact * _POWERS[-exponent])
    if digits.max(initial=0) >= 1e9:
        rounded_up = digits >= 1e9
        exponent += rounded_up
        digits[rounded_up] = 1e8
    whole = digits.astype(np.uint32)
    thousands = whole // np.uint32(1000)
    front = thousands // np.uint32(1000)
    below = -exponent
    fields = np.empty((*values.shape, FIELD // 4), dtype=np.uint32)
    wide = fields.view(np.uint64)
    wide[..., 0] = _PREFIX[below]
    fields[..., 2] = _HEAD[front + _POINTED[below]]
    fields[..., 3] = _TRIPLE[thousands - front * np.uint32(1000)]
    fields[..., 4] = _TRIPLE[whole - thousands * np.uint32(1000)]
    fields[..., 5] = _SUFFIX[below]
    if has_zeros:
        fields[is_zero] = 0
        wide[is_zero, 0] = _ZERO
    return fields.view(np.uint8)
