"""Output files that appear whole or not at all, and the hashes that name inputs.

An output is written to a hidden sibling (``.NAME.partial``) and renamed when it is complete, so a
crash, a full disk or ``kill -9`` leaves the old file untouched. The sibling's name is fixed: the
next run overwrites what a killed run left behind, and a run beside it is refused, since the sibling
is locked for as long as it is written.
"""

import errno
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from covcal_cli.errors import CovcalError, OutputExistsError

if sys.platform != "win32":
    import fcntl

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_HASH_BLOCK = 1 << 20


def check_output(path: Path, *, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Refuse an output that cannot or must not be written, before any work starts.

    Raises
    ------
    OutputExistsError
        If `path` exists and `force` is false.
    CovcalError
        If `path` is no plain file, is one of `inputs`, or its folder does not exist.
    """
    if path.is_dir():
        raise CovcalError(f"{path} is a folder, not a file: give -o a file name")
    if path.exists() and not path.is_file():
        raise CovcalError(f"{path} is no plain file (a pipe or device?): pass another -o")
    if path.exists() and not force:
        raise OutputExistsError(f"{path} exists already: pass --force to replace it, or another -o")
    if any(entry.exists() and path.exists() and path.samefile(entry) for entry in inputs):
        raise CovcalError(f"{path} is an input of this command: pass another -o")
    if not path.parent.is_dir():
        raise CovcalError(f"the folder {path.parent} does not exist: create it, or pass another -o")


@contextmanager
def atomic_output(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to write to; rename it to `path` when the block succeeds.

    What `check_output` refuses is refused, and so is a `path` that another process writes.
    """
    check_output(path, force=force)
    path = path.resolve()  # a link is followed, not replaced
    partial = path.with_name(f".{path.name}.partial")
    with _sole_writer(partial, path):
        try:
            yield partial
            with partial.open("rb+") as handle:
                os.fsync(handle.fileno())
            partial.replace(path)
        except OSError as error:
            raise _explained(error, path) from error
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def _sole_writer(partial: Path, path: Path) -> Iterator[None]:
    """Keep other processes from writing the same file until the block ends.

    A record lock, as HDF5 takes the other kind on its own. Any handle of this process that is
    closed gives it up, which happens when all is written.
    """
    if sys.platform == "win32":
        yield
        return
    try:
        handle = partial.open("ab")
    except OSError as error:
        explained = _explained(error, path)
        if explained is error:
            reason = (error.strerror or str(error)).lower()
            explained = CovcalError(f"{path} cannot be written ({reason}): pass another -o")
        raise explained from error
    with handle:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in {errno.EACCES, errno.EAGAIN}:
                raise CovcalError(
                    f"another process is writing {path}: wait for it, or pass another -o"
                ) from error
            # Some network file systems have no locks.
        yield


def _explained(error: OSError, path: Path) -> Exception:
    """Return an error that names the remedy, or where none is known the error itself."""
    # HDF5 hides errno inside its message, so the text is searched as well.
    text = str(error)
    codes = {code for code in _DISK_FULL if f"errno = {code}," in text}
    if error.errno in _DISK_FULL or codes:
        return CovcalError(f"no space left to write {path}: free some space, or pass another -o")
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return CovcalError(f"no permission to write {path}: pass another -o")
    return error


def write_text(path: Path, text: str, *, force: bool) -> None:
    """Write `text` to `path` as UTF-8, whole or not at all."""
    with atomic_output(path, force=force) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def sha256_of(path: Path) -> str:
    """Return the hexadecimal sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(_HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def require_file(path: Path, *, remedy: str) -> None:
    """Refuse a path that is no file or an empty one, naming what is wrong and `remedy`."""
    if path.is_dir():
        raise CovcalError(f"{path} is a folder, not a file: {remedy}")
    if not path.exists():
        raise CovcalError(f"{path} does not exist: {remedy}")
    if path.stat().st_size == 0:
        raise CovcalError(f"{path} is empty (0 bytes): {remedy}")


def relative_to_folder_of(path: Path, document: Path) -> str:
    """Return `path` relative to the folder that `document` lies in, with forward slashes."""
    return Path(os.path.relpath(path.resolve(), document.resolve().parent)).as_posix()
