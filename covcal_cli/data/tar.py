"""Read images from ``.tar`` shards in the layout of WebDataset: ``KEY.jpg`` beside ``KEY.cls``.

The members of one sample have the same name up to the first dot of the base name. Each shard is
indexed once; later, images are read at their offsets in any order.
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

from covcal_cli.arrays import Labels, ModelInput, Splits
from covcal_cli.data.classes import ClassMap
from covcal_cli.data.folder import IMAGE_SUFFIXES
from covcal_cli.data.images import ImageFiles, Opener
from covcal_cli.data.labels import RowLabels
from covcal_cli.data.rows import SPLIT_NAMES
from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file
from covcal_cli.records import parsed_json

_REMEDY = "give .tar files with KEY.jpg beside KEY.cls"
_PATTERN = "[!.]*.tar"
_BLOCK = 512
_LONGEST_LABEL = 1 << 20  # bytes of a member
_LABEL_KEYS = ("label", "cls", "class")


def holds_shards(folder: Path) -> bool:
    """Return whether a folder, or one of its split folders, holds shards."""
    return any(any(place.glob(_PATTERN)) for place in (folder, *_split_folders(folder)))


class TarData(ImageFiles):
    """The images of one shard, or of a folder of shards.

    The folder may hold shards, or train, val and test folders with shards. The id of a row is the
    name of the shard without its suffix, and the key: ``train-000/n01_17``.
    """

    way_to_label = "add a .cls file for each image"

    def __init__(self, path: Path, wanted: Sequence[ModelInput]) -> None:
        super().__init__(path, wanted)
        self._shards = _shards_of(path)
        self.ids: list[str] = []
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
                self.ids.append(f"{name}/{key}")
                self._shard_of.append(number)
                self._places.append(sample.image)
                texts.append(sample.label)
                splits.append(SPLIT_NAMES.get(name.partition("/")[0].lower(), -1))
        if not self.ids:
            raise CovcalError(f"{path} holds no images: {_REMEDY}")
        self.split_names = self.ids
        self._labels = RowLabels(np.array(texts, dtype=str), path, "label", texts_are_numbers=True)
        self.class_folders = self._labels.names
        self.given_split: Splits | None = None if -1 in splits else np.array(splits, dtype=np.uint8)
        self.notes: tuple[str, ...] = ()
        if n_without_image:
            self.notes = (f"{path}: {n_without_image} samples without an image were left out",)
        if not any(texts) and all("/" in name.partition("/")[2] for name in self.ids):
            self.notes += (
                f"{path}: the folders in it are not read as classes: unpack it to use them as "
                "class folders, or add a .cls file for each image",
            )

    def labels(self, classes: ClassMap) -> Labels:
        """Return the class index of every row, shape (n,); -1 for an unknown label."""
        return self._labels.indices(classes)

    def opener(self, row: int) -> Opener:
        """Return the function that opens the image of a row."""
        return partial(_open_image, self._shards[self._shard_of[row]], *self._places[row])


def _shards_of(path: Path) -> list[Path]:
    """Return the shards of a path in order: the file itself, or the shards of the folder."""
    shards = [path] if not path.is_dir() else sorted(path.glob(_PATTERN))
    inside = _split_folders(path) if path.is_dir() else []
    nested = [shard for folder in inside for shard in sorted(folder.glob(_PATTERN))]
    if shards and nested:
        raise CovcalError(
            f"{path} has shards beside its {nested[0].parent.name} folder: move them into train, "
            "val or test"
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
    """The image and the label of one sample in a shard."""

    image: tuple[int, int] | None = None  # offset and size
    label: str = ""
    extensions: list[str] = field(default_factory=list)


def _samples(shard: Path) -> Iterator[tuple[str, _Sample]]:
    """Yield every sample of a shard with its key, in order."""
    samples: dict[str, _Sample] = {}
    size = shard.stat().st_size
    end = 0
    with shard.open("rb") as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                while (member := archive.next()) is not None:
                    vars(archive)["members"].clear()  # tarfile would keep them all
                    end = member.offset_data
                    if member.isfile():
                        end += -(-member.size // _BLOCK) * _BLOCK
                        _require_whole(shard, end, size)
                        _add(samples, shard, file.fileno(), member)
        except (tarfile.TarError, EOFError, OSError) as error:
            raise CovcalError(
                f"{shard} is not a readable .tar file ({error}): {_REMEDY}"
            ) from error
    _require_whole(shard, end + _BLOCK, size)  # a block of zeros closes an archive
    yield from samples.items()


def _add(
    samples: dict[str, _Sample], shard: Path, descriptor: int, member: tarfile.TarInfo
) -> None:
    folder, _, base = member.name.removeprefix("./").rpartition("/")
    stem, dot, extension = base.partition(".")
    if not stem or not dot:  # hidden files, names without a suffix
        return
    key = f"{folder}/{stem}" if folder else stem
    sample = samples.setdefault(key, _Sample())
    extension = extension.lower()
    last = f".{extension.rpartition('.')[2]}"
    if extension in sample.extensions:
        raise CovcalError(f"{shard} has {member.name} twice: give each sample its own key")
    sample.extensions.append(extension)
    if last in IMAGE_SUFFIXES:
        if sample.image is not None:
            raise CovcalError(
                f"{shard}: sample {key} has two images ({', '.join(sample.extensions)}): keep the "
                "image to classify"
            )
        sample.image = (member.offset_data, member.size)
    elif extension in ("cls", "json"):
        if member.size > _LONGEST_LABEL:
            raise CovcalError(
                f"{shard}: {member.name} has {member.size} bytes, too many for a label: {_REMEDY}"
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
            f"{shard} is truncated (it has {size} bytes and needs at least {needed}): copy it again"
        )


def _open_image(shard: Path, offset: int, size: int) -> Image.Image:
    descriptor = os.open(shard, os.O_RDONLY)
    try:
        return Image.open(BytesIO(os.pread(descriptor, size, offset)))
    finally:
        os.close(descriptor)
