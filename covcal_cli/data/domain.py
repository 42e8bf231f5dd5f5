"""The protocols of a domain's data, whatever form it has, and of what is done to its images."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from covcal_cli.arrays import AnyArray, Inputs, Labels, ModelInput, Rows, Splits
from covcal_cli.data.classes import ClassMap
from covcal_cli.errors import CovcalError

if TYPE_CHECKING:  # tables of outputs are read without Pillow
    from PIL import Image

RowShape = tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """Some rows of a domain, ready for the model; valid until the next is asked for."""

    inputs: Inputs
    rows: Rows  # shape (m,): their row numbers in the domain, ascending
    skipped: tuple[tuple[int, str], ...] = ()  # number and reason of rows that cannot be read


class DomainData(Protocol):
    """The n rows of one domain in a stable order, opened for a model's inputs."""

    path: Path
    ids: list[str]
    ids_are_integers: bool  # where they come from; tables that apply writes keep it
    split_names: list[str]  # the names that decide a row's split where none is given
    given_split: Splits | None  # shape (n,): the data's own splits
    class_folders: tuple[str, ...] | None  # see `covcal_cli.data.classes.NamesClasses`
    way_to_label: str  # how its rows are given labels, for messages
    columns: Mapping[str, AnyArray]  # groups, shape (n,), for ``covcal evaluate --by``
    notes: tuple[str, ...]  # what a user should know about how the data was read
    holds_images: bool  # whether the rows need preprocessing to become the model's inputs

    def labels(self, classes: ClassMap) -> Labels:
        """Return the class index of every row, shape (n,); -1 where unknown."""
        ...

    def batches(
        self,
        pipeline: "ImagePipeline | None",
        rows: Rows,
        *,
        size: int,
        threads: int,
    ) -> Generator[Batch, None, None]:
        """Yield the chosen `rows`, ascending, `size` at a time; images through `pipeline`.

        Rows that cannot be read are named in `Batch.skipped` and make a batch shorter.
        """
        ...


class ImagePipeline(Protocol):
    """Preprocessing with nothing left open. Threads share one."""

    @property
    def row_shape(self) -> RowShape:
        """Shape of one row of the model's input, without the batch."""
        ...

    @property
    def dtype(self) -> str:
        """Element type that the model reads."""
        ...

    def describe(self) -> str:
        """Return what is done to an image, in one line."""
        ...

    def to_json(self) -> str:
        """Return it as one line of JSON: equal texts do the same to every image."""
        ...

    def write(self, image: "Image.Image", out: AnyArray) -> None:
        """Write one image, opened but perhaps not read, as a row of the model's input, in place.

        An image that cannot be read raises what Pillow does, and is left out.
        """
        ...


def require_one_input(path: Path, wanted: Sequence[ModelInput]) -> str:
    """Return the name of the input that images go into, refusing a model with several."""
    if len(wanted) > 1:
        names = ", ".join(entry.name for entry in wanted)
        raise CovcalError(
            f"{path} holds images, and the model has {len(wanted)} inputs ({names}): save one "
            "array per input, named like it, in an .npz or .h5 file"
        )
    return wanted[0].name
