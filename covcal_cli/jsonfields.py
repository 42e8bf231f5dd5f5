"""Fields of a JSON object that somebody may have damaged, each checked for its kind when read."""

from collections.abc import Mapping
from typing import Any

_ABSENT = object()


class DamagedFieldError(ValueError):
    """A field is missing or of another kind; the message says which, in plain words."""


class Fields:
    """One object of a JSON file.

    Parameters
    ----------
    content : object
        What was read.
    place : str
        Its name in the file, empty for the outermost.

    Raises
    ------
    DamagedFieldError
        Here if `content` is no object; by every method if the field is missing or of another kind.
    """

    def __init__(self, content: Any, place: str = "") -> None:
        if not isinstance(content, dict):
            raise DamagedFieldError(f"{place or 'the whole'} is {_kind(content)}, not an object")
        self._content: dict[str, Any] = content
        self._place = place

    def __contains__(self, name: str) -> bool:
        return name in self._content

    def names(self) -> list[str]:
        """Return the names of all fields, in their order."""
        return list(self._content)

    def text(self, name: str) -> str:
        """Return a text."""
        value = self._value(name)
        return value if isinstance(value, str) else self._refuse(name, value, "a text")

    def number(self, name: str) -> float:
        """Return a number; true and false are none."""
        return self._as_number(name, self._value(name))

    def integer(self, name: str) -> int:
        """Return a whole number."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int):
            self._refuse(name, value, "a whole number")
        return int(value)

    def truth(self, name: str) -> bool:
        """Return true or false."""
        value = self._value(name)
        return value if isinstance(value, bool) else self._refuse(name, value, "true or false")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts."""
        values = self._list(name)
        for number, value in enumerate(values):
            if not isinstance(value, str):
                self._refuse(f"{name}[{number}]", value, "a text")
        return tuple(values)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of numbers."""
        return tuple(
            self._as_number(f"{name}[{number}]", value)
            for number, value in enumerate(self._list(name))
        )

    def inside(self, name: str) -> "Fields":
        """Return the object inside."""
        return Fields(self._value(name), self._full(name))

    def each(self, name: str) -> "list[Fields]":
        """Return the objects of a list."""
        return [
            Fields(value, self._full(f"{name}[{number}]"))
            for number, value in enumerate(self._list(name))
        ]

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return the content of the object inside, whatever it holds."""
        return dict(self.inside(name)._content)

    def text_or_null(self, name: str) -> str | None:
        """Return a text, or None for null."""
        return None if self._value(name) is None else self.text(name)

    def number_or_null(self, name: str) -> float | None:
        """Return a number, or None for null."""
        return None if self._value(name) is None else self.number(name)

    def mapping_or_null(self, name: str) -> Mapping[str, Any] | None:
        """Return the content of the object inside, or None for null."""
        return None if self._value(name) is None else self.mapping(name)

    def _value(self, name: str) -> Any:
        value = self._content.get(name, _ABSENT)
        if value is _ABSENT:
            raise DamagedFieldError(f"{self._full(name)} is missing")
        return value

    def _list(self, name: str) -> list[Any]:
        value = self._value(name)
        return value if isinstance(value, list) else self._refuse(name, value, "a list")

    def _as_number(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(name, value, "a number")
        return float(value)

    def _full(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name

    def _refuse(self, name: str, value: Any, wanted: str) -> Any:
        raise DamagedFieldError(f"{self._full(name)} is {_kind(value)}, not {wanted}")


def _kind(value: Any) -> str:
    """Return what a JSON value is, in words."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return "a text"
    if isinstance(value, int | float):
        return "a number"
    return "a list" if isinstance(value, list) else "an object"
