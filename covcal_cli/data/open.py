"""Open the data of one or both domains: folders, shards, or files of arrays.

The tables of source and target must have the same features. A table is refused if its column
``domain`` names the other domain. A column of row numbers is not used as a feature.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from covcal_cli.arrays import ModelInput
from covcal_cli.data.array_files import ArrayData, ArrayFile
from covcal_cli.data.domain import DomainData
from covcal_cli.data.feeding import columns_of
from covcal_cli.data.folder import FolderData, TarData, holds_shards
from covcal_cli.data.rows import (
    GROUP_PREFIX,
    ID_NAMES,
    note_on_index,
    numbering_columns,
    require_domain,
)
from covcal_cli.data.stores import SUFFIXES, format_of
from covcal_cli.data.stores.parquet import holds_parts, refuse_unnamed_parts
from covcal_cli.errors import CovcalError


def open_domains(
    paths: Mapping[str, Path],
    wanted: Sequence[ModelInput],
    keep: Sequence[str] = (),
    *,
    multilabel: bool = False,
) -> tuple[dict[str, DomainData], tuple[str, ...]]:
    """Open the data of ``"source"``, ``"target"`` or both, as model inputs.

    Return notes too. The columns in `keep` become groups. With `multilabel`, rows can have several
    labels. Raises `CovcalError` if a path cannot be read, or if rows do not fit the model or the
    other table.
    """
    opened = {
        name: _opened(path, wanted, keep, multilabel=multilabel) for name, path in paths.items()
    }
    tables = {name: data for name, data in opened.items() if isinstance(data, ArrayFile)}
    arrays, notes = _agreed(tables, paths, wanted)
    return {
        name: arrays[name] if isinstance(data, ArrayFile) else data for name, data in opened.items()
    }, notes


def open_images(path: Path) -> DomainData:
    """Open images to display.

    Raises `CovcalError` if the path cannot be read or has no images.
    """
    wanted = [ModelInput("x", (None, None, None, None), np.dtype(np.uint8))]
    opened = _opened(path, wanted)
    if not isinstance(opened, ArrayFile):
        return opened
    with suppress(CovcalError):  # rows of numbers
        data = ArrayData(opened, wanted, opened.feeds(wanted))
        if data.holds_images:
            return data
    raise CovcalError(
        f"{path} holds no images: give image files, a table with the column path or image, or an "
        "array x of uint8 [n, h, w] or [n, h, w, c]"
    )


def _opened(
    path: Path, wanted: Sequence[ModelInput], keep: Sequence[str] = (), *, multilabel: bool = False
) -> FolderData | TarData | ArrayFile:
    if not path.exists():
        raise CovcalError(
            f"{path} does not exist: give a folder of images, a .tar file, or a table or array "
            f"file ({SUFFIXES[0]}, {', '.join(SUFFIXES[1:])})"
        )
    if multilabel and not (path.is_file() and format_of(path)) and not holds_parts(path):
        raise CovcalError(
            f"{path} is a folder, which gives each image only one label: give a table with a "
            "column path, and a column label_NAME with 1 or 0 for each label"
        )
    if path.suffix.lower() == ".tar" or (path.is_dir() and holds_shards(path)):
        return TarData(path, wanted)
    if not path.is_dir() or holds_parts(path):
        return ArrayFile(path, keep, multilabel=multilabel)
    try:
        return FolderData(path, wanted)
    except CovcalError:
        refuse_unnamed_parts(path)
        raise


def _agreed(
    tables: Mapping[str, ArrayFile], paths: Mapping[str, Path], wanted: Sequence[ModelInput]
) -> tuple[dict[str, ArrayData], tuple[str, ...]]:
    """Return both tables with the same feature columns, and notes."""
    # First, check whether source and target were exchanged.
    for name, table in tables.items():
        others = [path for other, path in paths.items() if other != name]
        require_domain(table.store, name, others[0] if others else None, outputs=False)
    feeds = {name: table.feeds(wanted) for name, table in tables.items()}
    columns = {name: columns_of(inputs) for name, inputs in feeds.items()}
    notes: list[str] = []
    for name, table in tables.items():
        if columns[name]:
            notes += note_on_index(table.store)
            _require_no_row_numbers(table, columns[name], wanted[0])
    remarks: dict[str, str] = {}
    if len(tables) == 2 and all(columns.values()) and columns["source"] != columns["target"]:
        _require_same_columns(tables, columns)
        feeds["target"] = [replace(feed, names=columns["source"]) for feed in feeds["target"] or ()]
        remarks["target"] = (
            f"{paths['target']} and {paths['source']} have their columns in different orders, "
            "so columns are matched by name"
        )
    for name, table in tables.items():
        rising = numbering_columns(table.store, columns[name], rising=True)
        if rising:
            notes.append(
                f"{table.path}: {', '.join(rising)} is used as a feature, but looks like row "
                f"numbers. If the column is not a feature, {_way_out(table, rising)}"
            )
            break
    return {
        name: ArrayData(table, wanted, feeds[name], remarks.get(name))
        for name, table in tables.items()
    }, tuple(notes)


def _require_no_row_numbers(table: ArrayFile, names: Sequence[str], wanted: ModelInput) -> None:
    width = wanted.shape[1] if len(wanted.shape) == 2 else None
    if width is None or len(names) <= width:
        return
    for rising in (True, False):
        numbering = numbering_columns(table.store, names, rising=rising)
        if len(names) - len(numbering) == width:
            raise CovcalError(
                f"{table.path} has {len(names)} columns of numbers, but the model expects "
                f"{wanted.describe()}. {', '.join(numbering)} looks like row numbers, so "
                f"{_way_out(table, numbering)}"
            )


def _way_out(table: ArrayFile, names: Sequence[str]) -> str:
    has_id = any(name.lower() in ID_NAMES for name in table.store.entries)
    first = f"{GROUP_PREFIX}{names[0]}" if has_id else ID_NAMES[0]
    others = f", and the other columns to {GROUP_PREFIX}NAME" if len(names) > 1 else ""
    return f"rename {'it' if len(names) == 1 else names[0]} to {first}{others}"


def _require_same_columns(
    tables: Mapping[str, ArrayFile], columns: Mapping[str, Sequence[str]]
) -> None:
    source, target = tables["source"], tables["target"]
    ours, theirs = columns["source"], columns["target"]
    lacking = [name for name in ours if name not in theirs]
    extra = [name for name in theirs if name not in ours]
    if not lacking and not extra:
        return
    parts = []
    for table, names in ((target, lacking), (source, extra)):
        if names:
            texts = " as numbers" if names[0] in table.store.entries else ""
            parts.append(f"{table.path} lacks the column {names[0]}{texts}")
    more = len(lacking) + len(extra) - len(parts)
    beyond = f" ({more} more columns differ)" if more else ""
    raise CovcalError(
        f"{', and '.join(parts)}{beyond}: give both files the same feature columns. Rename "
        f"every other column to {GROUP_PREFIX}NAME"
    )
