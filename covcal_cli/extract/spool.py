"""What an extraction has done so far, on disk, so that a killed run can go on.

Beside the output lies a hidden folder ``.NAME.parts`` with, for each domain, one file of raw
numbers per array and a journal: one line of JSON per batch, written after the batch's numbers, with
their checksum. A process that is killed loses at most the batch in the making. After a power cut
numbers may be missing that the journal names; then the checksum is wrong, and everything from that
batch on is done again. ``config.json`` says what was being done; other work is never continued.
"""

import json
import os
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.extract.domainwriter import block_rows

Arrays = Mapping[str, NDArray[np.float32]]
Config = Mapping[str, str | int | None]

_CONFIG = "config.json"
_SYNC_SECONDS = 10.0


class Spool:
    """The folder of one extraction.

    Attributes
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def domain(self, name: str, widths: Mapping[str, int]) -> "DomainSpool":
        """Open a domain's part, going on where it ended.

        Parameters
        ----------
        name : str
            ``"source"`` or ``"target"``.
        widths : mapping of str to int
            Columns of each array.
        """
        return DomainSpool(self.folder, name, widths)

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def open_spool(output: Path, config: Config, *, resume: bool) -> tuple[Spool, str | None]:
    """Open the spool of `output`, and say what became of an earlier run's.

    Parameters
    ----------
    output : Path
        The file that extraction will write.
    config : mapping
        Everything that the numbers depend on, by a name that a user knows.
    resume : bool
        Go on with an earlier run's spool, if there is one; otherwise it is discarded.

    Returns
    -------
    Spool
    str or None
        A note for the user.

    Raises
    ------
    CovcalError
        If `resume` is set and the earlier run did something else.
    """
    path = output.resolve()
    folder = path.with_name(f".{path.name}.parts")
    earlier = _earlier(folder)
    note = None
    if resume and earlier is not None:
        _require_same(output, earlier, dict(config))
        return Spool(folder), None
    if resume:
        note = f"no earlier run of {output} was stopped: starting from the first row"
    elif earlier is not None:
        note = f"an earlier run of {output} was stopped; --resume would have gone on with it"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        (folder / _CONFIG).write_text(json.dumps(dict(config), sort_keys=True), encoding="utf-8")
    except OSError:  # a full disk: the caller says so, in terms of the output
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Spool(folder), note


def was_stopped(output: Path) -> bool:
    """Return whether a run of `output` has left a spool to go on with."""
    path = output.resolve()
    return _earlier(path.with_name(f".{path.name}.parts")) is not None


def _earlier(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # killed before it was written: nothing was done yet
        return None
    return found if isinstance(found, dict) else None


def _require_same(output: Path, earlier: dict[str, Any], config: dict[str, Any]) -> None:
    differing = [name for name in config if earlier.get(name) != config[name]]
    if not differing:
        return
    what = "; ".join(
        f"{name} was {_short(earlier.get(name))} and is {_short(config[name])}"
        for name in differing
    )
    raise CovcalError(
        f"{output}: the run that was stopped did something else ({what}): give the same options "
        "and data, or leave out --resume to start anew"
    )


def _short(value: Any) -> str:
    text = str(value)
    if len(text) == 64 and set(text) <= set("0123456789abcdef"):
        return f"sha256 {text[:12]}"
    return text


class DomainSpool:
    """One domain's numbers and journal; a context manager.

    Attributes
    ----------
    widths : dict of str to int
        Columns of each array.
    done : int
        Rows dealt with, from the front of the chosen ones.
    kept : int
        Rows of them that were read and run.
    skipped : list of (int, str)
        Row number and reason of the others.
    """

    def __init__(self, folder: Path, name: str, widths: Mapping[str, int]) -> None:
        self._paths = {array: folder / f"{name}.{array}" for array in widths}
        self.widths = dict(widths)
        self._journal_path = folder / f"{name}.journal"
        self.done, self.kept = 0, 0
        self.skipped: list[tuple[int, str]] = []
        self._recover()
        self._files = {array: path.open("ab") for array, path in self._paths.items()}
        self._journal = self._journal_path.open("ab")
        self._synced = time.monotonic()

    def append(self, arrays: Arrays, done: int, skipped: tuple[tuple[int, str], ...]) -> None:
        """Add a batch.

        Parameters
        ----------
        arrays : mapping of str to array of float32, shape (m, width)
            The rows run; empty where none could be read.
        done : int
            Rows dealt with so far, this batch included.
        skipped : tuple of (int, str)
            Row number and reason of those of the batch that could not be read.
        """
        checksum = 0
        for name, file in self._files.items():
            if name in arrays:
                rows = np.ascontiguousarray(arrays[name], dtype="<f4")
                checksum = zlib.crc32(rows.data, checksum)
                file.write(rows.data)
                file.flush()
        kept = self.kept + (done - self.done - len(skipped))
        entry = {"done": done, "kept": kept, "crc": checksum, "skipped": skipped}
        self._journal.write(json.dumps(entry).encode() + b"\n")
        self._journal.flush()
        self.done, self.kept = done, kept
        self.skipped += skipped
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            for file in (*self._files.values(), self._journal):
                os.fsync(file.fileno())
            self._synced = time.monotonic()

    def blocks(self) -> Iterator[dict[str, NDArray[np.float32]]]:
        """Yield the rows kept, in order, `block_rows` at a time."""
        size = block_rows(self.widths)
        starts = range(0, self.kept, size)
        with _Readers(self._paths) as readers:
            for start in starts:
                count = min(size, self.kept - start)
                yield {
                    name: np.fromfile(file, "<f4", count * self.widths[name]).reshape(count, -1)
                    for name, file in readers.items()
                }

    def _recover(self) -> None:
        """Keep the batches that are whole, and cut off what follows them."""
        whole = 0
        if self._journal_path.exists():
            with _Readers(self._paths) as readers, self._journal_path.open("rb") as journal:
                for line in journal:
                    if not self._is_whole(line, readers):
                        break
                    whole += len(line)
        with self._journal_path.open("ab") as journal:
            journal.truncate(whole)
        for name, path in self._paths.items():
            with path.open("ab") as file:
                file.truncate(self.kept * self.widths[name] * 4)

    def _is_whole(self, line: bytes, readers: Mapping[str, Any]) -> bool:
        """Take over one line of the journal if its numbers are all there."""
        try:
            entry = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            return False
        if entry is None:
            return False
        checksum = 0
        for name, file in readers.items():
            wanted = (entry["kept"] - self.kept) * self.widths[name] * 4
            checksum = zlib.crc32(file.read(wanted), checksum)
        if checksum != entry["crc"]:
            return False
        self.done, self.kept = entry["done"], entry["kept"]
        self.skipped += [(row, reason) for row, reason in entry["skipped"]]
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in (*self._files.values(), self._journal):
            try:
                file.close()
            except OSError:  # a full disk, which the failed write has reported already
                if error is None:
                    raise


class _Readers:
    """The files of raw numbers, open for reading."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._files = {name: path.open("rb") for name, path in paths.items() if path.exists()}

    def __enter__(self) -> dict[str, Any]:
        return dict(self._files)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.close()
