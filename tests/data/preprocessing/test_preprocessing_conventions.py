"""Images become the very pixels that torchvision, timm and transformers make of them.

The expected sums are sha256 (16 digits) of the uint8 pixels [3, H, W] that these libraries made of
`picture`, obtained once with torchvision 0.28, timm 1.0.31 and the PIL backend of transformers 5.24
by undoing their normalisation. The same geometry is written out by hand below.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from covcal_cli.data.preprocessing.configs import load_preprocessing
from covcal_cli.data.preprocessing.pixels import PixelPipeline, Resize
from covcal_cli.data.preprocessing.settings import Preprocessing

F4 = np.dtype(np.float32)
PICTURES = ((37, 54), (61, 40), (20, 30))
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EDGES = [(32, 32), (33, 32), (32, 34), (32, 35), (37, 54), (61, 40), (20, 30), (29, 90), (7, 31)]


def picture(height: int, width: int) -> Image.Image:
    """A picture of exact integers, the same everywhere."""
    y, x = np.mgrid[:height, :width]
    values = [(7 * x + 3 * y) % 256, (x * y) % 256, (x * x + 5 * y) % 251]
    return Image.fromarray(np.stack(values, axis=2).astype(np.uint8))


def read(folder: Path, content: Mapping[str, Any], size: tuple[int, int]) -> PixelPipeline:
    path = folder / "config.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    asked = load_preprocessing(str(path), metadata={})
    return resolved(asked, size)


def resolved(asked: Preprocessing, size: tuple[int, int]) -> PixelPipeline:
    pipeline = asked.resolve((None, 3, *size), F4)
    assert isinstance(pipeline, PixelPipeline)
    return pipeline


def digest(pipeline: PixelPipeline, image: Image.Image) -> str:
    pixels = np.ascontiguousarray(pipeline.pixels(image).transpose(2, 0, 1))
    return hashlib.sha256(pixels.tobytes()).hexdigest()[:16]


def timm(mode: str) -> dict[str, Any]:
    config = {"input_size": [3, 27, 27], "crop_pct": 0.84, "crop_mode": mode, "mean": list(MEAN)}
    return {"architecture": "made", "num_classes": 3, "pretrained_cfg": config}


def huggingface(kind: str, **settings: Any) -> dict[str, Any]:
    return {"image_processor_type": f"{kind}ImageProcessor", **settings}


CROP = {"height": 27, "width": 27}
FILES: dict[str, tuple[dict[str, Any], tuple[int, int], tuple[str, str, str]]] = {
    "timm center": (
        timm("center"),
        (27, 27),
        ("2f1211df17984e31", "9e46ecaedf0801d5", "cbece71ff29dbae9"),
    ),
    "timm squash": (
        timm("squash"),
        (27, 27),
        ("56e6c3a2647ba733", "563c5ad24f8bc62b", "a2d6b7d32f6dacfd"),
    ),
    "timm border": (
        timm("border"),
        (27, 27),
        ("c5f5b3636f1075c6", "771f7889819176c3", "dfd8b9a8800ec0f4"),
    ),
    "CLIP": (
        huggingface("CLIP", size={"shortest_edge": 32}, crop_size=CROP),
        (27, 27),
        ("b17fc0519188717e", "9e46ecaedf0801d5", "cbece71ff29dbae9"),
    ),
    "ViT": (
        huggingface("ViT", size={"height": 27, "width": 25}),
        (27, 25),
        ("7b56939532a615cf", "038e6b10df1ac7e0", "1b55a759ac37f3bf"),
    ),
    "ConvNeXT": (
        huggingface("ConvNext", size={"shortest_edge": 27}),
        (27, 27),
        ("5dfdd690534b3803", "c7917513c9a4f23b", "72f52174841d14cf"),
    ),
    "DeiT": (
        huggingface("DeiT", size={"height": 32, "width": 30}, crop_size=CROP),
        (27, 27),
        ("2057532b1e3399e1", "102e1bd8d9696299", "447d1965e52b4bea"),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_give_the_pixels_of_their_library(name: str, tmp_path: Path) -> None:
    content, size, expected = FILES[name]
    pipeline = read(tmp_path, content, size)
    found = tuple(digest(pipeline, picture(*shape)) for shape in PICTURES)
    assert found == expected


def test_torchvisions_resize_and_crop_give_its_pixels() -> None:
    asked = Preprocessing(resize=Resize.parse("short:32"), crop=(27, 27))
    found = [digest(resolved(asked, (27, 27)), picture(*shape)) for shape in PICTURES]
    assert found == ["cb06e1736db76936", "52675c521a88a10f", "a2a5cb7120ed825f"]


def short_then_crop(
    image: Image.Image, short: int, crop: int, resampling: Image.Resampling, *, even: bool
) -> NDArray[np.uint8]:
    """The shorter side to `short`, the longer truncated, the centre cropped: by hand."""
    width, height = image.size
    if width <= height:
        size = (short, int(short * height / width))
    else:
        size = (int(short * width / height), short)
    pixels = np.asarray(image.resize(size, resampling))
    spare = (pixels.shape[0] - crop, pixels.shape[1] - crop)
    top, left = (round(s / 2) if even else math.floor(s / 2) for s in spare)
    return pixels[top : top + crop, left : left + crop]


@pytest.mark.parametrize("shape", EDGES)
@pytest.mark.parametrize(("short", "crop"), [(32, 27), (32, 28), (33, 25), (40, 40)])
def test_torchvision_rounds_half_a_pixel_to_the_even_side(
    shape: tuple[int, int], short: int, crop: int
) -> None:
    asked = Preprocessing(resize=Resize("short", short=short), crop=(crop, crop))
    found = resolved(asked, (crop, crop)).pixels(picture(*shape))
    bilinear = Image.Resampling.BILINEAR
    expected = short_then_crop(picture(*shape), short, crop, bilinear, even=True)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", EDGES)
@pytest.mark.parametrize(("short", "crop"), [(32, 27), (32, 28), (33, 25), (40, 40)])
def test_hugging_face_cuts_half_a_pixel_off(
    shape: tuple[int, int], short: int, crop: int, tmp_path: Path
) -> None:
    content = huggingface("CLIP", size={"shortest_edge": short}, crop_size=crop)
    found = read(tmp_path, content, (crop, crop)).pixels(picture(*shape))
    bicubic = Image.Resampling.BICUBIC
    expected = short_then_crop(picture(*shape), short, crop, bicubic, even=False)
    np.testing.assert_array_equal(found, expected)


def test_the_two_rules_differ_by_one_pixel() -> None:
    asked = Preprocessing(resize=Resize("none"), crop=(4, 4))
    image = picture(7, 7)
    pixels = np.asarray(image)
    even = resolved(asked, (4, 4)).pixels(image)
    floor = resolved(Preprocessing(resize=Resize("none"), crop=(4, 4), crop_rule="floor"), (4, 4))
    np.testing.assert_array_equal(even, pixels[2:6, 2:6])
    np.testing.assert_array_equal(floor.pixels(image), pixels[1:5, 1:5])


@pytest.mark.parametrize(("rule", "first"), [("round", 1), ("floor", 2)])
def test_what_is_smaller_than_the_crop_gets_a_black_border(rule: Any, first: int) -> None:
    asked = Preprocessing(resize=Resize("none"), crop=(8, 8), crop_rule=rule)
    found = resolved(asked, (8, 8)).pixels(picture(5, 5))
    expected = np.zeros((8, 8, 3), np.uint8)
    expected[first : first + 5, first : first + 5] = np.asarray(picture(5, 5))
    np.testing.assert_array_equal(found, expected)


def test_a_letterbox_shows_the_whole_image_on_its_border() -> None:
    pipeline = resolved(Preprocessing(resize=Resize.parse("letterbox:10,20,30")), (16, 16))
    found = pipeline.pixels(picture(8, 32))
    assert pipeline.describe().startswith("RGB letterbox 16x16 on 10,20,30 (bilinear), pixels")
    np.testing.assert_array_equal(found[:6], np.full((6, 16, 3), (10, 20, 30)))
    np.testing.assert_array_equal(found[10:], np.full((6, 16, 3), (10, 20, 30)))
    inside = picture(8, 32).resize((16, 4), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(found[6:10], np.asarray(inside))


def test_the_border_of_a_letterbox_is_given_in_the_order_of_the_colours() -> None:
    asked = Preprocessing(resize=Resize.parse("letterbox:10,20,30"), color="BGR")
    found = resolved(asked, (16, 16)).pixels(picture(8, 32))
    assert found[0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize("fill", [(), (114,)])
def test_a_letterbox_of_a_grey_image_has_a_border_of_one_number(fill: tuple[int, ...]) -> None:
    asked = Preprocessing(resize=Resize("letterbox", fill=fill))
    pipeline = asked.resolve((None, 1, 16, 16), F4)
    assert isinstance(pipeline, PixelPipeline)
    found = pipeline.pixels(picture(32, 8).convert("L"))
    assert found.shape == (16, 16, 1)
    assert set(found[:, :6].ravel()) == {fill[0] if fill else 0}


def test_an_image_too_elongated_to_keep_its_ratio_is_refused_before_memory_runs_out() -> None:
    asked = Preprocessing(resize=Resize.parse("short:256"), crop=(224, 224))
    with pytest.raises(
        ValueError, match="from 1x30000 to 256x7680000 pixels would need too much memory"
    ):
        resolved(asked, (224, 224)).pixels(Image.new("RGB", (30_000, 1)))


def test_images_that_are_not_resized_must_have_the_models_size() -> None:
    pipeline = resolved(Preprocessing(resize=Resize.parse("none")), (8, 8))
    np.testing.assert_array_equal(pipeline.pixels(picture(8, 8)), np.asarray(picture(8, 8)))
    with pytest.raises(ValueError, match="9x8 pixels instead of 8x8, and --resize is none"):
        pipeline.pixels(picture(9, 8))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("squash", Resize()),
        ("squash:256", Resize(size=(256, 256))),
        ("squash:48x192", Resize(size=(48, 192))),
        ("short", Resize("short")),
        ("SHORT:232", Resize("short", short=232)),
        ("letterbox", Resize("letterbox")),
        ("letterbox:114", Resize("letterbox", fill=(114,))),
        ("none", Resize("none")),
    ],
)
def test_resize_is_read_from_text(text: str, expected: Resize) -> None:
    assert Resize.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", "crop", "short:", "short:0", "short:2x3", "letterbox:256", "squash:1x", "none:3"]
)
def test_what_is_no_resize_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not one of squash|has a"):
        Resize.parse(text)


@pytest.mark.parametrize(
    ("asked", "size", "line"),
    [
        (Preprocessing(), (8, 6), "RGB 8x6 (bilinear), pixels / 255"),
        (
            Preprocessing(resize=Resize.parse("short:9")),
            (8, 8),
            "RGB short side 9 (bilinear), centre 8x8, pixels / 255",
        ),
        (
            Preprocessing(size=(9, 9), crop=(8, 8)),
            (8, 8),
            "RGB 9x9 (bilinear), centre 8x8, pixels / 255",
        ),
        (
            Preprocessing(size=(9, 9), resize=Resize("short"), crop=(8, 8)),
            (8, 8),
            "RGB short side 9 (bilinear), centre 8x8, pixels / 255",
        ),
        (
            Preprocessing(size=(8, 8), resize=Resize.parse("squash:9"), exif=True),
            (8, 8),
            "upright by EXIF, RGB 9x9 (bilinear), centre 8x8, pixels / 255",
        ),
        (Preprocessing(resize=Resize("none")), (8, 8), "RGB not resized (bilinear), pixels / 255"),
    ],
)
def test_the_line_says_what_is_done(asked: Preprocessing, size: tuple[int, int], line: str) -> None:
    assert resolved(asked, size).describe() == f"{line}, NCHW float32"


def test_equal_preprocessing_is_recorded_equally_however_it_was_asked_for(tmp_path: Path) -> None:
    content = huggingface("ViT", size=8, rescale_factor=0.00392156862745098)
    flags = Preprocessing(
        size=(8, 8), mean=(0.5,), std=(0.5, 0.5, 0.5), color="RGB", resample="bilinear", exif=False
    )
    assert read(tmp_path, content, (8, 8)).to_json() == resolved(flags, (8, 8)).to_json()
    other = flags.overridden_by(Preprocessing(exif=True))
    assert resolved(other, (8, 8)).to_json() != resolved(flags, (8, 8)).to_json()
