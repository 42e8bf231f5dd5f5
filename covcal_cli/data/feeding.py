"""Make the inputs of a model from the arrays of a file.

An array becomes the input of the same name. A single input can also come from one of these:

- the array x
- the only array with several values per row
- all columns of numbers of a table

Values may be rounded to the type of the input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covcal_cli.arrays import AnyArray, Booleans, ModelInput, Rows
from covcal_cli.data.classes import listed
from covcal_cli.data.rows import GROUP_PREFIX, is_of_rows
from covcal_cli.data.stores.store import Entry, Store
from covcal_cli.errors import OUTPUTS_AS_TABLE, CovcalError

_ROWS_NAME = "x"


@dataclass(frozen=True)
class Feed:
    """An input of the model, and its arrays."""

    wanted: ModelInput
    names: tuple[str, ...]  # The name of an array, or the names of several columns.
    side_by_side: bool = False


def plan_feeds(store: Store, wanted: Sequence[ModelInput]) -> list[Feed]:
    """Choose the arrays for every input. `check_feed` later checks the shapes and types."""
    entries = store.entries
    if all(entry.name in entries for entry in wanted):
        return [Feed(entry, (entry.name,)) for entry in wanted]
    if len(wanted) > 1:
        missing = [entry.name for entry in wanted if entry.name not in entries]
        raise store.error(
            f"the model has {len(wanted)} inputs, but the data lack {listed(missing)} (found: "
            f"{listed(list(entries))}): save an array or column with the name of each input"
        )
    if _ROWS_NAME in entries and not (store.is_table and len(entries[_ROWS_NAME].shape) == 1):
        return [Feed(wanted[0], (_ROWS_NAME,))]
    if len(arrays := plain_numbers(store, several=True)) == 1:
        return [Feed(wanted[0], arrays)]
    columns = plain_numbers(store)
    if store.is_table and columns:
        return [Feed(wanted[0], columns, side_by_side=True)]
    if store.is_table:
        _require_no_commas(store)
        raise store.error(
            f"no column holds numbers; the columns are {listed(list(entries))}: give one "
            "column per feature, or a column path for images. For a model of texts, "
            f"{OUTPUTS_AS_TABLE}"
        )
    there = listed(list(entries)) or "nothing"
    raise store.error(f"there is no array x, only {there}: save the rows as an array x")


def columns_of(feeds: Sequence[Feed] | None) -> tuple[str, ...]:
    """Return the columns of the model's input, in order."""
    return feeds[0].names if feeds and feeds[0].side_by_side else ()


def plain_numbers(store: Store, *, several: bool = False) -> tuple[str, ...]:
    """Return the names of numeric arrays with one axis, or with `several` axes."""
    return tuple(
        name
        for name, entry in store.entries.items()
        if (len(entry.shape) > 1 if several else len(entry.shape) == 1)
        and entry.dtype.kind in "fiub"
        and not is_of_rows(store, name)
    )


def notes_on_names(feeds: Sequence[Feed]) -> tuple[str, ...]:
    """Return a note for each array whose name differs from the name of the input."""
    return tuple(
        f"the array {feed.names[0]} is used as the model's input {feed.wanted.name}"
        for feed in feeds
        if not feed.side_by_side and feed.names[0] not in (feed.wanted.name, _ROWS_NAME)
    )


def check_feed(store: Store, n: int, feed: Feed) -> None:
    """Refuse arrays that do not have the shape and type of the input."""
    wanted, name = feed.wanted, feed.names[0]
    if feed.side_by_side:
        _check_columns(store, feed)
        return
    entry = store.entries[name]
    if entry.shape[:1] != (n,):
        raise store.error(
            f"{name} has shape {list(entry.shape)} but there are {n} rows: give one {name} per row"
        )
    if entry.is_text and wanted.dtype.kind not in "OUS":
        raise store.error(
            f"{name} holds texts, such as {str(store.whole(name)[0])!r} in {store.place(0)}, "
            f"but the model expects {wanted.describe()}: encode it as numbers, or "
            f"{OUTPUTS_AS_TABLE}"
        )
    if not _fits(entry, wanted, table=store.is_table):
        have = ", ".join(["N", *map(str, entry.shape[1:])])
        remedy = "give rows of this shape"
        if _has_shape(entry, wanted):
            scaled = ", scaled as in training" if wanted.dtype.kind == "f" else ""
            remedy = f"save it as {wanted.dtype}{scaled}"
        if len(wanted.shape) > 2 and wanted.dtype.kind not in "OUS":
            remedy += ", or images as uint8 [n, h, w] or [n, h, w, c]"
        raise store.error(
            f"{name} is {entry.dtype} [{have}] but the model expects {wanted.describe()}: {remedy}"
        )


def fed(
    store: Store, feed: Feed, arrays: Mapping[str, AnyArray], rows: Rows, ids: Sequence[str]
) -> AnyArray:
    """Return a model input for m rows, shape (m, ...), in the model's type.

    Raises `CovcalError` for a value that is missing, infinite, or too large for the type.
    """
    dtype = feed.wanted.dtype
    if feed.side_by_side:
        parts = [arrays[name] for name in feed.names]
        if {"f"} == {dtype.kind, *(part.dtype.kind for part in parts)}:
            # If all numbers fit the model's type, as is usual, the data are copied only once.
            block = _beside(parts, dtype)
            if np.isfinite(block).all():
                return block
        block = _beside(parts, np.result_type(*parts))
    else:
        block = arrays[feed.names[0]]
        if block.ndim == 1 and len(feed.wanted.shape) == 2:
            block = block[:, None]
    if dtype.kind in "OUS":
        return block.astype(object)
    if block.dtype.kind == "f" and not np.isfinite(block).all():
        bad = np.isinf(block) if feed.wanted.takes_missing else ~np.isfinite(block)
        if bad.any():
            raise _unfit(store, feed, bad, rows, ids, None)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = block.astype(dtype, copy=False)
    if dtype.kind == "f":
        if block.dtype.itemsize > dtype.itemsize and np.isinf(cast).any():
            raise _unfit(store, feed, np.isinf(cast), rows, ids, block)
    elif block.dtype != dtype and (cast != block).any():
        raise _unfit(store, feed, cast != block, rows, ids, block)
    return cast


def _beside(parts: Sequence[AnyArray], dtype: np.dtype[Any]) -> AnyArray:
    block = np.empty((len(parts[0]), len(parts)), dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        for column, part in enumerate(parts):
            block[:, column] = part
    return block


def _check_columns(store: Store, feed: Feed) -> None:
    wanted, width = feed.wanted, len(feed.names)
    takes_rows = len(wanted.shape) == 2 and wanted.dtype.kind in "fiub"
    if takes_rows and wanted.shape[1] == width:
        return
    # A model that accepts any number of columns cannot detect missing columns.
    _require_no_commas(store)
    if takes_rows and wanted.shape[1] is None:
        return
    entries = store.entries
    texts = [name for name in entries if entries[name].is_text and not is_of_rows(store, name)]
    beside = f"; text columns are ignored: {listed(texts)}" if texts else ""
    raise CovcalError(
        f"{store.path} has {width} columns of numbers ({listed(feed.names)}{beside}) but the "
        f"model expects {wanted.describe()}: give one column per feature in the model's "
        f"order. Rename every other column to {GROUP_PREFIX}NAME"
    )


def _require_no_commas(store: Store) -> None:
    for message in store.with_commas.values():
        raise store.error(message)


def _has_shape(entry: Entry, wanted: ModelInput) -> bool:
    # A column of n values fits an input of shape [N, 1].
    is_column = len(entry.shape) == 1 and len(wanted.shape) == 2
    return wanted.takes((*entry.shape, 1) if is_column else entry.shape)


def _fits(entry: Entry, wanted: ModelInput, *, table: bool) -> bool:
    has_shape = _has_shape(entry, wanted)
    if not has_shape or entry.dtype == wanted.dtype or wanted.dtype.kind in "OUS":
        return has_shape
    if entry.dtype.kind not in "fiub":
        return False
    if wanted.dtype.kind == "f":
        # pixels need preprocessing
        return table or len(entry.shape) == 1 or entry.dtype != np.uint8
    # In a CSV file, all numbers are floats.
    return table or entry.dtype.kind in "iub"


def _unfit(
    store: Store, feed: Feed, bad: Booleans, rows: Rows, ids: Sequence[str], block: AnyArray | None
) -> CovcalError:
    where = np.argwhere(bad)[0]
    row = int(rows[where[0]])
    name = feed.names[int(where[1])] if feed.side_by_side else feed.names[0]
    row_id = f" ({ids[row]})" if ids[row] != str(row) else ""
    if block is not None:
        return store.error(
            f"{name} is {block[tuple(where)]:g} in {store.place(row)}{row_id}, but the model "
            f"needs {feed.wanted.dtype}: correct this value"
        )
    if store.is_table:
        return store.error(
            f"column {name} is empty, NaN or infinite in {store.place(row)}{row_id}: fill in "
            "the value as in training, or leave the row out"
        )
    return store.error(
        f"{name} {store.place(row)}{row_id} is NaN or infinite: give a finite number"
    )
