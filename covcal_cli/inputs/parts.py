"""The ``.parquet`` parts that a folder stands for, and what the names of its folders say of them.

Spark, Dask, Polars and pyarrow write a table as a folder of parts, and a partitioned one as folders
``KEY=VALUE`` of parts, several deep; ``parquet.py`` reads them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError

_PATTERN = "[!._]*.parquet"  # Spark and others hide their own files so
_NOTHING = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class Part:
    """One file of a table."""

    path: Path
    # What the folders above it say of all of its rows; None for no value.
    keys: Mapping[str, str | None]


def holds_parts(path: Path) -> bool:
    """Return whether a path is a folder of parts, or of folders ``KEY=VALUE`` of them."""
    return path.is_dir() and (any(path.glob(_PATTERN)) or any(map(holds_parts, _partitions(path))))


def find_parts(path: Path) -> list[Part]:
    """Return the parts of a table in order: the file itself, or those of the folder."""
    if not path.is_dir():
        return [Part(path, {})]
    parts = list(_below(path, {}))
    by = [", ".join(part.keys) or "nothing" for part in parts]
    for other in by:
        if other != by[0]:
            raise CovcalError(f"{path} is partitioned by {by[0]} and by {other}: give one table")
    return parts


def partition_values(parts: Sequence[Part]) -> dict[str, NDArray[Any]]:
    """Return what the folders say of every part, shape (parts,), by key.

    int64 where all values are whole numbers, float64 where others are missing; else texts, empty
    where missing.
    """
    found: dict[str, NDArray[Any]] = {}
    for key in parts[0].keys:
        values = [part.keys[key] for part in parts]
        known = [value for value in values if value is not None]
        if not known or not all(_WHOLE.fullmatch(value) for value in known):
            found[key] = np.array([value or "" for value in values], dtype=str)
        elif len(known) == len(values):
            found[key] = np.array([int(value) for value in known], dtype=np.int64)
        else:
            numbers = [float("nan") if value is None else int(value) for value in values]
            found[key] = np.array(numbers, dtype=np.float64)
    return found


def refuse_unnamed_parts(folder: Path) -> None:
    """Refuse a folder whose Parquet files lie in folders that say nothing of their rows."""
    for entry in sorted(folder.iterdir()):
        named = "=" in entry.name or entry.name.startswith((".", "_"))
        if not named and entry.is_dir() and any(entry.glob(_PATTERN)):
            raise CovcalError(
                f"{folder} holds Parquet files in its folder {entry.name}, whose name is no "
                "KEY=VALUE: give that folder, or rename it"
            )


def _below(folder: Path, keys: Mapping[str, str | None]) -> Iterator[Part]:
    files, partitions = sorted(folder.glob(_PATTERN)), _partitions(folder)
    if files and any(map(holds_parts, partitions)):
        raise CovcalError(
            f"{folder} has {files[0].name} beside partitions like {partitions[0].name}: give one "
            "of them"
        )
    if keys or partitions:  # elsewhere, folders may hold a million images
        refuse_unnamed_parts(folder)
    yield from (Part(file, keys) for file in files)
    for partition in partitions:
        key, _, value = (unquote(text) for text in partition.name.partition("="))
        if key in keys:
            raise CovcalError(f"{partition}: {key} is a partition twice: rename one of them")
        yield from _below(partition, {**keys, key: None if value == _NOTHING else value})


def _partitions(folder: Path) -> list[Path]:
    return sorted(
        entry
        for entry in folder.iterdir()
        if "=" in entry.name and not entry.name.startswith((".", "_", "=")) and entry.is_dir()
    )
