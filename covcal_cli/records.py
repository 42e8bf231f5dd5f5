"""Read and write covcal's JSON documents.

A document is a frozen dataclass with a schema id. The fields of a document become JSON keys. A
field with the metadata `at` becomes a key of an inner object. The last key, ``content_sha256``, is
the hash of all other keys. A document is checked in three ways:

- The hash must match, so an edited or damaged document is refused.
- Every value must have the type and the range of its field, such as `Share`.
- The values must not contradict each other (``__post_init__``).

Unknown keys are ignored, because a later version may add keys. If a key is removed or its meaning
changes, the schema id changes. Documents with an unknown schema id are refused.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from covcal_cli import multilabel
from covcal_cli.errors import ArgumentError, CovcalError, shown
from covcal_cli.files import relative_to_folder_of, require_file, write_text

DIGEST = "content_sha256"  # Key of the sha256 of all other keys.
_ABSENT = object()
_ROUNDING = 1e-6  # Tolerance of a range, for rounding errors.
_LONGEST_JSON = 256 << 20  # Maximum size of a JSON file, in bytes.
_DEEPEST_JSON = 64  # Maximum depth of nested objects and lists.
_LONGEST_PATH, _LONGEST_NAME = 4095, 255  # Limits of Linux, in bytes.
_MOST_DIGITS = 20
_WANTED = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


# Number types with a range of values.


@dataclass(frozen=True)
class Within:
    """A closed range for a number."""

    low: float
    high: float = math.inf

    def require(self, what: str, value: float) -> None:
        """Raise ValueError if `value` is outside the range. `what` is the name of the value."""
        if not self.low - _ROUNDING <= value <= self.high + _ROUNDING:
            limits = f"{self.low:g} to {self.high:g}" if self.high < math.inf else f"{self.low:g}"
            reason = f"outside {limits}" if self.high < math.inf else f"below {limits}"
            raise ValueError(f"{what} is {value:.7g}, {reason}")


@dataclass(frozen=True)
class Above:
    """A lower limit that a number must exceed."""

    limit: float

    def require(self, what: str, value: float) -> None:
        """Raise ValueError if `value` is not above the limit. `what` is the name of the value."""
        if not value > self.limit:
            raise ValueError(f"{what} is {value:.7g}, but must be above {self.limit:g}")


Share = Annotated[float, Within(0, 1)]  # An accuracy, a probability or an ECE.
Difference = Annotated[float, Within(-1, 1)]  # A difference of two shares.
NonNegative = Annotated[float, Within(0)]
Positive = Annotated[float, Above(0)]
Count = Annotated[int, Within(0)]
Number = Annotated[int, Within(1)]  # A count of at least 1.


def require_ascending(**values: float | None) -> None:
    """Raise ValueError if the numbers are not ascending. Skip None."""
    numbers = [(name, value) for name, value in values.items() if value is not None]
    for (name, value), (following, larger) in pairwise(numbers):
        if value > larger + _ROUNDING:
            raise ValueError(f"{name} ({value:.7g}) is more than {following} ({larger:.7g})")


def require_fields(place: str, content: Any, kinds: Mapping[str, Any]) -> None:
    """Raise ValueError if a key of `content` is missing or has a wrong type."""
    values = _checked(dict, content, place)
    for name, kind in kinds.items():
        if name not in values:
            raise ValueError(f"{place}.{name} is missing")
        _decoded(kind, values[name], f"{place}.{name}", Path())


NOT_STORED = {"at": ""}  # Marks a field that is not stored in the file.


@dataclass(frozen=True)
class Input:
    """An input file of a result."""

    role: str  # "features", "adapted", "calibration" or "costs".
    path: Path  # The path of the file; relative to the document's folder in JSON.
    sha256: str
    # A document is untrusted, so a path outside its folder is never opened.
    is_outside: bool = field(default=False, compare=False, metadata=NOT_STORED)


@dataclass(frozen=True)
class Guard:
    """The outcome of a check, such as a minimum number of errors."""

    name: str
    value: float  # Finite.
    threshold: float  # Finite.
    passed: bool
    sentence: str  # result and advice


class Document:
    """A record that is stored as a JSON file."""

    schema: ClassVar[str]


D = TypeVar("D", bound=Document)
R = TypeVar("R")


def at(place: str) -> dict[str, str]:
    """Return the metadata of a field with the JSON key `place`, such as ``"bins.edges"``."""
    return {"at": place}


# Writing.


def encoded(value: Any, path: Path) -> Any:
    """Convert a value to JSON types for a document at `path`.

    Paths become relative to the folder of the document.
    """
    if hasattr(value, "to_json"):
        return encoded(value.to_json(), path)
    if is_dataclass(value):
        content: dict[str, Any] = {"schema": value.schema} if isinstance(value, Document) else {}
        for member in _stored_fields(value):
            place = content
            *way, name = _keys(member)
            for key in way:
                place = place.setdefault(key, {})
            place[name] = encoded(getattr(value, member.name), path)
        return content
    if isinstance(value, Mapping):
        return {name: encoded(entry, path) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(entry, path) for entry in value]
    return relative_to_folder_of(value, path) if isinstance(value, Path) else value


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the hash of a document's content."""
    rest = {name: value for name, value in content.items() if name != DIGEST}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _signed(content: Document | Mapping[str, Any], path: Path) -> Any:
    keys = encoded(content, path)
    if "schema" not in keys:
        return keys
    rest = {name: value for name, value in keys.items() if name != DIGEST}
    return rest | {DIGEST: digest_of(rest)}


def of_labels(
    documents: Mapping[str, Document | Mapping[str, Any]], path: Path, **more: Any
) -> dict[str, Any]:
    """Return the content of a JSON file with one document per label."""
    signed = {name: _signed(document, path) for name, document in documents.items()}
    return {"schema": multilabel.SCHEMA, "labels": signed, **more}


def document_text(content: Document | Mapping[str, Any], path: Path) -> str:
    """Return the JSON text of a document for a file at `path`."""
    return json.dumps(_signed(content, path), indent=2, allow_nan=False)


def line_text(content: Document | Mapping[str, Any], path: Path) -> str:
    """Return the JSON text of a document as one line."""
    return json.dumps(_signed(content, path), allow_nan=False)


def write_document(content: Document | Mapping[str, Any], path: str | Path, *, force: bool) -> None:
    """Write a document with its hash, completely or not at all."""
    path = Path(path)
    try:
        text = document_text(content, path)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{path}: the content is not JSON ({error})") from error
    write_text(path, text + "\n", force=force)


# Reading.


def parsed_json(text: str | bytes, *, names_paths: bool = False) -> Any:
    """Parse an untrusted JSON text.

    With `names_paths`, texts may contain surrogates, which stand for undecodable bytes in paths.
    Raises `ValueError` for invalid JSON, a duplicate key, infinity or NaN, and content that is too
    long or too deeply nested.
    """
    if len(text) > _LONGEST_JSON:
        raise ValueError(f"the JSON is longer than {_LONGEST_JSON >> 20} MiB")
    try:
        value = json.loads(
            text,
            object_pairs_hook=unique_keys,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_float,
        )
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    _require_shallow(value, "surrogateescape" if names_paths else "strict")
    return value


def json_of(path: Path, *, names_paths: bool = False) -> Any:
    """Parse an untrusted JSON file. Raises ValueError or OSError.

    The text may be UTF-16 or have a byte order mark, as from editors on Windows.
    """
    if path.stat().st_size > _LONGEST_JSON:
        raise ValueError(f"the JSON is longer than {_LONGEST_JSON >> 20} MiB")
    content = path.read_bytes()
    return parsed_json(content.decode(json.detect_encoding(content)), names_paths=names_paths)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object from its pairs. Raises ValueError if a key occurs twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {shown(twice)} occurs twice")
    return content


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:_MOST_DIGITS]} is not a finite number")
    return value


def _require_shallow(value: Any, undecodable: str) -> None:
    level = [value]
    for _ in range(_DEEPEST_JSON):
        texts = [value for value in level if isinstance(value, str)]
        inner = [value for value in level if isinstance(value, list | dict)]
        texts += [name for value in inner if isinstance(value, dict) for name in value]
        for text in texts:
            if not text.isascii() and not _is_unicode(text, undecodable):
                raise ValueError(f"{shown(text)} is not Unicode text")
        if not inner:
            return
        level = [
            child
            for value in inner
            for child in (value.values() if isinstance(value, dict) else value)
        ]
    raise ValueError("the JSON is nested too deeply")


def _is_unicode(text: str, undecodable: str) -> bool:
    try:
        text.encode("utf-8", undecodable)
    except UnicodeEncodeError:  # Half of a surrogate pair, such as "\\ud800" in JSON.
        return False
    return True


def read_json(path: Path, *, remedy: str, again: str | None = None) -> Mapping[str, Any]:
    """Return the object in a JSON file, or {} for another value."""
    require_file(path, remedy=remedy)
    try:
        content = json_of(path, names_paths=True)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CovcalError(f"{path} is not JSON: {remedy}") from error
    except ValueError as error:
        raise CovcalError(f"{path} is damaged ({error}): {again or remedy}") from error
    return content if isinstance(content, dict) else {}


def read_document(kind: type[D], path: Path, *, remedy: str, again: str | None = None) -> D:
    """Read a document of the type `kind`.

    A missing field gets its default. Messages end with `remedy`, or with `again` if the document is
    damaged. Raises `CovcalError` if the file is missing or not JSON, or if a value, the schema or
    the hash is wrong.
    """
    content = read_json(path, remedy=remedy, again=again)
    if names := labels_of_document(content):
        # This hash also shows if someone exchanged the documents of two labels.
        if content.get(DIGEST) != digest_of(content):
            fault = f"{DIGEST} does not match, so the file was changed after covcal wrote it"
            raise CovcalError(f"{path} is damaged ({fault}): {again or remedy}")
        content = content["labels"][multilabel.chosen_label(path, names)]
    schema = content.get("schema")
    if schema != kind.schema:
        raise CovcalError(
            f"{path} has schema {shown(schema)}, but this version reads {kind.schema}: {remedy}"
        )
    try:
        return document_of(kind, content, path)
    except (ValueError, OverflowError) as error:
        raise CovcalError(f"{path} is damaged ({error}): {again or remedy}") from error


def labels_of_document(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the label names of a file with one document per label."""
    documents = content.get("labels")
    if content.get("schema") != multilabel.SCHEMA or not isinstance(documents, dict):
        return ()
    return tuple(name for name, document in documents.items() if isinstance(document, dict))


def document_of(kind: type[D], content: Any, path: Path) -> D:
    """Convert a JSON value to a document of the type `kind`, stored at `path`.

    Raises `ValueError` if the schema, the hash or a field is wrong.
    """
    schema = _checked(dict, content, "").get("schema")
    if schema != kind.schema:
        raise ValueError(f"its schema is {shown(schema)}, not {kind.schema}")
    if DIGEST not in content:
        raise ValueError(f"{DIGEST} is missing")
    if content[DIGEST] != digest_of(content):
        raise ValueError(f"{DIGEST} does not match, so the file was changed after covcal wrote it")
    document: D = _decoded(kind, content, "", path)
    return document


def record_of(kind: type[R], content: Any) -> R:
    """Convert a JSON value to a record of type `kind`. Raises `ValueError` if a field is wrong."""
    record: R = _decoded(kind, content, "", Path())
    return record


def _decoded(kind: Any, value: Any, place: str, path: Path) -> Any:
    if kind in _WANTED:
        return kind(_checked(kind, value, place))
    if kind is Any:
        return value
    origin, inner = _parts(kind)
    if origin is Annotated:
        number = _decoded(inner[0], value, place, path)
        for limit in inner[1:]:
            limit.require(place, number)
        return number
    if origin in (UnionType, Union):  # An optional type, or a union.
        return None if value is None else _decoded(inner[0], value, place, path)
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"{place} is not one of {', '.join(map(str, inner))}")
        return value
    if origin is tuple:
        entries = enumerate(_checked(list, value, place))
        return tuple(_decoded(inner[0], entry, f"{place}[{i}]", path) for i, entry in entries)
    if origin is Mapping:
        content = _checked(dict, value, place)
        return {
            name: _decoded(inner[1], entry, f"{place}.{name}", path)
            for name, entry in content.items()
        }
    if kind is Path:
        return path.parent / _checked_path(value, place)
    values = {}
    for name, keys, hint, needed in _record(kind):
        entry, where = value, place
        for key in keys:
            entry = _checked(dict, entry, where).get(key, _ABSENT)
            where = f"{where}.{key}" if where else key
            if entry is _ABSENT:
                break
        if entry is not _ABSENT:
            values[name] = _decoded(hint, entry, where, path)
        elif needed:
            raise ValueError(f"{where} is missing")
    try:
        return kind(**values)
    except ValueError as error:  # The record's own __post_init__ raised this error.
        raise ValueError(f"{place}: {error}" if place else str(error)) from error


@cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(kind), get_args(kind)


@cache
def _record(kind: Any) -> list[tuple[str, list[str], Any, bool]]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        (
            member.name,
            _keys(member),
            hints[member.name],
            member.default is MISSING and member.default_factory is MISSING,
        )
        for member in _stored_fields(kind)
    ]


def _stored_fields(record: Any) -> list[Field[Any]]:
    return [member for member in fields(record) if member.metadata != NOT_STORED]


def _keys(member: Field[Any]) -> list[str]:
    return str(member.metadata.get("at", member.name)).split(".")


def _checked(kind: type, value: Any, place: str) -> Any:
    """Return `value` if its type is `kind`. A boolean is not a number."""
    allowed = int | float if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        if value is None or isinstance(value, bool):
            actual = json.dumps(value)
        else:
            actual = "a number" if isinstance(value, int | float) else _WANTED[type(value)]
        raise ValueError(f"{place or 'the content'} is {actual}, not {_WANTED[kind]}")
    return value


def _checked_path(value: Any, place: str) -> str:
    text: str = _checked(str, value, place)
    path = os.fsencode(text)
    if len(path) > _LONGEST_PATH or max(map(len, path.split(os.fsencode(os.sep)))) > _LONGEST_NAME:
        raise ValueError(f"{place} is a path of {len(text)} characters, which is too long")
    return text


def sentences_of_failed(guards: Iterable[Guard]) -> list[str]:
    """Return the sentences of the failed checks."""
    return [guard.sentence for guard in guards if not guard.passed]
