"""Files with several independent labels, and the choice of the label that readers see.

A picture can show a cat, a dog, both or neither. So each label is a classification of its own with
the two `CLASSES`, and covcal does everything for each label. A file of features, and each JSON
document about it, holds one such classification per label under the `SCHEMA`. A command loops over
the labels. Inside `one_label`, all readers see only this label of the file. Outside it they refuse
the file, so other commands stop with a message.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from covcal_cli.errors import CovcalError, shown

SCHEMA = "covcal.multilabel/1"
CLASSES = ("absent", "present")
T = TypeVar("T")
_LABEL: ContextVar[str | None] = ContextVar("label", default=None)


@contextmanager
def one_label(name: str) -> Iterator[None]:
    """Let all readers inside the block see one label of a file with several; errors name it."""
    token = _LABEL.set(name)
    try:
        yield
    except CovcalError as error:
        error.args = (f"label {shown(name)}: {error}", *error.args[1:])
        raise
    finally:
        _LABEL.reset(token)


def current_label() -> str | None:
    """Return the label that readers see; None outside `one_label`."""
    return _LABEL.get()


def for_each_label(labels: Sequence[str], call: Callable[[], T]) -> dict[str, T]:
    """Return the result of a call for each label, by its name."""
    results = {}
    for name in labels:
        with one_label(name):
            results[name] = call()
    return results


def chosen_label(path: Path, names: Sequence[str]) -> str:
    """Return the label of the block in `one_label`, which must be among the names in a file.

    Raises
    ------
    CovcalError
        If there is no such block, because the command is for a single label, or the file lacks the
        label.
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
