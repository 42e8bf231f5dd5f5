"""Open files of named arrays with one row per example."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file

if TYPE_CHECKING:
    from covcal_cli.data.stores.store import Store

# The suffixes of each format, and the module and class of its reader. Help shows the first suffix
# of each format.
_READERS = {
    (".npz",): ("arrays", "NpzStore"),
    (".npy",): ("arrays", "NpyStore"),
    (".h5", ".hdf5"): ("arrays", "HDF5Store"),
    (".csv", ".tsv", ".csv.gz", ".tsv.gz"): ("csv", "CSVStore"),
    (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz"): (
        "json_lines",
        "JSONLinesStore",
    ),
    (".parquet",): ("parquet", "ParquetStore"),
}
SUFFIXES = tuple(suffixes[0] for suffixes in _READERS)
_FILE = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file"
_OTHERS = {
    ".mat": "save its arrays with numpy.savez",
    ".pkl": "a pickle can run code: save the arrays with numpy.savez",
    ".pickle": "a pickle can run code: save the arrays with numpy.savez",
    ".joblib": "a pickle can run code: save the arrays with numpy.savez",
    ".pt": "save the tensors with numpy.savez, as x and y",
    ".pth": "save the tensors with numpy.savez, as x and y",
    ".xlsx": "save the sheet as .csv",
    ".feather": "save the table as .parquet",
    ".arrow": "save the table as .parquet",
    ".zip": "unpack it into a folder",
    ".gz": "unpack it",
    ".tgz": "unpack it to .tar",
}


def open_store(path: Path) -> "Store":
    """Open a file of arrays by its suffix, or a folder of Parquet files."""
    from covcal_cli.data.stores.parquet import ParquetStore, holds_parts

    if holds_parts(path):
        return ParquetStore(path)
    suffixes = _suffixes_of(path)
    if not suffixes:
        remedy = _OTHERS.get(path.suffix.lower(), f"give a {_FILE}")
        raise CovcalError(f"{path} is not a kind of file that covcal reads: {remedy}")
    require_file(path, remedy=f"give a {_FILE} with one row per example")
    module, name = _READERS[suffixes]
    store: Store = getattr(import_module(f"covcal_cli.data.stores.{module}"), name)(path)
    return store


def is_table(path: Path) -> bool:
    """Return whether a path has the suffix of a table, or is a folder of Parquet files."""
    if not path.is_dir():
        return bool(_suffixes_of(path))
    from covcal_cli.data.stores.parquet import holds_parts

    return holds_parts(path)


def format_of(path: Path) -> str:
    """Return the main suffix of a file's format, or "" for an unknown format."""
    return "".join(_suffixes_of(path)[:1])


def _suffixes_of(path: Path) -> tuple[str, ...]:
    return next((suffixes for suffixes in _READERS if path.name.lower().endswith(suffixes)), ())
