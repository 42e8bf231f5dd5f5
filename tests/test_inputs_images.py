"""Preprocessing and decoding: the silent traps of image files, and unreadable ones."""

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.folder import FolderData
from covcal_cli.inputs.images import decode_batches
from covcal_cli.inputs.preprocessing import ImagePipeline, Preprocessing

F4 = np.dtype(np.float32)
GREY = (None, 1, 4, 4)
COLOR = (None, 3, 4, 4)
ROWS = np.arange(1000)


def grey() -> ImagePipeline:
    return Preprocessing().resolve(GREY, F4)


def color() -> ImagePipeline:
    return Preprocessing().resolve(COLOR, F4)


def saved(folder: Path, image: Image.Image, suffix: str = "png", **options: Any) -> Image.Image:
    path = folder / f"image.{suffix}"
    image.save(path, **options)
    return Image.open(path)


def test_the_declared_input_fills_in_what_is_not_given() -> None:
    assert Preprocessing().resolve((None, 1, 28, 20), F4) == ImagePipeline(
        size=(28, 20),
        scale=1 / 255,
        mean=(0.0,),
        std=(1.0,),
        color="L",
        layout="NCHW",
        resample="bilinear",
        dtype="float32",
    )
    nhwc = Preprocessing().resolve((1, 32, 30, 3), np.dtype(np.uint8))
    assert (nhwc.layout, nhwc.color, nhwc.size, nhwc.scale) == ("NHWC", "RGB", (32, 30), 1.0)
    assert Preprocessing().resolve((None, 28, 28), F4).layout == "NHW"


def test_what_is_given_wins() -> None:
    asked = Preprocessing(
        size=(8, 6), scale=1.0, mean=(127.0,), std=(128.0,), color="BGR", layout="NCHW"
    )
    pipeline = asked.resolve((None, 3, None, None), F4)
    assert (pipeline.size, pipeline.mean) == ((8, 6), (127.0, 127.0, 127.0))
    assert pipeline.describe() == "BGR 8x6 (bilinear), mean 127, std 128, NCHW float32"
    assert json.loads(pipeline.to_json())["std"] == [128.0, 128.0, 128.0]


@pytest.mark.parametrize(
    ("asked", "shape", "dtype", "message"),
    [
        ({}, (None, 512), F4, "is not an image: give its rows as x in an .npz"),
        ({}, (None, None, None, None), F4, "which axis holds the channels: pass --layout"),
        ({"layout": "NCHW"}, (None, None, 8, 8), F4, "does not show its colours: pass --color"),
        ({}, (None, 3, None, None), F4, "leaves the image size open: pass --size"),
        ({"size": (8, 8)}, GREY, F4, r"--size 8 8 does not fit the model's input \[\?, 1, 4, 4\]"),
        ({"color": "RGB"}, GREY, F4, "--color RGB does not fit"),
        ({"layout": "NHW"}, GREY, F4, "has 4 axes, not those of --layout NHW"),
        ({"mean": (1.0, 2.0)}, COLOR, F4, "--mean has 2 numbers and RGB has 3 channels"),
        ({"std": (0.0,)}, GREY, F4, "--std 0: give numbers above 0"),
        ({"scale": -1.0}, GREY, F4, "--scale -1: give numbers above 0"),
        ({"mean": (1.0,)}, GREY, np.dtype(np.uint8), "neither scaled nor normalised"),
    ],
)
def test_what_does_not_fit_is_refused(
    asked: dict[str, Any], shape: tuple[int | None, ...], dtype: np.dtype[Any], message: str
) -> None:
    with pytest.raises(CovcalError, match=message):
        Preprocessing(**asked).resolve(shape, dtype)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("order", ["RGB", "BGR"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_pixels_are_scaled_then_normalised_in_the_order_of_the_colours(
    dtype: type, order: Any, layout: Any
) -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    shape = (None, 3, 4, 4) if layout == "NCHW" else (None, 4, 4, 3)
    asked = Preprocessing(mean=mean, std=std, color=order, layout=layout)
    values = np.random.default_rng(0).integers(0, 256, size=(4, 4, 3), dtype=np.uint8)
    found = asked.resolve(shape, np.dtype(dtype)).apply(Image.fromarray(values))
    ordered = values[..., ::-1] if order == "BGR" else values
    expected = (ordered / 255 - np.array(mean)) / np.array(std)
    if layout == "NCHW":
        expected = expected.transpose(2, 0, 1)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, atol=5e-3 if dtype == np.float16 else 1e-6)


def test_uint8_models_get_the_pixels_themselves() -> None:
    values = np.random.default_rng(0).integers(0, 256, size=(4, 4, 3), dtype=np.uint8)
    pipeline = Preprocessing().resolve((None, 4, 4, 3), np.dtype(np.uint8))
    np.testing.assert_array_equal(pipeline.apply(Image.fromarray(values)), values)


def test_resizing_is_pillows() -> None:
    values = np.random.default_rng(0).integers(0, 256, size=(9, 7), dtype=np.uint8)
    image = Image.fromarray(values)
    for name in ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"):
        pipeline = Preprocessing(resample=name).resolve(GREY, F4)
        expected = np.asarray(image.resize((4, 4), Image.Resampling[name.upper()])) / 255
        np.testing.assert_allclose(pipeline.apply(image)[0], expected, rtol=1e-6)


def test_16_bit_grey_is_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 16).astype(np.uint16).reshape(4, 4)
    for suffix in ("png", "tif"):
        with saved(tmp_path, Image.fromarray(values), suffix) as image:
            found = grey().apply(image)[0]
        np.testing.assert_allclose(found, values / 65535, atol=0.5 / 255 + 1e-6)
        with saved(tmp_path, Image.fromarray(values), suffix) as image:
            np.testing.assert_allclose(color().apply(image)[2], found)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_becomes_what_the_model_reads(mode: str, tmp_path: Path) -> None:
    image = Image.new("RGB", (4, 4), (255, 255, 255)).convert(mode)
    suffix = "tif" if mode in ("CMYK", "YCbCr") else "png"
    for pipeline, channels in ((grey(), 1), (color(), 3)):
        with saved(tmp_path, image, suffix) as opened:
            found = pipeline.apply(opened)
        assert found.shape == (channels, 4, 4)
        np.testing.assert_allclose(found, 1.0, atol=0.02)


def test_a_palette_gives_its_colours_with_or_without_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    for options in ({}, {"transparency": bytes([0, 128])}, {"transparency": 1}):
        with saved(tmp_path, image, **options) as opened:
            found = color().apply(opened)[:, 0, 0] * 255
        np.testing.assert_allclose(found, [10, 200, 30], atol=1e-3)


def test_alpha_is_dropped_and_the_colour_below_it_kept() -> None:
    image = Image.new("RGBA", (4, 4), (10, 200, 30, 0))
    np.testing.assert_allclose(color().apply(image)[:, 0, 0] * 255, [10, 200, 30], atol=1e-3)


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
    data = FolderData(tmp_path)
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
    decoded = list(decode_batches(batches, ROWS, "x", grey(), threads=threads))
    values = np.concatenate([batch.inputs["x"][:, 0, 0, 0] for batch in decoded])
    np.testing.assert_allclose(values * 255, np.arange(100), atol=1e-3)
    assert np.concatenate([batch.rows for batch in decoded]).tolist() == list(range(100))


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


def test_no_warning_escapes_from_a_transparent_palette(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with saved(tmp_path, image, transparency=bytes([0, 128])) as opened:
            grey().apply(opened)
