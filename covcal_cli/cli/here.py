"""The file that a step takes when none is named."""

from pathlib import Path

from covcal_cli.cli.console import Console


def file_here(console: Console) -> Path:
    """Return adapted.h5 if there is one in this folder, else features.h5, and say which.

    Raises
    ------
    CovcalError
        If there is neither.
    """
    from covcal_cli.errors import CovcalError

    for path in (Path("adapted.h5"), Path("features.h5")):
        if path.is_file():
            console.note(f"reading {path}")
            return path
    raise CovcalError("there is no adapted.h5 or features.h5 here: name the file to read")
