"""The ``.h5`` files that ``covcal apply`` writes, read again as a table of probabilities.

`HDF5Store` refuses every file of covcal's own, because none of the others is data.
"""

from pathlib import Path
from typing import Any

import h5py

from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import APPLIED_SCHEMA
from covcal_cli.inputs.hdf5 import HDF5Store
from covcal_cli.inputs.store import Store, suffix_of
from covcal_cli.inputs.stores import open_store

_KIND = APPLIED_SCHEMA.partition("/")[0]


class AppliedStore(HDF5Store):
    """The datasets of a file that ``covcal apply`` wrote.

    Raises
    ------
    CovcalError
        If its schema is not known, or it is not whole.
    """

    def _require_foreign(self, file: Any) -> None:
        schema = str(file.attrs.get("schema", ""))
        if schema != APPLIED_SCHEMA:
            raise CovcalError(
                f"{self.path} has schema {schema} and this version reads {APPLIED_SCHEMA}: apply "
                "again with this version"
            )
        if "complete" not in file.attrs:
            raise CovcalError(f"{self.path} is not complete: apply again")


def open_outputs_store(path: Path) -> Store:
    """Open a file of outputs by its suffix; one that ``covcal apply`` wrote too.

    Raises
    ------
    CovcalError
        If it is no such file, or not readable.
    """
    if suffix_of(path) in (".h5", ".hdf5") and path.is_file() and _is_applied(path):
        return AppliedStore(path)
    return open_store(path)


def _is_applied(path: Path) -> bool:
    try:
        with h5py.File(path, "r") as file:
            return str(file.attrs.get("schema", "")).partition("/")[0] == _KIND
    except OSError:
        return False  # `HDF5Store` says why
