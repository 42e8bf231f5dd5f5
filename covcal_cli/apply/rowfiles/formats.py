"""Which ending of a file name means which format."""

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from covcal_cli.apply.rowfiles.appliedrows import AppliedRows, Layout
from covcal_cli.apply.rowfiles.csvrows import write_csv
from covcal_cli.apply.rowfiles.hdf5rows import write_hdf5
from covcal_cli.apply.rowfiles.npzrows import write_npz
from covcal_cli.apply.rowfiles.parquetrows import write_parquet
from covcal_cli.errors import CovcalError

Write = Callable[[Path, Layout, Iterable[AppliedRows]], None]


def _write_csv_file(path: Path, layout: Layout, blocks: Iterable[AppliedRows]) -> None:
    with path.open("wb") as stream:
        write_csv(stream, layout, blocks)


FORMATS: dict[str, Write] = {
    ".csv": _write_csv_file,
    ".parquet": write_parquet,
    ".npz": write_npz,
    ".h5": write_hdf5,
}


def format_of(path: Path) -> Write:
    """Return the writer for a file name.

    Raises
    ------
    CovcalError
        If the ending is unknown, or the format needs a package that is not installed.
    """
    write = FORMATS.get(path.suffix.lower())
    if write is None:
        raise CovcalError(f"{path}: name a file that ends in {', '.join(FORMATS)}")
    if write is write_parquet and find_spec("pyarrow") is None:
        raise CovcalError(
            f"{path} needs pyarrow: pip install pyarrow, or name a .csv, .npz or .h5 file"
        )
    return write
