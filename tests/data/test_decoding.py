"""Decoding in threads: order, broken files, buffers that go round, and stopping."""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covcal_cli.arrays import ModelInput
from covcal_cli.data.domain import ImagePipeline
from covcal_cli.data.images import decode_batches
from covcal_cli.data.preprocessing.settings import Preprocessing
from tests.made_rows import opened

F4 = np.dtype(np.float32)
COLOR = (None, 3, 4, 4)
ROWS = np.arange(1000)


def grey() -> ImagePipeline:
    return Preprocessing().resolve((None, 1, 4, 4), F4)


def color() -> ImagePipeline:
    return Preprocessing().resolve(COLOR, F4)


def damaged(folder: Path) -> dict[str, str]:
    """Write broken files of every kind; return each with a part of its reason."""
    noise = np.random.default_rng(0).integers(0, 256, size=(64, 64, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    for name in ("good.png", "cut.png", "flipped.png"):
        image.save(folder / name)
    image.save(folder / "cut.jpg")
    for name, keep in (("cut.png", 0.5), ("cut.jpg", 0.5)):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * keep)])
    flipped = bytearray((folder / "flipped.png").read_bytes())
    flipped[60] ^= 0xFF
    (folder / "flipped.png").write_bytes(flipped)
    (folder / "empty.png").write_bytes(b"")
    (folder / "page.png").write_text("<!DOCTYPE html>")
    (folder / "folder.gif").symlink_to(folder / "gone.gif")
    Image.new("F", (4, 4)).save(folder / "float.tif")
    header = bytearray((folder / "good.png").read_bytes())
    header[16:24] = (60_000).to_bytes(4, "big") * 2
    (folder / "bomb.png").write_bytes(header)
    return {
        "bomb.png": "",
        "cut.jpg": "truncated",
        "cut.png": "",
        "empty.png": "not an image",
        "flipped.png": "",
        "float.tif": "32 bits have no fixed range",
        "folder.gif": "no such file",
        "page.png": "not an image",
    }


@pytest.mark.parametrize("threads", [1, 3])
def test_unreadable_images_are_skipped_and_named(threads: int, tmp_path: Path) -> None:
    reasons = damaged(tmp_path)
    data = opened(tmp_path)
    openers = [[partial(Image.open, tmp_path / name) for name in data.ids]]
    (batch,) = decode_batches(openers, ROWS, "x", color(), threads=threads)
    found = {data.ids[row]: reason for row, reason in batch.skipped}
    assert set(found) == set(reasons)
    for name, part in reasons.items():
        assert part in found[name]
        assert "\n" not in found[name]
        assert str(tmp_path) not in found[name]
    assert [data.ids[row] for row in batch.rows] == ["good.png"]
    assert batch.inputs["x"].shape == (1, 3, 4, 4)


def shade(value: int) -> Callable[[], Image.Image]:
    return lambda: Image.new("L", (4, 4), value)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 3, 64])
def test_the_order_depends_on_neither_threads_nor_batch(size: int, threads: int) -> None:
    openers = [shade(i) for i in range(100)]
    batches = [openers[start : start + size] for start in range(0, 100, size)]
    values: list[float] = []
    rows: list[int] = []
    for batch in decode_batches(batches, ROWS, "x", grey(), threads=threads):
        values += batch.inputs["x"][:, 0, 0, 0].tolist()
        rows += batch.rows.tolist()
    np.testing.assert_allclose(np.array(values) * 255, np.arange(100), atol=1e-3)
    assert rows == list(range(100))


@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_skipped_leaves_no_gap_whatever_thread_met_it(threads: int) -> None:
    def broken() -> Image.Image:
        raise OSError("image file is truncated")

    bad = {0, 5, 31, 32, 33, 64, 99, 130, 199}
    openers = [broken if i in bad else shade(i) for i in range(200)]
    batches = [openers[start : start + 100] for start in range(0, 200, 100)]
    values: list[float] = []
    skipped: list[int] = []
    for batch in decode_batches(batches, ROWS, "x", grey(), threads=threads):
        values += batch.inputs["x"][:, 0, 0, 0].tolist()
        np.testing.assert_allclose(batch.inputs["x"][:, 0, 0, 0] * 255, batch.rows, atol=1e-3)
        skipped += [row for row, _ in batch.skipped]
    assert skipped == sorted(bad)
    assert len(values) == 200 - len(bad)


def test_three_buffers_carry_any_number_of_batches() -> None:
    openers = [[shade(i)] * 5 for i in range(9)]
    places = [
        batch.inputs["x"].__array_interface__["data"][0]
        for batch in decode_batches(openers, ROWS, "x", grey(), threads=2)
    ]
    assert len(set(places)) == 3
    assert places == places[:3] * 3


def test_batches_may_grow_and_shrink() -> None:
    sizes = [2, 7, 1, 0, 9, 3]
    openers = [[shade(size)] * size for size in sizes]
    found = [
        batch.inputs["x"].shape[0]
        for batch in decode_batches(openers, ROWS, "x", grey(), threads=2)
    ]
    assert found == sizes


def test_a_batch_of_nothing_but_bad_images_is_empty() -> None:
    def broken() -> Image.Image:
        raise OSError("image file is truncated")

    (batch,) = decode_batches([[broken, broken]], ROWS, "x", color(), threads=2)
    assert batch.inputs["x"].shape == (0, 3, 4, 4)
    assert len(batch.skipped) == 2


def test_decoding_stops_when_the_caller_does() -> None:
    opened: list[int] = []

    def count(number: int) -> Image.Image:
        opened.append(number)
        return Image.new("L", (4, 4))

    batches = decode_batches(
        ([partial(count, number)] for number in range(1000)), ROWS, "x", grey(), threads=1
    )
    next(batches)
    batches.close()
    assert len(opened) < 10


def test_closing_waits_for_no_more_than_the_image_in_hand() -> None:
    closing = threading.Event()
    opened: list[int] = []

    def held(number: int) -> Image.Image:
        opened.append(number)
        if number >= 64:  # of the second batch
            assert closing.wait(30)
            time.sleep(0.3)
        return Image.new("L", (4, 4))

    openers = ([partial(held, 64 * batch + row) for row in range(64)] for batch in range(10))
    batches = decode_batches(openers, ROWS, "x", grey(), threads=2)
    next(batches)
    closing.set()
    batches.close()
    assert len(opened) <= 64 + 4


def test_an_error_that_is_no_bad_image_comes_out_after_the_batches_before_it() -> None:
    def wrong() -> Image.Image:
        raise KeyError("a defect")

    openers = [[shade(0)], [shade(1)], [wrong], [shade(3)]]
    batches = decode_batches(openers, ROWS, "x", grey(), threads=2)
    assert [next(batches).rows.tolist() for _ in range(2)] == [[0], [1]]
    with pytest.raises(KeyError, match="a defect"):
        next(batches)


def test_one_truncated_image_holds_up_nothing(tmp_path: Path) -> None:
    """A public report of its kind: clip-retrieval hung on one broken file of a large set."""
    noise = np.random.default_rng(0).integers(0, 256, size=(64, 64, 3), dtype=np.uint8)
    for number in range(12):
        Image.fromarray(noise).save(tmp_path / f"{number:02d}.jpg")
    cut = tmp_path / "05.jpg"
    cut.write_bytes(cut.read_bytes()[:-700])
    data, rows = opened(tmp_path, ModelInput("x", COLOR, F4)), np.arange(12)
    found: list[int] = []
    skipped: list[str] = []

    def run() -> None:
        for batch in data.batches(color(), rows, size=4, threads=2):
            found.extend(batch.rows.tolist())
            skipped.extend(data.ids[row] for row, _ in batch.skipped)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(timeout=30)
    assert not worker.is_alive()
    assert skipped == ["05.jpg"]
    assert found == [row for row in range(12) if row != 5]
