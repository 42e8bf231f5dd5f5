"""What extraction needs of one domain's data, whatever form it has."""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.classes import ClassMap
from covcal_cli.inputs.preprocessing import ImagePipeline, Shape


@dataclass(frozen=True)
class ModelInput:
    """The input that a model declares.

    Attributes
    ----------
    shape : tuple of (int or None)
        Batch first; None where it is free.
    dtype : numpy.dtype
        Element type.
    """

    shape: Shape
    dtype: np.dtype[np.generic]


@dataclass(frozen=True)
class Batch:
    """Some rows of a domain, ready for the model.

    Attributes
    ----------
    array : array, shape (m, ...)
        The model's input.
    rows : array of int64, shape (m,)
        Their row numbers in the domain, ascending.
    skipped : tuple of (int, str)
        Row number and reason of each row that could not be read.
    """

    array: NDArray[Any]
    rows: NDArray[np.int64]
    skipped: tuple[tuple[int, str], ...] = ()


class DomainData(Protocol):
    """The rows of one domain, in a stable order.

    Attributes
    ----------
    path : Path
        Where they lie.
    ids : list of str
        One id per row.
    split_names : list of str
        The name that decides a row's split where none is given.
    given_split : array of uint8, shape (n,), or None
        The split of every row, where the data says so.
    class_folders : tuple of str or None
        The class folders found; None where labels are class numbers.
    notes : tuple of str
        What a user should know about how the data was read.
    """

    path: Path
    ids: list[str]
    split_names: list[str]
    given_split: NDArray[np.uint8] | None
    class_folders: tuple[str, ...] | None
    notes: tuple[str, ...]

    def labels(self, classes: ClassMap) -> NDArray[np.int64]:
        """Return the class index of every row, shape (n,); -1 where unknown."""
        ...

    def holds_images(self, wanted: ModelInput) -> bool:
        """Return whether the rows need preprocessing to become `wanted`."""
        ...

    def batches(
        self, wanted: ModelInput, pipeline: ImagePipeline | None, *, size: int, threads: int
    ) -> Generator[Batch, None, None]:
        """Yield all rows in order, `size` at a time; skipped rows make a batch shorter."""
        ...


def open_domain(path: Path) -> DomainData:
    """Open a domain by the kind of its path.

    Raises
    ------
    CovcalError
        If there is nothing to read, or nothing that covcal can read.
    """
    if path.is_dir():
        from covcal_cli.inputs.folder import FolderData

        return FolderData(path)
    if not path.exists():
        raise CovcalError(f"{path} does not exist: give a folder of images or an .npz file")
    if path.suffix.lower() == ".npz":
        from covcal_cli.inputs.arrays import ArrayData

        return ArrayData(path)
    raise CovcalError(f"{path} is no data that covcal reads: give a folder of images or an .npz")
