"""Decode images in threads while the model runs, in a stable order.

Pillow decodes without the interpreter lock, so threads are enough. A task decodes several
neighbouring images, because starting a task takes longer than decoding a small image. While the
model reads one batch, threads fill two other batches.
"""

import math
import struct
import threading
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from covcal_cli.arrays import AnyArray, ModelInput, Rows
from covcal_cli.data.domain import Batch, ImagePipeline, require_one_input
from covcal_cli.errors import one_line

Opener = Callable[[], Image.Image]
_AHEAD = 2  # Number of batches that are decoded in advance.
_SMALL = 64 * 64 * 3  # Maximum number of values in a small image.
_SMALL_RUN = (32, 64)
_LARGE_RUN = (1, 8)
_UNREADABLE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


@dataclass
class _Run:
    start: int
    decoded: list[int] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)


class ImageFiles(ABC):
    """Image files in folders or shards."""

    holds_images = True
    ids_are_integers = False

    def __init__(self, path: Path, wanted: Sequence[ModelInput]) -> None:
        self.path = path
        self.columns: Mapping[str, AnyArray] = {}
        self._input = require_one_input(path, wanted)

    @abstractmethod
    def opener(self, row: int) -> Opener:
        """Return the function that opens the image of a row."""

    def batches(
        self, pipeline: ImagePipeline | None, rows: Rows, *, size: int, threads: int
    ) -> Generator[Batch, None, None]:
        """Yield batches of `size` decoded images; threads decode later batches in advance."""
        openers = openers_of(self.opener, rows, size)
        return decode_batches(openers, rows, self._input, pipeline, threads=threads)


def openers_of(opener: Callable[[int], Opener], rows: Rows, size: int) -> Iterator[list[Opener]]:
    """Yield batches of functions that open images."""
    for start in range(0, len(rows), size):
        yield [opener(row) for row in rows[start : start + size].tolist()]


def decode_batches(
    openers: Iterable[Sequence[Opener]],
    rows: Rows,
    name: str,
    pipeline: ImagePipeline | None,
    *,
    threads: int,
) -> Generator[Batch, None, None]:
    """Yield batches of decoded images for the input `name`.

    `openers` yields a list for each batch, with one function per row that opens the image. If a
    function fails, its image is left out and listed in `Batch.skipped`. The next batch overwrites
    the arrays.
    """
    if pipeline is None:
        raise ValueError("images need a pipeline")
    # One more buffer, for the batch that the model reads.
    buffers = [np.empty((0, *pipeline.row_shape), pipeline.dtype)] * (_AHEAD + 1)
    fewest, most = _SMALL_RUN if math.prod(pipeline.row_shape) <= _SMALL else _LARGE_RUN
    stopped = threading.Event()
    pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="covcal-decode")
    pending: deque[tuple[AnyArray, Rows, list[Future[_Run]]]] = deque()
    start = 0
    try:
        for batch in openers:
            buffer = buffers.pop(0)
            if len(buffer) < len(batch):
                buffer = np.empty((len(batch), *pipeline.row_shape), pipeline.dtype)
            buffers.append(buffer)
            length = min(most, max(fewest, -(-len(batch) // threads)))
            runs = [
                pool.submit(
                    _decode, batch[first : first + length], first, buffer, pipeline, stopped
                )
                for first in range(0, len(batch), length)
            ]
            pending.append((buffer, rows[start : start + len(batch)], runs))
            start += len(batch)
            if len(pending) > _AHEAD:
                yield _joined(name, *pending.popleft())
        while pending:
            yield _joined(name, *pending.popleft())
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _decode(
    openers: Sequence[Opener],
    start: int,
    buffer: AnyArray,
    pipeline: ImagePipeline,
    stopped: threading.Event,
) -> _Run:
    """Decode images into `buffer` without gaps, from row `start` on."""
    run = _Run(start)
    for position, opener in enumerate(openers, start):
        if stopped.is_set():
            break
        try:
            with opener() as image:
                pipeline.write(image, buffer[start + len(run.decoded)])
        except _UNREADABLE as error:
            run.skipped.append((position, _reason(error)))
        else:
            run.decoded.append(position)
    return run


def _joined(name: str, buffer: AnyArray, rows: Rows, futures: Sequence[Future[_Run]]) -> Batch:
    """Wait for the tasks of a batch, and join their rows without gaps."""
    runs = [future.result() for future in futures]
    filled = 0
    for run in runs:
        n = len(run.decoded)
        if run.start != filled:
            buffer[filled : filled + n] = buffer[run.start : run.start + n]
        filled += n
    decoded = [position for run in runs for position in run.decoded]
    skipped = tuple((int(rows[place]), reason) for run in runs for place, reason in run.skipped)
    return Batch({name: buffer[:filled]}, rows[decoded], skipped)


def _reason(error: BaseException) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "this is not an image, or its format is unknown"
    return one_line(error) or type(error).__name__
