"""Match the classes of a model with folders and labels by name, never by position.

If the folder of a class is missing, the other classes keep their numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol
from unicodedata import normalize

import numpy as np

from covcal_cli.arrays import TRUTH, Labels
from covcal_cli.errors import CovcalError, shown
from covcal_cli.files import require_file
from covcal_cli.multilabel import SCHEMA as MULTILABEL
from covcal_cli.records import parsed_json

_ASKED = "--classes"
OF_FILE = "the features file"  # Its classes have names already.
_SHOWN = 12  # Maximum number of names in a message.
_PLACEHOLDER = "LABEL_"  # Hugging Face's prefix for classes without a name.


class NumberedNames(tuple[str, ...]):
    """Class names in the order of the class numbers."""

    __slots__ = ()


class NamesClasses(Protocol):
    """Data whose labels may be class names."""

    path: Path
    # Names of class folders, or distinct labels; None for class numbers.
    class_folders: tuple[str, ...] | None


@dataclass(frozen=True)
class ClassMap:
    """The classes of a model in the order of its logits."""

    names: tuple[str, ...]  # Length K.
    # Whether the names "3" and "03" mean the same class.
    by_number: bool
    # Says in messages where the names come from.
    whose: str = field(default="the model", compare=False)
    is_assumed: bool = field(default=False, compare=False)

    @property
    def note(self) -> str | None:
        """A note if covcal assumes the order of the classes, else None."""
        if not self.is_assumed:
            return None
        return (
            "the model does not name its classes, so its outputs get the names of "
            f"{self.whose} in this order: {listed(self.names)}. If the model has its classes in "
            "another order, pass --classes FILE"
        )

    def index(self, folder: str) -> int | None:
        """Return the class number of a folder or label; None for an unknown name."""
        if folder in self.names:
            return self.names.index(folder)
        # Some programs write an accented letter as two characters.
        composed = [normalize("NFC", name) for name in self.names] if not folder.isascii() else []
        if composed.count(normalize("NFC", folder)) == 1:
            return composed.index(normalize("NFC", folder))
        if folder.casefold() in ("true", "false"):
            meanings = [TRUTH.get(name.casefold()) for name in self.names]
            if meanings.count(TRUTH[folder.casefold()]) == 1:
                return meanings.index(TRUTH[folder.casefold()])
        number = _number(folder) if self.by_number else None
        return number if number is not None and number < len(self.names) else None

    def require(self, path: Path, folder: str, *, what: str = "folder") -> int:
        """Return the class number of a folder or label.

        Raises `CovcalError` for an unknown name.
        """
        index = self.index(folder)
        if index is None:
            remedy = (
                "rename the folder, or put a dot before its name to leave it out"
                if what == "folder"
                else f"correct it{self.or_name_them('or name the classes')}"
            )
            raise CovcalError(
                f"{path}: {what} {folder!r} is not a class of {self.whose} "
                f"({listed(self.names)}): {remedy}"
            )
        if self.names.count(folder) > 1:
            numbers = " and ".join(str(i) for i, name in enumerate(self.names) if name == folder)
            raise CovcalError(
                f"{path}: {what} {folder!r} is the name of several classes ({numbers}): use "
                "the class number, or give each class its own name with --classes FILE"
            )
        return index

    def or_name_them(self, advice: str) -> str:
        """Return advice to use ``--classes``, or "" if the classes have names already."""
        return "" if self.whose in (_ASKED, OF_FILE) else f", {advice} with --classes FILE"


def numbered_classes(count: int) -> ClassMap:
    """Return K classes that are named by their numbers, 0 to K-1."""
    return ClassMap(tuple(str(index) for index in range(count)), by_number=True)


def named_classes(names: Sequence[str]) -> ClassMap:
    """Return classes with these names, in the order of the logits.

    A label such as 3 is a class number, unless the class names are numbers themselves.
    """
    numbers = [_number(name) for name in names]
    plain = all(number is None for number in numbers) or numbers == list(range(len(names)))
    return ClassMap(tuple(names), by_number=plain)


def choose_classes(
    asked: ClassMap | None,
    model_names: Sequence[str] | None,
    domains: Sequence[NamesClasses],
    count: int,
    whose: str = "the model",
) -> ClassMap:
    """Choose the names of a model's `count` classes.

    Use `asked` if given, else `model_names`, else the names in `domains`, else class numbers.
    `whose` says in messages where `model_names` come from.
    """
    if asked is not None:
        return replace(asked, whose=_ASKED)
    if model_names is not None and not all(name.startswith(_PLACEHOLDER) for name in model_names):
        if len(model_names) != count:
            raise CovcalError(
                f"the model names {len(model_names)} classes ({listed(model_names)}) but has "
                f"{count} logits: pass --classes FILE with one name per line"
            )
        return replace(named_classes(model_names), whose=whose)
    folders = domains[0].class_folders if domains else None
    if not folders:
        return numbered_classes(count)
    return classes_from_folders(domains[0].path, folders, count)


def classes_from_folders(path: Path, folders: Sequence[str], count: int) -> ClassMap:
    """Return `count` classes with the names of folders or labels.

    An empty folder is a class too. Names of the type `NumberedNames` keep their order, and all
    other names are sorted. If all names are numbers below `count`, the names are class numbers.
    """
    if isinstance(folders, NumberedNames):
        if len(folders) != count:
            raise CovcalError(
                f"{path} names {len(folders)} classes ({listed(folders)}) but the model has "
                f"{count}: pass --classes FILE with the names of the model's classes"
            )
        return replace(named_classes(folders), whose="the source")
    numbers = {name: number for name in folders if (number := _number(name)) is not None}
    if len(set(numbers.values())) < len(numbers):
        raise CovcalError(
            f"{path}: two class names mean the same number ({listed(sorted(folders))}): rename "
            "or merge them"
        )
    ordered = sorted(folders)
    if len(numbers) == len(folders):
        if max(numbers.values()) < count:
            return numbered_classes(count)
        ordered.sort(key=numbers.__getitem__)
    elif are_placeholders(ordered):
        ordered.sort(key=placeholder_number)
        if len(ordered) == count:
            return replace(named_classes(ordered), whose="the source")
    if len(ordered) != count:
        if path.is_file():
            noun, remedy = "classes", "name the labels"
        else:
            noun = "class folders"
            remedy = "add an empty folder for each class without images. Name the folders"
            inner = [name for folder in ordered for name in sorted((path / folder).glob("[!.]*/"))]
            deeper = {name.name for name in inner}
            if len(deeper) == count:
                raise CovcalError(
                    f"{path} has {len(ordered)} folders ({listed(ordered)}) with {count} "
                    f"inner folders ({listed(sorted(deeper))}), and the model has {count} "
                    "classes: "
                    + (f"give {path / ordered[0]}" if len(ordered) == 1 else f"move them to {path}")
                )
            if len(ordered) > count:
                remedy = "put a dot before folders that are not classes. Name the others"
        raise CovcalError(
            f"{path} has {len(ordered)} {noun} ({listed(ordered)}) but the model has {count} "
            f"classes: {remedy} by class number, 0 to {count - 1}, or pass --classes FILE"
        )
    return ClassMap(tuple(ordered), by_number=False, whose="the source", is_assumed=True)


def missing_classes(path: Path, labels: Labels, classes: ClassMap) -> str | None:
    """Return a note that names the classes without rows, if any."""
    present = np.flatnonzero(np.bincount(labels[labels >= 0]))
    missing = sorted(set(range(len(classes.names))) - set(present.tolist()))
    if not len(present) or not missing:
        return None
    names = listed([classes.names[index] for index in missing])
    return f"{path} has no rows of these classes ({len(missing)} of {len(classes.names)}): {names}"


def is_plain_number(name: str) -> bool:
    """Return whether a name consists of the digits 0 to 9."""
    return name.isascii() and name.isdigit()


def placeholder_number(name: str) -> int:
    """Return k for the name LABEL_k, and -1 for other names."""
    number = name.removeprefix(_PLACEHOLDER)
    return int(number) if number != name and is_plain_number(number) else -1


def are_placeholders(names: Sequence[str]) -> bool:
    """Return whether the names are LABEL_0 to LABEL_{K-1}, in any order."""
    return sorted(map(placeholder_number, names)) == list(range(len(names)))


def _number(name: str) -> int | None:
    return int(name) if is_plain_number(name) else None


_REMEDY = "write one class name per line in the order of the logits, or a JSON list or object"
_CALIBRATED = "classes"  # The key of the class names in cal.json.


def read_classes(path: Path, count: int) -> ClassMap:
    """Read the names of a model's `count` classes."""
    names = read_class_names(path)
    if len(names) != count:
        raise CovcalError(
            f"{path} has {len(names)} class names but the model has {count} classes: {_REMEDY}"
        )
    return named_classes(names)


def read_class_names(path: Path) -> list[str]:
    """Read class names in order. Class names must be unique.

    The file has one name per line, or is one of these kinds of JSON:

    - a list of names
    - an object from numbers to names, or from names to numbers
    - a Hugging Face ``config.json`` with ``id2label``
    - a cal.json
    """
    require_file(path, remedy=_REMEDY)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CovcalError(f"{path} is not UTF-8 text: {_REMEDY}") from error
    if path.suffix.lower() == ".json" or text.lstrip().startswith(("[", "{")):
        names = _from_json(path, text)
    else:
        names = [line.strip() for line in text.rstrip().splitlines()]
    names = [normalize("NFC", name) for name in names]
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if not name:
            raise CovcalError(f"{path}: the name of class {index} is empty: {_REMEDY}")
        if first.setdefault(name, index) < index:
            raise CovcalError(
                f"{path} names {shown(name)} twice, as classes {first[name]} and {index}: give "
                "each class its own name"
            )
    return names


def _from_json(path: Path, text: str) -> list[str]:
    try:
        content = parsed_json(text)
    except ValueError as error:
        raise CovcalError(f"{path} is not valid JSON ({error}): {_REMEDY}") from error
    if isinstance(content, dict):
        if content.get("schema") == MULTILABEL and isinstance(content.get("labels"), dict):
            return list(content["labels"])
        if not isinstance(content.get(_CALIBRATED), list):
            return _from_object(path, content.get("id2label", content))
        content = content[_CALIBRATED]
    if not isinstance(content, list) or not all(type(name) in (str, int) for name in content):
        raise CovcalError(f"{path} does not hold a list of class names: {_REMEDY}")
    return [str(name) for name in content]


def _from_object(path: Path, content: Any) -> list[str]:
    pairs = content.items() if isinstance(content, dict) else ()
    if all(type(value) is int for _, value in pairs):
        by_number = {value: name for name, value in pairs}
    elif all(name.isascii() and name.isdigit() and isinstance(value, str) for name, value in pairs):
        by_number = {int(name): value for name, value in pairs}
    else:
        raise CovcalError(f"{path} must map numbers to names, or names to numbers: {_REMEDY}")
    if sorted(by_number) != list(range(len(pairs))):
        raise CovcalError(
            f"{path} must number its {len(pairs)} classes from 0 to {len(pairs) - 1}: give each "
            "class its own number"
        )
    return [by_number[number] for number in sorted(by_number)]


def listed(names: Sequence[str]) -> str:
    """Return names as text, and shorten a long list."""
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
