"""The data of one or both domains, opened by the kind of their paths.

Tables of both domains must agree with each other and with the model: whose the rows are, and which
columns are features. A column that numbers the rows is none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from covcal_cli.arrays import ModelInput
from covcal_cli.data.array_files import ArrayData, ArrayFile
from covcal_cli.data.domain import DomainData
from covcal_cli.data.feeding import columns_of
from covcal_cli.data.folder import FolderData
from covcal_cli.data.rows import (
    GROUP_PREFIX,
    ID_NAMES,
    note_on_index,
    numbering_columns,
    require_domain,
)
from covcal_cli.data.stores.open import SUFFIXES
from covcal_cli.data.stores.parquet import holds_parts, refuse_unnamed_parts
from covcal_cli.data.tar import TarData, holds_shards
from covcal_cli.errors import CovcalError


def open_domains(
    paths: Mapping[str, Path], wanted: Sequence[ModelInput]
) -> tuple[dict[str, DomainData], tuple[str, ...]]:
    """Open the domains that a model is to run on: ``"source"``, ``"target"`` or both.

    What a user should know of columns that number the rows comes along.

    Raises
    ------
    CovcalError
        If there is nothing to read, or nothing that covcal can read, or the rows are none of the
        model's, or two tables do not agree.
    """
    opened = {name: _opened(path, wanted) for name, path in paths.items()}
    tables = {name: one for name, one in opened.items() if isinstance(one, ArrayFile)}
    fed, notes = _agreed(tables, paths, wanted)
    return {
        name: fed[name] if isinstance(one, ArrayFile) else one for name, one in opened.items()
    }, notes


def open_images(path: Path) -> DomainData:
    """Open rows that are images, for somebody to look at.

    Raises
    ------
    CovcalError
        If there is nothing that covcal can read, or no images.
    """
    wanted = [ModelInput("x", (None, None, None, None), np.dtype(np.uint8))]
    opened = _opened(path, wanted)
    if not isinstance(opened, ArrayFile):
        return opened
    try:
        data = ArrayData(opened, wanted, opened.feeds(wanted))
    except CovcalError as error:  # numbers of another shape or type
        raise _without_images(path) from error
    if not data.holds_images:
        raise _without_images(path)
    return data


def _without_images(path: Path) -> CovcalError:
    return CovcalError(
        f"{path} holds no images: give image files, a column path or image of them, or an array x "
        "of uint8 [n, h, w] or [n, h, w, c]"
    )


def fed_columns(domains: Mapping[str, DomainData]) -> tuple[str, ...]:
    """Return the columns of tables that go into the model side by side, in order."""
    found = (data.feature_columns for data in domains.values() if isinstance(data, ArrayData))
    return next(filter(None, found), ())


def _opened(path: Path, wanted: Sequence[ModelInput]) -> FolderData | TarData | ArrayFile:
    if not path.exists():
        raise CovcalError(
            f"{path} does not exist: give a folder of images or an {SUFFIXES[0]} file, or "
            f"{', '.join(SUFFIXES[1:])} or .tar"
        )
    if path.suffix.lower() == ".tar" or (path.is_dir() and holds_shards(path)):
        return TarData(path, wanted)
    if not path.is_dir() or holds_parts(path):
        return ArrayFile(path)
    try:
        return FolderData(path, wanted)
    except CovcalError:
        refuse_unnamed_parts(path)
        raise


def _agreed(
    tables: Mapping[str, ArrayFile], paths: Mapping[str, Path], wanted: Sequence[ModelInput]
) -> tuple[dict[str, ArrayData], tuple[str, ...]]:
    """Let the tables of both domains, by name, mean the same, or refuse them; with notes.

    A column ``domain`` must not contradict the place of its table. Feature columns that go into
    the model side by side go by name: in the source's order in both domains. Where there are too
    many, those that number the rows are named.
    """
    # Whose rows they are comes first: swapped tables would fail for stranger reasons.
    for name, table in tables.items():
        others = [path for other, path in paths.items() if other != name]
        require_domain(table.store, name, others[0] if others else None, outputs=False)
    feeds = {name: table.feeds(wanted) for name, table in tables.items()}
    columns = {name: columns_of(found) for name, found in feeds.items()}
    notes: list[str] = []
    for name, table in tables.items():
        if columns[name]:
            notes += note_on_index(table.store)
            _require_no_row_numbers(table, columns[name], wanted[0])
    # Columns go by name: the target's in the source's order.
    remarks: dict[str, str] = {}
    if len(tables) == 2 and all(columns.values()) and columns["source"] != columns["target"]:
        _require_same_columns(tables, columns)
        feeds["target"] = [replace(feed, names=columns["source"]) for feed in feeds["target"] or ()]
        remarks["target"] = (
            f"{paths['target']} has its columns in another order than {paths['source']}: they go "
            f"by name, in the order of {paths['source'].name}"
        )
    for name, table in tables.items():
        rising = numbering_columns(table.store, columns[name], rising=True)
        if rising:
            notes.append(
                f"{table.path}: {', '.join(rising)} rises by whole numbers from row to row, as "
                "row numbers do, and goes into the model: if that is no feature, "
                f"{_way_out(table, rising)}"
            )
            break  # the other table has the same columns
    return {
        name: ArrayData(table, wanted, feeds[name], remarks.get(name))
        for name, table in tables.items()
    }, tuple(notes)


def _require_no_row_numbers(table: ArrayFile, names: Sequence[str], wanted: ModelInput) -> None:
    """Refuse columns that are too many for the model by just those that number the rows."""
    width = wanted.shape[1] if len(wanted.shape) == 2 else None
    if width is None or len(names) <= width:
        return
    for rising in (True, False):  # shuffled rows keep their numbers, but so might amounts be
        found = numbering_columns(table.store, names, rising=rising)
        if len(names) - len(found) == width:
            raise CovcalError(
                f"{table.path} has {len(names)} columns of numbers and the model wants "
                f"{wanted.describe()}; another whole number in every row, as row numbers and ids "
                f"have, is in {', '.join(found)}: {_way_out(table, found)}"
            )


def _way_out(table: ArrayFile, names: Sequence[str]) -> str:
    has_id = any(name.lower() in ID_NAMES for name in table.store.entries)
    first = f"{GROUP_PREFIX}{names[0]}" if has_id else ID_NAMES[0]
    others = f", others to {GROUP_PREFIX}NAME" if len(names) > 1 else ""
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
    if lacking:
        texts = " as numbers" if lacking[0] in target.store.entries else ""
        parts.append(f"{target.path} lacks {lacking[0]}{texts}, which {source.path} has")
    if extra:
        texts = " as numbers" if extra[0] in source.store.entries else ""
        parts.append(
            f"has {extra[0]}, which it lacks{texts}"
            if lacking
            else f"{target.path} has {extra[0]}, which {source.path} lacks{texts}"
        )
    more = len(lacking) + len(extra) - len(parts)
    beyond = f" ({more} more columns differ)" if more else ""
    raise CovcalError(
        f"{' and '.join(parts)}{beyond}: give both the same feature columns, and call a column "
        f"that is no feature {GROUP_PREFIX}NAME"
    )
