"""Covcal's JSON documents: records of typed fields, written and read by their annotations.

A document is a frozen dataclass with a schema id. Its fields become keys, in their order; a field
`at` another place lies in an object within. Reading checks every value against the annotation of
its field and passes over keys that no field has, since a later version may add some. A key that
goes, or changes its meaning, takes another schema id, and an id that this version does not know is
refused by name. Also the records that several documents share, and what settings check of a field.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from covcal_cli.errors import CovcalError, shown
from covcal_cli.files import relative_to_folder_of, require_file, write_text

_ABSENT = object()
_LONGEST_JSON = 256 << 20  # bytes
_DEEPEST_JSON = 64  # objects and lists in each other
_MOST_DIGITS = 20  # of a whole number; 2^64 has as many
# What a JSON value must be, by its type in Python.
_WANTED = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True)
class Input:
    """A file that a result was computed from."""

    role: str  # "features", "adapted" or "calibration"
    path: Path  # relative to the document where it is written
    sha256: str


@dataclass(frozen=True)
class Guard:
    """A check of what a result rests on."""

    name: str  # the same for the same check everywhere
    value: float  # finite, as the threshold is
    threshold: float
    passed: bool
    sentence: str  # what was found and what follows from it


class Document:
    """A record that has a file of its own."""

    schema: ClassVar[str]


D = TypeVar("D", bound=Document)


def require_one_of(what: str, value: str, known: Iterable[str]) -> None:
    """Refuse a value that is none of those there are, and name them."""
    known = tuple(known)
    if value not in known:
        raise CovcalError(f"there is no {what} {value!r}: take {', '.join(known)}")


def require_at_least(what: str, value: float, least: float) -> None:
    """Refuse a number that is too small, or none."""
    if not value >= least:
        raise CovcalError(f"{what} must be at least {least}, not {value}")


def at(place: str) -> dict[str, str]:
    """Return the metadata of a field whose key is not its own name, such as ``"bins.edges"``."""
    return {"at": place}


def encoded(value: Any, path: Path) -> Any:
    """Return a value as a document at `path` holds it; a record may say it itself by `to_json`."""
    if hasattr(value, "to_json"):
        return encoded(value.to_json(), path)
    if is_dataclass(value):
        content: dict[str, Any] = {"schema": value.schema} if isinstance(value, Document) else {}
        for field in fields(value):
            place = content
            *way, name = _keys(field)
            for key in way:
                place = place.setdefault(key, {})
            place[name] = encoded(getattr(value, field.name), path)
        return content
    if isinstance(value, Mapping):
        return {name: encoded(entry, path) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(entry, path) for entry in value]
    return relative_to_folder_of(value, path) if isinstance(value, Path) else value


def document_text(content: Document | Mapping[str, Any], path: Path) -> str:
    """Return the JSON text of a document, or of its keys, as it is written at `path`."""
    return json.dumps(encoded(content, path), indent=2, allow_nan=False)


def line_text(content: Document, path: Path) -> str:
    """Return the JSON text of a document in one line, as it is written in a file at `path`."""
    return json.dumps(encoded(content, path), allow_nan=False)


def write_document(content: Document | Mapping[str, Any], path: str | Path, *, force: bool) -> None:
    """Write a document, or its keys, whole or not at all."""
    path = Path(path)
    write_text(path, document_text(content, path) + "\n", force=force)


def parsed_json(text: str | bytes, *, names_paths: bool = False) -> Any:
    """Return the value of a JSON text of any origin.

    Where it may name paths, texts may hold what Python makes of bytes that are no UTF-8.

    Raises
    ------
    ValueError
        If it is no JSON, names a key twice, holds what is no finite number of a usual size or no
        Unicode text, or is nested too deeply or too long.
    """
    if len(text) > _LONGEST_JSON:
        raise ValueError(f"it is longer than {_LONGEST_JSON >> 20} MiB")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_float,
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _require_shallow(value, "surrogateescape" if names_paths else "strict")
    return value


def json_of(path: Path, *, names_paths: bool = False) -> Any:
    """Return the value of a JSON file; raise ValueError as `parsed_json`, or OSError."""
    if path.stat().st_size > _LONGEST_JSON:
        raise ValueError(f"it is longer than {_LONGEST_JSON >> 20} MiB")
    return parsed_json(path.read_bytes().decode("utf-8"), names_paths=names_paths)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it names {shown(twice)} twice")
    return found


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"it holds a number of {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"it holds {text[:_MOST_DIGITS]}, which is no finite number")
    return value


def _require_shallow(value: Any, undecodable: str) -> None:
    """Refuse a value that is nested too deeply to be worked with, or holds what is no text."""
    level = [value]
    for _ in range(_DEEPEST_JSON):
        texts = [entry for entry in level if isinstance(entry, str)]
        inner = [entry for entry in level if isinstance(entry, list | dict)]
        texts += [name for entry in inner if isinstance(entry, dict) for name in entry]
        for text in texts:
            if not text.isascii() and not _is_unicode(text, undecodable):
                raise ValueError(f"it holds {shown(text)}, which is no Unicode text")
        if not inner:
            return
        level = [
            one for entry in inner for one in (entry.values() if isinstance(entry, dict) else entry)
        ]
    raise ValueError("it is nested too deeply")


def _is_unicode(text: str, undecodable: str) -> bool:
    try:
        text.encode("utf-8", undecodable)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
        return False
    return True


def read_json(path: Path, *, remedy: str, again: str | None = None) -> Mapping[str, Any]:
    """Return the object in a JSON file, empty for other JSON; raise `CovcalError` for no JSON."""
    require_file(path, remedy=remedy)
    try:
        content = json_of(path, names_paths=True)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CovcalError(f"{path} is not JSON: {remedy}") from error
    except ValueError as error:
        raise CovcalError(f"{path} is damaged ({error}): {again or remedy}") from error
    return content if isinstance(content, dict) else {}


def read_document(kind: type[D], path: Path, *, remedy: str, again: str | None = None) -> D:
    """Read a document, or those of its keys that `kind` has fields for.

    A field that is missing in the file takes its default, where it has one. `remedy` is what to do
    about any other file, as ``"make it with covcal calibrate"``, `again` about a damaged document.

    Raises
    ------
    CovcalError
        If the file is missing, no JSON or of another schema, or a field is not what it must be.
    """
    content = read_json(path, remedy=remedy, again=again)
    schema = content.get("schema")
    if schema != kind.schema:
        raise CovcalError(
            f"{path} has schema {shown(schema)}; this version reads {kind.schema}: {remedy}"
        )
    try:
        return document_of(kind, content, path)
    except (ValueError, OverflowError) as error:
        raise CovcalError(f"{path} is damaged ({error}): {again or remedy}") from error


def document_of(kind: type[D], content: Any, path: Path) -> D:
    """Return the document that the value of a JSON text holds, as it is written at `path`.

    Raises
    ------
    ValueError
        If it is of another schema, or a field is not what it must be.
    """
    schema = _checked(dict, content, "").get("schema")
    if schema != kind.schema:
        raise ValueError(f"its schema is {shown(schema)}, not {kind.schema}")
    found: D = _decoded(kind, content, "", path)
    return found


def _decoded(kind: Any, value: Any, place: str, path: Path) -> Any:
    """Return a value of the annotation `kind`; raise ValueError that names `place` for another."""
    if kind in _WANTED:
        return kind(_checked(kind, value, place))
    if kind is Any:
        return value
    origin, inner = _parts(kind)
    if origin in (UnionType, Union):  # of a kind and None
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
        return path.parent / _checked(str, value, place)
    # A record: every field from where its keys lead to.
    found = {}
    for name, keys, hint, needed in _record(kind):
        entry, where = value, place
        for key in keys:
            entry = _checked(dict, entry, where).get(key, _ABSENT)
            where = f"{where}.{key}" if where else key
            if entry is _ABSENT:
                break
        if entry is not _ABSENT:
            found[name] = _decoded(hint, entry, where, path)
        elif needed:
            raise ValueError(f"{where} is missing")
    return kind(**found)


@cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what an annotation is of, and of what in turn."""
    return get_origin(kind), get_args(kind)


@cache
def _record(kind: Any) -> list[tuple[str, list[str], Any, bool]]:
    """Return the name, keys and annotation of every field of a record, and whether it is needed."""
    hints = get_type_hints(kind)
    return [
        (
            field.name,
            _keys(field),
            hints[field.name],
            field.default is MISSING and field.default_factory is MISSING,
        )
        for field in fields(kind)
    ]


def _keys(field: Field[Any]) -> list[str]:
    """Return the keys that lead to the value of a field."""
    return str(field.metadata.get("at", field.name)).split(".")


def _checked(kind: type, value: Any, place: str) -> Any:
    """Return `value` where it is of the type `kind`; true and false are no numbers."""
    allowed = int | float if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        if value is None or isinstance(value, bool):
            found = json.dumps(value)
        else:
            found = "a number" if isinstance(value, int | float) else _WANTED[type(value)]
        raise ValueError(f"{place or 'the whole'} is {found}, not {_WANTED[kind]}")
    return value
