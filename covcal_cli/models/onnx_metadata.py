"""The metadata of an ONNX file, and the names of its classes."""

import ast
import json
from collections.abc import Mapping
from typing import Any

from covcal_cli.models.onnx_graph import OnnxGraph
from covcal_cli.models.onnx_outputs import class_labels

_KEYS = ("names", "class_names", "classes", "labels", "id2label")


def read_metadata(graph: OnnxGraph) -> dict[str, str]:
    """Return the metadata of the file, empty where it has none."""
    return {entry.key: entry.value for entry in graph.file.model.metadata_props}


def class_names(
    graph: OnnxGraph, metadata: Mapping[str, str], count: int
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return K different names of the classes in the order of the logits, or None.

    Operators such as ZipMap hold labels, which come first; then the metadata, where names are a
    Python or JSON dictionary by class number, or a list. Beside them, why names are not used.
    """
    labels = class_labels(graph, count)
    if labels is not None and len(set(labels)) == count:
        return labels, ()
    notes = []
    for key in _KEYS:
        if key not in metadata:
            continue
        names = _parse(metadata[key])
        if names is None:
            continue
        if len(names) != count:
            notes.append(f"the model's metadata {key!r} names {len(names)} classes, not {count}")
        elif len(set(names)) < count:
            twice = next(name for name in names if names.count(name) > 1)
            notes.append(f"the model's metadata {key!r} has the class name {twice!r} twice")
        else:
            return names, ()
    return None, tuple(f"{note}: its names are not used" for note in notes)


def _parse(text: str) -> tuple[str, ...] | None:
    value = _literal(text)
    if isinstance(value, dict):
        try:
            numbered = {int(key): name for key, name in value.items()}
        except (TypeError, ValueError):
            return None
        if sorted(numbered) != list(range(len(numbered))):
            return None
        value = [numbered[index] for index in range(len(numbered))]
    if not isinstance(value, (list, tuple)) or not value:
        return None
    if any(not isinstance(name, (str, int)) or name == "" for name in value):
        return None
    return tuple(str(name) for name in value)


def _literal(text: str) -> Any:
    """Return the value of a JSON document or a Python literal, None if it is neither."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
