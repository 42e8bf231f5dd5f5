"""Rows from an ``.npz`` file: ``x``, and optionally ``y``, ``split`` and ``id``.

``x`` is streamed, so that its size does not matter; the others stay in memory. Images are uint8
[n, h, w] or [n, h, w, c] and are preprocessed; other numbers must have the model's own shape and go
in as they are.
"""

import zipfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file
from covcal_cli.inputs.classes import ClassMap
from covcal_cli.inputs.domain import Batch
from covcal_cli.inputs.images import Opener, decode_batches
from covcal_cli.inputs.npy import NpyStream
from covcal_cli.inputs.preprocessing import ImagePipeline, Pixels
from covcal_cli.modelinput import ModelInput

_KEYS = ("x", "y", "split", "id")
_UNKNOWN = -1


class ArrayData:
    """The rows of an ``.npz`` file; see `covcal_cli.inputs.domain.DomainData`.

    Raises
    ------
    CovcalError
        If the file is not readable, or an array is missing or does not fit the others.
    """

    class_folders: tuple[str, ...] | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        require_file(path, remedy="save x, and y where known, with numpy.savez")
        self._shape, self._dtype = self._described()
        self.given_split: NDArray[np.uint8] | None = None
        try:
            with np.load(path, allow_pickle=False) as arrays:
                unknown = sorted(set(arrays.files) - set(_KEYS))
                self._y = self._checked_labels(arrays)
                self.ids: list[str] = self._checked_ids(arrays)
                self.given_split = self._checked_split(arrays)
        except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
            raise self._unreadable(error) from error
        self.split_names = self.ids
        self.columns: Mapping[str, NDArray[Any]] = {}
        self.notes: tuple[str, ...] = (
            (f"{path}: {', '.join(unknown)} not used (covcal reads {', '.join(_KEYS)})",)
            if unknown
            else ()
        )

    def labels(self, classes: ClassMap) -> NDArray[np.int64]:
        """Return ``y``, checked against the number of classes; -1 everywhere without it."""
        count = len(classes.names)
        outside = np.flatnonzero((self._y < _UNKNOWN) | (self._y >= count))
        if len(outside):
            row = int(outside[0])
            raise self._error(
                f"y[{row}] is {self._y[row]} and the model has {count} classes: -1 (unknown) and 0 "
                f"to {count - 1} are allowed"
            )
        return self._y

    def holds_images(self, wanted: Sequence[ModelInput]) -> bool:
        """Return whether ``x`` is uint8 pixels, refusing what is neither images nor rows."""
        axes = len(self._shape)
        pixels = axes == 3 or (axes == 4 and self._shape[3] in (1, 3, 4))
        if self._dtype == np.uint8 and pixels:
            return True
        (only,) = wanted
        if self._fits(only):
            return False
        have = ", ".join(map(str, self._shape[1:]))
        raise self._error(
            f"x is {self._dtype} [N, {have}] and the model wants {only.describe()}: give rows of "
            "that shape, or images as uint8 [n, h, w] or [n, h, w, c]"
        )

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
        name, dtype = wanted[0].name, wanted[0].dtype
        if self.holds_images(wanted):
            if pipeline is None:
                raise ValueError("images need a pipeline")
            openers = ([_opener(row) for row in block] for _, block in self._blocks(rows, size))
            yield from decode_batches(openers, rows, name, pipeline, threads=threads)
            return
        for chosen, block in self._blocks(rows, size):
            self._require_finite(block, chosen)
            yield Batch({name: block.astype(dtype, copy=False)}, chosen)

    def _blocks(
        self, rows: NDArray[np.int64], size: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """Yield the chosen rows of ``x`` and their numbers, at most `size` at a time."""
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open("x.npy") as member:
                stream = NpyStream(member)
                start = 0
                for block in stream.blocks(size):
                    first, last = np.searchsorted(rows, (start, start + len(block)))
                    chosen = rows[first:last]
                    if len(chosen):
                        yield chosen, block if len(chosen) == len(block) else block[chosen - start]
                    start += len(block)
        except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
            raise self._unreadable(error) from error

    def _described(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist()]
                if "x" not in names:
                    raise self._error(
                        f"there is no x, only {', '.join(names) or 'nothing'}: save the rows as x"
                    )
                with archive.open("x.npy") as member:
                    stream = NpyStream(member)
        except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
            raise self._unreadable(error) from error
        if stream.dtype.kind not in "fiub":
            raise self._error(f"x holds {stream.dtype}, not numbers: save plain numeric arrays")
        if len(stream.shape) < 2 or stream.shape[0] == 0:
            raise self._error(f"x has shape {list(stream.shape)}: give one row per example")
        return stream.shape, stream.dtype

    def _fits(self, wanted: ModelInput) -> bool:
        same = len(self._shape) == len(wanted.shape) and all(
            want in (None, have)
            for have, want in zip(self._shape[1:], wanted.shape[1:], strict=True)
        )
        if not same or self._dtype == wanted.dtype:
            return same
        # Pixels fed as floats without a scale would be a silent guess; fractions would be lost.
        floats = np.issubdtype(wanted.dtype, np.floating)
        return self._dtype != np.uint8 if floats else self._dtype.kind in "iu"

    def _checked_labels(self, arrays: Any) -> NDArray[np.int64]:
        if "y" not in arrays:
            return np.full(self._shape[0], _UNKNOWN, dtype=np.int64)
        y = self._column(arrays, "y")
        if y.dtype.kind not in "iu":
            raise self._error(f"y holds {y.dtype}: save class numbers as integers, -1 for unknown")
        return y.astype(np.int64)

    def _checked_split(self, arrays: Any) -> NDArray[np.uint8] | None:
        if "split" not in arrays:
            return None
        split = self._column(arrays, "split")
        wrong = np.flatnonzero(~np.isin(split, (0, 1, 2)))
        if split.dtype.kind not in "iu" or len(wrong):
            found = f"holds {split[wrong[0]]}" if len(wrong) else f"holds {split.dtype}"
            raise self._error(f"split {found}: 0 (train), 1 (validation) and 2 (test) are allowed")
        return split.astype(np.uint8)

    def _checked_ids(self, arrays: Any) -> list[str]:
        if "id" not in arrays:
            return [str(row) for row in range(self._shape[0])]
        ids = self._column(arrays, "id")
        if ids.dtype.kind not in "USiu":
            raise self._error(f"id holds {ids.dtype}: save texts or integers")
        if ids.dtype.kind == "S":
            ids = np.char.decode(ids, "utf-8")
        return [str(value) for value in ids]

    def _column(self, arrays: Any, name: str) -> NDArray[Any]:
        values: NDArray[Any] = arrays[name]
        if values.shape != self._shape[:1]:
            raise self._error(
                f"{name} has shape {list(values.shape)} and x has {self._shape[0]} rows: give one "
                f"{name} per row"
            )
        return values

    def _require_finite(self, block: NDArray[Any], rows: NDArray[np.int64]) -> None:
        if block.dtype.kind != "f" or np.isfinite(block).all():
            return
        first = int(np.argwhere(~np.isfinite(block))[0][0])
        raise self._error(
            f"x row {rows[first]} ({self.ids[rows[first]]}) holds NaN or infinity: every value "
            "must be a finite number"
        )

    def _error(self, what: str) -> CovcalError:
        return CovcalError(f"{self.path}: {what}")

    def _unreadable(self, error: Exception) -> CovcalError:
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            return self._error("it holds Python objects: save plain numeric arrays")
        return CovcalError(
            f"{self.path} is not a readable .npz file ({error}): save it again with numpy.savez"
        )


def _opener(row: Pixels) -> Opener:
    # A single channel is grey to Pillow only without its axis.
    pixels = row[..., 0] if row.ndim == 3 and row.shape[-1] == 1 else row
    open_image: Callable[[Pixels], Image.Image] = Image.fromarray
    return partial(open_image, pixels)
