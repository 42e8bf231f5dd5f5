"""Read images from folders and from ``.tar`` shards.

A folder has files ``DOMAIN/[train|val|test]/[class]/file``. The folders for splits and classes are
optional. Hidden files, hidden folders and ``__MACOSX`` are left out. Rows are sorted by path. The
id of a row is its path inside the domain, with forward slashes.

Shards have the format of WebDataset: ``KEY.jpg`` with ``KEY.cls``. All files of a sample have the
same name up to the first dot. The positions of all files in a shard are read once, so images can be
read in any order.
"""

import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from covcal_cli.arrays import UNKNOWN_LABEL, Labels, ModelInput, Splits
from covcal_cli.data.classes import ClassMap
from covcal_cli.data.images import ImageFiles, Opener
from covcal_cli.data.labels import RowLabels
from covcal_cli.data.rows import HALF, SPLIT_NAMES
from covcal_cli.data.stores.store import open_image
from covcal_cli.errors import CovcalError, one_line
from covcal_cli.files import require_file
from covcal_cli.records import parsed_json

_KINDS = (
    *("avif", "bmp", "gif", "jfif", "jpeg", "jpg", "pbm"),
    *("pgm", "png", "ppm", "tif", "tiff", "webp"),
)
IMAGE_SUFFIXES = {f".{kind}" for kind in _KINDS}
_Entries = list[os.DirEntry[str]]
_REMEDY = "save each image as KEY.jpg and its class as KEY.cls in one .tar file"
_PATTERN = "[!.]*.tar"
_BLOCK = 512
_LONGEST_LABEL = 1 << 20  # Maximum size of a label file, in bytes.
_LABEL_KEYS = ("label", "cls", "class")


class FolderData(ImageFiles):
    """The images of a folder."""

    way_to_label = "put its images in class folders"

    def __init__(self, path: Path, wanted: Sequence[ModelInput]) -> None:
        super().__init__(path, wanted)
        self._ignored = 0
        self._first_ignored = ""
        self._class_numbers: dict[str, int] = {}
        images = sorted(self._listed())
        if not images:
            ignored = f", only {self._ignored} other files" if self._ignored else ""
            raise CovcalError(
                f"{path} holds no images{ignored}: give a folder of {', '.join(_KINDS)} files, "
                "with or without class folders"
            )
        self.ids: Sequence[str] = [row[0] for row in images]
        self.split_names: Sequence[str] = [row[1] for row in images]
        self._classes = np.array([row[2] for row in images], dtype=np.int64)
        splits = [row[3] for row in images]
        self.given_split: Splits | None = (
            None if splits[0] is None else np.array(splits, dtype=np.uint8)
        )
        self.class_folders: tuple[str, ...] | None = tuple(self._class_numbers)
        self.notes: tuple[str, ...] = tuple(self._remarks())

    def labels(self, classes: ClassMap) -> Labels:
        """Return the class number of every row, shape (n,); -1 outside class folders."""
        indices = [classes.require(self.path, name) for name in self._class_numbers]
        return np.array([*indices, UNKNOWN_LABEL], dtype=np.int64)[self._classes]

    def _remarks(self) -> Iterator[str]:
        if self._ignored == 1:
            yield f"{self.path}: {self._first_ignored} is not an image and is left out"
        elif self._ignored:
            yield (
                f"{self.path}: {self._ignored} files, such as {self._first_ignored}, are not "
                "images and are left out"
            )
        loose = int((self._classes == UNKNOWN_LABEL).sum())
        if self._class_numbers and loose:
            images = "1 image" if loose == 1 else f"{loose} images"
            have = "has" if loose == 1 else "have"
            yield f"{self.path}: {images} outside the class folders {have} no label"

    def opener(self, row: int) -> Opener:
        """Return the function that opens the image of a row."""
        # Joining texts is ten times faster than joining Path objects.
        return partial(open_image, f"{self.path}/{self.ids[row]}")

    def _listed(self) -> Iterator[tuple[str, str, int, int | None]]:
        folders, files = _entries(self.path)
        if not folders or not all(entry.name.lower() in SPLIT_NAMES for entry in folders):
            yield from self._listed_classes("", folders, files, None)
            return
        if self._images(files):
            raise CovcalError(
                f"{self.path} has images beside its {folders[0].name} folder: move the images into "
                "train, val or test"
            )
        for entry in folders:
            split = SPLIT_NAMES[entry.name.lower()]
            yield from self._listed_classes(f"{entry.name}/", *_entries(entry), split)

    def _listed_classes(
        self, prefix: str, folders: _Entries, files: _Entries, split: int | None
    ) -> Iterator[tuple[str, str, int, int | None]]:
        for entry in self._images(files):
            yield prefix + entry.name, entry.name, UNKNOWN_LABEL, split
        for folder in folders:
            number = self._class_numbers.setdefault(folder.name, len(self._class_numbers))
            for name in self._below(folder, frozenset()):
                yield f"{prefix}{folder.name}/{name}", name, number, split

    def _below(self, folder: os.DirEntry[str], above: frozenset[str]) -> Iterator[str]:
        real = os.path.realpath(folder)
        if real in above:  # The folder is a link to one of its parent folders.
            return
        folders, files = _entries(folder)
        yield from (entry.name for entry in self._images(files))
        for entry in folders:
            yield from (f"{entry.name}/{name}" for name in self._below(entry, above | {real}))

    def _images(self, files: _Entries) -> _Entries:
        images = [entry for entry in files if _suffix(entry.name) in IMAGE_SUFFIXES]
        if len(files) > len(images):
            self._ignored += len(files) - len(images)
            names = (entry.name for entry in files)
            others = (name for name in names if _suffix(name) not in IMAGE_SUFFIXES)
            self._first_ignored = self._first_ignored or next(others)
        for entry in images:
            if not entry.name.isprintable() and HALF.search(entry.path):
                raise CovcalError(
                    f"{entry.path}: the name of this file is not UTF-8: rename the file"
                )
        return images


def _entries(folder: Path | os.DirEntry[str]) -> tuple[_Entries, _Entries]:
    try:
        with os.scandir(folder) as visited:
            entries = sorted(
                (entry for entry in visited if not entry.name.startswith((".", "__MACOSX"))),
                key=lambda entry: entry.name,
            )
    except PermissionError as error:
        raise CovcalError(
            f"no permission to read {error.filename}: change its permissions"
        ) from error
    folders = [entry for entry in entries if entry.is_dir()]
    return folders, [entry for entry in entries if not entry.is_dir()]


def _suffix(name: str) -> str:
    _, dot, ending = name.rpartition(
        "."
    )  # Parsing the name with Path would take ten times as long.
    return (dot + ending).lower()


def holds_shards(folder: Path) -> bool:
    """Return whether a folder or its split folders contain shards."""
    return any(any(place.glob(_PATTERN)) for place in (folder, *_split_folders(folder)))


class TarData(ImageFiles):
    """The images of one shard, or of a folder of shards.

    Shards can be in folders train, val and test. The id of a row is the name of the shard and the
    key of the sample, such as ``train-000/n01_17``.
    """

    way_to_label = "add a .cls file for each image"

    def __init__(self, path: Path, wanted: Sequence[ModelInput]) -> None:
        super().__init__(path, wanted)
        self._shards = _shards_of(path)
        ids: list[str] = []
        self._shard_of: list[int] = []
        self._places: list[tuple[int, int]] = []
        texts: list[str] = []
        splits: list[int] = []
        n_without_image = 0
        for number, shard in enumerate(self._shards):
            name = (
                shard.relative_to(path).with_suffix("").as_posix() if path.is_dir() else path.stem
            )
            for key, sample in _samples(shard):
                if sample.image is None:
                    n_without_image += 1
                    continue
                ids.append(f"{name}/{key}")
                self._shard_of.append(number)
                self._places.append(sample.image)
                texts.append(sample.label)
                splits.append(SPLIT_NAMES.get(name.partition("/")[0].lower(), -1))
        if not ids:
            raise CovcalError(f"{path} holds no images: {_REMEDY}")
        self.ids: Sequence[str] = ids
        self.split_names: Sequence[str] = ids
        self._labels = RowLabels(np.array(texts, dtype=str), path, "label", texts_are_numbers=True)
        self.class_folders = self._labels.names
        self.given_split: Splits | None = None if -1 in splits else np.array(splits, dtype=np.uint8)
        self.notes: tuple[str, ...] = ()
        if n_without_image:
            self.notes = (f"{path}: {n_without_image} samples without an image are left out",)
        if not any(texts) and all("/" in name.partition("/")[2] for name in self.ids):
            self.notes += (
                f"{path}: covcal does not read classes from folders in a .tar file: add a "
                ".cls file for each image, or unpack the file into class folders",
            )

    def labels(self, classes: ClassMap) -> Labels:
        """Return the class number of every row, shape (n,); -1 if unknown."""
        return self._labels.indices(classes)

    def opener(self, row: int) -> Opener:
        """Return the function that opens the image of a row."""
        return partial(_open_member, self._shards[self._shard_of[row]], *self._places[row])


def _shards_of(path: Path) -> list[Path]:
    shards = [path] if not path.is_dir() else sorted(path.glob(_PATTERN))
    inside = _split_folders(path) if path.is_dir() else []
    nested = [shard for folder in inside for shard in sorted(folder.glob(_PATTERN))]
    if shards and nested:
        raise CovcalError(
            f"{path} has shards beside its {nested[0].parent.name} folder: move the shards into "
            "train, val or test"
        )
    for shard in shards or nested:
        require_file(shard, remedy=_REMEDY)
    return shards or nested


def _split_folders(folder: Path) -> list[Path]:
    return sorted(
        entry for entry in folder.iterdir() if entry.is_dir() and entry.name.lower() in SPLIT_NAMES
    )


@dataclass
class _Sample:
    image: tuple[int, int] | None = None  # Offset and size of the image in the shard.
    label: str = ""
    extensions: list[str] = field(default_factory=list)


def _samples(shard: Path) -> Iterator[tuple[str, _Sample]]:
    samples: dict[str, _Sample] = {}
    size = shard.stat().st_size
    end = 0
    with shard.open("rb") as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                while (member := archive.next()) is not None:
                    vars(archive)["members"].clear()  # tarfile would keep all members in memory.
                    end = member.offset_data
                    if member.isfile():
                        end += -(-member.size // _BLOCK) * _BLOCK
                        _require_whole(shard, end, size)
                        _add(samples, shard, file.fileno(), member)
        except (tarfile.TarError, EOFError, OSError) as error:
            raise CovcalError(
                f"{shard} is not a readable .tar file ({one_line(error)}): {_REMEDY}"
            ) from error
    # A complete archive ends with a block of zeros.
    _require_whole(shard, end + _BLOCK, size)
    yield from samples.items()


def _add(
    samples: dict[str, _Sample], shard: Path, descriptor: int, member: tarfile.TarInfo
) -> None:
    folder, _, base = member.name.removeprefix("./").rpartition("/")
    stem, dot, extension = base.partition(".")
    if not stem or not dot:  # Leave out hidden files and names without a suffix.
        return
    key = f"{folder}/{stem}" if folder else stem
    sample = samples.setdefault(key, _Sample())
    extension = extension.lower()
    last = f".{extension.rpartition('.')[2]}"
    if extension in sample.extensions:
        raise CovcalError(f"{shard} holds {member.name} twice: give each sample its own key")
    sample.extensions.append(extension)
    if last in IMAGE_SUFFIXES:
        if sample.image is not None:
            raise CovcalError(
                f"{shard}: sample {key} has two images ({', '.join(sample.extensions)}): keep "
                "only the image to classify"
            )
        sample.image = (member.offset_data, member.size)
    elif extension in ("cls", "json"):
        if member.size > _LONGEST_LABEL:
            raise CovcalError(
                f"{shard}: {member.name} has {member.size} bytes, which is too long for a "
                f"class: {_REMEDY}"
            )
        content = os.pread(descriptor, member.size, member.offset_data)
        label = _label(shard, member.name, extension, content)
        if extension == "cls" or not sample.label:
            sample.label = label


def _label(shard: Path, name: str, extension: str, content: bytes) -> str:
    try:
        text = content.decode("utf-8").strip()
        if extension == "cls":
            return text
        values = parsed_json(text)
    except ValueError as error:
        raise CovcalError(f"{shard}: {name} is not readable ({error}): save UTF-8 text") from error
    if not isinstance(values, dict):
        return ""
    value = next((values[key] for key in _LABEL_KEYS if key in values), None)
    return "" if value is None else str(value)


def _require_whole(shard: Path, needed: int, size: int) -> None:
    if needed > size:
        raise CovcalError(
            f"{shard} is cut short: it has {size} bytes but needs at least {needed}. Copy the file "
            "again"
        )


def _open_member(shard: Path, offset: int, size: int) -> Image.Image:
    descriptor = os.open(shard, os.O_RDONLY)
    try:
        return Image.open(BytesIO(os.pread(descriptor, size, offset)))
    finally:
        os.close(descriptor)
