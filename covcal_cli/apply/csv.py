"""CSV of calibrated rows, composed in NumPy: a header, then a line per row.

A line is first a record of fixed size. Bytes that a name or a number does not need hold 255, which
no UTF-8 text contains, and are deleted from the finished block. This is about six times faster than
formatting the numbers one by one, and gives the same text.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.apply.rows import AppliedRows, Layout
from covcal_cli.arrays import AnyArray, Booleans, Float32s
from covcal_cli.errors import printable

_BLOCK_VALUES = 1 << 14  # numbers composed at a time
_SPECIAL = re.compile(rb'[",\n\r]')  # a field that holds one of them must be quoted
_UNUSED = b"\xff"
_DIGITS = 9  # with which every float32 is read back to the last bit

# A number as text: ``,0.000123456789``, ``,1.00000000`` or ``,1.23456789e-05``.
_NUMBER = np.dtype(
    [
        ("start", "<u4"),  # the comma, and of a fraction "0." and a first zero
        ("zeros", "<u2"),  # two more
        ("first", "<u2"),  # the first digit, and in front of an exponent the point
        ("middle", "<u4"),  # four digits
        ("last", "<u4"),  # four digits
        ("exponent", "<u4"),
    ]
)
_FOUR_DIGITS = np.array([b"%04d" % number for number in range(10_000)]).view("<u4")


def _padded(texts: Sequence[bytes], dtype: str) -> AnyArray:
    """Return texts as integers of the same bytes, filled up with `_UNUSED`."""
    size = np.dtype(dtype).itemsize
    return np.frombuffer(b"".join(text.ljust(size, _UNUSED) for text in texts), dtype=dtype)


# How numbers look by their decade: index d has 10^-d <= value < 10^(1-d).
_DECADES = range(39)
_STARTS = _padded([b",", b",0.", *[b",0.0"] * 3, *[b","] * 34], "<u4")
_ZEROS = _padded([b"", b"", b"", b"0", b"00", *[b""] * 34], "<u2")
_FIRST = _padded([b"0.", *[b"0"] * 4, *[b"0."] * 34], "<u2")
_EXPONENTS = _padded([b"e-%02d" % d if d > 4 else b"" for d in _DECADES], "<u4")
_SCALES = np.array([10.0 ** (_DIGITS - 1 + d) for d in _DECADES])
# The decade by the exponent of a float32, and from where on it is the next larger one.
_POWERS = np.arange(256) - 127
_LOWER = np.clip(-np.floor(_POWERS * np.log10(2.0)), 0, 38).astype(np.int64)
_NEXT = np.array([float(f"1e{1 - d}") for d in _LOWER])


def write_csv(
    stream: IO[bytes],
    layout: Layout,
    blocks: Iterable[AppliedRows],
    *,
    shown: Callable[[bytes], bytes] | None = None,
) -> None:
    """Write CSV (RFC 4180, UTF-8, line feeds): a header, then a line per row.

    Numbers have nine significant digits. `shown` turns names and ids into what a screen can show.
    """
    show = shown or bytes
    names = [_quoted(show(name.encode())) for name in layout.classes]
    labels = _bytes_of(np.array([b",%b,%d" % (name, index) for index, name in enumerate(names)]))
    columns = (_quoted(show(name.encode())) for name in layout.columns())
    stream.write(b",".join(columns) + b"\n")
    size = max(1, _BLOCK_VALUES // len(layout.columns()))
    for block in blocks:
        for start in range(0, len(block), size):
            rows = slice(start, start + size)
            ids = _quoted_ids(block.ids[rows], shown)
            values = block.confidence[rows, None]
            if block.probabilities is not None:
                values = np.concatenate([values, block.probabilities[rows]], axis=1)
            stream.write(_lines(_bytes_of(ids), labels[block.label_index[rows]], values))


def for_screens(text: bytes) -> bytes:
    """Return UTF-8 as a terminal can show it; see `covcal_cli.errors.printable`."""
    if text.isascii() and text.decode("ascii").isprintable():
        return text
    return printable(text.decode("utf-8", errors="replace")).encode("utf-8")


def _quoted(text: bytes) -> bytes:
    return b'"' + text.replace(b'"', b'""') + b'"' if _SPECIAL.search(text) else text


def _quoted_ids(
    ids: NDArray[np.bytes_], shown: Callable[[bytes], bytes] | None
) -> NDArray[np.bytes_]:
    if shown is not None:
        ids = np.array(list(map(shown, ids.tolist())))
    return np.array(list(map(_quoted, ids.tolist()))) if _SPECIAL.search(ids.tobytes()) else ids


def _lines(ids: AnyArray, labels: AnyArray, values: Float32s) -> bytes:
    """Return the lines of rows: bytes of the ids, of the labels, and numbers, shape (m, C)."""
    line = [
        ("id", "u1", ids.shape[1]),
        ("label", "u1", labels.shape[1]),
        ("numbers", _NUMBER, values.shape[1]),
        ("end", "u1"),
    ]
    lines = np.empty(len(ids), dtype=np.dtype(line))
    lines["id"], lines["label"], lines["end"] = ids, labels, ord("\n")
    _fill(lines["numbers"], values)
    return lines.tobytes().translate(None, _UNUSED)


def _bytes_of(texts: NDArray[np.bytes_]) -> AnyArray:
    """Return texts as bytes, shape (m, width), with `_UNUSED` behind the end of each."""
    width = texts.dtype.itemsize
    codes = np.ascontiguousarray(texts).view(np.uint8).reshape(len(texts), width)
    if codes[:, -1].all():  # all are as long as the longest
        return codes
    behind = np.arange(width) >= np.char.str_len(texts)[:, None]
    return np.where(behind, np.uint8(_UNUSED[0]), codes)


def _fill(numbers: NDArray[Any], values: Float32s) -> None:
    """Write `values` into records of `_NUMBER`, both of shape (m, C)."""
    exponents = (values.view(np.uint32) >> 23).astype(np.int64) & 255
    exact = values.astype(np.float64)
    decades = _LOWER[exponents] - (exact >= _NEXT[exponents])
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = exact * _SCALES[decades]
        rounded = np.rint(scaled)
        digits = rounded.astype(np.uint32)
    upper = digits // np.uint32(10_000)
    first = upper // np.uint32(10_000)
    numbers["start"], numbers["zeros"] = _STARTS[decades], _ZEROS[decades]
    numbers["first"] = _FIRST[decades] + first.astype(np.uint16)
    numbers["middle"] = _FOUR_DIGITS[np.minimum(upper - first * np.uint32(10_000), 9999)]
    numbers["last"] = _FOUR_DIGITS[digits - upper * np.uint32(10_000)]
    numbers["exponent"] = _EXPONENTS[decades]
    # One by one: a tenth digit of 5 that the product may round wrongly, a carry into the next
    # decade, and whatever is no probability or below the smallest normal float32.
    usual: Booleans = (np.abs(np.abs(scaled - rounded) - 0.5) > 1e-6) & (first > 0) & (first < 10)
    usual &= (exponents > 0) & (exact < 2) & (exact > 0)
    for place in zip(*np.nonzero(~usual), strict=True):
        text = b"0" if exact[place] == 0 else b"%#.9g" % exact[place]
        numbers[place] = np.frombuffer((b"," + text).ljust(_NUMBER.itemsize, _UNUSED), _NUMBER)[0]
