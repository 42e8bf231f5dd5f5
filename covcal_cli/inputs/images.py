"""Decoding images in threads, ahead of the model, in a stable order.

Threads suffice because Pillow releases the interpreter while it decodes and resizes. Each works on
a run of images, since one task per image costs more than decoding a small one.
"""

import struct
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from covcal_cli.inputs.domain import Batch
from covcal_cli.inputs.preprocessing import ImagePipeline, Pixels

Opener = Callable[[], Image.Image]

_AHEAD = 2  # batches in the making while the model runs on another
# What Pillow raises on broken files; SyntaxError is its word for a broken PNG.
_UNREADABLE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


@dataclass(frozen=True)
class _Decoded:
    """One run of images: the model's input, the positions read, and the failures."""

    array: NDArray[Any]
    positions: list[int]
    skipped: list[tuple[int, str]]


def decode_batches(
    openers: Iterable[Sequence[Opener]],
    rows: NDArray[np.int64],
    name: str,
    pipeline: ImagePipeline,
    *,
    threads: int,
) -> Generator[Batch, None, None]:
    """Decode batches of images in order, some ahead of the caller.

    Parameters
    ----------
    openers : iterable of sequences of callables
        One sequence per batch; each callable opens one image and may fail.
    rows : array of int64, shape (n,)
        The row number of every opener, in order.
    name : str
        The model's input.
    pipeline : ImagePipeline
        What is done to every image.
    threads : int
        Decoding threads.

    Yields
    ------
    Batch
        An image that cannot be read is left out and named in `Batch.skipped`.
    """
    pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="covcal-decode")
    pending: deque[list[Future[_Decoded]]] = deque()
    start = 0
    try:
        for batch in openers:
            length = -(-len(batch) // threads)
            runs = [batch[first : first + length] for first in range(0, len(batch), length)]
            tasks = [
                pool.submit(_decode, run, start + index * length, pipeline)
                for index, run in enumerate(runs)
            ]
            pending.append(tasks)
            start += len(batch)
            if len(pending) > _AHEAD:
                yield _joined(pending.popleft(), rows, name)
        while pending:
            yield _joined(pending.popleft(), rows, name)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _decode(openers: Sequence[Opener], start: int, pipeline: ImagePipeline) -> _Decoded:
    pixels: list[Pixels] = []
    positions: list[int] = []
    skipped: list[tuple[int, str]] = []
    for position, opener in enumerate(openers, start):
        try:
            with opener() as image:
                pixels.append(pipeline.pixels(image))
        except _UNREADABLE as error:
            skipped.append((position, _reason(error)))
        else:
            positions.append(position)
    stacked = np.empty((len(pixels), *pipeline.size, len(pipeline.mean)), dtype=np.uint8)
    for row, image_pixels in enumerate(pixels):
        stacked[row] = image_pixels
    return _Decoded(pipeline.normalise(stacked), positions, skipped)


def _joined(tasks: list[Future[_Decoded]], rows: NDArray[np.int64], name: str) -> Batch:
    runs = [task.result() for task in tasks]
    kept = [run.array for run in runs if run.positions]
    array = runs[0].array if not kept else kept[0] if len(kept) == 1 else np.concatenate(kept)
    positions = [position for run in runs for position in run.positions]
    skipped = tuple(
        (int(rows[position]), reason) for run in runs for position, reason in run.skipped
    )
    return Batch({name: array}, rows[positions], skipped)


def _reason(error: BaseException) -> str:
    """Say in a few words why an image could not be read, without the path."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or of an unknown kind"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split()) or type(error).__name__
