"""What was made of what: which results of an earlier run still stand.

A result stands when the key of its step (its settings and the hashes of its inputs) is the one it
was made with and the file is still the one that was made. ``covcal run`` keeps one journal per
folder, ``run.json``; it is written around every step, so that a run that was cut off goes on there.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covcal_cli.errors import CovcalError
from covcal_cli.files import sha256_of, write_text

SCHEMA = "covcal.run/1"


@dataclass(frozen=True)
class Entry:
    """One result.

    Attributes
    ----------
    key : str
        Hash of everything the result depends on.
    sha256 : str
        Of the file.
    warnings : tuple of str
        What the step had to say, told again when its result is reused.
    """

    key: str
    sha256: str
    warnings: tuple[str, ...]


class Journal:
    """The results that a folder holds, by file name.

    Parameters
    ----------
    path : Path
        The journal's own file; it may be missing.

    Raises
    ------
    CovcalError
        If the file is no journal.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, Entry] = {}
        self._begun: dict[str, str] = {}
        if path.exists():
            self._entries, self._begun = _read(path)

    def standing(self, output: Path, key: str) -> Entry | None:
        """Return the entry of `output` if it was made with `key` and is unchanged, else None."""
        entry = self._entries.get(output.name)
        if entry is None or entry.key != key or not output.is_file():
            return None
        return entry if sha256_of(output) == entry.sha256 else None

    def describe(self) -> list[tuple[str, str]]:
        """Return every result's name with its hash and how many warnings it came with."""
        return [
            (name, f"sha256 {entry.sha256[:12]}, warnings: {len(entry.warnings)}")
            for name, entry in sorted(self._entries.items())
        ]

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
        content = {
            "schema": SCHEMA,
            "begun": self._begun,
            "results": {
                name: {"key": kept.key, "sha256": kept.sha256, "warnings": list(kept.warnings)}
                for name, kept in sorted(self._entries.items())
            },
        }
        write_text(self._path, json.dumps(content, indent=2) + "\n", force=True)


def step_key(**parts: Any) -> str:
    """Return one hash over settings and input hashes, whatever their order."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _read(path: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    remedy = "name another folder, or remove this file to start anew"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise CovcalError(
                f"{path} has schema {content['schema']!r}; this version reads {SCHEMA}: {remedy}"
            )
        entries = {str(name): _entry(kept) for name, kept in content["results"].items()}
        return entries, {str(name): str(key) for name, key in content["begun"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CovcalError(f"{path} is no journal of covcal run ({error!r}): {remedy}") from error


def _entry(kept: Mapping[str, Any]) -> Entry:
    return Entry(str(kept["key"]), str(kept["sha256"]), tuple(map(str, kept["warnings"])))
