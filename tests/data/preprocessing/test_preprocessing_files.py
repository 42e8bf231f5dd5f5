"""``--preprocess``: files of other libraries, presets, metadata and functions of one's own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from covcal_cli.data.preprocessing.configs import found_preprocessing, load_preprocessing
from covcal_cli.data.preprocessing.pixels import Resize
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.errors import CovcalError
from tests.made_rows import row_of

F4 = np.dtype(np.float32)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ULTRALYTICS = {"imgsz": "[64, 64]", "task": "classify", "names": "{0: 'a'}", "stride": "1"}


def loaded(content: Any, folder: Path, name: str = "preprocessor_config.json") -> Preprocessing:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return load_preprocessing(str(path), metadata={})


def test_a_hugging_face_file_is_read_as_its_class_reads_it(tmp_path: Path) -> None:
    content = {
        "crop_size": 224,
        "do_center_crop": True,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_resize": True,
        "feature_extractor_type": "CLIPFeatureExtractor",
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.4, 0.5, 0.6],
        "resample": 3,
        "size": 224,
    }
    assert loaded(content, tmp_path) == Preprocessing(
        resize=Resize("short", short=224),
        crop=(224, 224),
        crop_rule="floor",
        scale=1 / 255,
        mean=(0.1, 0.2, 0.3),
        std=(0.4, 0.5, 0.6),
        resample="bicubic",
    )


def test_one_number_is_the_shorter_side_in_some_classes_and_both_in_others(tmp_path: Path) -> None:
    vit = loaded({"image_processor_type": "ViTImageProcessor", "size": 224}, tmp_path)
    assert (vit.resize, vit.crop) == (Resize("squash", size=(224, 224)), (224, 224))
    convnext = loaded({"image_processor_type": "ConvNextFeatureExtractor", "size": 224}, tmp_path)
    assert (convnext.resize, convnext.crop) == (Resize("short", short=256), (224, 224))
    large = loaded({"image_processor_type": "ConvNextImageProcessorFast", "size": 384}, tmp_path)
    assert (large.resize, large.crop) == (Resize("squash", size=(384, 384)), (384, 384))


def test_steps_that_a_file_turns_off_are_left_out(tmp_path: Path) -> None:
    content = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": False,
        "do_rescale": False,
        "do_normalize": False,
    }
    found = loaded(content, tmp_path)
    assert (found.resize, found.crop, found.scale) == (Resize("none"), None, 1.0)
    assert (found.mean, found.std) == ((), ())


def test_an_unknown_class_may_say_everything_itself(tmp_path: Path) -> None:
    content = {
        "image_processor_type": "MyImageProcessor",
        "size": {"height": 30, "width": 20},
        "image_mean": 0.5,
        "image_std": 0.25,
        "resample": 1,
    }
    assert loaded(content, tmp_path) == Preprocessing(
        resize=Resize("squash", size=(30, 20)),
        crop=(30, 20),
        crop_rule="floor",
        scale=1 / 255,
        mean=(0.5,),
        std=(0.25,),
        resample="lanczos",
    )


def test_an_offset_and_a_second_division_are_folded_into_the_constants(tmp_path: Path) -> None:
    content = {
        "image_processor_type": "EfficientNetImageProcessor",
        "size": {"height": 4, "width": 4},
        "rescale_factor": 1 / 127.5,
        "rescale_offset": True,
        "include_top": True,
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.5, 0.6, 0.7],
    }
    pixels = np.random.default_rng(0).integers(0, 256, size=(4, 4, 3), dtype=np.uint8)
    pipeline = loaded(content, tmp_path).resolve((None, 4, 4, 3), F4)
    once = (pixels / 127.5 - 1 - np.array([0.1, 0.2, 0.3])) / np.array([0.5, 0.6, 0.7])
    expected = once / np.array([0.5, 0.6, 0.7])
    np.testing.assert_allclose(row_of(pipeline, Image.fromarray(pixels)), expected, atol=1e-5)


def test_an_image_processor_inside_a_processor_config_is_read(tmp_path: Path) -> None:
    inner = {"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}}
    found = loaded({"image_processor": inner, "processor_class": "X"}, tmp_path)
    assert found.resize == Resize("squash", size=(8, 8))


def test_a_timm_file_is_read_flat_or_nested(tmp_path: Path) -> None:
    config = {
        "architecture": "resnet50",
        "num_classes": 1000,
        "input_size": [3, 288, 288],
        "crop_pct": 0.95,
        "interpolation": "bilinear",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.25, 0.25, 0.25],
        "test_input_size": [3, 320, 320],
        "license": "apache-2.0",
    }
    expected = Preprocessing(
        resize=Resize("short", short=303),
        crop=(288, 288),
        crop_rule="round",
        scale=1 / 255,
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        resample="bilinear",
    )
    assert loaded(config, tmp_path, "config.json") == expected
    assert loaded({"architecture": "x", "pretrained_cfg": config}, tmp_path) == expected


def test_timms_own_defaults_fill_in(tmp_path: Path) -> None:
    found = loaded({"pretrained_cfg": {"num_classes": 3}}, tmp_path)
    assert (found.resize, found.crop) == (Resize("short", short=256), (224, 224))
    assert (found.mean, found.std, found.resample) == (*IMAGENET, "bicubic")


@pytest.mark.parametrize(
    ("text", "short", "crop", "resample"),
    [
        ("imagenet", 256, 224, "bilinear"),
        ("resnet50.IMAGENET1K_V1", 256, 224, "bilinear"),
        ("resnet50.imagenet1k_v2", 232, 224, "bilinear"),
        ("ResNet50_Weights.IMAGENET1K_V2", 232, 224, "bilinear"),
        ("resnet18", 256, 224, "bilinear"),
        ("swin_v2_t", 260, 256, "bicubic"),
        ("ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1", 384, 384, "bicubic"),
        ("Inception_V3_Weights.IMAGENET1K_V1", 342, 299, "bilinear"),
    ],
)
def test_torchvisions_presets_go_by_the_name_of_the_weights(
    text: str, short: int, crop: int, resample: str
) -> None:
    found = load_preprocessing(text, metadata={})
    assert (found.resize, found.crop) == (Resize("short", short=short), (crop, crop))
    assert (found.resample, found.mean, found.std) == (resample, *IMAGENET)


def test_the_preset_with_other_constants_has_them() -> None:
    found = load_preprocessing("efficientnet_v2_l", metadata={})
    assert (found.mean, found.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_ultralytics_metadata_give_size_and_crop() -> None:
    expected = Preprocessing(
        resize=Resize("short", short=64),
        crop=(64, 64),
        crop_rule="round",
        resample="bilinear",
        scale=1 / 255,
        exif=True,
    )
    assert load_preprocessing("ultralytics", metadata=ULTRALYTICS) == expected
    found = found_preprocessing(ULTRALYTICS, Path("model.onnx"))
    assert found == (expected, "the model's own metadata (Ultralytics)")
    wide = load_preprocessing("ultralytics", metadata={**ULTRALYTICS, "imgsz": "[32, 64]"})
    assert wide.resize == Resize("squash", size=(32, 64))


def test_none_leaves_everything_to_the_model_and_the_flags() -> None:
    assert load_preprocessing("none", metadata=ULTRALYTICS).is_default


@pytest.mark.parametrize("preset", ["imagenet", "resnet50.IMAGENET1K_V2"])
def test_a_size_alone_takes_the_place_of_resizing_and_cropping(preset: str) -> None:
    """A small model wants a preset's constants, not its 256 and 224 pixels."""
    base = load_preprocessing(preset, metadata={})
    found = base.overridden_by(Preprocessing(size=(16, 16)))
    assert (found.size, found.crop, found.resize) == ((16, 16), None, None)
    assert (found.mean, found.std, found.scale) == (base.mean, base.std, base.scale)
    found.resolve((None, 3, 16, 16), np.dtype(np.float32))
    kept = base.overridden_by(Preprocessing(size=(16, 16), crop=(8, 8)))
    assert (kept.crop, kept.resize) == ((8, 8), base.resize)


def test_flags_win_one_by_one() -> None:
    base = load_preprocessing("imagenet", metadata={})
    flags = Preprocessing(crop=(192, 192), resample="bicubic", mean=(0.5,))
    found = base.overridden_by(flags)
    assert (found.crop, found.resample, found.mean) == ((192, 192), "bicubic", (0.5,))
    assert (found.resize, found.std, found.scale) == (base.resize, base.std, base.scale)
    assert base.overridden_by(Preprocessing()) == base
    assert Preprocessing().overridden_by(flags) == flags
    upright = load_preprocessing("ultralytics", metadata=ULTRALYTICS)
    assert upright.overridden_by(Preprocessing(exif=False)).exif is False


VIT = {"image_processor_type": "ViTImageProcessor"}
TIMM = {"architecture": "x", "pretrained_cfg": {"num_classes": 3}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**VIT, "do_thumbnail": True, "patch": 3}, "the settings do_thumbnail, patch"),
        ({**VIT, "crop_pct": 0.9}, "the settings crop_pct"),
        ({**VIT, "do_pad": True}, "the settings do_pad, which might change pixels: pass"),
        ({**VIT, "size": {"longest_edge": 224}}, "size is .*it must be {height, width} or"),
        ({**VIT, "size": {"shortest_edge": 224}}, "images keep different sizes"),
        ({**VIT, "size": 0}, "size is 0: it must be whole numbers from 1 to 65535"),
        (
            {**VIT, "size": {"height": 8, "width": None}},
            "size: width is None: it must be one whole",
        ),
        ({**VIT, "size": {"height": [8, 9], "width": 8}}, r"height is \[8, 9\]: it must be one"),
        ({**VIT, "size": {"shortest_edge": None}}, "shortest_edge is None: it must be one whole"),
        ({**VIT, "size": [8, 8, 8]}, r"size is \[8, 8, 8\]: it must be one whole number or two"),
        (
            {**VIT, "do_center_crop": True, "crop_size": [8, 8, 8]},
            r"crop_size is \[8, 8, 8\]: it must be one whole number or two",
        ),
        ({**VIT, "resample": 9}, "resample is 9: it must be one of Pillow's codes"),
        ({**VIT, "resample": [2]}, r"resample is \[2\]: it must be"),
        ({**VIT, "do_rescale": "yes"}, "do_rescale is 'yes': it must be true or false"),
        ({**VIT, "image_mean": ["a"]}, r"image_mean is \['a'\]: it must be numbers"),
        ({**VIT, "do_center_crop": True}, "crop_size is missing, and covcal does not know"),
        (
            {"image_processor_type": "ConvNextImageProcessor", "size": 224, "crop_size": 200}
            | {"do_center_crop": True},
            "crop_size is 200: it must be 224, because ConvNeXT crops to this size",
        ),
        ({"image_mean": 0.5, "size": 224}, "size 224 is ambiguous for"),
        ({"image_processor_type": "XImageProcessor"}, "size is missing, and covcal does not know"),
        ({"pretrained_cfg": {"crop_mode": "top"}}, "crop_mode is 'top': it must be center, squash"),
        ({"pretrained_cfg": {"interpolation": "random"}}, "interpolation is 'random'"),
        ({"pretrained_cfg": {"input_size": [224, 224]}}, "input_size is .*it must be .channels"),
        ({"pretrained_cfg": {"input_size": [3, 64, 48]}}, "how timm resizes to 64x48 with a fixed"),
        ({"model_type": "vit", "hidden_size": 768}, "holds a model's config: pass a preprocessor"),
        ({"a": 1}, "holds no preprocessing that covcal knows: pass"),
        ([1], "is not a JSON object"),
        ("{", "is not readable JSON"),
    ],
)
def test_a_file_that_cannot_be_followed_is_refused_in_one_line(
    content: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CovcalError, match=message) as caught:
        loaded(content, tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "preprocessor_config.json") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resnet50", "does not name the weights: pass resnet50.IMAGENET1K_V1, resnet50.IMAG"),
        ("resnet50.IMAGENET1K_V9", "does not name the weights"),
        (
            "resnet5.IMAGENET1K_V2",
            r"finds no file or preset .*\(did you mean resnet50.IMAGENET",
        ),
        ("gone.json", "gone.json does not exist: pass a preprocessor_config.json"),
        ("something", "no file or preset something for --preprocess: pass a prepro"),
        ("no_such_module_here:f", "no module no_such_module_here in this folder"),
        ("json:nothing", "json has no nothing: check the name"),
        ("json:decoder", "json:decoder is not a function: give a function that takes a PIL image"),
    ],
)
def test_what_names_nothing_is_refused_with_the_choice(text: str, message: str) -> None:
    with pytest.raises(CovcalError, match=message):
        load_preprocessing(text, metadata={})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "m.onnx: the model's metadata .*imgsz or task is missing"),
        ({**ULTRALYTICS, "task": "detect"}, "its task is detect"),
        ({**ULTRALYTICS, "imgsz": "big"}, "the image size 'big': pass --size"),
    ],
)
def test_metadata_that_are_not_ultralytics_are_refused(
    metadata: dict[str, str], message: str
) -> None:
    with pytest.raises(CovcalError, match=message):
        load_preprocessing("ultralytics", metadata=metadata, model=Path("m.onnx"))


def test_a_folder_stands_for_the_file_in_it(tmp_path: Path) -> None:
    with pytest.raises(CovcalError, match="has no preprocessor_config"):
        load_preprocessing(str(tmp_path), metadata={})
    expected = loaded(TIMM, tmp_path, "config.json")
    assert load_preprocessing(str(tmp_path), metadata={}) == expected
