"""Check the arguments of the public functions and settings against their annotations.

`checked` wraps a function, and `checked_settings` a class of settings. A wrong, missing or unknown
argument raises an `ArgumentError`, which names the argument and what it must be. A system error
about a file becomes a `CovcalError`. The functions and settings themselves check ranges.
If no argument names a file, an error in a value is an `ArgumentError` too.
"""

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import IO, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from covcal_cli.errors import CovcalError, explained, shown

P = ParamSpec("P")
R = TypeVar("R")
Settings = TypeVar("Settings", bound=type)

_MOST = 2**62  # NumPy cannot read larger whole numbers
_LARGEST_FLOAT = 10**308
_WORDS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    type(None): "None",
    Path: "a path",
}


class ArgumentError(CovcalError, ValueError, TypeError):
    """An argument of the Python API has a wrong name, type or value."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that raises `ArgumentError` for arguments of a wrong name or type."""
    return _wrapped(function, checks_types=True)


def checked_names(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that raises `ArgumentError` for missing and unknown arguments."""
    return _wrapped(function, checks_types=False)


def checked_settings(kind: Settings) -> Settings:
    """Check the arguments of a class of settings whenever an instance is made."""
    kind.__init__ = _wrapped(kind.__init__, checks_types=True, is_of_settings=True)  # type: ignore[misc]
    return kind


def _wrapped(
    function: Callable[P, R], *, checks_types: bool, is_of_settings: bool = False
) -> Callable[P, R]:
    signature = inspect.signature(function)
    annotations = [str(parameter.annotation) for parameter in signature.parameters.values()]
    # Without a file, every error is about an argument.
    reads_no_file = is_of_settings or not any("Path" in text for text in annotations)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            name = function.__qualname__.removesuffix(".__init__")
            names = ", ".join(name for name in signature.parameters if name != "self")
            raise ArgumentError(f"{name}: {error}; its arguments are {names}") from error
        if checks_types:
            for name, kind in _hints(function).items():
                if name in bound.arguments:
                    bound.arguments[name] = _converted(kind, bound.arguments[name], name)
        try:
            return function(*bound.args, **bound.kwargs)
        except OSError as error:
            if error.filename is None:  # the error is not about a file
                raise
            raise CovcalError(explained(error)) from error
        except CovcalError as error:
            if reads_no_file and type(error) is CovcalError:
                raise ArgumentError(*error.args) from error
            raise

    return call


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function by argument, without arguments that are arrays."""
    module = inspect.getmodule(function)
    names = {"Path": Path, **vars(module)}
    for name in getattr(module, "__all__", ()):  # the API loads its names when they are used
        names[name] = getattr(module, name)
    hints = get_type_hints(function, names)
    arrays = [name for name, kind in hints.items() if "_typing._array_like" in str(kind)]
    return {name: hints[name] for name in hints if name not in (*arrays, "return")}


def _converted(kind: Any, value: Any, name: str) -> Any:
    """Return an argument with its annotation's type: lists as tuples, NumPy's numbers as Python's.

    Raises `ArgumentError` if the argument has another type.
    """
    if get_origin(kind) is tuple and isinstance(value, list):
        value = tuple(value)
    if not _fits(kind, value):
        raise ArgumentError(
            f"{name} must be {_described(kind)}, not {shown(value)} of type {type(value).__name__}"
        )
    if isinstance(value, str | PathLike) and not _is_text(value):
        raise ArgumentError(f"{name} has a character that no name of a file has: {shown(value)}")
    if isinstance(value, Integral) and not isinstance(value, int):
        return int(value)
    if isinstance(value, Real) and not isinstance(value, int | float):
        return float(value)
    if kind is float and isinstance(value, int) and abs(value) > _MOST:
        return float(value) if abs(value) < _LARGEST_FLOAT else math.inf
    return value


def _is_text(value: str | PathLike[str]) -> bool:
    """Return whether a text can be printed and written, and can be the name of a file."""
    try:
        return b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _fits(kind: Any, value: Any) -> bool:
    """Return whether a value has the type of an annotation."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(choice, value) for choice in inner)
    if origin is tuple and Ellipsis not in inner:
        return (
            isinstance(value, tuple) and len(value) == len(inner) and all(map(_fits, inner, value))
        )
    if _is(origin, Mapping):
        return isinstance(value, Mapping) and all(_fits(inner[1], item) for item in value.values())
    if _is(origin, Sequence):
        wanted = tuple if origin is tuple else Sequence
        is_list = isinstance(value, wanted) and not isinstance(value, str | bytes)
        return is_list and all(_fits(inner[0], item) for item in value)
    if origin is IO:
        return hasattr(value, "write")
    if origin is Literal:
        return isinstance(value, str)  # the function's own message lists the allowed texts
    if kind is Any or isinstance(kind, TypeVar):
        return True
    if _is(origin, Callable):  # type: ignore[arg-type]
        return callable(value)
    types: Mapping[Any, Any] = {int: Integral, float: Real, Path: PathLike}
    is_bool = type(value).__name__ in ("bool", "bool_")  # the types of Python and NumPy
    if kind is bool or is_bool:
        return is_bool and kind is bool
    return isinstance(value, types.get(kind, origin or kind))


def _described(kind: Any) -> str:
    """Return an annotation in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_described, inner)))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is tuple and Ellipsis not in inner:
        return f"{len(inner)} values ({', '.join(map(_described, inner))})"
    if _is(origin, Mapping):
        return f"a dict in which every value is {_described(inner[1])}"
    if _is(origin, Sequence):
        return f"a list in which every item is {_described(inner[0])}"
    if origin is IO:
        return "a binary stream"
    name = "a function" if _is(origin, Callable) else getattr(kind, "__name__", str(kind))  # type: ignore[arg-type]
    return _WORDS.get(kind, name)


def _is(origin: Any, kind: type) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)
