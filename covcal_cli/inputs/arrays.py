"""Rows from files of arrays and tables: ``.npz``, ``.npy``, ``.h5``, ``.csv`` and ``.parquet``.

Wide arrays are streamed, so that their size does not matter; labels, ids and groups stay in memory.
Images are uint8 [n, h, w] or [n, h, w, c], or the files that a column ``path`` names, or a column
that holds the bytes of such files, and are preprocessed; other numbers must have the model's own
shape and go in as they are.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.classes import ClassMap
from covcal_cli.inputs.domain import Batch, require_one_input
from covcal_cli.inputs.encoded import image_column, image_names, open_encoded
from covcal_cli.inputs.feeding import (
    Feed,
    check_feed,
    fed,
    notes_on_names,
    plain_numbers,
    plan_feeds,
)
from covcal_cli.inputs.images import Opener, decode_batches
from covcal_cli.inputs.preprocessing import ImagePipeline, Pixels
from covcal_cli.inputs.rowfacts import (
    GROUP_PREFIX,
    PATH_NAMES,
    RowFacts,
    is_reserved,
    note_on_ids,
)
from covcal_cli.inputs.store import Piece, Rows, Store, regrouped
from covcal_cli.inputs.stores import open_store
from covcal_cli.modelinput import ModelInput


class ArrayData:
    """The rows of a file of arrays; see `covcal_cli.inputs.domain.DomainData`.

    Attributes
    ----------
    store : Store
        The file.

    Raises
    ------
    CovcalError
        If the file is not readable, or an array does not fit the others.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = open_store(path)
        self._n = count_rows(self.store)
        self._path_name = next(
            (name for name in self.store.entries if name.lower() in PATH_NAMES), None
        )
        self._image_name = image_column(self.store)
        self._paths: list[str] = []
        groups = self._groups()
        facts = RowFacts(self.store, self._n, groups.values())
        self._labels = facts.labels
        self.given_split = facts.given_split
        self.ids = facts.ids
        if self._path_name is not None:
            self._paths = self.store.texts(self._path_name)
            self.ids = facts.ids if facts.has_ids else self._paths
        elif self._image_name is not None and not facts.has_ids:
            self.ids = image_names(self.store, self._image_name) or facts.ids
        self.split_names = self.ids
        self.class_folders = facts.labels.names
        self.columns: Mapping[str, NDArray[Any]] = {
            name: facts.columns[key] for name, key in groups.items()
        }
        self._remarks: tuple[str, ...] = note_on_ids(path, self.ids) if self._has_ids(facts) else ()
        self._column_order: tuple[str, ...] | None = None
        self.notes: tuple[str, ...] = (*self._remarks, *self._unused_notes(()))

    def labels(self, classes: ClassMap) -> NDArray[np.int64]:
        """Return the class index of every row, shape (n,); -1 where unknown."""
        return self._labels.indices(classes)

    def holds_images(self, wanted: Sequence[ModelInput]) -> bool:
        """Return whether the rows are pixels or files, refusing what is neither images nor rows."""
        if self._holds_files(wanted):
            require_one_input(self.path, wanted)
            if self._image_name is not None:
                self.notes = (*self._remarks, *self._unused_notes((self._image_name,)))
            return True
        feeds = self._feeds(wanted)
        used = [name for feed in feeds for name in feed.names]
        if self._image_name is not None:  # before, its numbers passed for groups of images
            self.columns = {name: v for name, v in self.columns.items() if name not in used}
        named = (f"{self.path}: {note}" for note in notes_on_names(feeds))
        self.notes = (*self._remarks, *named, *self._unused_notes(used))
        if len(feeds) == 1 and self._is_pixels(feeds[0]):
            return True
        for feed in feeds:
            check_feed(self.store, self._n, feed)
        return False

    def batches(
        self,
        wanted: Sequence[ModelInput],
        pipeline: ImagePipeline | None,
        rows: NDArray[np.int64],
        *,
        size: int,
        threads: int,
    ) -> Generator[Batch, None, None]:
        """Yield the rows in order; images through `pipeline`, others as they are."""
        if self.holds_images(wanted):
            if pipeline is None:
                raise ValueError("images need a pipeline")
            name = wanted[0].name
            openers = self._openers(wanted, rows, size)
            yield from decode_batches(openers, rows, name, pipeline, threads=threads)
            return
        feeds = self._feeds(wanted)
        for chosen, inputs in regrouped(self._fed(feeds, rows, size), size):
            yield Batch(inputs, chosen)

    def feature_columns(self, wanted: Sequence[ModelInput]) -> tuple[str, ...] | None:
        """Return the columns that go in side by side, in order; None where nothing does.

        Raises
        ------
        CovcalError
            If an input of the model has no array.
        """
        if self._holds_files(wanted):
            return None
        feeds = self._feeds(wanted)
        return feeds[0].names if feeds[0].side_by_side else None

    def order_columns(self, names: tuple[str, ...], remark: str) -> None:
        """Feed the feature columns in this order, which `remark` tells the user."""
        self._column_order = names
        self._remarks = (*self._remarks, remark)

    def _feeds(self, wanted: Sequence[ModelInput]) -> list[Feed]:
        feeds = plan_feeds(self.store, wanted)
        if self._column_order is None or not feeds[0].side_by_side:
            return feeds
        return [replace(feeds[0], names=self._column_order)]

    def _holds_files(self, wanted: Sequence[ModelInput]) -> bool:
        """Return whether the rows are image files, and not numbers with a picture beside them."""
        if self._image_name is None or self._path_name is not None:
            return self._path_name is not None
        try:
            for feed in plan_feeds(self.store, wanted):
                check_feed(self.store, self._n, feed)
        except CovcalError:
            return True
        return False

    def _has_ids(self, facts: RowFacts) -> bool:
        return facts.has_ids or self._path_name is not None

    def _fed(self, feeds: Sequence[Feed], rows: Rows, size: int) -> Iterator[Piece]:
        names = list(dict.fromkeys(name for feed in feeds for name in feed.names))
        numbers = [name for name in names if not self.store.entries[name].is_text]
        texts = {name: self.store.whole(name) for name in names if name not in numbers}
        pieces: Iterator[Piece] = (
            self.store.pieces(numbers, rows, size) if numbers else iter([(rows, {})])
        )
        for chosen, arrays in pieces:
            everything = arrays | {name: values[chosen] for name, values in texts.items()}
            yield (
                chosen,
                {
                    feed.wanted.name: fed(self.store, feed, everything, chosen, self.ids)
                    for feed in feeds
                },
            )

    def _openers(
        self, wanted: Sequence[ModelInput], rows: Rows, size: int
    ) -> Iterator[list[Opener]]:
        folder = self.path if self.path.is_dir() else self.path.parent
        if self._image_name is not None:
            pieces = self.store.pieces([self._image_name], rows, size)
            for _, arrays in regrouped(pieces, size):
                files = arrays[self._image_name].tolist()
                yield [partial(open_encoded, folder, value) for value in files]
            return
        if self._path_name is not None:
            for start in range(0, len(rows), size):
                names = (self._paths[row] for row in rows[start : start + size])
                yield [partial(_open_file, folder / name) for name in names]
            return
        (name,) = self._feeds(wanted)[0].names
        for _, arrays in regrouped(self.store.pieces([name], rows, size), size):
            yield [_opener(row) for row in arrays[name]]

    def _is_pixels(self, feed: Feed) -> bool:
        entry = self.store.entries[feed.names[0]]
        axes = len(entry.shape)
        pixels = axes == 3 or (axes == 4 and entry.shape[3] in (1, 3, 4))
        return not feed.side_by_side and entry.dtype == np.uint8 and pixels

    def _groups(self) -> dict[str, str]:
        """Return what is known of the rows beside their values: array by column's name."""
        features = plain_numbers(self.store) if self.store.is_table else ()
        if self._path_name is not None or self._image_name is not None:
            features = ()
        return {
            name.removeprefix(GROUP_PREFIX): name
            for name, entry in self.store.entries.items()
            if entry.shape == (self._n,)
            and entry.dtype.kind in "fiubSUO"
            and "/" not in name
            and name not in features
            and name != self._path_name
            and (not is_reserved(name) or name.startswith(GROUP_PREFIX) or name == "domain")
        }

    def _unused_notes(self, used: Sequence[str]) -> tuple[str, ...]:
        unused = [
            name
            for name, entry in self.store.entries.items()
            if name not in used
            and name != self._path_name
            and not is_reserved(name)
            and name.removeprefix(GROUP_PREFIX) not in self.columns
            and (used or entry.shape[:1] != (self._n,))
        ]
        shown = ", ".join(unused[:12]) + (" and more" if len(unused) > 12 else "")
        return (f"{self.path}: {shown} not used",) if unused else ()


def count_rows(store: Store) -> int:
    """Return the number of rows of a file of arrays.

    Raises
    ------
    CovcalError
        If there is no array with rows.
    """
    entries = store.entries
    wide = [
        name for name, entry in entries.items() if len(entry.shape) > 1 and not is_reserved(name)
    ]
    first = next((name for name in ("x", *wide, *entries) if name in entries), None)
    if first is None:
        raise CovcalError(f"{store.path} holds nothing: save the rows as x")
    entry = entries[first]
    if entry.dtype.kind == "O":
        raise CovcalError(f"{store.path}: it holds Python objects: save plain numeric arrays")
    if first == "x" and entry.is_text and not store.is_table:
        raise CovcalError(
            f"{store.path}: x holds {entry.dtype}, not numbers: save plain numeric arrays"
        )
    if len(entry.shape) < (1 if store.is_table or first != "x" else 2) or entry.shape[0] == 0:
        raise CovcalError(
            f"{store.path}: {first} has shape {list(entry.shape)}: give one row per example"
        )
    return entry.shape[0]


def _open_file(path: Path) -> Image.Image:
    return Image.open(path)


def _opener(row: Pixels) -> Opener:
    # A single channel is grey to Pillow only without its axis.
    pixels = row[..., 0] if row.ndim == 3 and row.shape[-1] == 1 else row
    open_image: Callable[[Pixels], Image.Image] = Image.fromarray
    return partial(open_image, pixels)
