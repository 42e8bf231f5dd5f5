"""Which class a name stands for: asked for, the model's own, the source's, or numbered."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest

from covcal_cli.data.classes import (
    ClassMap,
    NumberedNames,
    choose_classes,
    classes_from_folders,
    missing_classes,
    named_classes,
    numbered_classes,
    read_classes,
)
from covcal_cli.errors import CovcalError

PETS = ("cat", "dog", "eel")


@dataclass
class Data:
    """A domain's names, nothing else."""

    class_folders: tuple[str, ...] | None
    path: Path = Path("src")


def written(folder: Path, content: Any) -> Path:
    path = folder / "classes.txt"
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "content",
    [
        "cat\ndog\neel\n",
        "\ufeffcat\r\n dog \r\neel\r\n\r\n",
        ["cat", "dog", "eel"],
        {"0": "cat", "2": "eel", "1": "dog"},
        {"eel": 2, "cat": 0, "dog": 1},
        {"architectures": ["X"], "id2label": {"0": "cat", "1": "dog", "2": "eel"}},
    ],
)
def test_a_file_of_names_may_be_text_or_json(content: Any, tmp_path: Path) -> None:
    assert read_classes(written(tmp_path, content), 3).names == PETS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "cat\ndog\n",
            r"has 2 class names but the model has 3 classes: write one class name per line",
        ),
        ("cat\n\neel\n", "the name of class 1 is empty"),
        ("cat\ndog\ncat\n", "names 'cat' twice, as classes 0 and 2"),
        ("", r"is empty \(0 bytes\)"),
        ('["cat", "dog"', "is not valid JSON"),
        ([["cat"], "dog", "eel"], "does not hold a list of class names"),
        ({"cat": "dog"}, "must map numbers to names, or names to numbers"),
        ({"cat": 1, "dog": 2, "eel": 3}, "must number its 3 classes from 0 to 2"),
        ({"0": "cat", "1": "dog", "3": "eel"}, "must number its 3 classes from 0 to 2"),
    ],
)
def test_a_file_that_does_not_name_the_classes_is_refused(
    content: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CovcalError, match=message) as caught:
        read_classes(written(tmp_path, content), 3)
    assert "classes.txt" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ['\x00"cat",\n"dog"', "cat\ndog", "7", '"cat"', "null"])
def test_a_json_file_that_is_damaged_is_no_list_of_lines(content: str, tmp_path: Path) -> None:
    path = tmp_path / "classes.json"
    path.write_text(content)
    with pytest.raises(
        CovcalError, match=r"classes.json (is not valid JSON|does not hold a list of class names)"
    ):
        read_classes(path, 2)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CovcalError, match="is not UTF-8 text"):
        read_classes(path, 3)


def test_what_is_asked_for_beats_the_model_which_beats_the_source() -> None:
    source = Data(("x", "y", "z"))
    asked = named_classes(("p", "q", "r"))
    assert choose_classes(asked, PETS, [source], 3).names == ("p", "q", "r")
    assert choose_classes(None, PETS, [source], 3).names == PETS
    assert choose_classes(None, None, [source], 3).names == ("x", "y", "z")
    assert choose_classes(None, None, [Data(None)], 3) == numbered_classes(3)
    assert choose_classes(None, None, [Data(())], 3) == numbered_classes(3)


def test_placeholders_of_hugging_face_are_no_names() -> None:
    names = ("LABEL_0", "LABEL_1", "LABEL_2")
    guessed = choose_classes(None, names, [Data(PETS)], 3)
    assert guessed.names == PETS
    assert guessed.note is not None
    # Labels that are placeholders too leave nothing to guess.
    numbered = choose_classes(None, names, [Data(names)], 3)
    assert numbered.names == names
    assert numbered.note is None


def test_a_model_that_names_other_than_its_classes_is_refused() -> None:
    with pytest.raises(CovcalError, match=r"names 3 classes \(cat, dog, eel\) but has 4 logits"):
        choose_classes(None, PETS, [Data(None)], 4)


def test_ten_folders_of_a_model_of_a_thousand_names() -> None:
    names = tuple(f"thing {index}" for index in range(1000))
    folders = tuple(f"thing {index}" for index in range(0, 1000, 100))
    classes = choose_classes(None, names, [Data(folders)], 1000)
    assert [classes.require(Path("src"), name) for name in folders] == list(range(0, 1000, 100))


def test_a_folders_number_is_the_class_of_a_model_that_has_words() -> None:
    classes = choose_classes(None, PETS, [Data(("1", "2"))], 3)
    assert [classes.index(name) for name in ("1", "02", "cat", "3")] == [1, 2, 0, None]


def test_names_that_are_numbers_are_names() -> None:
    """Angles, or classes numbered from 1, are never taken for positions."""
    classes = named_classes(("0", "90", "270"))
    assert [classes.index(name) for name in ("90", "1", "270")] == [1, None, 2]
    assert named_classes(("0", "1", "2")) == numbered_classes(3)


def test_a_name_of_two_classes_is_refused_when_used() -> None:
    classes = choose_classes(None, ("crane", "maillot", "crane"), [Data(None)], 3)
    assert classes.require(Path("src"), "maillot") == 1
    with pytest.raises(CovcalError, match="'crane' is the name of several classes"):
        classes.require(Path("src"), "crane")


def test_names_in_another_normal_form_are_the_same() -> None:
    """macOS decomposes letters in folder names. Two names that differ by form alone are kept."""
    decomposed = normalize("NFD", "müde")
    assert named_classes(("wach", "müde")).index(decomposed) == 1
    assert named_classes(("wach", decomposed)).index("müde") == 1
    both = named_classes(("müde", decomposed))
    assert [both.index(name) for name in both.names] == [0, 1]


def test_a_label_that_is_no_class_is_named_as_one() -> None:
    classes = ClassMap(PETS, by_number=False)
    with pytest.raises(CovcalError, match=r"label .cow. is not a class of the model \(cat, dog"):
        classes.require(Path("src.csv"), "cow", what="label")


def test_missing_classes_are_named_only_where_there_are_labels() -> None:
    classes = ClassMap(PETS, by_number=False)
    target = Path("tgt")
    note = missing_classes(target, np.array([0, 0, 2, -1]), classes)
    assert note is not None
    assert "tgt has no rows of these classes (1 of 3): dog" in note
    assert missing_classes(target, np.array([0, 1, 2]), classes) is None
    assert missing_classes(target, np.array([-1, -1]), classes) is None


@pytest.mark.parametrize(
    ("folders", "note"),
    [
        (("sfw", "nsfw"), "the names of the source in this order: nsfw, sfw. If the model has"),
        (("20", "3"), "the names of the source in this order: 3, 20"),
        (("1", "0"), None),
        (NumberedNames(("sfw", "nsfw")), None),
    ],
)
def test_an_order_that_nothing_says_is_noted(
    folders: tuple[str, ...], note: str | None, tmp_path: Path
) -> None:
    """A model that prints [sfw, nsfw] would have all its labels turned round in silence."""
    found = classes_from_folders(tmp_path, folders, 2).note
    assert found is None if note is None else note in str(found)
    for known in (named_classes(("nsfw", "sfw")), numbered_classes(2)):
        assert known.note is None


@pytest.mark.parametrize("outer", [("images",), ("old", "new")])
def test_class_folders_that_lie_one_level_deeper_are_named(
    outer: tuple[str, ...], tmp_path: Path
) -> None:
    for number, name in enumerate(PETS):
        (tmp_path / outer[number % len(outer)] / name).mkdir(parents=True)
    remedy = f"give {tmp_path / 'images'}$" if len(outer) == 1 else f"move them to {tmp_path}$"
    with pytest.raises(CovcalError, match=rf"3 inner folders \(cat, dog, eel\), .*: {remedy}"):
        classes_from_folders(tmp_path, outer, 3)
