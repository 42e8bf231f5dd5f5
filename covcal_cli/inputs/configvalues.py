"""Values of a JSON file, each checked for its kind; a missing one and null are the same."""

from collections.abc import Mapping
from typing import Any

from covcal_cli.errors import CovcalError


class ConfigValues:
    """The values of a preprocessing file by key.

    Parameters
    ----------
    content : mapping
        The JSON file.
    origin : str
        The file, for messages.
    """

    def __init__(self, content: Mapping[str, Any], origin: str) -> None:
        self._content, self._origin = content, origin

    def get(self, key: str) -> Any:
        """Return a value as it is; None where it is missing."""
        return self._content.get(key)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        """Return a text."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def number(self, key: str, default: float) -> float:
        """Return one number."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        return float(value)

    def numbers(self, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
        """Return one number or several."""
        value = self.get(key)
        if value is None:
            return default
        found = value if isinstance(value, list) else [value]
        if not found or not all(
            isinstance(entry, int | float) and not isinstance(entry, bool) for entry in found
        ):
            raise self.wrong(key, "numbers")
        return tuple(float(entry) for entry in found)

    def integers(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Return whole numbers above 0."""
        found = self.numbers(key, default)
        if not all(entry == int(entry) and entry > 0 for entry in found):
            raise self.wrong(key, "whole numbers above 0")
        return tuple(int(entry) for entry in found)

    def wrong(self, key: str, wanted: str) -> CovcalError:
        """Return the error of a value that is not what it must be."""
        return CovcalError(
            f"{self._origin}: {key} is {self._content.get(key)!r}: it must be {wanted}"
        )
