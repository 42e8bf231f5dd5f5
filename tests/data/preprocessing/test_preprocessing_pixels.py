"""Preprocessing and decoding: the silent traps of image files, and unreadable image files."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from covcal_cli.data.preprocessing.pixels import Color, PixelPipeline, Resize
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.errors import CovcalError
from tests.made_rows import row_of

F4 = np.dtype(np.float32)
GREY = (None, 1, 4, 4)
COLOR = (None, 3, 4, 4)
ROWS = np.arange(1000)


def resolved(
    asked: Preprocessing, shape: tuple[int | None, ...], dtype: np.dtype[Any] = F4
) -> PixelPipeline:
    pipeline = asked.resolve(shape, dtype)
    assert isinstance(pipeline, PixelPipeline)
    return pipeline


def grey() -> PixelPipeline:
    return resolved(Preprocessing(), GREY)


def color() -> PixelPipeline:
    return resolved(Preprocessing(), COLOR)


def saved(folder: Path, image: Image.Image, suffix: str = "png", **options: Any) -> Image.Image:
    path = folder / f"image.{suffix}"
    image.save(path, **options)
    return Image.open(path)


def test_the_declared_input_fills_in_what_is_not_given() -> None:
    assert Preprocessing().resolve((None, 1, 28, 20), F4) == PixelPipeline(
        size=(28, 20),
        resize=Resize("squash", size=(28, 20)),
        crop_rule="never",
        scale=1 / 255,
        mean=(0.0,),
        std=(1.0,),
        color="L",
        layout="NCHW",
        resample="bilinear",
        exif=False,
        dtype="float32",
    )
    nhwc = resolved(Preprocessing(), (1, 32, 30, 3), np.dtype(np.uint8))
    assert (nhwc.layout, nhwc.color, nhwc.size, nhwc.scale) == ("NHWC", "RGB", (32, 30), 1.0)
    assert resolved(Preprocessing(), (None, 28, 28)).layout == "NHW"
    shapes = {(None, 1, 28, 20): (1, 28, 20), (1, 32, 30, 3): (32, 30, 3), (None, 28, 28): (28, 28)}
    for shape, row in shapes.items():
        assert Preprocessing().resolve(shape, F4).row_shape == row


@pytest.mark.parametrize(("color", "channels"), [("L", 1), ("RGB", 3), ("BGR", 3)])
def test_a_vector_holds_the_pixels_of_an_image_as_flatten_gives_them(
    color: Color, channels: int
) -> None:
    asked = Preprocessing(size=(8, 6), mean=(0.5,), color=color)
    flat = asked.resolve((None, channels * 48), F4)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8))
    planes = asked.resolve((None, channels, 8, 6), F4)
    rows = [np.empty(pipeline.row_shape, np.float32) for pipeline in (flat, planes)]
    for pipeline, row in zip((flat, planes), rows, strict=True):
        pipeline.write(image, row)
    np.testing.assert_array_equal(rows[0], rows[1].reshape(-1))


def test_what_is_given_wins() -> None:
    asked = Preprocessing(
        size=(8, 6), scale=1.0, mean=(127.0,), std=(128.0,), color="BGR", layout="NCHW"
    )
    pipeline = resolved(asked, (None, 3, None, None))
    assert (pipeline.size, pipeline.mean) == ((8, 6), (127.0, 127.0, 127.0))
    assert pipeline.describe() == "BGR 8x6 (bilinear), mean 127, std 128, NCHW float32"
    assert json.loads(pipeline.to_json())["std"] == [128.0, 128.0, 128.0]


@pytest.mark.parametrize(
    ("asked", "shape", "dtype", "message"),
    [
        ({}, (None,), F4, "is not an image: give the input rows as the array x"),
        ({}, (None, 784), F4, "not an image: pass --size 28 if the input holds pixels, or give"),
        ({}, (None, 3072), F4, "pass --size 32 if the input"),
        ({}, (None, 512), F4, "pass --size HxW if the input"),
        ({"size": (8, 6)}, (None, 784), F4, "does not fit 8x6 .*: .* --size 28 if"),
        ({}, (None, None, None, None), F4, "which axis holds the channels: pass --layout"),
        ({"layout": "NCHW"}, (None, None, 8, 8), F4, "does not show its colours: pass --color"),
        ({}, (None, 3, None, None), F4, "has no fixed image size: pass --size"),
        (
            {"size": (8, 8)},
            GREY,
            F4,
            r"--size 8 does not fit the model's input \[\?, 1, 4, 4\]: pass --size 4$",
        ),
        ({"size": (8, 6)}, GREY, F4, "--size 8x6 does not fit .*: pass --size 4$"),
        ({"size": (8, 6)}, (None, 3, None, 4), F4, "--size 8x6 does not fit .*: pass --size 8x4$"),
        ({"crop": (3, 3)}, COLOR, F4, "--crop 3 does not fit .*: pass --crop 4$"),
        (
            {"crop": (224, 224), "resize": Resize("short", short=256)},
            (None, 3, 384, 384),
            F4,
            r"--crop 224 does .*: pass --size 384 .* or --crop 384 --resize short:439 to use",
        ),
        (
            {"crop": (224, 224), "resize": Resize("squash", size=(224, 224))},
            (None, 3, 384, 384),
            F4,
            r"--crop 224 does .*: pass --size 384 .* or --crop 384 --resize squash:384 to use",
        ),
        (
            {"size": (9, 9), "crop": (4, 4), "resize": Resize("short", short=5)},
            COLOR,
            F4,
            "--size 9 has no effect, because --crop 4 and --resize set",
        ),
        ({"size": (0, 4)}, COLOR, F4, "--size 0 4: give numbers above 0"),
        (
            {"layout": "NHWC"},
            COLOR,
            F4,
            r"--layout NHWC does not fit the model's input \[\?, 3, 4, 4\]: pass --layout NCHW"
            r", or leave out --layout",
        ),
        ({"layout": "NCHW"}, (None, 5, 8, 8), F4, "has 5 channels, but images have 1 or 3"),
        (
            {"resize": Resize("letterbox", fill=(1, 2))},
            COLOR,
            F4,
            "has 2 numbers for the border, but RGB has 3 channels",
        ),
        ({"color": "RGB"}, GREY, F4, "--color RGB does not fit"),
        ({"layout": "NHW"}, GREY, F4, "--layout NHW does not fit .* with 4 axes"),
        ({"mean": (1.0, 2.0)}, COLOR, F4, "--mean has 2 numbers but RGB has 3 channels"),
        ({"mean": (127.0,)}, GREY, F4, "--mean 127 is above the scaled pixels"),
        ({"std": (0.0,)}, GREY, F4, "--std 0: give numbers above 0"),
        ({"scale": -1.0}, GREY, F4, "--scale -1: give numbers above 0"),
        ({"mean": (1.0,)}, GREY, np.dtype(np.uint8), "must not be scaled or normalised"),
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
    found = row_of(resolved(asked, shape, np.dtype(dtype)), Image.fromarray(values))
    ordered = values[..., ::-1] if order == "BGR" else values
    expected = (ordered / 255 - np.array(mean)) / np.array(std)
    if layout == "NCHW":
        expected = expected.transpose(2, 0, 1)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, atol=5e-3 if dtype == np.float16 else 1e-6)


def test_uint8_models_get_the_pixels_themselves() -> None:
    values = np.random.default_rng(0).integers(0, 256, size=(4, 4, 3), dtype=np.uint8)
    asked = Preprocessing()
    # Files that say what is also true of floats must not stop it.
    said = Preprocessing(scale=1.0, mean=(0.0,), std=(1.0,))
    for pre in (asked, said):
        nhwc = resolved(pre, (None, 4, 4, 3), np.dtype(np.uint8))
        np.testing.assert_array_equal(row_of(nhwc, Image.fromarray(values)), values)
        nchw = resolved(pre, (None, 3, 4, 4), np.dtype(np.int32))
        np.testing.assert_array_equal(
            row_of(nchw, Image.fromarray(values)), values.transpose(2, 0, 1)
        )


def test_resizing_is_pillows() -> None:
    values = np.random.default_rng(0).integers(0, 256, size=(9, 7), dtype=np.uint8)
    image = Image.fromarray(values)
    for name in ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"):
        pipeline = resolved(Preprocessing(resample=name), GREY)
        expected = np.asarray(image.resize((4, 4), Image.Resampling[name.upper()])) / 255
        np.testing.assert_allclose(row_of(pipeline, image)[0], expected, rtol=1e-6)


def test_16_bit_grey_is_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 16).astype(np.uint16).reshape(4, 4)
    for suffix in ("png", "tif"):
        with saved(tmp_path, Image.fromarray(values), suffix) as image:
            found = row_of(grey(), image)[0]
        np.testing.assert_allclose(found, values / 65535, atol=0.5 / 255 + 1e-6)
        with saved(tmp_path, Image.fromarray(values), suffix) as image:
            np.testing.assert_allclose(row_of(color(), image)[2], found)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_becomes_what_the_model_reads(mode: str, tmp_path: Path) -> None:
    image = Image.new("RGB", (4, 4), (255, 255, 255)).convert(mode)
    suffix = "tif" if mode in ("CMYK", "YCbCr") else "png"
    for pipeline, channels in ((grey(), 1), (color(), 3)):
        with saved(tmp_path, image, suffix) as opened:
            found = row_of(pipeline, opened)
        assert found.shape == (channels, 4, 4)
        np.testing.assert_allclose(found, 1.0, atol=0.02)


def test_a_palette_gives_its_colours_with_or_without_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    for options in ({}, {"transparency": bytes([0, 128])}, {"transparency": 1}):
        with saved(tmp_path, image, **options) as opened:
            found = row_of(color(), opened)[:, 0, 0] * 255
        np.testing.assert_allclose(found, [10, 200, 30], atol=1e-3)


def test_alpha_is_dropped_and_the_colour_below_it_kept() -> None:
    image = Image.new("RGBA", (4, 4), (10, 200, 30, 0))
    np.testing.assert_allclose(row_of(color(), image)[:, 0, 0] * 255, [10, 200, 30], atol=1e-3)


def turned(folder: Path, orientation: int, image: Image.Image) -> Image.Image:
    """Save an image as a camera that was held otherwise would."""
    back = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90}[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = image if back is None else image.transpose(back)
    return saved(folder, stored, exif=exif)


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("mode", ["RGB", "L", "I;16"])
def test_exif_turns_images_upright_only_when_asked(
    mode: str, orientation: int, tmp_path: Path
) -> None:
    values = np.arange(16, dtype=np.uint16).reshape(4, 4) * 4000
    image = (
        Image.fromarray(values)
        if mode == "I;16"
        else Image.fromarray((values // 257).astype(np.uint8)).convert(mode)
    )
    upright = row_of(grey(), image)
    asked = resolved(Preprocessing(exif=True), GREY)
    with turned(tmp_path, orientation, image) as opened:
        np.testing.assert_array_equal(row_of(asked, opened), upright)
    with turned(tmp_path, orientation, image) as opened:
        assert np.array_equal(row_of(grey(), opened), upright) == (orientation == 1)


def test_the_first_of_many_frames_is_read(tmp_path: Path) -> None:
    frames = [Image.new("L", (4, 4), value) for value in (50, 200)]
    frames[0].save(tmp_path / "image.gif", save_all=True, append_images=frames[1:])
    with Image.open(tmp_path / "image.gif") as opened:
        np.testing.assert_allclose(row_of(grey(), opened) * 255, 50, atol=1e-3)


def test_no_warning_escapes_from_a_transparent_palette(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with saved(tmp_path, image, transparency=bytes([0, 128])) as opened:
            row_of(grey(), opened)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"std": (1e-320,)}, "give pixels up to inf, which the model's float32 cannot hold"),
        ({"scale": 1e307}, "give pixels up to inf"),
        ({"mean": (1e39,)}, "give pixels up to 1e+39"),
        ({"std": (1e300,)}, "give pixels up to 1e-300"),
        ({"scale": 1e-320}, "give pixels up to 2.5e-318"),
        ({"scale": 1e-320, "mean": (1.0,)}, "--scale 1e-320 makes all pixels 0"),
    ],
)
def test_numbers_that_take_pixels_out_of_range(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(CovcalError, match=re.escape(words)):
        Preprocessing(**asked).resolve(GREY, F4)
