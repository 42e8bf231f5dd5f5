"""Exceptions for user errors, formatting of values, and argument checks.

`checked` compares the arguments of a public function with their annotations. A wrong argument
raises an `ArgumentError`. A system error about a file becomes a `CovcalError`. In error messages,
Python arguments replace command line options.
"""

import errno
import inspect
import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import IO, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

# Advice for a model that covcal cannot run, such as a pickle.
OUTPUTS_AS_TABLE = (
    "save the output of the model's predict_proba as tables (prob_NAME per class, and label), and "
    "give these tables instead of the model"
)
# Invisible characters that change the direction of a text.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNSEEN = ("Cc", "Cs", "Zl", "Zp")  # Control characters, surrogates, line and paragraph separators.
_LONGEST = 1000  # Largest number of characters in a message.
_ERRNO = re.compile(r"\[(?:Errno|WinError) -?\d+\] ")
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.ENOENT: "check the path",
    errno.ENAMETOOLONG: "pass a shorter path",
    errno.EBADF: "open the output, or name a file with -o",
}


def printable(text: str) -> str:
    r"""Return a text as one line that is safe for a terminal or a log.

    Control characters, line breaks and invalid Unicode are escaped, such as ``\x1b``.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if char in _BIDI or unicodedata.category(char) in _UNSEEN
        else char
        for char in text
    )


def message(text: str) -> str:
    """Return a printable text for a message, shortened in the middle."""
    text = printable(text)
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST * 3 // 5]} ... {text[-_LONGEST * 2 // 5 :]}"


class CovcalError(Exception):
    """An error that the user can fix: bad input, a missing file, an existing output.

    The message is one line that names the file, the problem and the remedy. The command line then
    exits with code 1. No existing file has been changed.
    """

    def __str__(self) -> str:
        return message(super().__str__())


class OutputExistsError(CovcalError):
    """An output file exists and --force was not given."""


class TooFewRowsError(CovcalError):
    """A file has too few rows or labels."""


class UnlabelledError(CovcalError):
    """The target rows have no labels."""


class UnusedOptionError(CovcalError):
    """The user gave an option that has no effect. The exit code is 2."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option, self.reason = option, reason


class LimitExceededError(Exception):
    """A result exceeds a limit that the user set. The exit code is 3."""


class StoppedError(Exception):
    """The user pressed Ctrl-C after results were saved. The exit code is 130."""


def shown(value: object, limit: int = 60) -> str:
    """Return a value in quotes, cut to `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def one_line(error: BaseException, limit: int | None = None) -> str:
    """Return an error's message without line breaks, cut to `limit` characters.

    The number and the path of a system error are left out.
    """
    text = _ERRNO.sub("", " ".join(str(error).split()))
    if isinstance(error, OSError) and error.strerror:
        text = _ERRNO.sub("", error.strerror).lower()
    text = printable(text)
    return text if limit is None or len(text) <= limit else f"{text[: limit - 3]}..."


def explained(error: OSError) -> str:
    """Return a one-line message for a system error about a file."""
    reason = one_line(error).lower()
    remedy = _REMEDIES.get(error.errno or 0, "check it and try again")
    return message(f"{error.filename or 'the output'}: {reason}: {remedy}")


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as text, such as ``12.5 %``; a dash for None.

    Tables have one decimal, because the standard error of a share is rarely below 0.05 points.
    """
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def short_percent(share: float) -> str:
    """Return a share as text with few digits, such as ``95 %`` or ``99.9 %``."""
    return f"{100 * share:.4g} %"


def in_percent(share: float) -> str:
    """Return a share in percent as text, with decimals only near 0 and 100 %."""
    digits = 1 if share > 0.945 or share < 0.055 else 0
    return f"{100 * share:.{digits}f}"


def interval(low: float, high: float, value: float | None = None) -> str:
    """Return the interval of a share in percent as text.

    A narrow interval is shown with one decimal.
    """
    is_inside = value is None or round(100 * low) <= float(in_percent(value)) <= round(100 * high)
    digits = 0 if is_inside and high - low >= 0.02 else 1
    return f"{100 * low:.{digits}f} to {100 * high:.{digits}f} %"


def in_points(number: str) -> str:
    """Return a number as text with its unit, such as ``1 point`` or ``2 points``."""
    return f"{number} point{'' if number == '1' else 's'}"


P = ParamSpec("P")
R = TypeVar("R")
Settings = TypeVar("Settings", bound=type)

_MOST = 2**62  # NumPy's integers end at 2**63.
_LARGEST_FLOAT = 10**308
_WORDS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    type(None): "None",
    Path: "a path",
}


# Matches a covcal command or a command line option.
_OPTION = re.compile(
    r"covcal [a-z]+ (?:[^:;,.]|\.(?=\S))*|--[a-z-]+ \((\w+=True) in Python\)|--([a-z][a-z-]*)"
    r"|(?<=\s)-o\b"
)
# Options whose Python argument has another name.
_ARGUMENTS = {
    **{name: f'outputs="{name}"' for name in ("logits", "probabilities", "confidence")},
    **{name: f"{name}=True" for name in ("force", "join", "multilabel", "partial", "resume")},
    "trust-model": "trust_model=True",
    "decide": "decision",
    "bootstrap": "resamples",
}


class ArgumentError(CovcalError, ValueError, TypeError):
    """An argument of the Python API has a wrong name, type or value."""


def in_python(text: str) -> str:
    """Replace command line options in a message by Python arguments."""

    def argument(found: re.Match[str]) -> str:
        python, option = found.groups()
        if found[0].startswith("covcal "):
            return found[0]
        name = (option or "output").replace("-", "_")
        is_left_out = text.endswith("leave out ", 0, found.start())
        return python or (name if is_left_out else _ARGUMENTS.get(option, name))

    return _OPTION.sub(argument, text)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that arguments of a wrong name or type raise `ArgumentError`."""
    return _wrapped(function, checks_types=True)


def checked_names(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that missing and unknown arguments raise `ArgumentError`."""
    return _wrapped(function, checks_types=False)


def checked_settings(kind: Settings) -> Settings:
    """Decorate a settings class so that its constructor checks the arguments."""
    kind.__init__ = _wrapped(kind.__init__, checks_types=True, is_of_settings=True)  # type: ignore[misc]
    return kind


def _wrapped(
    function: Callable[P, R], *, checks_types: bool, is_of_settings: bool = False
) -> Callable[P, R]:
    signature = inspect.signature(function)
    annotations = [str(parameter.annotation) for parameter in signature.parameters.values()]
    # If no argument is a path, every error is about an argument.
    reads_no_file = is_of_settings or not any("Path" in text for text in annotations)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            name = function.__qualname__.removesuffix(".__init__")
            names = ", ".join(name for name in signature.parameters if name != "self")
            raise ArgumentError(f"{name}: {error}. The arguments are {names}") from error
        if checks_types:
            for name, kind in _hints(function).items():
                if name in bound.arguments:
                    bound.arguments[name] = _converted(kind, bound.arguments[name], name)
        try:
            return function(*bound.args, **bound.kwargs)
        except OSError as error:
            if error.filename is None:
                raise
            raise CovcalError(explained(error)) from error
        except CovcalError as error:
            # The command line also creates settings, so keep the names of its options.
            if not is_of_settings:
                error.args = (in_python(str(error)), *error.args[1:])
            if reads_no_file and type(error) is CovcalError:
                raise ArgumentError(*error.args) from error
            raise

    return call


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    module = inspect.getmodule(function)
    names = {"Path": Path, **vars(module)}
    # `api` imports names on first use, so import all names here.
    for name in getattr(module, "__all__", ()):
        names[name] = getattr(module, name)
    hints = get_type_hints(function, names)
    arrays = [name for name, kind in hints.items() if "_typing._array_like" in str(kind)]
    return {name: hints[name] for name in hints if name not in (*arrays, "return")}


def _converted(kind: Any, value: Any, name: str) -> Any:
    if get_origin(kind) is tuple and isinstance(value, list):
        value = tuple(value)
    if not _fits(kind, value):
        raise ArgumentError(
            f"{name} must be {_described(kind)}, not {shown(value)} of type {type(value).__name__}"
        )
    if isinstance(value, str | PathLike) and not _is_text(value):
        raise ArgumentError(
            f"{name} contains a character that no file name can have: {shown(value)}"
        )
    if isinstance(value, Integral) and not isinstance(value, int):
        return int(value)
    if isinstance(value, Real) and not isinstance(value, int | float):
        return float(value)
    if kind is float and isinstance(value, int) and abs(value) > _MOST:
        return float(value) if abs(value) < _LARGEST_FLOAT else math.inf
    return value


def _is_text(value: str | PathLike[str]) -> bool:
    try:
        return b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _fits(kind: Any, value: Any) -> bool:
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
        return isinstance(value, str)
    if kind is Any or isinstance(kind, TypeVar):
        return True
    if _is(origin, Callable):  # type: ignore[arg-type]
        return callable(value)
    types: Mapping[Any, Any] = {int: Integral, float: Real, Path: PathLike}
    is_bool = type(value).__name__ in ("bool", "bool_")
    if kind is bool or is_bool:
        return is_bool and kind is bool
    return isinstance(value, types.get(kind, origin or kind))


def _described(kind: Any) -> str:
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


def require_one_of(what: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a value that is not one of the `choices`."""
    choices = tuple(choices)
    if value not in choices:
        raise CovcalError(f"there is no {what} {value!r}: use {', '.join(choices)}")


def require_shares(**values: float | None) -> None:
    """Refuse shares that are not between 0 and 1. None is allowed."""
    for name, value in values.items():
        if value is not None and not 0 < value < 1:
            hint = f"; did you mean {value / 100:g}?" if 1 < value < 100 else ""
            raise ArgumentError(f"{name} must be between 0 and 1, not {value:g}{hint}")


def require_at_least(what: str, value: float, least: float) -> None:
    """Refuse a number that is too small, or NaN."""
    if not value >= least:
        raise CovcalError(f"{what} must be at least {least}, not {value}")
