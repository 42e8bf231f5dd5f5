"""Decoding and inference overlap: each goes on while the other is busy, and so does every thread.

Each test waits for two things to happen at the same time, and fails only if they never do: how
fast the machine is, and how busy, decides nothing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Barrier, Event

import numpy as np
from PIL import Image

from covcal_cli.data.images import decode_batches
from covcal_cli.data.preprocessing.settings import Preprocessing

THREADS, BATCH, BATCHES = 2, 8, 20
ROWS = np.arange(BATCH * BATCHES)
SIDE = 128  # large enough for each thread to take a part of a batch
PATIENCE = 30.0  # seconds, none of which are needed


def run(read: Callable[[int], None], use: Callable[[int], None]) -> None:
    """Decode all rows, calling `read` for every row that is opened and `use` for every batch."""

    def opened(row: int) -> Image.Image:
        read(row)
        return Image.new("L", (SIDE, SIDE))

    batches: list[Sequence[Callable[[], Image.Image]]] = [
        [partial(opened, row) for row in rows.tolist()] for rows in ROWS.reshape(BATCHES, BATCH)
    ]
    pipeline = Preprocessing().resolve((None, 1, SIDE, SIDE), np.dtype(np.float32))
    decoded = decode_batches(batches, ROWS, "x", pipeline, threads=THREADS)
    for number, batch in enumerate(decoded):
        assert batch.rows.tolist() == list(range(number * BATCH, (number + 1) * BATCH))
        use(number)


def test_the_next_batch_is_decoded_while_the_model_runs() -> None:
    """The model holds on to each batch until every image of the next one has been opened."""
    opened = [Event() for _ in ROWS]

    def wait_for_the_next(number: int) -> None:
        for event in opened[(number + 1) * BATCH : (number + 2) * BATCH]:
            assert event.wait(PATIENCE)

    run(lambda row: opened[row].set(), wait_for_the_next)


def test_the_model_runs_while_the_next_batch_is_decoded() -> None:
    """No image of a batch can be opened before the model has the batch before it."""
    has = [Event() for _ in range(BATCHES)]

    def wait_for_the_model(row: int) -> None:
        assert row < BATCH or has[row // BATCH - 1].wait(PATIENCE)

    run(wait_for_the_model, lambda number: has[number].set())


def test_every_thread_has_a_part_of_each_batch() -> None:
    """The first and the last image of a batch are opened at the same time."""
    meetings = [Barrier(THREADS) for _ in range(BATCHES)]

    def meet(row: int) -> None:
        if row % BATCH in (0, BATCH - 1):
            meetings[row // BATCH].wait(PATIENCE)

    run(meet, lambda _: None)
