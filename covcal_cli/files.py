"""Write output files whole or not at all, and compute the sha256 of input files.

covcal writes an output to a hidden file ``.NAME.partial``, and renames the complete file. A crash,
a full disk or ``kill -9`` leaves the old file untouched. The next run removes the hidden file of a
killed run. The hidden file is locked, so two processes never write the same output.
"""

import errno
import hashlib
import os
import shlex
import signal
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from covcal_cli.errors import CovcalError, OutputExistsError

if sys.platform != "win32":
    import fcntl

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_OTHER_FORMATS = {".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".npz", ".npy", ".onnx"}
_LONGEST_NAME = 255  # Longest file name that file systems allow, in bytes.
# Largest plausible compression ratio, reached by an array of zeros.
_LARGEST_GROWTH = 200
_SMALL = 1 << 30  # Arrays up to this size, in bytes, may have any compression ratio.
_READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_MOMENT = 3_000_000_000  # Coarsest resolution of file times, in nanoseconds.
_DIGESTS: dict[tuple[int, ...], str] = {}  # Cached sha256 by device, inode, size and times.


def check_output(
    path: Path, *, force: bool, inputs: Iterable[Path] = (), option: str = "-o"
) -> None:
    """Refuse an output that cannot be written, or that must not be replaced.

    Raises `OutputExistsError` if `path` exists and `force` is false. Raises `CovcalError` if `path`
    is not a plain file or is one of `inputs`, or if its folder does not exist. `option` is the
    command line option for the path, for messages.
    """
    try:
        path.resolve()
    except (RuntimeError, OSError) as error:
        raise CovcalError(
            f"{path} is a link that leads to itself: pass another {option}"
        ) from error
    if path.is_dir():
        raise CovcalError(f"{path} is a folder, not a file: give {option} a file name")
    if path.exists() and not path.is_file():
        raise CovcalError(f"{path} is not a plain file (a pipe or device?): pass another {option}")
    if path.exists() and not force:
        raise OutputExistsError(
            f"{path} exists already: pass --force to replace it, or another {option}"
        )
    if any(entry.exists() and path.exists() and path.samefile(entry) for entry in inputs):
        raise CovcalError(f"{path} is an input of this command: pass another {option}")
    if not path.parent.is_dir():
        raise CovcalError(
            f"the folder {path.parent} does not exist: create it, or pass another {option}"
        )


def require_hdf5_name(path: Path) -> None:
    """Refuse an output with the file extension of another format."""
    if path.suffix.lower() in _OTHER_FORMATS:
        name = path.with_suffix(".h5").name
        raise CovcalError(f"{path} would hold HDF5, not {path.suffix}: name the file {name}")


@dataclass(frozen=True)
class _Writing:
    path: Path
    partial: Path
    # Open file that holds the lock; None on Windows, where an open file cannot be renamed.
    lock: int | None

    def is_at(self, path: Path) -> bool:
        try:
            status = path.lstat()
        except OSError:
            return False
        if self.lock is None:
            return True
        return os.path.samestat(status, os.fstat(self.lock))

    def end(self) -> None:
        # After the renaming, another process may use the temporary name.
        if self.is_at(self.partial):
            self.partial.unlink(missing_ok=True)
        if self.lock is not None:
            os.close(self.lock)


# Outputs to rename together; None if no `moved_together` block is active.
_TOGETHER: ContextVar[list[_Writing] | None] = ContextVar("together", default=None)


@contextmanager
def atomic_output(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `path` if the block succeeds.

    Raises `CovcalError` as `check_output` does, or if another process is writing `path`. The new
    file gets the permissions of the old file.
    """
    check_output(path, force=force)
    path = path.resolve()  # If the path is a link, replace the target of the link.
    with ExitStack() as stack:
        with _undisturbed():  # Ctrl-C here would leave the hidden file behind.
            writing = _begun(path)
            stack.callback(writing.end)
        try:
            yield writing.partial
            with writing.partial.open("rb+") as handle:
                os.fsync(handle.fileno())
            if (waiting := _TOGETHER.get()) is None:
                with _undisturbed():
                    writing.partial.replace(writing.path)
            else:
                waiting.append(writing)
                stack.pop_all()
        except OSError as error:
            raise _explained(error, path) from error


@contextmanager
def moved_together() -> Iterator[None]:
    """Rename all outputs of the block together, after the last output is complete.

    Even ``kill -9`` never leaves a mixture of new and old outputs. All old outputs except one are
    removed before the first new output appears.
    """
    together: list[_Writing] = []
    before = _TOGETHER.set(together)
    try:
        yield
        _rename(together)
    except OSError as error:
        raise _explained(error, together[0].path) if together else error from error
    finally:
        _TOGETHER.reset(before)
        for writing in together:
            writing.end()


def _rename(whole: Sequence[_Writing]) -> None:
    left = {writing.path: hidden_sibling(writing.path, "before") for writing in whole}
    placed: list[Path] = []
    with _undisturbed():
        try:
            for path, old in left.items():
                old.unlink(missing_ok=True)  # a killed process may have left this file
                if path.exists():
                    _set_aside(path, old, stays=path == whole[0].path)
            for writing in whole:
                writing.partial.replace(writing.path)
                placed.append(writing.path)
        except OSError:
            for path in placed:
                path.unlink()
            for path, old in left.items():
                if old.exists():
                    old.replace(path)
                    # Renaming does nothing if both names are hard links of one file.
                    old.unlink(missing_ok=True)
            raise
        for old in left.values():
            old.unlink(missing_ok=True)


def _set_aside(path: Path, old: Path, *, stays: bool) -> None:
    """Give a file another name, or a second name if `stays` is true."""
    if stays:
        try:
            old.hardlink_to(path)
        except OSError:  # the file system has no hard links
            pass
        else:
            return
    path.replace(old)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay termination signals until the block has ended."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def hidden_sibling(path: Path, ending: str) -> Path:
    """Return the name of the temporary file or folder beside `path`."""
    name = f".{path.name}.{ending}"
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()}.{ending}"
    return path.with_name(name)


def _begun(path: Path) -> _Writing:
    partial = hidden_sibling(path, "partial")
    while True:
        try:
            writing = _created(path, partial)
        except OSError as error:
            explained = _explained(error, path)
            if isinstance(explained, OSError):
                reason = (error.strerror or str(error)).lower()
                explained = CovcalError(f"{path} cannot be written ({reason}): choose another path")
            raise explained from error
        if writing is not None:
            return writing


def _created(path: Path, partial: Path) -> _Writing | None:
    """Create and lock the hidden file. Return None if the caller should try again."""
    how = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(partial, how | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        _clear(path, partial, how)
        return None
    if path.exists():
        mode = path.stat().st_mode & 0o777
        if sys.platform == "win32":
            partial.chmod(mode)
        else:  # Another process may have renamed the file, so use the open file.
            os.fchmod(descriptor, mode)
    writing = _locked(path, partial, descriptor)
    # another process may have removed the file before it was locked
    if not writing.is_at(partial):
        writing.end()
        return None
    return writing


def _clear(path: Path, partial: Path, how: int) -> None:
    # Another user may have put a link or a pipe in this place.
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        if not stat.S_ISREG(partial.lstat().st_mode):
            raise CovcalError(
                f"{partial} is not a plain file, but covcal needs this name: remove it"
            )
        descriptor = os.open(partial, how | careful)
    except FileNotFoundError:  # another process has just renamed the file
        return
    _locked(path, partial, descriptor).end()


def _locked(path: Path, partial: Path, descriptor: int) -> _Writing:
    if sys.platform == "win32":
        os.close(descriptor)
        return _Writing(path, partial, None)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EAGAIN}:
            os.close(descriptor)
            raise CovcalError(
                f"another process writes {path} now: wait for it, or pass another -o"
            ) from error
        # Some network file systems have no locks: write without a lock.
    return _Writing(path, partial, descriptor)


def _explained(error: OSError, path: Path) -> Exception:
    # h5py gives the error number only in the text of the error.
    if error.errno in _DISK_FULL or any(f"errno = {code}," in str(error) for code in _DISK_FULL):
        return CovcalError(
            f"no space left to write {path}: free some space, or choose another folder"
        )
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return CovcalError(f"no permission to write {path}: choose another path")
    if error.filename is not None:  # The user does not know the hidden file, so name the output.
        error.filename = str(path)
    return error


def write_text(path: Path, text: str, *, force: bool) -> None:
    """Write `text` to `path` as UTF-8, whole or not at all."""
    with atomic_output(path, force=force) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def sha256_of(path: Path) -> str:
    """Return the hexadecimal sha256 of a file, which is cached until the file changes.

    Because file times are rounded, a file that changed a few seconds ago is not cached.
    """
    with path.open("rb") as handle:
        status = os.fstat(handle.fileno())
        times = status.st_mtime_ns, status.st_ctime_ns
        version = (status.st_dev, status.st_ino, status.st_size, *times)
        digest = _DIGESTS.get(version)
        if digest is None:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
            if max(times) < time.time_ns() - _MOMENT:
                _DIGESTS[version] = digest
        return digest


def read_plain(path: str | Path) -> bytes:
    """Return the content of a plain file. Raise ValueError for a pipe or device."""
    descriptor = os.open(path, _READING)  # For a small file, `open` would be twice as slow.
    try:
        status = os.fstat(descriptor)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise ValueError("it is a pipe or device, not a file")
        return b"".join(iter(lambda: os.read(descriptor, status.st_size + 1), b""))
    finally:
        os.close(descriptor)


def grows_beyond_belief(needed: int, stored: int) -> bool:
    """Return whether `needed` bytes of data are implausible for a file of `stored` bytes."""
    return needed > _SMALL and needed > _LARGEST_GROWTH * stored


def require_file(path: Path, *, remedy: str) -> None:
    """Refuse a path that is not a plain file, or is empty. The message ends with `remedy`."""
    if path.is_dir():
        raise CovcalError(f"{path} is a folder, not a file: {remedy}")
    if not path.exists():
        raise CovcalError(f"{path} does not exist: {remedy}")
    if not path.is_file():
        raise CovcalError(
            f"{path} is not a plain file (a pipe or device?): save it as an ordinary file"
        )
    try:
        path.open("rb").close()
    except PermissionError as error:
        raise CovcalError(f"{path}: permission denied: check its permissions") from error
    if path.stat().st_size == 0:
        raise CovcalError(f"{path} is empty (0 bytes): {remedy}")


def as_word(path: str | Path) -> str:
    """Quote a path for a shell command."""
    text = f"./{path}" if str(path).startswith("-") else str(path)
    if text.isprintable():
        return shlex.quote(text)
    # shells read unprintable bytes in the form $'...'
    characters = (
        chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}"
        for byte in os.fsencode(text)
    )
    return f"$'{''.join(characters)}'"


def relative_to_folder_of(path: Path, document: Path) -> str:
    """Return `path` relative to the folder of `document`, with forward slashes."""
    file, folder = path.resolve(), document.resolve().parent
    by_name = Path(os.path.relpath(path, document.parent))
    if os.pardir not in by_name.parts and (folder / by_name).resolve() == file:
        return by_name.as_posix()
    return Path(os.path.relpath(file, folder)).as_posix()


def leaves_folder_of(path: Path, document: Path) -> bool:
    """Return whether a path in `document` is outside the document's folder.

    A link in the folder counts as a file of the folder.
    """
    try:
        way = path.relative_to(document.parent)
    except ValueError:
        return True
    return way.is_absolute() or os.pardir in way.parts
