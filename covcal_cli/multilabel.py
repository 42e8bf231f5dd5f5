"""Read files whose rows can have several labels: one label at a time.

A picture can show a cat, a dog, both or neither. So each label is a classification of its own, with
the classes `CLASSES`. A features file contains such a classification for each label. A JSON
document about the file contains a result for each label (`SCHEMA`). A command loops over the
labels. Inside the block `one_label`, every function that reads the file sees only one label.
Outside this block these functions refuse the file. So a command without such a loop stops with a
message.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from covcal_cli.errors import CovcalError, LimitExceededError, shown

SCHEMA = "covcal.multilabel/1"
CLASSES = ("absent", "present")
T = TypeVar("T")
_SHOWN = 4  # largest number of labels that a sentence names
_LABEL: ContextVar[str | None] = ContextVar("label", default=None)


@contextmanager
def one_label(name: str) -> Iterator[None]:
    """Let all functions in the block read one label of a file. Errors name the label."""
    token = _LABEL.set(name)
    try:
        yield
    except (CovcalError, LimitExceededError) as error:
        error.args = (f"label {shown(name)}: {error}", *error.args[1:])
        raise
    finally:
        _LABEL.reset(token)


def current_label() -> str | None:
    """Return the label of the block ``with one_label(...)``; None outside such a block."""
    return _LABEL.get()


def for_each_label(labels: Sequence[str], call: Callable[[], T]) -> dict[str, T]:
    """Call a function once for each label, and return the results by the labels' names.

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
    """Call a function for the first label, or once if there is no label; return its result."""
    return next(iter(for_each_label(labels[:1], call).values()))


def chosen_label(path: Path, names: Sequence[str]) -> str:
    """Return the label of the block ``with one_label(...)``; check that the file has this label.

    Raises
    ------
    CovcalError
        If there is no such block, because the command needs a single label; or if the file lacks
        the label.
    """
    name = _LABEL.get()
    if name is None:
        raise CovcalError(
            f"{path} holds {len(names)} independent labels, but this command works on one "
            "classifier: extract a table of one label, with the columns prob_NAME and label"
        )
    if name not in names:
        raise CovcalError(f"{path} does not have this label: use one of {', '.join(names)}")
    return name


def gathered(texts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return each different text once, with the names of the labels that have this text."""
    labels_of: dict[str, list[str]] = {}
    for label, of_label in texts.items():
        for text in dict.fromkeys(of_label):
            labels_of.setdefault(text, []).append(label)
    return [
        text if len(labels) == len(texts) else f"{named(labels)}: {text}"
        for text, labels in labels_of.items()
    ]


def named(labels: Sequence[str]) -> str:
    """Return the names of the first labels, and how many more there are."""
    rest = len(labels) - _SHOWN
    more = f" and {rest} more label{'' if rest == 1 else 's'}" if rest > 0 else ""
    return ", ".join(labels[:_SHOWN]) + more
