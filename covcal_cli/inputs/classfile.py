"""``--classes FILE``: the names of a model's classes in the order of its logits."""

import json
from pathlib import Path
from typing import Any

from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file
from covcal_cli.inputs.classes import ClassMap, named_classes

_REMEDY = "give one class name a line in the order of the logits, or a JSON list or object"
_CALIBRATED = "classes"  # where covcal calibrate lists them


def read_classes(path: Path, count: int) -> ClassMap:
    """Read the names of a model's `count` classes, each of which must be named once.

    The file is text with one name a line, or JSON: a list of names, an object from number to name
    or from name to number, a Hugging Face ``config.json`` with ``id2label``, or what ``covcal
    calibrate`` wrote.
    """
    require_file(path, remedy=_REMEDY)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CovcalError(f"{path} is not UTF-8 text: {_REMEDY}") from error
    if text.lstrip().startswith(("[", "{")):
        names = _from_json(path, text)
    else:
        names = [line.strip() for line in text.rstrip().splitlines()]
    for index, name in enumerate(names):
        if not name:
            raise CovcalError(f"{path}: the name of class {index} is empty: {_REMEDY}")
        if name in names[:index]:
            raise CovcalError(
                f"{path} names {name!r} twice, as classes {names.index(name)} and {index}: give "
                "each class a name of its own"
            )
    if len(names) != count:
        raise CovcalError(f"{path} names {len(names)} classes and the model has {count}: {_REMEDY}")
    return named_classes(names)


def _from_json(path: Path, text: str) -> list[str]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise CovcalError(f"{path} is not valid JSON ({error}): {_REMEDY}") from error
    if isinstance(content, dict):
        if not isinstance(content.get(_CALIBRATED), list):
            return _from_object(path, content.get("id2label", content))
        content = content[_CALIBRATED]
    if not all(isinstance(name, str | int) for name in content):
        raise CovcalError(f"{path} lists more than names: {_REMEDY}")
    return [str(name) for name in content]


def _from_object(path: Path, content: Any) -> list[str]:
    pairs = content.items() if isinstance(content, dict) else ()
    if all(isinstance(value, int) for _, value in pairs):
        by_number = {value: name for name, value in pairs}
    elif all(name.isdigit() and isinstance(value, str) for name, value in pairs):
        by_number = {int(name): value for name, value in pairs}
    else:
        raise CovcalError(f"{path} maps neither numbers to names nor names to numbers: {_REMEDY}")
    if sorted(by_number) != list(range(len(pairs))):
        raise CovcalError(
            f"{path} numbers its {len(pairs)} classes other than 0 to {len(pairs) - 1}: give each "
            "class its own number"
        )
    return [by_number[number] for number in sorted(by_number)]
