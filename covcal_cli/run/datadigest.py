"""One hash for all data that a path leads to, so that unchanged data is known again."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from covcal_cli.files import sha256_of


def data_digest(path: Path) -> str:
    """Return a sha256 over a file, or over every visible file below a folder.

    Names count as well as contents: a file in another class folder is other data. Times do not.

    Parameters
    ----------
    path : Path
        A file, or a folder; links are followed, hidden files and folders left out as readers do.

    Raises
    ------
    OSError
        If something cannot be read.
    """
    if not path.is_dir():
        return sha256_of(path)
    digest = hashlib.sha256()
    for file in _files(path, frozenset()):
        name = file.relative_to(path).as_posix()
        digest.update(f"{len(os.fsencode(name))}:".encode() + os.fsencode(name))
        digest.update(sha256_of(file).encode())
    return digest.hexdigest()


def _files(folder: Path, above: frozenset[Path]) -> Iterator[Path]:
    real = folder.resolve()
    if real in above:  # a link that leads back up
        return
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files(entry, above | {real})
        elif entry.is_file():
            yield entry
