"""Calibrated rows as HDF5: schema ``covcal.applied/1``.

Datasets ``id`` (n,) UTF-8 bytes, ``label_index`` (n,) i8, ``confidence`` (n,) f4, ``probabilities``
(n, K) f4 unless left out, and ``classes`` (K,); provenance and ``complete`` are root attributes.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from covcal_cli.apply.rowfiles.appliedrows import AppliedRows, Layout
from covcal_cli.featurefile import APPLIED_SCHEMA
from covcal_cli.featurewriter import HDF5Writer


def write_hdf5(path: Path, layout: Layout, blocks: Iterable[AppliedRows]) -> None:
    """Write the datasets block by block."""
    n = layout.rows
    with HDF5Writer(
        path, schema=APPLIED_SCHEMA, classes=layout.classes, attributes=layout.provenance
    ) as writer:
        ids = writer.handle.create_dataset("id", (n,), dtype=layout.id_dtype)
        labels = writer.handle.create_dataset("label_index", (n,), dtype=np.int64)
        writer.allocate("confidence", (n,))
        if layout.with_probabilities:
            writer.allocate("probabilities", (n, len(layout.classes)))
        start = 0
        for block in blocks:
            stop = start + len(block)
            ids[start:stop] = block.ids
            labels[start:stop] = block.label_index
            writer.fill("confidence", start, block.confidence)
            if block.probabilities is not None:
                writer.fill("probabilities", start, block.probabilities)
            start = stop
        writer.complete()
