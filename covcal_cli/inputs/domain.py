"""What extraction needs of one domain's data, whatever form it has."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.classes import ClassMap
from covcal_cli.inputs.pipeline import ImagePipeline
from covcal_cli.modelinput import ModelInput


@dataclass(frozen=True)
class Batch:
    """Some rows of a domain, ready for the model; valid until the next is asked for.

    Attributes
    ----------
    inputs : mapping of str to array, shape (m, ...)
        What the model is fed, by input name.
    rows : array of int64, shape (m,)
        Their row numbers in the domain, ascending.
    skipped : tuple of (int, str)
        Row number and reason of each row that could not be read.
    """

    inputs: Mapping[str, NDArray[Any]]
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
        The class folders found, or the distinct labels where they are texts; None where labels
        are class numbers.
    columns : mapping of str to array, shape (n,)
        What else is known of every row, by name: groups for ``covcal evaluate --by``.
    notes : tuple of str
        What a user should know about how the data was read.
    """

    path: Path
    ids: list[str]
    split_names: list[str]
    given_split: NDArray[np.uint8] | None
    class_folders: tuple[str, ...] | None
    columns: Mapping[str, NDArray[Any]]
    notes: tuple[str, ...]

    def labels(self, classes: ClassMap) -> NDArray[np.int64]:
        """Return the class index of every row, shape (n,); -1 where unknown."""
        ...

    def holds_images(self, wanted: Sequence[ModelInput]) -> bool:
        """Return whether the rows need preprocessing to become the model's inputs."""
        ...

    def batches(
        self,
        wanted: Sequence[ModelInput],
        pipeline: ImagePipeline | None,
        rows: NDArray[np.int64],
        *,
        size: int,
        threads: int,
    ) -> Generator[Batch, None, None]:
        """Yield the chosen `rows`, ascending, `size` at a time.

        Rows that cannot be read are named in `Batch.skipped` and make a batch shorter.
        """
        ...


def require_one_input(path: Path, wanted: Sequence[ModelInput]) -> None:
    """Refuse images for a model with several inputs.

    Raises
    ------
    CovcalError
        Naming the inputs.
    """
    if len(wanted) > 1:
        names = ", ".join(entry.name for entry in wanted)
        raise CovcalError(
            f"{path} holds images, and the model has {len(wanted)} inputs ({names}): save one "
            "array per input, named like it, in an .npz or .h5 file"
        )
