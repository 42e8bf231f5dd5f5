"""What tells a label that is not known from a class that is called -1, or nan."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from covcal_cli.data.classes import ClassMap, named_classes, numbered_classes
from covcal_cli.data.labels import RowLabels, unlabelled
from covcal_cli.errors import CovcalError

TYPES = ("int64", "int8", "float32", "text")
NAMED = [("-1", "1"), ("-1", "0", "1"), ("1", "0", "-1")]


def labels(values: list[Any], kind: str) -> RowLabels:
    array: NDArray[Any] = np.array(values, dtype=str if kind == "text" else kind)
    return RowLabels(array, Path("t.csv"), "label", texts_are_numbers=kind == "text")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([-1, 1, 1, -1], 2),
        ([-1, 0], 2),
        ([-1, 0, 1], 3),
        ([-1, 1], 3),
        ([-1, 0, -1], 3),
        ([-1, 0, 1, 2], 4),
        ([*range(-1, 9)], 10),
    ],
)
def test_minus_one_that_may_be_a_class_is_an_error(
    values: list[int], count: int, kind: str
) -> None:
    message = rf"label holds -1, .* and there are {count} classes. If -1 is a class"
    with pytest.raises(CovcalError, match=message):
        labels(values, kind).indices(numbered_classes(count))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([-1, 0, 1], 2),
        ([-1, 0, 2], 3),
        ([-1, -1], 2),
        ([-1, 0, 5, 7], 10),
        ([-1, 1], 10),
        ([-1, 0, 1, 3], 4),
    ],
)
def test_minus_one_beside_labels_that_leave_no_doubt_is_unknown(
    values: list[int], count: int, kind: str
) -> None:
    assert labels(values, kind).indices(numbered_classes(count)).tolist() == values


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("names", NAMED)
def test_minus_one_that_the_classes_name_is_that_class(names: tuple[str, ...], kind: str) -> None:
    values = [int(name) for name in names] * 2
    found = labels(values, kind).indices(named_classes(names))
    assert found.tolist() == [*range(len(names))] * 2


@pytest.mark.parametrize("kind", ["float32", "text"])
def test_no_value_is_unknown_where_minus_one_is_a_class(kind: str) -> None:
    values = [-1, 1, "nan" if kind == "text" else np.nan]
    classes = named_classes(("-1", "1"))
    assert labels(values, kind).indices(classes).tolist() == [0, 1, -1]
    assert unlabelled(2, Path("t.csv")).indices(classes).tolist() == [-1, -1]


@pytest.mark.parametrize("missing", ["nan", "NaN", "None", "<NA>", "null", " nan ", ""])
@pytest.mark.parametrize("known", [("a", "b"), ("0", "1")])
def test_texts_for_no_value_are_unknown(missing: str, known: tuple[str, ...]) -> None:
    found = labels([*known, missing], "text")
    assert found.n_classes == 2
    classes = named_classes(known)
    assert found.indices(classes).tolist() == [0, 1, -1]


def test_a_class_that_is_called_none_is_a_class() -> None:
    found = labels(["None", "mild", "None"], "text")
    assert found.indices(named_classes(("None", "mild"))).tolist() == [0, 1, 0]
    assert found.indices(named_classes(("mild", "severe"))).tolist() == [-1, 0, -1]


def test_minus_one_is_unknown_where_the_data_name_their_classes() -> None:
    """Datasets with named classes document it."""
    values = np.array([-1, 0, 1, -1])
    found = RowLabels(values, Path("t.parquet"), "label", number_names=("a", "b", "c"))
    assert found.indices(ClassMap(("a", "b", "c"), by_number=False)).tolist() == [-1, 0, 1, -1]


@pytest.mark.parametrize("row", ["[1.0, 0.0]", "[0 1 0]", "(0,1)", "[-1e-3,1]"])
def test_a_list_in_a_text_is_no_name(row: str) -> None:
    """A one-hot label that a CSV holds as text would sort the classes in another order."""
    with pytest.raises(CovcalError, match=r"label holds the text .* the argmax"):
        labels([row, "cat"], "text")


@pytest.mark.parametrize("name", ["[1]", "(a, b)", "1, 2", "[unknown]", "cats [2 kinds]"])
def test_names_may_have_brackets(name: str) -> None:
    assert labels([name, "cat"], "text").names == tuple(sorted([name, "cat"]))


@pytest.mark.parametrize(
    "names",
    [
        ("1", "01", "2"),
        ("+1", "0", "-1"),
        ("030", "060", "7"),
        ("9007199254740993", "9007199254740994", "22298006"),
        ("1e0", "1", "1.0"),
        ("NA", "N/A", "EU"),
    ],
)
def test_a_label_that_names_a_class_as_it_is_written_is_that_class(names: tuple[str, ...]) -> None:
    assert labels([*names, ""], "text").indices(named_classes(names)).tolist() == [0, 1, 2, -1]


@pytest.mark.parametrize(
    "names", [("True", "False"), ("true", "false"), ("FALSE", "TRUE"), ("Yes", "no"), ("0", "1")]
)
@pytest.mark.parametrize("kind", ["bool", "text"])
def test_true_and_false_are_found_in_any_case(names: tuple[str, ...], kind: str) -> None:
    index = next(i for i, name in enumerate(names) if name.lower() in ("true", "yes", "1"))
    read = labels([True, False] if kind == "bool" else ["True", "False"], kind)
    assert read.indices(named_classes(names)).tolist() == [index, 1 - index]
    assert labels([True, False], "bool").indices(named_classes(("no", "yes"))).tolist() == [1, 0]


@pytest.mark.parametrize("text", ["1e39", "-1e300", "99999999999999999999.0"])
def test_a_number_in_text_that_is_far_too_large(text: str) -> None:
    with pytest.raises(CovcalError, match=r"save class numbers as integers, -1 for unknown"):
        labels(["0", "1", text], "text")


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_labels_of_any_precision_are_read_without_a_warning(kind: str) -> None:
    values = np.array([0, 2, np.nan, -1, 2047], dtype=kind)
    read = RowLabels(values, Path("t.npz"), "y")
    assert read.indices(numbered_classes(3000)).tolist() == [0, 2, -1, -1, 2047]
    with pytest.raises(CovcalError, match=r"y\[1\] is 0.5: save class numbers as integers"):
        RowLabels(np.array([0, 0.5], dtype=kind), Path("t.npz"), "y")


@pytest.mark.parametrize("digit", ["\uff11", "\u0661", "\u00b2", "1_0"])
def test_digits_of_other_scripts_are_texts(digit: str) -> None:
    read = labels([digit, "0", "-1"], "text")
    assert read.names == ("0", digit)
    assert read.indices(named_classes(("0", digit))).tolist() == [1, 0, -1]
    with pytest.raises(CovcalError, match=f"label '{digit}' is not a class of the model"):
        read.indices(numbered_classes(20))
