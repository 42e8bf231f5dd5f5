"""Calibrated rows as CSV (RFC 4180, UTF-8, line feeds), built block by block without a row's loop.

Every field of a block is a column of bytes filled up with NULs, which are deleted at the end.
"""

from collections.abc import Iterable
from typing import IO

import numpy as np
from numpy.typing import NDArray

from covcal_cli.apply.rowfiles.appliedrows import AppliedRows, Layout
from covcal_cli.apply.rowfiles.csvnumbers import FIELD, number_fields
from covcal_cli.featurewriter import utf8

_BLOCK_BYTES = 1 << 20
_SPECIAL = ('"', ",", "\n", "\r")


def write_csv(stream: IO[bytes], layout: Layout, blocks: Iterable[AppliedRows]) -> None:
    """Write a header line, then a line per row: see `Layout.columns`."""
    stream.write((",".join(map(_quoted, layout.columns())) + "\n").encode("utf-8"))
    labels = utf8([f",{_quoted(name)},{index}" for index, name in enumerate(layout.classes)])
    columns = 1 + (len(layout.classes) if layout.with_probabilities else 0)
    size = max(1, _BLOCK_BYTES // (FIELD * columns))
    for block in blocks:
        for start in range(0, len(block), size):
            stream.write(_lines(block, slice(start, start + size), labels))


def _lines(block: AppliedRows, rows: slice, labels: NDArray[np.bytes_]) -> bytes:
    columns = [
        _bytes_of(_quoted_ids(block.ids[rows])),
        _bytes_of(labels[block.label_index[rows]]),
        number_fields(block.confidence[rows]),
    ]
    if block.probabilities is not None:
        fields = number_fields(block.probabilities[rows])
        columns.append(fields.reshape(len(fields), -1))
    columns.append(np.full((len(columns[0]), 1), ord("\n"), dtype=np.uint8))
    return np.concatenate(columns, axis=1).tobytes().translate(None, b"\0")


def _bytes_of(texts: NDArray[np.bytes_]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(texts).view(np.uint8).reshape(len(texts), -1)


def _quoted_ids(ids: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    raw = ids.tobytes()
    if not any(character.encode() in raw for character in _SPECIAL):
        return ids
    return utf8([_quoted(text.decode("utf-8")) for text in ids.tolist()])


def _quoted(text: str) -> str:
    if not any(character in text for character in _SPECIAL):
        return text
    return '"' + text.replace('"', '""') + '"'
