"""Read rows from files of arrays and tables: ``.npz``, ``.npy``, ``.h5``, ``.csv``, ``.parquet``.

Wide arrays are read in parts. Labels, ids and groups are kept in memory. Images can be an array of
uint8 [n, h, w] or [n, h, w, c], file paths, or file contents.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from covcal_cli.arrays import Labels, ModelInput, Rows
from covcal_cli.data.classes import ClassMap
from covcal_cli.data.domain import Batch, ImagePipeline, require_one_input
from covcal_cli.data.feeding import (
    Feed,
    check_feed,
    columns_of,
    fed,
    notes_on_names,
    plain_numbers,
    plan_feeds,
)
from covcal_cli.data.images import Opener, decode_batches, openers_of
from covcal_cli.data.labels import LabelSets
from covcal_cli.data.preprocessing.pixels import Pixels
from covcal_cli.data.rows import (
    GROUP_PREFIX,
    RowFacts,
    count_rows,
    is_of_rows,
    note_on_ids,
    path_column,
)
from covcal_cli.data.stores import open_store
from covcal_cli.data.stores.store import Piece, Store, image_column, open_encoded, regrouped
from covcal_cli.errors import CovcalError


class ArrayFile:
    """A table, or a file of arrays."""

    def __init__(self, path: Path, keep: Sequence[str] = (), *, multilabel: bool = False) -> None:
        self.path, self.keep = path, keep
        self.store = open_store(path)
        self.n = count_rows(self.store)
        self.label_sets = LabelSets(self.store, self.n) if multilabel else None
        self.image_name = image_column(self.store)
        # In a table of images, columns of numbers are not features.
        of_images = self.image_name is not None or path_column(self.store) is not None
        features = plain_numbers(self.store) if self.store.is_table and not of_images else ()
        self.facts = facts = RowFacts(self.store, self.n, features, keep=keep)
        self.ids = facts.ids
        self.ids_are_integers = facts.ids_are_integers
        if self.image_name is not None and not facts.has_ids:
            names = self.store.texts(self.image_name)
            if names and all(names) and len(set(names)) == len(names):
                self.ids, self.ids_are_integers = names, False
        self.notes = tuple(f"{path}: {note}" for note in facts.notes)
        self.notes += note_on_ids(path, self.ids) if facts.has_ids else ()

    def feeds(self, wanted: Sequence[ModelInput]) -> list[Feed] | None:
        """Return the arrays for each model input; None if the rows are image files."""
        if self.facts.path_name is not None:
            return None
        if self.image_name is None:
            return plan_feeds(self.store, wanted)
        try:  # A model that reads numbers does not need the images.
            feeds = plan_feeds(self.store, wanted)
            for feed in feeds:
                check_feed(self.store, self.n, feed)
        except CovcalError:
            return None
        return feeds


class ArrayData:
    """The rows of a table or of a file of arrays; see `covcal_cli.data.domain.DomainData`."""

    def __init__(
        self,
        file: ArrayFile,
        wanted: Sequence[ModelInput],
        feeds: list[Feed] | None,
        remark: str | None = None,
    ) -> None:
        facts = file.facts
        self.path, self.ids, self.given_split = file.path, file.ids, facts.given_split
        self.split_names, self.ids_are_integers = file.ids, file.ids_are_integers
        self.way_to_label = facts.way_to_label
        self.class_folders = facts.labels.names
        if file.label_sets is not None:
            self.class_folders = file.label_sets.names
        self.columns = facts.groups
        self._file, self._feeds = file, feeds or []
        self._input = wanted[0].name
        self.feature_columns = columns_of(feeds)
        self.holds_images = feeds is None or (len(feeds) == 1 and _is_pixels(file.store, feeds[0]))
        used = [name for feed in self._feeds for name in feed.names]
        if feeds is None:
            require_one_input(file.path, wanted)
            used = [] if file.image_name is None else [file.image_name]
        elif file.image_name is not None:
            unused = {*self.columns} - {*used} | {*file.keep}
            self.columns = {name: v for name, v in self.columns.items() if name in unused}
        if not self.holds_images:
            for feed in self._feeds:
                check_feed(file.store, file.n, feed)
        self.notes: tuple[str, ...] = (
            *file.notes,
            *((remark,) if remark else ()),
            *(f"{file.path}: {note}" for note in notes_on_names(self._feeds)),
            *self._unused_notes(used),
        )

    def labels(self, classes: ClassMap) -> Labels:
        """Return the labels of all rows; see `DomainData.labels`."""
        if (sets := self._file.label_sets) is None:
            return self._file.facts.labels.indices(classes)
        indices = sets.indices(classes)
        self.notes += sets.notes
        return indices

    def batches(
        self, pipeline: ImagePipeline | None, rows: Rows, *, size: int, threads: int
    ) -> Generator[Batch, None, None]:
        """Yield the rows in order. `pipeline` preprocesses images."""
        if self.holds_images:
            openers = self._openers(rows, size)
            yield from decode_batches(openers, rows, self._input, pipeline, threads=threads)
            return
        for chosen, inputs in regrouped(self._fed(rows, size), size):
            yield Batch(inputs, chosen)

    def _fed(self, rows: Rows, size: int) -> Iterator[Piece]:
        store = self._file.store
        names = list(dict.fromkeys(name for feed in self._feeds for name in feed.names))
        numbers = [name for name in names if not store.entries[name].is_text]
        texts = {name: store.whole(name) for name in names if name not in numbers}
        pieces: Iterator[Piece] = (
            store.pieces(numbers, rows, size) if numbers else iter([(rows, {})])
        )
        for chosen, arrays in pieces:
            columns = arrays | {name: values[chosen] for name, values in texts.items()}
            inputs = {
                feed.wanted.name: fed(store, feed, columns, chosen, self.ids)
                for feed in self._feeds
            }
            yield chosen, inputs

    def _openers(self, rows: Rows, size: int) -> Iterator[list[Opener]]:
        file = self._file
        folder = self.path if self.path.is_dir() else self.path.parent
        if self._feeds:
            (name,) = self._feeds[0].names
            for _, arrays in regrouped(file.store.pieces([name], rows, size), size):
                yield [_opener(row) for row in arrays[name]]
        elif file.image_name is not None:
            pieces = file.store.pieces([file.image_name], rows, size)
            for _, arrays in regrouped(pieces, size):
                files = arrays[file.image_name].tolist()
                yield [partial(open_encoded, folder, value) for value in files]
        else:
            paths = file.facts.paths
            yield from openers_of(lambda row: partial(open_encoded, folder, paths[row]), rows, size)

    def _unused_notes(self, used: Sequence[str]) -> tuple[str, ...]:
        unused = [
            name
            for name, entry in self._file.store.entries.items()
            if name not in used
            and name != self._file.facts.path_name
            and not is_of_rows(self._file.store, name)
            and name.removeprefix(GROUP_PREFIX) not in self.columns
            and (used or entry.shape[:1] != (self._file.n,))
        ]
        names = ", ".join(unused[:12]) + (" and more" if len(unused) > 12 else "")
        return (f"{self.path}: {names} not used",) if unused else ()


def _is_pixels(store: Store, feed: Feed) -> bool:
    entry = store.entries[feed.names[0]]
    axes = len(entry.shape)
    pixels = axes == 3 or (axes == 4 and entry.shape[3] in (1, 3, 4))
    return not feed.side_by_side and entry.dtype == np.uint8 and pixels


def _opener(row: Pixels) -> Opener:
    # For a grey image, Pillow needs the shape (h, w).
    pixels = row[..., 0] if row.ndim == 3 and row.shape[-1] == 1 else row
    open_image: Callable[[Pixels], Image.Image] = Image.fromarray
    return partial(open_image, pixels)
