"""Read folders of images: ``DOMAIN/[train|val|test]/[class]/file``; both levels are optional.

Hidden files and folders, such as ``.ipynb_checkpoints``, are left out. Rows are sorted by their
path. The id of a row is its path below the domain, with forward slashes.
"""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from covcal_cli.arrays import UNKNOWN_LABEL, Labels, ModelInput, Splits
from covcal_cli.data.classes import ClassMap
from covcal_cli.data.images import ImageFiles, Opener
from covcal_cli.data.rows import SPLIT_NAMES
from covcal_cli.errors import CovcalError
from covcal_cli.files import open_plain

_KINDS = ("bmp", "gif", "jpeg", "jpg", "pbm", "pgm", "png", "ppm", "tif", "tiff", "webp")
IMAGE_SUFFIXES = {f".{kind}" for kind in _KINDS}
_Entries = list[os.DirEntry[str]]


class FolderData(ImageFiles):
    """The images of a folder."""

    way_to_label = "put its images in class folders"

    def __init__(self, path: Path, wanted: Sequence[ModelInput]) -> None:
        super().__init__(path, wanted)
        self._ignored = 0
        self._class_numbers: dict[str, int] = {}
        images = sorted(self._listed())
        if not images:
            ignored = f", only {self._ignored} other files" if self._ignored else ""
            raise CovcalError(
                f"{path} holds no images{ignored}: give a folder of {', '.join(_KINDS)} files, "
                "in class folders or flat"
            )
        self.ids = [row[0] for row in images]
        self.split_names = [row[1] for row in images]
        self._classes = np.array([row[2] for row in images], dtype=np.int64)
        splits = [row[3] for row in images]
        self.given_split: Splits | None = (
            None if splits[0] is None else np.array(splits, dtype=np.uint8)
        )
        self.class_folders: tuple[str, ...] | None = tuple(self._class_numbers)
        self.notes: tuple[str, ...] = tuple(self._remarks())

    def labels(self, classes: ClassMap) -> Labels:
        """Return the class index of every row from its class folder; -1 outside class folders."""
        indices = [classes.require(self.path, name) for name in self._class_numbers]
        return np.array([*indices, UNKNOWN_LABEL], dtype=np.int64)[self._classes]

    def _remarks(self) -> Iterator[str]:
        if self._ignored == 1:
            yield f"{self.path}: 1 file that is no image was left out"
        elif self._ignored:
            yield f"{self.path}: {self._ignored} files that are no images were left out"
        loose = int((self._classes == UNKNOWN_LABEL).sum())
        if self._class_numbers and loose:
            images = "1 image" if loose == 1 else f"{loose} images"
            have = "has" if loose == 1 else "have"
            yield f"{self.path}: {images} beside the class folders {have} no label"

    def opener(self, row: int) -> Opener:
        """Return the function that opens the image of a row."""
        return partial(_open_image, f"{self.path}/{self.ids[row]}")

    def _listed(self) -> Iterator[tuple[str, str, int, int | None]]:
        """Yield (id, name for the hash of the split, class number, split folder) per image."""
        folders, files = _entries(self.path)
        if not folders or not all(entry.name.lower() in SPLIT_NAMES for entry in folders):
            yield from self._listed_classes("", folders, files, None)
            return
        if self._images(files):
            raise CovcalError(
                f"{self.path} has images beside its {folders[0].name} folder: move them into "
                "train, val or test"
            )
        for entry in folders:
            split = SPLIT_NAMES[entry.name.lower()]
            yield from self._listed_classes(f"{entry.name}/", *_entries(entry), split)

    def _listed_classes(
        self,
        prefix: str,
        folders: _Entries,
        files: _Entries,
        split: int | None,
    ) -> Iterator[tuple[str, str, int, int | None]]:
        for entry in self._images(files):
            yield prefix + entry.name, entry.name, UNKNOWN_LABEL, split
        for folder in folders:
            number = self._class_numbers.setdefault(folder.name, len(self._class_numbers))
            for name in self._below(folder, frozenset()):
                yield f"{prefix}{folder.name}/{name}", name, number, split

    def _below(self, folder: os.DirEntry[str], above: frozenset[str]) -> Iterator[str]:
        real = os.path.realpath(folder)
        if real in above:  # a link that leads back up
            return
        folders, files = _entries(folder)
        yield from (entry.name for entry in self._images(files))
        for entry in folders:
            yield from (f"{entry.name}/{name}" for name in self._below(entry, above | {real}))

    def _images(self, files: _Entries) -> _Entries:
        images = [entry for entry in files if _suffix(entry.name) in IMAGE_SUFFIXES]
        self._ignored += len(files) - len(images)
        for entry in images:
            if not entry.name.isprintable() and not _is_utf8(entry.path):
                raise CovcalError(f"{entry.path!r} has a name that is not UTF-8: rename the file")
        return images


def _open_image(path: str) -> Image.Image:
    # Pillow reads a small file in many small steps; reading from memory saves a third of the time.
    with open_plain(path) as file:  # making a Path costs as much as running the model
        return Image.open(BytesIO(file.read()))


def _entries(
    folder: Path | os.DirEntry[str],
) -> tuple[_Entries, _Entries]:
    """Return the visible folders and files in a folder, each sorted by name."""
    try:
        with os.scandir(folder) as visited:
            entries = sorted(
                (entry for entry in visited if not entry.name.startswith(".")),
                key=lambda entry: entry.name,
            )
    except PermissionError as error:
        raise CovcalError(f"no permission to read {error.filename}: change its mode") from error
    folders = [entry for entry in entries if entry.is_dir()]
    return folders, [entry for entry in entries if not entry.is_dir()]


def _suffix(name: str) -> str:
    _, dot, ending = name.rpartition(".")  # making a Path is ten times slower
    return (dot + ending).lower()


def _is_utf8(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
