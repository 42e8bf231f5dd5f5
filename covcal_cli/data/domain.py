"""Define the protocols of a domain's data and of the preprocessing of its images."""

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
    """Some rows of a domain as inputs of the model; valid until the next batch is asked for."""

    inputs: Inputs
    rows: Rows  # shape (m,): row numbers in the domain, ascending
    skipped: tuple[tuple[int, str], ...] = ()  # number and reason of each unreadable row


class DomainData(Protocol):
    """The n rows of one domain in a stable order, as inputs of a model."""

    path: Path
    ids: list[str]
    ids_are_integers: bool  # whether ids are integers in the data; apply then writes integers too
    split_names: list[str]  # the names whose hashes decide the split
    given_split: Splits | None  # shape (n,): the splits that the data have, if any
    class_folders: tuple[str, ...] | None  # see `covcal_cli.data.classes.NamesClasses`
    way_to_label: str  # how a user labels the rows, for messages
    columns: Mapping[str, AnyArray]  # groups, shape (n,), for ``covcal evaluate --by``
    notes: tuple[str, ...]  # how the data were read, for the user
    holds_images: bool  # whether the rows need preprocessing

    def labels(self, classes: ClassMap) -> Labels:
        """Return the class index of every row, shape (n,); -1 for an unknown label."""
        ...

    def batches(
        self, pipeline: "ImagePipeline | None", rows: Rows, *, size: int, threads: int
    ) -> Generator[Batch, None, None]:
        """Yield the ascending `rows`, `size` at a time; `pipeline` preprocesses images.

        Unreadable rows are named in `Batch.skipped`, and their batch is shorter.
        """
        ...


class ImagePipeline(Protocol):
    """The preprocessing of images for one model; threads share it."""

    @property
    def row_shape(self) -> RowShape:
        """The shape of one row of the model's input, without the batch axis."""
        ...

    @property
    def dtype(self) -> str:
        """The element type of the model's input."""
        ...

    def describe(self) -> str:
        """Return the steps in one line."""
        ...

    def to_json(self) -> str:
        """Return the steps as one line of JSON; equal lines mean equal preprocessing."""
        ...

    def write(self, image: "Image.Image", out: AnyArray) -> None:
        """Write one image, which Pillow opened but may not have read, into a row of the input.

        If the image cannot be read, Pillow's error is raised.
        """
        ...


def require_one_input(path: Path, wanted: Sequence[ModelInput]) -> str:
    """Return the name of the model's input for images; refuse a model with several inputs."""
    if len(wanted) > 1:
        names = ", ".join(entry.name for entry in wanted)
        raise CovcalError(
            f"{path} holds images, but the model has {len(wanted)} inputs ({names}): save one "
            "array for each input, with its name, in an .npz or .h5 file"
        )
    return wanted[0].name
