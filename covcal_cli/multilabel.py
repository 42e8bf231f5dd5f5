"""Read files whose rows can have several labels: one label at a time.

A picture can show a cat, a dog, both or neither. For each label, a row has one of
the two classes in `CLASSES`. In the block ``with one_label(name)``, all functions read only this
label of the file. Outside of a ``with`` block, the functions refuse the file.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from covcal_cli.errors import CovcalError, LimitExceededError, shown

SCHEMA = "covcal.multilabel/1"
CLASSES = ("absent", "present")
T = TypeVar("T")
_SHOWN = 4  # Largest number of labels in a sentence.
_NUMBER = re.compile(r"\d+(\.\d+)?")
_LABEL: ContextVar[str | None] = ContextVar("label", default=None)


@contextmanager
def one_label(name: str) -> Iterator[None]:
    """Set the label that all functions in the ``with`` block read."""
    token = _LABEL.set(name)
    try:
        yield
    except (CovcalError, LimitExceededError) as error:
        error.args = (f"label {shown(name)}: {error}", *error.args[1:])
        raise
    finally:
        _LABEL.reset(token)


def current_label() -> str | None:
    """Return the name of the current label, or None outside of ``with one_label(name)``."""
    return _LABEL.get()


def for_each_label(labels: Sequence[str], call: Callable[[], T]) -> dict[str, T]:
    """Call a function for each label, and return the results by label.

    Without labels, the function is called once, and the name is empty.
    """
    if not labels:
        return {"": call()}
    results = {}
    for name in labels:
        with one_label(name):
            results[name] = call()
    return results


def for_first_label(labels: Sequence[str], call: Callable[[], T]) -> T:
    """Call a function once, for the first label if there are labels. Return its result."""
    return next(iter(for_each_label(labels[:1], call).values()))


def chosen_label(path: Path, names: Sequence[str]) -> str:
    """Return the name of the current label, set by ``with one_label(name)``.

    Raises `CovcalError` if no label is set, or the file lacks the label.
    """
    name = _LABEL.get()
    if name is None:
        raise CovcalError(
            f"each row of {path} can have {len(names)} labels, but this command needs one label "
            "per row: extract a table of one label, with the columns prob_NAME and label"
        )
    if name not in names:
        raise CovcalError(f"{path} does not have this label: use one of {', '.join(names)}")
    return name


def gathered(texts: Mapping[str, Sequence[str]]) -> list[str]:
    """Merge equal messages, and name the labels of each message.

    If messages differ only in numbers, only the message of the first label is kept.
    """
    labels_of: dict[str, dict[str, list[str]]] = {}
    for label, of_label in texts.items():
        for text in dict.fromkeys(of_label):
            alike = labels_of.setdefault(_NUMBER.sub("0", text), {})
            alike.setdefault(text, []).append(label)
    lines = []
    for (text, labels), *others in map(dict.items, labels_of.values()):
        line = text if len(labels) == len(texts) else f"{named(labels)}: {text}"
        similar = [label for _, other_labels in others for label in other_labels]
        lines.append(f"{line} (similar for {named(similar)})" if similar else line)
    return lines


def named(labels: Sequence[str]) -> str:
    """Return the first label names as text, and the number of further labels."""
    rest = len(labels) - _SHOWN
    more = f" and {rest} more label{'' if rest == 1 else 's'}" if rest > 0 else ""
    return ", ".join(labels[:_SHOWN]) + more
