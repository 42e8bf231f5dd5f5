"""A file of named arrays with one row per example, read by chosen rows, of whatever format.

Each format has a module with a class that keeps the protocol `Store`. `covcal_cli.data.array_files`
feeds models from them, `covcal_cli.data.outputs` reads classifiers' outputs from them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from covcal_cli.arrays import AnyArray, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.files import open_plain

if TYPE_CHECKING:  # tables of numbers are read without Pillow
    from PIL import Image

# Some chosen rows, and their part of every array asked for.
Piece = tuple[Rows, dict[str, AnyArray]]
WINDOW_BYTES = 4 << 20


@dataclass(frozen=True)
class Entry:
    """What is known of one array without reading it."""

    shape: tuple[int, ...]  # rows first
    dtype: np.dtype[Any]  # kind "U" for texts whatever their length
    is_encoded: bool = False  # whether its values are image files, as `Encoded` has them
    class_names: tuple[str, ...] | None = None  # what its numbers stand for, if the file says so
    is_index: bool = False  # whether the file says that it is the table's index

    @property
    def is_text(self) -> bool:
        """Whether it holds texts."""
        return self.dtype.kind in "SUO"


class Store(Protocol):
    """A file of named arrays."""

    path: Path
    is_table: bool = False  # whether they are columns: then plain columns of numbers are features
    is_typed: bool = True  # whether a text that looks like a number is known to be none
    entries: dict[str, Entry]  # by name, in the order of the file
    # By name, the error for columns of texts that are numbers with a decimal comma.
    with_commas: Mapping[str, str] = MappingProxyType({})

    def whole(self, name: str) -> AnyArray:
        """Return a whole array: labels, ids, groups; nothing that is wide."""
        ...

    def texts(self, name: str) -> list[str]:
        """Return a whole array as texts, which takes less memory where they are long.

        Of image files, these are their names, empty where there is none.
        """
        return [str(value) for value in self.whole(name).ravel().tolist()]

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen ascending `rows` of the named arrays in runs of any length.

        About `size` rows at a time are in memory, or what `WINDOW_BYTES` hold.
        """
        ...

    def error(self, what: str) -> CovcalError:
        """Return the error that says `what` of the file."""
        return CovcalError(f"{self.path}: {what}")

    def place(self, row: int) -> str:
        """Return where a row is, in the file's own terms, such as ``line 12``."""
        return f"row {row}"


def windows(rows: Rows, window: int) -> Iterator[tuple[int, int, Rows]]:
    """Cut 0, 1, 2, ... into windows that hold chosen rows: start, stop, and the rows within."""
    position = 0
    while position < len(rows):
        start = int(rows[position]) // window * window
        last = int(np.searchsorted(rows, start + window))
        yield start, start + window, rows[position:last]
        position = last


def regrouped(pieces: Iterable[Piece], size: int) -> Iterator[Piece]:
    """Yield the rows of `pieces` again, `size` at a time, the last fewer."""
    waiting: list[Piece] = []
    have = 0
    for rows, arrays in pieces:
        start = 0
        while start < len(rows):
            taken = min(size - have, len(rows) - start)
            part = slice(start, start + taken)
            waiting.append((rows[part], {name: array[part] for name, array in arrays.items()}))
            start += taken
            have += taken
            if have == size:
                yield _joined(waiting)
                waiting, have = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(pieces: list[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    rows = np.concatenate([piece[0] for piece in pieces])
    names = pieces[0][1]
    return rows, {name: np.concatenate([piece[1][name] for piece in pieces]) for name in names}


# Images that lie in a table as the bytes of their files, as Hugging Face datasets save them.

# The bytes of an image file, or its path where there are none, or None for no image.
Encoded = bytes | str | None
_USUAL = ("image", "img")


def is_image_file(content: bytes) -> bool:
    """Return whether bytes are those of an image file that Pillow knows."""
    from PIL import Image, UnidentifiedImageError

    try:
        Image.open(BytesIO(content)).close()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        return False
    return True


def image_column(store: Store) -> str | None:
    """Return the column of images to classify, ``image`` of several; None where there is none."""
    found = [name for name, entry in store.entries.items() if entry.is_encoded]
    usual = [name for name in found if name.lower() in _USUAL]
    if len(found) > 1 and len(usual) != 1:
        raise CovcalError(
            f"{store.path} has several columns of images ({', '.join(found)}): call the one to "
            f"classify {_USUAL[0]}"
        )
    return next(iter(usual or found), None)


def image_names(store: Store, column: str) -> list[str] | None:
    """Return the names of the image files of all rows; None where they name no row for certain."""
    names = store.texts(column)
    return names if all(names) and len(set(names)) == len(names) else None


def open_encoded(folder: Path, value: Encoded) -> "Image.Image":
    """Open an image; a path is taken to lie below `folder`."""
    from PIL import Image

    if value is None:
        raise ValueError("the table has no image there")
    if isinstance(value, bytes):
        return Image.open(BytesIO(value))
    with open_plain(folder / value) as file:
        return Image.open(BytesIO(file.read()))
