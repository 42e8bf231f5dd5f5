"""Images that lie in a table as the bytes of their files, as Hugging Face datasets save them."""

from io import BytesIO
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.store import Store

Encoded = bytes | str | None
"""The bytes of an image file, or its path where there are none, or None for no image."""

_USUAL = ("image", "img")


def is_image_file(content: bytes) -> bool:
    """Return whether bytes are those of an image file that Pillow knows."""
    try:
        Image.open(BytesIO(content)).close()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        return False
    return True


def image_column(store: Store) -> str | None:
    """Return the column of images to classify, ``image`` of several; None where there is none."""
    found = [name for name, entry in store.entries.items() if entry.is_encoded]
    usual = [name for name in found if name.lower() in _USUAL]
    if len(found) > 1 and len(usual) != 1:
        raise CovcalError(
            f"{store.path} has several columns of images ({', '.join(found)}): call the one to "
            f"classify {_USUAL[0]}"
        )
    return next(iter(usual or found), None)


def image_names(store: Store, column: str) -> list[str] | None:
    """Return the names of the image files of all rows; None where they name no row for certain."""
    names = store.texts(column)
    return names if all(names) and len(set(names)) == len(names) else None


def open_encoded(folder: Path, value: Encoded) -> Image.Image:
    """Open an image; a path is taken to lie below `folder`."""
    if value is None:
        raise ValueError("the table has no image there")
    return Image.open(folder / value if isinstance(value, str) else BytesIO(value))
