"""The journal of a run: which results of an earlier one still stand.

A result stands when the key of its step (its settings and the hashes of its inputs) is the one it
was made with and the file is still the one that was made. ``covcal run`` keeps one journal per
folder, ``run.json``; it is written around every step, so that a run that was cut off goes on there.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
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

    Raises
    ------
    CovcalError
        If the file is no journal.
    """

    def __init__(
        self,
        path: Path,  # the journal's own file; it may be missing
    ) -> None:
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


def step_key(**parts: Any) -> str:
    """Return one hash over settings and input hashes, whatever their order."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
