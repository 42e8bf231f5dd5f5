"""Values of a JSON file of somebody else's, each checked for its kind; null is as if left out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from covcal_cli.errors import CovcalError


@dataclass(frozen=True)
class ConfigValues:
    """The values of a preprocessing file by key."""

    content: Mapping[str, Any]
    origin: str  # the file, for messages

    def get(self, key: str) -> Any:
        """Return a value as it is; None where it is missing."""
        return self.content.get(key)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        return bool(self._checked(key, default, bool, "true or false"))

    def text(self, key: str, default: str) -> str:
        """Return a text."""
        return str(self._checked(key, default, str, "a text"))

    def number(self, key: str, default: float) -> float:
        """Return one number."""
        return float(self._checked(key, default, int | float, "a number"))

    def numbers(self, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
        """Return one number or several."""
        value = self.get(key)
        if value is None:
            return default
        found = value if isinstance(value, list) else [value]
        if not found or not all(_is(entry, int | float) for entry in found):
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
        return CovcalError(f"{self.origin}: {key} is {self.get(key)!r}: it must be {wanted}")

    def _checked(self, key: str, default: Any, kind: Any, words: str) -> Any:
        value = self.get(key)
        if value is None:
            return default
        if not _is(value, kind):
            raise self.wrong(key, words)
        return value


def _is(value: Any, kind: Any) -> bool:
    """Return whether a JSON value is of a kind; true and false are no numbers."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
