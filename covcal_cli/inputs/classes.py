"""Which class a folder's name stands for: by name, never by position.

A class whose folder is missing shifts no other class.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from covcal_cli.errors import CovcalError

_SHOWN = 12


@dataclass(frozen=True)
class ClassMap:
    """The classes of a model in the order of its logits.

    Attributes
    ----------
    names : tuple of str
        Class names, length K.
    by_number : bool
        Whether a folder's number is the class index, so that "3" and "03" are the same class.
    """

    names: tuple[str, ...]
    by_number: bool

    def index(self, folder: str) -> int | None:
        """Return the class index of a folder's name, or None if it names no class."""
        if self.by_number:
            number = _number(folder)
            return number if number is not None and number < len(self.names) else None
        return self.names.index(folder) if folder in self.names else None

    def require(self, path: Path, folder: str) -> int:
        """Return the class index of a folder's name.

        Raises
        ------
        CovcalError
            If the name is no class, listing the classes.
        """
        index = self.index(folder)
        if index is None:
            raise CovcalError(
                f"{path}: folder {folder!r} is not a class of the source ({_list(self.names)}): "
                "rename it, or start its name with a dot to leave it out"
            )
        return index


def numbered_classes(count: int) -> ClassMap:
    """Return the classes 0 .. K-1, for data whose labels are class numbers."""
    return ClassMap(tuple(str(index) for index in range(count)), by_number=True)


def classes_from_folders(path: Path, folders: Sequence[str], count: int) -> ClassMap:
    """Return the classes that a domain's folders name.

    Parameters
    ----------
    path : Path
        The domain, for messages.
    folders : sequence of str
        Names of its class folders, empty ones included.
    count : int
        K, the classes of the model.

    Raises
    ------
    CovcalError
        If the folders are not K many and are not numbers from 0 to K-1.
    """
    numbered = {number: name for name in folders if (number := _number(name)) is not None}
    if len(numbered) < sum(_number(name) is not None for name in folders):
        raise CovcalError(
            f"{path}: two class folders have the same number ({_list(sorted(folders))}): merge them"
        )
    if len(numbered) == len(folders):
        if max(numbered, default=0) < count:
            return numbered_classes(count)
        ordered = [numbered[number] for number in sorted(numbered)]
    else:
        ordered = sorted(folders)
    if len(ordered) != count:
        raise CovcalError(
            f"{path} has {len(ordered)} class folders ({_list(ordered)}) and the model has {count} "
            "classes: add an empty folder for each class without images, or name the folders by "
            f"class number, 0 to {count - 1}"
        )
    return ClassMap(tuple(ordered), by_number=False)


def _number(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdigit() else None


def _list(names: Sequence[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
