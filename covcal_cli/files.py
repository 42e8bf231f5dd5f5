"""Output files that appear whole or not at all, and the hashes that name inputs.

An output is written to a hidden sibling (``.NAME.partial``) and renamed when it is complete, so a
crash, a full disk or ``kill -9`` leaves the old file untouched. The sibling's name is fixed: the
next run takes away what a killed run left behind, and a run beside it is refused, since the sibling
is locked until it is renamed. Outputs that belong together are renamed together.
"""

import errno
import hashlib
import os
import shlex
import signal
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from covcal_cli.errors import CovcalError, OutputExistsError

if sys.platform != "win32":
    import fcntl

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_HASH_BLOCK = 1 << 20
_LONGEST_NAME = 255  # bytes
# Of compressed values, in memory over on disk: deflate reaches 1030 for zeros, honest data 20.
_LARGEST_GROWTH = 200
_SMALL = 1 << 30  # bytes that may be made of next to nothing
_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0)


def check_output(path: Path, *, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Refuse an output that cannot or must not be written, before any work starts.

    Raises
    ------
    OutputExistsError
        If `path` exists and `force` is false.
    CovcalError
        If `path` is no plain file, is one of `inputs`, or its folder does not exist.
    """
    try:
        path.resolve()
    except (RuntimeError, OSError) as error:  # as Python has it before and after 3.13
        raise CovcalError(f"{path} is a link that leads to itself: pass another -o") from error
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


@dataclass(frozen=True)
class _Writing:
    """An output that is being written, and the lock on its sibling."""

    path: Path  # where it will be
    partial: Path
    lock: int | None  # descriptor of the sibling; none on Windows, where it could not be renamed

    def is_at(self, path: Path) -> bool:
        """Return whether `path` is the file that was created and locked."""
        try:
            found = path.lstat()
        except OSError:
            return False
        if self.lock is None:
            return True
        return os.path.samestat(found, os.fstat(self.lock))

    def end(self) -> None:
        """Take the sibling away unless it was renamed, and give up the lock."""
        # Another process may have begun one of the same name once this one was renamed.
        if self.is_at(self.partial):
            self.partial.unlink(missing_ok=True)
        if self.lock is not None:
            os.close(self.lock)


@dataclass
class _Together:
    """Outputs that wait to be renamed together."""

    whole: list[_Writing] = field(default_factory=list)


_TOGETHER: ContextVar[_Together | None] = ContextVar("together", default=None)


@contextmanager
def atomic_output(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to write to; rename it to `path` when the block succeeds.

    What `check_output` refuses is refused, and so is a `path` that another process writes. A file
    that is replaced hands down its permissions.
    """
    check_output(path, force=force)
    path = path.resolve()  # a link is followed, not replaced
    with ExitStack() as stack:
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
                waiting.whole.append(writing)
                stack.pop_all()
        except OSError as error:
            raise _explained(error, path) from error


@contextmanager
def moved_together() -> Iterator[None]:
    """Let the outputs of a block take their places only when all of them are whole.

    The first is replaced; the old others leave before, and the new ones come after it. A process
    killed in between leaves some of them out, and never old ones beside new ones.
    """
    together = _Together()
    before = _TOGETHER.set(together)
    try:
        yield
        _rename(together.whole)
    except OSError as error:
        raise _explained(error, together.whole[0].path) if together.whole else error from error
    finally:
        _TOGETHER.reset(before)
        for writing in together.whole:
            writing.end()


def _rename(whole: Sequence[_Writing]) -> None:
    """Rename outputs that belong together; if the system refuses one, put the old ones back."""
    left = {writing.path: hidden_sibling(writing.path, "before") for writing in whole}
    placed: list[Path] = []
    with _undisturbed():
        try:
            for path, old in left.items():
                old.unlink(missing_ok=True)  # by a process that was killed
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
                    old.unlink(missing_ok=True)  # two names of one file are left as they are
            raise
        for old in left.values():
            old.unlink(missing_ok=True)


def _set_aside(path: Path, old: Path, *, stays: bool) -> None:
    """Give a file another name, and let it keep its own too if it `stays`."""
    if stays:
        try:
            old.hardlink_to(path)
        except OSError:  # a file system without links
            pass
        else:
            return
    path.replace(old)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put off signals that ask to end until the block has ended."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def hidden_sibling(path: Path, ending: str) -> Path:
    """Return the name of a temporary file or folder beside `path`, for as long as it is made."""
    name = f".{path.name}.{ending}"
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()}.{ending}"
    return path.with_name(name)


def _begun(path: Path) -> _Writing:
    """Create the sibling of `path`, locked; one that a killed process left goes first."""
    partial = hidden_sibling(path, "partial")
    while True:
        try:
            writing = _created(path, partial)
        except OSError as error:
            explained = _explained(error, path)
            if isinstance(explained, OSError):
                reason = (error.strerror or str(error)).lower()
                explained = CovcalError(f"{path} cannot be written ({reason}): pass another -o")
            raise explained from error
        if writing is not None:
            return writing


def _created(path: Path, partial: Path) -> _Writing | None:
    """Create the sibling; None where it is to be tried again."""
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
        else:  # until it is locked, another process may take the name away, but not the file
            os.fchmod(descriptor, mode)
    writing = _locked(path, partial, descriptor)
    if not writing.is_at(partial):  # taken for a left one by another process
        writing.end()
        return None
    return writing


def _clear(path: Path, partial: Path, how: int) -> None:
    """Take away a sibling that a killed process left; raise `CovcalError` for any other."""
    # Neither a link is followed nor a pipe waited for: anybody may have put them there.
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        if not stat.S_ISREG(partial.lstat().st_mode):
            raise CovcalError(f"{partial} is in the way and no plain file: remove it")
        descriptor = os.open(partial, how | careful)
    except FileNotFoundError:  # renamed just now
        return
    _locked(path, partial, descriptor).end()


def _locked(path: Path, partial: Path, descriptor: int) -> _Writing:
    """Keep other processes from writing the same file for as long as the descriptor is open."""
    if sys.platform == "win32":
        os.close(descriptor)
        return _Writing(path, partial, None)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EAGAIN}:
            os.close(descriptor)
            raise CovcalError(
                f"another process is writing {path}: wait for it, or pass another -o"
            ) from error
        # Some network file systems have no locks.
    return _Writing(path, partial, descriptor)


def _explained(error: OSError, path: Path) -> Exception:
    """Return an error that names the remedy, or where none is known the error itself."""
    # HDF5 hides errno inside its message, so the text is searched as well.
    text = str(error)
    codes = {code for code in _DISK_FULL if f"errno = {code}," in text}
    if error.errno in _DISK_FULL or codes:
        return CovcalError(f"no space left to write {path}: free some space, or pass another -o")
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return CovcalError(f"no permission to write {path}: pass another -o")
    if error.filename is not None:  # of the sibling, which nobody has heard of
        error.filename = str(path)
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


def open_plain(path: str | Path) -> FileIO:
    """Open a plain file to read; raise ValueError for a pipe or device, which might not end."""
    handle = FileIO(path, opener=lambda name, how: os.open(name, how | _WITHOUT_WAITING))
    if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
        handle.close()
        raise ValueError("it is a pipe or device, not a file")
    return handle


def grows_beyond_belief(needed: int, stored: int) -> bool:
    """Return whether `stored` bytes of a file claim to be `needed` bytes that no data would be."""
    return needed > _SMALL and needed > _LARGEST_GROWTH * stored


def require_file(path: Path, *, remedy: str) -> None:
    """Refuse a path that is no file or an empty one, naming what is wrong and `remedy`."""
    if path.is_dir():
        raise CovcalError(f"{path} is a folder, not a file: {remedy}")
    if not path.exists():
        raise CovcalError(f"{path} does not exist: {remedy}")
    if not path.is_file():
        raise CovcalError(f"{path} is no plain file (a pipe or device?): save it as one")
    try:
        path.open("rb").close()
    except PermissionError as error:
        raise CovcalError(f"{path}: permission denied: check its permissions") from error
    if path.stat().st_size == 0:
        raise CovcalError(f"{path} is empty (0 bytes): {remedy}")


def as_word(path: str | Path) -> str:
    """Return a path as a word of a command: quoted for a shell, and never an option."""
    text = f"./{path}" if str(path).startswith("-") else str(path)
    if text.isprintable():
        return shlex.quote(text)
    # A line of text cannot show such a name, but a shell reads its bytes in $'...'.
    return f"$'{''.join(map(_shell_byte, os.fsencode(text)))}'"


def _shell_byte(byte: int) -> str:
    is_plain = 32 <= byte < 127 and byte not in b"'\\"
    return chr(byte) if is_plain else f"\\x{byte:02x}"


def relative_to_folder_of(path: Path, document: Path) -> str:
    """Return `path` relative to the folder that `document` lies in, with forward slashes.

    A link in that folder is named itself, not what it leads to.
    """
    file, folder = path.resolve(), document.resolve().parent
    by_name = Path(os.path.relpath(path, document.parent))
    if os.pardir not in by_name.parts and (folder / by_name).resolve() == file:
        return by_name.as_posix()
    return Path(os.path.relpath(file, folder)).as_posix()


def leaves_folder_of(path: Path, document: Path) -> bool:
    """Return whether a path that `document` names is not below the document's own folder.

    Only names count: a link in the folder is the user's own, wherever it leads.
    """
    try:
        way = path.relative_to(document.parent)
    except ValueError:
        return True
    return way.is_absolute() or os.pardir in way.parts
