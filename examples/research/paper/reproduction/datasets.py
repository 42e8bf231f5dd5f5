"""Read MNIST, USPS and SVHN as arrays, from .npz files or from their original files.

The rows are split as in the paper. Validation rows are the last sixth of MNIST's training digits
(10 000), and the last 15 % (rounded down) of the training digits of USPS and SVHN. Test rows are
the official test rows.
"""

import bz2
import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import Labels

Values = NDArray[Any]


class MissingDataError(Exception):
    """Raised if data files are missing, with the names and the source of these files."""


@dataclass(frozen=True)
class LabelledRows:
    """Labelled rows of one domain, with their splits."""

    x: Values  # images as uint8, or features as float32
    y: Labels
    split: Values  # split of each row: 0 train, 1 validation, 2 test
    origin: str  # Text with the file names and the number of rows.
    official: bool  # Whether all rows of the official data set are included.


Reader = Callable[[], LabelledRows]
Parts = tuple[Values, Values, Values, Values]

_OFFICIAL_ROWS = {"mnist": (60_000, 10_000), "usps": (7_291, 2_007), "svhn": (73_257, 26_032)}
_HELD_OUT = {"mnist": (1, 6), "usps": (15, 100), "svhn": (15, 100)}
_IDX = ("train-images", "train-labels", "t10k-images", "t10k-labels")
_WANTED = {
    "mnist": "mnist.npz (train_x, train_y, test_x, test_y), or the four IDX files "
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
    "t10k-labels-idx1-ubyte, gzipped or not. MNIST is available at "
    "yann.lecun.com/exdb/mnist or by torchvision.datasets.MNIST",
    "usps": "usps.npz (train_x, train_y, test_x, test_y), usps.h5 (train/data, train/target, "
    "test/data, test/target), or usps.bz2 and usps.t.bz2. The .h5 file is available at Kaggle "
    "(usps-dataset). The .bz2 files are on the LIBSVM data page"
    ", and torchvision.datasets.USPS loads them too",
    "svhn": "svhn.npz (x, y, split), or train_32x32.mat and test_32x32.mat. SVHN is available at "
    "ufldl.stanford.edu/housenumbers or by torchvision.datasets.SVHN",
}


def find_digits(name: str, data: Path) -> Reader:
    """Find the files of a data set of digits, and return a function that reads the files.

    Parameters
    ----------
    name : {"mnist", "usps", "svhn", "svhn-unseen"}
        ``svhn-unseen`` has only SVHN's test digits, in splits of 60/15/25 %. ``svhn-unseen`` is for
        classifiers that were trained on SVHN's training digits.
    data : Path
        Folder to search. The subfolders ``NAME`` and ``NAME/raw`` are searched too.

    Returns
    -------
    callable
        Function that reads the rows.

    Raises
    ------
    MissingDataError
        If files are missing. The message says where to get the files.
    """
    name, _, unseen = name.partition("-")
    folders = [
        folder
        for base in (data, data / name, data / name.upper())
        for folder in (base, base / "raw")
    ]
    if found := _first(folders, [f"{name}.npz"]):
        return partial(_from_npz, name, found)
    if name == "mnist":
        files = [_first(folders, _idx_names(part)) for part in _IDX]
        if all(files):
            return partial(_from_idx, [file for file in files if file])
    if name == "usps":
        if found := _first(folders, ["usps.h5"]):
            return partial(_from_h5, found)
        train, test = (_first(folders, [file]) for file in ("usps.bz2", "usps.t.bz2"))
        if train and test:
            return partial(_from_libsvm, train, test)
    if name == "svhn":
        train, test = (_first(folders, [f"{part}_32x32.mat"]) for part in ("train", "test"))
        if test and (unseen or train):
            return partial(_from_mat, None if unseen else train, test)
    raise MissingDataError(
        f"{name.upper()} is not in {data}: put these files there: {_WANTED[name]}"
    )


def _first(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    return next((f / name for f in folders for name in names if (f / name).is_file()), None)


def _idx_names(part: str) -> list[str]:
    kind = "idx3-ubyte" if part.endswith("images") else "idx1-ubyte"
    return [f"{part}{joint}{kind}{packed}" for joint in "-." for packed in ("", ".gz")]


def _from_npz(name: str, path: Path) -> LabelledRows:
    with np.load(path, allow_pickle=False) as arrays:
        if "split" in arrays:
            y = arrays["y"].astype(np.int64)
            origin = f"{path.name} ({len(y)} rows, split as given)"
            return LabelledRows(arrays["x"], y, arrays["split"], origin, official=False)
        return _with_splits(
            name,
            path.name,
            (arrays["train_x"], arrays["train_y"], arrays["test_x"], arrays["test_y"]),
        )


def _from_idx(paths: Sequence[Path]) -> LabelledRows:
    train_x, train_y, test_x, test_y = map(read_idx, paths)
    return _with_splits("mnist", "IDX files", (train_x, train_y, test_x, test_y))


def read_idx(path: Path) -> Values:
    """Read an IDX file of unsigned bytes, gzipped or not."""
    content = path.read_bytes()
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    if content[:3] != b"\x00\x00\x08":
        raise MissingDataError(f"{path} is not an IDX file of bytes: download it again")
    axes = content[3]
    shape = np.frombuffer(content, ">u4", axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _from_h5(path: Path) -> LabelledRows:
    import h5py

    with h5py.File(path, "r") as file:
        arrays = [
            values
            for part in ("train", "test")
            for values in (_bytes_of(file[part]["data"][:]), file[part]["target"][:])
        ]
    return _with_splits("usps", path.name, (arrays[0], arrays[1], arrays[2], arrays[3]))


def _from_libsvm(train: Path, test: Path) -> LabelledRows:
    return _with_splits("usps", "bz2 files", (*_read_libsvm(train), *_read_libsvm(test)))


def _read_libsvm(path: Path) -> tuple[Values, Labels]:
    lines = bz2.decompress(path.read_bytes()).decode("ascii").splitlines()
    values = np.zeros((len(lines), 256))
    labels = np.zeros(len(lines), np.int64)
    for row, line in enumerate(lines):
        label, *pairs = line.split()
        labels[row] = int(float(label)) - 1  # in these files, label 1 is the digit 0
        for pair in pairs:
            column, _, value = pair.partition(":")
            values[row, int(column) - 1] = float(value)
    return _bytes_of((values + 1) / 2), labels


def _bytes_of(fractions: Values) -> Values:
    """Convert 16 x 16 images with values in 0..1 to bytes, rounded down as by torchvision."""
    pixels = np.floor(255 * fractions.astype(np.float64)).astype(np.uint8)
    return pixels.reshape(-1, 16, 16)


def _from_mat(train: Path | None, test: Path) -> LabelledRows:
    test_x, test_y = _read_mat(test)
    if train is not None:
        return _with_splits("svhn", "mat files", (*_read_mat(train), test_x, test_y))
    n = len(test_y)
    split = np.searchsorted([int(0.6 * n), int(0.75 * n)], np.arange(n), side="right")
    origin = f"{test.name} ({n} rows, split 60/15/25 in order)"
    return LabelledRows(test_x, test_y, split.astype(np.uint8), origin, official=False)


def _read_mat(path: Path) -> tuple[Values, Labels]:
    from scipy.io import loadmat

    content = loadmat(path)
    labels = content["y"].ravel().astype(np.int64)
    # In these files, label 10 is the digit 0. The last axis of X is the image.
    return np.ascontiguousarray(np.moveaxis(content["X"], 3, 0)), labels % 10


def _with_splits(name: str, what: str, parts: Parts) -> LabelledRows:
    train_x, train_y, test_x, test_y = parts
    n, (share, whole) = len(train_y), _HELD_OUT[name]
    held_out = n * share // whole
    split = np.repeat([0, 1, 2], [n - held_out, held_out, len(test_y)]).astype(np.uint8)
    return LabelledRows(
        np.concatenate([train_x, test_x]),
        np.concatenate([train_y, test_y]).astype(np.int64),
        split,
        f"{what} ({n} + {len(test_y)} rows)",
        (n, len(test_y)) == _OFFICIAL_ROWS[name],
    )
