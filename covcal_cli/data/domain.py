"""Protocols for the data of a domain and for image preprocessing."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from covcal_cli.arrays import AnyArray, Inputs, Labels, ModelInput, Rows, Splits
from covcal_cli.data.classes import ClassMap
from covcal_cli.errors import CovcalError

if TYPE_CHECKING:
    from PIL import Image

RowShape = tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """A batch of rows as model inputs. The next batch overwrites the arrays."""

    inputs: Inputs
    rows: Rows
    # Row numbers of unreadable rows, with reasons.
    skipped: tuple[tuple[int, str], ...] = ()


class DomainData(Protocol):
    """The n rows of one domain, as inputs of a model."""

    path: Path
    ids: Sequence[str]
    ids_are_integers: bool
    split_names: Sequence[str]  # A name for each row; the hash of the name decides the split.
    given_split: Splits | None  # The splits that the data contain, (n,); None without splits.
    class_folders: tuple[str, ...] | None  # See `covcal_cli.data.classes.NamesClasses`.
    way_to_label: str  # The part of a message that tells the user how to label the rows.
    columns: Mapping[str, AnyArray]
    notes: tuple[str, ...]
    holds_images: bool  # Whether the rows are images, which need preprocessing.

    def labels(self, classes: ClassMap) -> Labels:
        """Return the class number of every row, shape (n,); -1 if unknown.

        If rows can have several labels, the shape is (n, L), with 1, 0 or -1 (unknown) per label.
        """
        ...

    def batches(
        self, pipeline: "ImagePipeline | None", rows: Rows, *, size: int, threads: int
    ) -> Generator[Batch, None, None]:
        """Yield the rows in batches of `size` rows.

        `pipeline` preprocesses images. Unreadable rows are left out and listed in `Batch.skipped`.
        """
        ...


class ImagePipeline(Protocol):
    """The preprocessing of images for one model; several threads can use it at once."""

    @property
    def row_shape(self) -> RowShape:
        """The shape of one row of the model's input."""
        ...

    @property
    def dtype(self) -> str:
        """The type of the model's input."""
        ...

    def describe(self) -> str:
        """Describe the steps in one line."""
        ...

    def to_json(self) -> str:
        """Return the preprocessing as one line of JSON."""
        ...

    def write(self, image: "Image.Image", out: AnyArray) -> None:
        """Decode an image into one row `out` of the model's input.

        Pillow raises an error for a damaged image.
        """
        ...


def require_one_input(path: Path, wanted: Sequence[ModelInput]) -> str:
    """Return the name of the model's only input. Refuse a model with several inputs."""
    if len(wanted) > 1:
        names = ", ".join(entry.name for entry in wanted)
        raise CovcalError(
            f"{path} holds images, but the model has {len(wanted)} inputs ({names}): save one "
            "array per input in an .npz or .h5 file"
        )
    return wanted[0].name
