"""The journal of a run: which results of an earlier one still stand.

A result stands when the key of its step (its settings and the hashes of its inputs) is the one it
was made with and the file is still the one that was made. ``covcal run`` keeps one journal per
folder, ``run.json``; it is written around every step, so that a run that was cut off goes on there.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from covcal_cli.files import sha256_of
from covcal_cli.records import Document, read_document, write_document


@dataclass(frozen=True)
class Entry:
    """One result."""

    key: str  # hash of everything the result depends on
    sha256: str  # of the file
    warnings: tuple[str, ...]  # what the step had to say, told again when its result is reused


@dataclass(frozen=True)
class Results(Document):
    """The content of run.json, by the names of the files that the steps make."""

    schema: ClassVar[str] = "covcal.run/1"

    begun: Mapping[str, str]  # keys of steps that did not end
    results: Mapping[str, Entry]


class Journal:
    """The results that a folder holds, by file name.

    `path` is the journal's own file, which may be missing; `CovcalError` if it is something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, Entry] = {}
        self._begun: dict[str, str] = {}
        if path.exists():
            remedy = "name another folder, or remove this file to start anew"
            read = read_document(Results, path, remedy=remedy)
            self._entries, self._begun = dict(read.results), dict(read.begun)

    def standing(self, output: Path, key: str) -> Entry | None:
        """Return the entry of `output` if it was made with `key` and is unchanged, else None."""
        entry = self._entries.get(output.name)
        if entry is None or entry.key != key or not output.is_file():
            return None
        return entry if sha256_of(output) == entry.sha256 else None

    def was_begun(self, output: Path, key: str) -> bool:
        """Return whether the step that makes `output` with `key` was begun and did not end."""
        return self._begun.get(output.name) == key

    def begin(self, output: Path, key: str) -> None:
        """Note that the step that makes `output` with `key` begins."""
        self._begun[output.name] = key
        self._write()

    def record(self, output: Path, key: str, warnings: Sequence[str]) -> Entry:
        """Note that `output` was made with `key`, and write the journal."""
        entry = Entry(key, sha256_of(output), tuple(warnings))
        self._entries[output.name] = entry
        self._begun.pop(output.name, None)
        self._write()
        return entry

    def _write(self) -> None:
        content = Results(self._begun, dict(sorted(self._entries.items())))
        write_document(content, self._path, force=True)


# What a key is made of.


def step_key(**parts: Any) -> str:
    """Return one hash over settings and input hashes, whatever their order."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def data_digest(path: Path) -> str:
    """Return a sha256 over a file, or over every visible file below a folder.

    Names count as well as contents: a file in another class folder is other data. Times do not.
    Links are followed, hidden files and folders left out as readers do.
    """
    if not path.is_dir():
        return sha256_of(path)
    digest = hashlib.sha256()
    for file in _files_below(path, frozenset()):
        name = os.fsencode(file.relative_to(path).as_posix())
        digest.update(f"{len(name)}:".encode() + name)
        digest.update(sha256_of(file).encode())
    return digest.hexdigest()


def _files_below(folder: Path, above: frozenset[Path]) -> Iterator[Path]:
    real = folder.resolve()
    if real in above:  # a link that leads back up
        return
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files_below(entry, above | {real})
        elif entry.is_file():
            yield entry
