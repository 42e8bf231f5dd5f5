"""The shifts of the benchmark, family by family, and how the features file of each is made.

The digit shifts between MNIST, USPS and SVHN except S-U are graded: no setting, threshold or rule
was chosen on them. Every other family here was looked at while choosing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path

import choose_adapt_settings as made
import numpy as np
from reproduction.datasets import MissingDataError
from reproduction.features import Data, extracted, find_shift
from reproduction.shifts import SHIFTS
from scipy import ndimage
from sklearn.datasets import load_digits

from covcal_cli.arrays import Floats
from covcal_cli.files import atomic_output

FAMILIES = ("digits", "office", "reviews", "corruptions")
GRADED = ("U-M", "M-U", "M-M", "M-S", "S-M")
GRADED_FAMILY = "digits (graded)"
CORRUPTIONS = ("noise", "rotation", "blur", "contrast", "invert", "clutter", "shift", "thin")


@dataclass(frozen=True)
class Case:
    """A shift of the benchmark."""

    family: str  # as the table names it
    shift: str
    used: bool  # whether settings or the rule of auto were chosen with a look at it
    make: Callable[[Path, int], None]  # make(path, seed) writes the features file
    redrawn: bool = False  # whether another seed gives other rows, and so a file of its own


def cases(data: Path, families: Sequence[str] = FAMILIES, *, graded: bool = True) -> list[Case]:
    """Return the shifts of some families; reads nothing but the existence of files.

    Parameters
    ----------
    data : Path
        Folder of the data sets and of ``models``.
    families : sequence of str
        Of `FAMILIES`.
    graded : bool
        Whether the graded shifts are among them.

    Raises
    ------
    MissingDataError
        Naming what is not in `data`.
    """
    makers: dict[str, Callable[[], Iterator[Case]]] = {
        "digits": partial(_digits, data, graded),
        "office": partial(_office, data),
        "reviews": partial(_reviews, data),
        "corruptions": _corruptions,
    }
    return [case for family in families for case in makers[family]()]


def _digits(data: Path, graded: bool) -> Iterator[Case]:
    for name in (*GRADED, "S-U"):
        if name in GRADED and not graded:
            continue
        find_shift(SHIFTS[name], Data(data, data))
        family = GRADED_FAMILY if name in GRADED else "digits (S-U)"
        yield Case(family, name, name not in GRADED, partial(_extract, data, name))


def _extract(data: Path, name: str, path: Path, seed: int) -> None:
    del seed
    # The extraction names its file after the shift, beside a note on where the rows came from.
    extracted(SHIFTS[name], Data(data, path.parent)).path.replace(path)


def _office(data: Path) -> Iterator[Case]:
    _require(data / "office_caltech10_efflite0.npz")
    for source, target in permutations(("amazon", "caltech", "dslr", "webcam"), 2):
        pair = f"{source}-{target}"
        yield Case("office", pair, True, partial(_write, partial(made.office_shift, data, pair)))


def _reviews(data: Path) -> Iterator[Case]:
    _require(data / "amazon_reviews_5000.npz")
    for source, target in permutations(("books", "dvd", "electronics", "kitchen"), 2):
        pair = f"{source}-{target}"
        yield Case("reviews", pair, True, partial(_write, partial(made.review_shift, data, pair)))


def _corruptions() -> Iterator[Case]:
    for name in CORRUPTIONS:
        yield Case("corruptions", name, True, partial(_write_corruption, name), redrawn=True)


def _require(path: Path) -> None:
    if not path.is_file():
        raise MissingDataError(f"{path} is missing: see the README beside the benchmark")


def _write(make: Callable[[], made.Shift], path: Path, seed: int) -> None:
    del seed
    with atomic_output(path, force=True) as temporary:
        made.write_features(temporary, make())


def _write_corruption(name: str, path: Path, seed: int) -> None:
    with atomic_output(path, force=True) as temporary:
        made.write_features(temporary, corrupted_digits(name, seed))


def corrupted_digits(name: str, seed: int) -> made.Shift:
    """Return clean to corrupted handwritten digits; the seed draws the split and the noise.

    The same rows are training rows of both domains, so a test row is new to the classifier in
    either form.
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
    splits = [made._split(len(labels), 50 + seed)] * 2
    return made._from_network("corruptions", name, sides, splits, (64, 32))
