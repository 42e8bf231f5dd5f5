"""Decoding and inference overlap: a run takes as long as the slower of the two.

The stages sleep instead of working, what they slept is taken from the same run, and the best of a
few runs counts: so a busy machine does not decide the outcome.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from PIL import Image

from covcal_cli.data.images import Opener, decode_batches
from covcal_cli.data.preprocessing.settings import Preprocessing
from tests import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
THREADS, BATCH, BATCHES, ATTEMPTS = 2, 8, 80, 8
ROWS = np.arange(BATCH * BATCHES)
SIDE = 80  # as large as it takes for runs of a few images


class Stages:
    """Two stages that sleep, and how long each was busy."""

    def __init__(self, decode: float, model: float) -> None:
        self._decode, self._model = decode, model
        self._slept: list[float] = []
        self._ran: list[float] = []

    def open(self) -> Image.Image:
        start = time.perf_counter()
        time.sleep(self._decode)
        self._slept.append(time.perf_counter() - start)
        return Image.new("L", (SIDE, SIDE))

    def run(self) -> None:
        start = time.perf_counter()
        time.sleep(self._model)
        self._ran.append(time.perf_counter() - start)

    @property
    def decoding(self) -> float:
        """Seconds that decoding takes when its threads never wait."""
        return sum(self._slept) / THREADS

    @property
    def running(self) -> float:
        """Seconds that the model takes when it never waits."""
        return sum(self._ran)


def openers(stages: Stages) -> Iterator[Sequence[Opener]]:
    return ([stages.open] * BATCH for _ in range(BATCHES))


def overlap(decode: float, model: float) -> tuple[float, float]:
    """Return the seconds of a run as a share of its slower stage, and of both stages together."""
    stages = Stages(decode, model)
    pipeline = Preprocessing().resolve((None, 1, SIDE, SIDE), np.dtype(np.float32))
    rows = 0
    start = time.perf_counter()
    for batch in decode_batches(openers(stages), ROWS, "x", pipeline, threads=THREADS):
        rows += len(batch.rows)
        stages.run()
    wall = time.perf_counter() - start
    assert rows == len(ROWS)
    slower = max(stages.decoding, stages.running)
    return wall / slower, wall / (stages.decoding + stages.running)


@pytest.mark.parametrize(
    ("decode", "model"),
    [(0.001, 0.016), (0.003, 0.003), (0.004, 0.014)],
    ids=["model is slower", "decoding is slower", "nearly even"],
)
def test_a_run_takes_as_long_as_its_slower_stage(decode: float, model: float) -> None:
    found = []
    for _ in range(ATTEMPTS):
        found.append(overlap(decode, model))
        if found[-1][0] <= 1.10:
            break
    assert min(share for share, _ in found) <= 1.10, found


def test_the_benchmark_prints_the_processor_time_of_both_ways() -> None:
    command = [sys.executable, str(EXAMPLES / "benchmark_extract.py")]
    options = ["--images", "24", "--rounds", "1", "--threads", "2"]
    done = subprocess.run(command + options, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "24 images, 2 thread(s) each, processor seconds"
    for line, name in zip(lines[2:], ("digits", "photos"), strict=True):
        assert re.fullmatch(rf"{name}( +\d+\.\d+){{4}}", line)
        decode, run, _, ratio = map(float, line.split()[1:])
        assert decode > 0
        assert run >= 0
        assert ratio > 0.5
