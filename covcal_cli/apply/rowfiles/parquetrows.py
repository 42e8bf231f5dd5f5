"""Calibrated rows as Parquet, through pyarrow.

Columns as in `Layout.columns`; the provenance is JSON under ``covcal`` in the file's metadata.
"""

import json
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.apply.rowfiles.appliedrows import AppliedRows, Layout

_GROUP_BYTES = 32 << 20
"""Of a row group before compression: many small ones would make the footer larger than the rows."""


def write_parquet(path: Path, layout: Layout, blocks: Iterable[AppliedRows]) -> None:
    """Write row groups of some 32 MiB."""
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    names = layout.columns()
    types = [pyarrow.string(), pyarrow.string(), pyarrow.int64()]
    types += [pyarrow.float32()] * (len(names) - len(types))
    schema = pyarrow.schema(
        list(zip(names, types, strict=True)),
        metadata={"covcal": json.dumps(dict(layout.provenance), sort_keys=True)},
    )
    classes = pyarrow.array(list(layout.classes), pyarrow.string())
    with parquet.ParquetWriter(path, schema, use_dictionary=["label"]) as writer:
        for group in _groups(blocks, layout):
            writer.write_table(_table(pyarrow, schema, classes, group))


def _groups(blocks: Iterable[AppliedRows], layout: Layout) -> Iterator[list[AppliedRows]]:
    size = max(1, _GROUP_BYTES // (layout.id_dtype.itemsize + 4 * len(layout.columns())))
    group: list[AppliedRows] = []
    for block in blocks:
        group.append(block)
        if sum(map(len, group)) >= size:
            yield group
            group = []
    if group:
        yield group


def _table(pyarrow: Any, schema: Any, classes: Any, group: list[AppliedRows]) -> Any:
    ids = [value for block in group for value in block.ids.tolist()]
    index = np.concatenate([block.label_index for block in group])
    columns = [
        pyarrow.array(ids, pyarrow.binary()).cast(pyarrow.string()),
        classes.take(pyarrow.array(index)),
        index,
        np.concatenate([block.confidence for block in group]),
    ]
    parts = [block.probabilities for block in group if block.probabilities is not None]
    if parts:
        columns += list(np.concatenate([part.T for part in parts], axis=1))
    return pyarrow.table(columns, schema=schema)
