"""Pipelines that turn an image into a row of a model's input, whoever wrote them."""

from typing import Any, Protocol

from numpy.typing import NDArray
from PIL import Image

RowShape = tuple[int, ...]


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

    def write(self, image: Image.Image, out: NDArray[Any]) -> None:
        """Write one image, opened but perhaps not read, as a row of the model's input, in place.

        An image that cannot be read raises what Pillow does, and is left out.
        """
        ...
