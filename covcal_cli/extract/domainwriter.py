"""Writes one domain of a features file, block by block.

``extract`` and ``merge`` both write through here, in blocks of the same size, because HDF5 lays a
file out in the order in which it is written: so the same rows give the same bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.featurewriter import HDF5Writer, utf8

_BLOCK_BYTES = 4 << 20
Block = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class RowFacts:
    """What a features file holds about the rows of a domain beside their numbers.

    Attributes
    ----------
    labels : array of int64, shape (n,)
        -1 where unknown.
    split : array of uint8, shape (n,)
    ids : array of bytes, shape (n,)
        UTF-8.
    columns : mapping of str to array, shape (n,)
        Numbers, or texts as UTF-8 bytes.
    skipped : sequence of (str, str)
        Id and reason of every row that could not be read.
    """

    labels: NDArray[np.int64]
    split: NDArray[np.uint8]
    ids: NDArray[Any]
    columns: Mapping[str, NDArray[Any]]
    skipped: Sequence[tuple[str, str]]


def block_rows(widths: Mapping[str, int]) -> int:
    """Return the rows per block for arrays of these widths: a few MiB."""
    return max(1, _BLOCK_BYTES // (4 * sum(widths.values())))


def write_domain(
    writer: HDF5Writer,
    name: str,
    widths: Mapping[str, int],
    blocks: Iterable[Block],
    rows: RowFacts,
) -> None:
    """Write the group ``/NAME``.

    Parameters
    ----------
    writer : HDF5Writer
    name : str
        ``"source"`` or ``"target"``.
    widths : mapping of str to int
        Columns of ``features`` (where there are any) and ``logits``.
    blocks : iterable of mappings of str to array of float32, shape (m, width)
        The rows in order, `block_rows` at a time.
    rows : RowFacts
    """
    for array, width in widths.items():
        writer.allocate(f"{name}/{array}", (len(rows.labels), width))
    done = 0
    for block in blocks:
        for array in widths:
            writer.fill(f"{name}/{array}", done, block[array])
        done += len(block["logits"])
    writer.write(f"{name}/labels", rows.labels)
    writer.write(f"{name}/split", rows.split)
    writer.write(f"{name}/ids", rows.ids)
    for column, values in rows.columns.items():
        writer.write(f"{name}/columns/{column}", values)
    if rows.skipped:
        writer.write(f"{name}/skipped", utf8([known for known, _ in rows.skipped]))
        writer.write(f"{name}/skipped_reasons", utf8([reason for _, reason in rows.skipped]))


def storable(values: NDArray[Any]) -> NDArray[Any]:
    """Return a column as HDF5 takes it: numbers as they are, texts as UTF-8 bytes."""
    if values.dtype.kind in "OU":
        return utf8([str(value) for value in values])
    return values
