"""The journal of a run: which results of an earlier one still stand, and what they are of.

A result stands when the key of its step (its settings and the hashes of its inputs) is the one it
was made with and the file is still the one that was made. ``covcal run`` keeps one journal per
folder, ``run.json``; it is written around every step, so that a run that was cut off goes on there.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from covcal_cli.errors import CovcalError
from covcal_cli.files import sha256_of
from covcal_cli.formats.lineage import unmarked_sha256
from covcal_cli.records import Document, read_document, write_document

JOURNAL = "run.json"


@dataclass(frozen=True)
class Said:
    """What a step has to say; told again when its result is reused."""

    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)  # of its result, by what they are about


@dataclass(frozen=True)
class Entry:
    """One result; fields with a default are younger than others."""

    key: str  # hash of everything the result depends on
    sha256: str  # of the file
    warnings: tuple[str, ...]  # `Said`
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def said(self) -> Said:
        """What the step had to say."""
        return Said(self.warnings, self.notes, self.facts)


@dataclass(frozen=True)
class Given:
    """A model or data that a run was given."""

    name: str  # a path relative to the folder of the results, or what else was given
    sha256: str


@dataclass(frozen=True)
class Results(Document):
    """The content of run.json, by the names of the files that the steps make."""

    schema: ClassVar[str] = "covcal.run/1"

    begun: Mapping[str, str]  # keys of steps that did not end
    results: Mapping[str, Entry]
    given: Mapping[str, Given] = field(default_factory=dict)  # by role: model, source, target
    # While those of another run take their places: what is kept of these, and under which names.
    kept: Mapping[str, str] = field(default_factory=dict)


class Journal:
    """The results that a folder holds, by file name.

    `path` is the journal's own file, which may be missing; `CovcalError` if it is something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, Entry] = {}
        self._begun: dict[str, str] = {}
        self._given: dict[str, Given] = {}
        self._kept: dict[str, str] = {}
        if path.exists():
            remedy = "name another folder, or remove this file to start anew"
            read = read_document(Results, path, remedy=remedy)
            self._entries, self._begun = dict(read.results), dict(read.begun)
            self._given, self._kept = dict(read.given), dict(read.kept)

    @property
    def given(self) -> Mapping[str, Given]:
        """What the results are of, by role."""
        return self._given

    @property
    def kept(self) -> Mapping[str, str]:
        """What is to be kept of the results, and under which names, while others replace them."""
        return self._kept

    def keep(self, names: Mapping[str, str]) -> None:
        """Note what is to be kept, and under which names, as others begin to replace it."""
        self._kept = dict(names)
        self._write()

    def take(self, given: Mapping[str, Given], *, force: bool) -> None:
        """Note whose results the folder is for, refusing those of others unless `force` is true.

        A model or data are others where neither their name nor their content is the same: data
        that changed in their place are made results of anew.
        """
        for role in dict.fromkeys([*self._given, *given]) if self._given and not force else ():
            old, new = self._given.get(role), given.get(role)
            if old == new or (old and new and (old.name == new.name or old.sha256 == new.sha256)):
                continue
            names = [one.name if one else "none" for one in (old, new)]
            raise CovcalError(
                f"{self._path.parent} holds results of another {role} ({names[0]}, not "
                f"{names[1]}): name another folder with -o, or pass --force to replace them"
            )
        self._given = dict(given)

    def forget_given(self) -> None:
        """Let any results be replaced by those of other data."""
        self._given = {}

    def discard_others(self, output: Path) -> None:
        """Remove all results but `output`, on which they rest, if it is not the one recorded."""
        if self.is_as_made(output):
            return
        entry = self._entries.get(output.name)
        for path in self.others(output):
            path.unlink(missing_ok=True)
        self._entries = {} if entry is None else {output.name: entry}

    def others(self, output: Path) -> list[Path]:
        """Return the recorded results but `output`, beside this journal and nowhere else."""
        return [path for path in self.files() if path.name != output.name]

    def files(self) -> list[Path]:
        """Return the recorded results, beside this journal and nowhere else."""
        return [self._path.with_name(name) for name in self._entries if Path(name).name == name]

    def is_as_made(self, output: Path) -> bool:
        """Return whether `output` is recorded, and the file is still the one that was made."""
        entry = self._entries.get(output.name)
        return entry is not None and output.is_file() and unmarked_sha256(output) == entry.sha256

    def said(self, output: Path) -> Said:
        """Return what was said of a recorded result."""
        return self._entries[output.name].said

    def standing(self, output: Path, key: str) -> Entry | None:
        """Return the entry of `output` if it was made with `key` and is unchanged, else None."""
        entry = self._entries.get(output.name)
        if entry is None or entry.key != key or not self.is_as_made(output):
            return None
        if self._begun.pop(output.name, None) is not None:  # anew, and cut off before it ended
            self._write()
        return entry

    def was_begun(self, output: Path, key: str) -> bool:
        """Return whether the step that makes `output` with `key` was begun and did not end."""
        return self._begun.get(output.name) == key

    def begin(self, output: Path, key: str) -> None:
        """Note that the step that makes `output` with `key` begins."""
        self._begun[output.name] = key
        self._write()

    def record(self, output: Path, key: str, said: Said) -> Entry:
        """Note that `output` was made with `key`, and write the journal."""
        entry = Entry(key, unmarked_sha256(output), said.warnings, said.notes, said.facts)
        self._entries[output.name] = entry
        self._begun.pop(output.name, None)
        self._write()
        return entry

    def _write(self) -> None:
        content = Results(self._begun, dict(sorted(self._entries.items())), self._given, self._kept)
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
