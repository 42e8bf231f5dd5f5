"""Decoding images in threads, ahead of the model, in a stable order.

Threads suffice because Pillow releases the interpreter while it decodes and resizes. Each works on
a run of images, since one task per image costs more than decoding a small one, and writes straight
into the batch that the model is fed. Three batches go round: one with the model, two in the making.
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
_AHEAD = 2  # batches in the making while the model runs on another
_SMALL = 64 * 64 * 3  # values of a row up to which an image counts as small
_SMALL_RUN = (32, 64)
_LARGE_RUN = (1, 8)
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


@dataclass
class _Run:
    """Neighbouring images of a batch: where they begin, which were read, and the failures."""

    start: int
    kept: list[int] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class _Pending:
    """A batch in the making: its buffer, its row numbers, and the runs that fill it."""

    buffer: AnyArray
    rows: Rows
    runs: list[Future[_Run]]


class ImageFiles(ABC):
    """Rows that are image files: what is the same in folders and shards."""

    holds_images = True
    ids_are_integers = False

    def __init__(self, path: Path, wanted: Sequence[ModelInput]) -> None:
        self.path = path
        self.columns: Mapping[str, AnyArray] = {}
        self._input = require_one_input(path, wanted)

    @abstractmethod
    def opener(self, row: int) -> Opener:
        """Return what opens the image of a row."""

    def batches(
        self,
        pipeline: ImagePipeline | None,
        rows: Rows,
        *,
        size: int,
        threads: int,
    ) -> Generator[Batch, None, None]:
        """Decode the images, `size` at a time, ahead of the caller."""
        openers = openers_of(self.opener, rows, size)
        return decode_batches(openers, rows, self._input, pipeline, threads=threads)


def openers_of(opener: Callable[[int], Opener], rows: Rows, size: int) -> Iterator[list[Opener]]:
    """Yield what opens the images of `rows`, `size` at a time."""
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
    """Decode batches of images for the input `name` in order, some ahead of the caller.

    There is one sequence of `openers` per batch; each opens the image of one of the `rows` and may
    fail: the image is then left out and named in `Batch.skipped`. A batch is valid until the next
    one is asked for.
    """
    if pipeline is None:
        raise ValueError("images need a pipeline")
    # Buffers are used in turn, so that none is made anew: there are as many as batches at once.
    buffers = [np.empty((0, *pipeline.row_shape), pipeline.dtype)] * (_AHEAD + 1)
    stopped = threading.Event()
    pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="covcal-decode")
    pending: deque[_Pending] = deque()
    start = 0
    try:
        for batch in openers:
            buffer = buffers.pop(0)
            if len(buffer) < len(batch):
                buffer = np.empty((len(batch), *pipeline.row_shape), pipeline.dtype)
            buffers.append(buffer)
            # Threads fill the buffer, a run of images each, while the model has an earlier one.
            length = _run_length(len(batch), pipeline, threads)
            runs = [
                pool.submit(
                    _decode, batch[first : first + length], first, buffer, pipeline, stopped
                )
                for first in range(0, len(batch), length)
            ]
            pending.append(_Pending(buffer, rows[start : start + len(batch)], runs))
            start += len(batch)
            if len(pending) > _AHEAD:
                yield _joined(pending.popleft(), name)
        while pending:
            yield _joined(pending.popleft(), name)
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _run_length(images: int, pipeline: ImagePipeline, threads: int) -> int:
    """Return how many images a thread takes at a time, so that all threads have some."""
    small = math.prod(pipeline.row_shape) <= _SMALL
    fewest, most = _SMALL_RUN if small else _LARGE_RUN
    return min(most, max(fewest, -(-images // threads)))


def _decode(
    openers: Sequence[Opener],
    start: int,
    buffer: AnyArray,
    pipeline: ImagePipeline,
    stopped: threading.Event,
) -> _Run:
    """Fill a buffer from `start` on with the images that can be read, without gaps."""
    run = _Run(start)
    for position, opener in enumerate(openers, start):
        if stopped.is_set():
            break
        try:
            with opener() as image:
                pipeline.write(image, buffer[start + len(run.kept)])
        except _UNREADABLE as error:
            run.skipped.append((position, _reason(error)))
        else:
            run.kept.append(position)
    return run


def _joined(batch: _Pending, name: str) -> Batch:
    """Wait for the runs of a batch and close the gaps that skipped images left between them."""
    runs = [future.result() for future in batch.runs]
    filled = 0
    for run in runs:
        if run.start != filled:
            batch.buffer[filled : filled + len(run.kept)] = batch.buffer[
                run.start : run.start + len(run.kept)
            ]
        filled += len(run.kept)
    kept = [position for run in runs for position in run.kept]
    skipped = tuple(
        (int(batch.rows[position]), reason) for run in runs for position, reason in run.skipped
    )
    return Batch({name: batch.buffer[:filled]}, batch.rows[kept], skipped)


def _reason(error: BaseException) -> str:
    """Say in a few words why an image could not be read, without the path."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or of an unknown kind"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return one_line(error) or type(error).__name__
