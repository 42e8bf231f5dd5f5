"""The ``.tar`` shards that a path stands for; ``tar.py`` reads them."""

from pathlib import Path

from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file
from covcal_cli.inputs.splits import SPLIT_NAMES

SHARD_REMEDY = "give .tar files with KEY.jpg beside KEY.cls"
_PATTERN = "[!.]*.tar"


def holds_shards(folder: Path) -> bool:
    """Return whether a folder holds shards, itself or in its split folders."""
    return any(any(place.glob(_PATTERN)) for place in (folder, *_split_folders(folder)))


def find_shards(path: Path) -> list[Path]:
    """Return the shards of a path in order: itself, or those of the folder."""
    found = [path] if not path.is_dir() else sorted(path.glob(_PATTERN))
    inside = _split_folders(path) if path.is_dir() else []
    nested = [shard for folder in inside for shard in sorted(folder.glob(_PATTERN))]
    if found and nested:
        raise CovcalError(
            f"{path} has shards beside its {nested[0].parent.name} folder: move them into train, "
            "val or test"
        )
    for shard in found or nested:
        require_file(shard, remedy=SHARD_REMEDY)
    return found or nested


def _split_folders(folder: Path) -> list[Path]:
    return sorted(
        entry for entry in folder.iterdir() if entry.is_dir() and entry.name.lower() in SPLIT_NAMES
    )
