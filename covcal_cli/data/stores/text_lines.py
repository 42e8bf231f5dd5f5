"""Open a text file, compressed or not, and read its lines with bounded memory."""

import codecs
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from covcal_cli.errors import CovcalError

_LONGEST_LINE = 64 << 20  # characters


def is_compressed(path: Path) -> bool:
    """Return whether the name of a file says that gzip compressed it."""
    return path.suffix.lower() == ".gz"


def open_text(path: Path) -> IO[str]:
    """Open a file of UTF-8 or UTF-16 text; its line ends are kept."""
    open_file: Any = gzip.open if is_compressed(path) else open
    with open_file(path, "rb") as file:
        encoding = _encoding(file.read(2))
    text: IO[str] = open_file(path, "rt", encoding=encoding, newline="")
    return text


def short_lines(path: Path, file: IO[str]) -> Iterator[str]:
    """Yield the lines of a file; a compressed line may be far longer than the file."""
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise CovcalError(
                f"{path}: a line has more than {_LONGEST_LINE >> 20} million characters: save one "
                "row a line"
            )
        yield line


def _encoding(head: bytes) -> str:
    """Return the encoding of a file by its first two bytes: Excel's "Unicode text" is UTF-16."""
    if head in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    if b"\0" not in head:
        return "utf-8-sig"
    return "utf-16-be" if head.startswith(b"\0") else "utf-16-le"
