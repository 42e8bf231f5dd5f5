"""Files of named arrays by their suffix."""

from collections.abc import Callable
from pathlib import Path

from covcal_cli.data.stores.csv import CSVStore
from covcal_cli.data.stores.hdf5 import HDF5Store
from covcal_cli.data.stores.npy import NpyStore, NpzStore
from covcal_cli.data.stores.parquet import ParquetStore, holds_parts
from covcal_cli.data.stores.store import Store, suffix_of
from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file

_STORES: dict[str, Callable[[Path], Store]] = {
    ".npz": NpzStore,
    ".npy": NpyStore,
    ".h5": HDF5Store,
    ".hdf5": HDF5Store,
    ".csv": CSVStore,
    ".tsv": CSVStore,
    ".csv.gz": CSVStore,
    ".parquet": ParquetStore,
}
SUFFIXES = tuple(_STORES)
_KINDS = ".npz, .npy, .h5, .csv or .parquet file"
_OTHERS = {
    ".mat": "save its arrays with numpy.savez",
    ".pkl": "a pickle can run code: save the arrays with numpy.savez",
    ".pickle": "a pickle can run code: save the arrays with numpy.savez",
    ".pt": "save the tensors with numpy.savez, as x and y",
    ".pth": "save the tensors with numpy.savez, as x and y",
    ".xlsx": "save the sheet as .csv",
    ".feather": "save the table as .parquet",
    ".arrow": "save the table as .parquet",
    ".json": "save the rows as .csv or .parquet",
    ".jsonl": "save the rows as .csv or .parquet",
    ".zip": "unpack it into a folder",
    ".gz": "unpack it",
    ".tgz": "unpack it to .tar",
}


def open_store(path: Path) -> Store:
    """Open a file of arrays by its suffix, or a folder of Parquet parts."""
    if holds_parts(path):
        return ParquetStore(path)
    suffix = suffix_of(path)
    if suffix not in _STORES:
        raise CovcalError(
            f"{path} is no data that covcal reads: {_OTHERS.get(suffix, f'give a {_KINDS}')}"
        )
    require_file(path, remedy=f"give a {_KINDS} with one row per example")
    return _STORES[suffix](path)
