"""The journal of a run, ``run.json``, with the inputs and results of all steps.

A result is up to date if its file and the key of its step are unchanged. The key is a hash of the
step's settings and inputs. The journal is written before and after every step, so that an
interrupted run can be continued.

`place` replaces the results in a folder by the results in the subfolder ``next/``:

- The journal records new names for the old results, such as cal.1.json.
- The old results are copied under the new names.
- The new results are moved into the folder. The new journal is moved last.

`finish_placing` completes an interrupted replacement. The calibration in use is never lost.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from covcal_cli.errors import CovcalError, shown
from covcal_cli.files import atomic_output, sha256_of
from covcal_cli.formats.calibration import read_calibration
from covcal_cli.formats.lineage import unmarked_sha256
from covcal_cli.records import Document, read_document, write_document
from covcal_cli.watch.reference import reference_path

JOURNAL, NEXT = "run.json", "next"
FEATURES, ADAPTED, CALIBRATION, REPORT = "features.h5", "adapted.h5", "cal.json", "report.html"
REFERENCE = reference_path(Path(CALIBRATION)).name
METRICS, PROBABILITIES = "metrics.json", "probs.csv"
_RESULTS = {FEATURES, ADAPTED, CALIBRATION, REFERENCE, METRICS, PROBABILITIES, REPORT}
_MODEL = re.compile(r"calibrated(\.[A-Za-z0-9]+)+", re.ASCII)  # Names of exported models.


@dataclass(frozen=True)
class Messages:
    """The messages of a step, which are shown again if the step's result is reused."""

    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)  # Lines of the summary, by heading.


@dataclass(frozen=True, kw_only=True)
class Result(Messages):
    """A result of a step, with the messages of the step."""

    key: str  # Hash of everything on which the result depends.
    sha256: str  # Hash of the result's file.


@dataclass(frozen=True)
class RunInput:
    """A model or data that the user named for a run."""

    name: str  # Path relative to the folder, or ``module:function``.
    sha256: str


@dataclass(frozen=True)
class Results(Document):
    """The content of run.json; the keys of all mappings except `given` are file names."""

    schema: ClassVar[str] = "covcal.run/1"

    begun: Mapping[str, str]  # Keys of steps that have not ended.
    results: Mapping[str, Result]
    # The inputs, with the keys "model", "source" and "target".
    given: Mapping[str, RunInput] = field(default_factory=dict)
    # New names of the old results; empty after the replacement.
    kept: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*self.begun, *self.results, *self.kept):
            if name not in _RESULTS and _MODEL.fullmatch(name) is None:
                raise ValueError(f"{shown(name)} is not a result of covcal run")
        for name, second in self.kept.items():
            number = _number(second)
            if number < 1 or second != _numbered(name, str(number)):
                raise ValueError(f"covcal run cannot have renamed {name} to {shown(second)}")


def own_path(folder: Path, name: str) -> Path:
    """Return a path inside the folder of a run.

    Raises `CovcalError` if the path is a link out of the folder.
    """
    path = folder / name
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise CovcalError(f"{path} is a link to a place outside {folder}: remove the link")
    return path


class Journal:
    """The recorded results in a folder, by file name.

    Raises `CovcalError` if run.json is damaged or is not a journal.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = own_path(folder, JOURNAL)
        self._results: dict[str, Result] = {}
        self._begun: dict[str, str] = {}
        self.given: Mapping[str, RunInput] = {}
        self.kept: Mapping[str, str] = {}
        if self._path.exists():
            remedy = "name another folder, or remove this file to start again"
            read = read_document(Results, self._path, remedy=remedy)
            self._results, self._begun = dict(read.results), dict(read.begun)
            self.given, self.kept = read.given, read.kept

    def keep(self, names: Mapping[str, str]) -> None:
        """Record the new names of old results before the replacement."""
        self.kept = names
        self._write()

    def take(self, inputs: Mapping[str, RunInput], *, force: bool) -> None:
        """Record the model and the data of a run.

        Without `force`, an input with a new name and new content is refused.
        """
        for role in dict.fromkeys([*self.given, *inputs]) if self.given and not force else ():
            old, new = self.given.get(role), inputs.get(role)
            if old == new or (old and new and (old.name == new.name or old.sha256 == new.sha256)):
                continue
            names = ["none" if entry is None else entry.name for entry in (old, new)]
            raise CovcalError(
                f"{self._folder} holds results of another {role} ({names[0]}, not {names[1]}): "
                "name another folder with -o, or pass --force to replace them"
            )
        self.given = dict(inputs)

    def discard_others(self, output: Path) -> None:
        """Delete all other results if `output` has changed."""
        if self.is_as_made(output):
            return
        result = self._results.get(output.name)
        for path in self.others(output):
            path.unlink(missing_ok=True)
        self._results = {} if result is None else {output.name: result}

    def others(self, output: Path) -> list[Path]:
        """Return all recorded results except `output`."""
        return [path for path in self.files() if path.name != output.name]

    def files(self) -> list[Path]:
        """Return the recorded results."""
        return [own_path(self._folder, name) for name in self._results]

    def is_as_made(self, output: Path) -> bool:
        """Return whether `output` is recorded and unchanged."""
        result = self._results.get(output.name)
        return result is not None and output.is_file() and unmarked_sha256(output) == result.sha256

    def messages(self, output: Path) -> Messages:
        """Return the messages of the step that made a result."""
        return self._results[output.name]

    def current(self, output: Path, key: str) -> Result | None:
        """Return an up-to-date result, or None."""
        result = self._results.get(output.name)
        if result is None or result.key != key or not self.is_as_made(output):
            return None
        # An interrupted run began to remake this result.
        if self._begun.pop(output.name, None) is not None:
            self._write()
        return result

    def was_begun(self, output: Path, key: str) -> bool:
        """Return whether the step with this `key` has begun and not ended."""
        return self._begun.get(output.name) == key

    def begin(self, output: Path, key: str) -> None:
        """Record that a step begins."""
        self._begun[output.name] = key
        self._write()

    def record(self, output: Path, key: str, messages: Messages) -> Result:
        """Record that a step has ended."""
        result = Result(key=key, sha256=unmarked_sha256(output), **vars(messages))
        self._results[output.name] = result
        self._begun.pop(output.name, None)
        self._write()
        return result

    def _write(self) -> None:
        content = Results(self._begun, dict(sorted(self._results.items())), self.given, self.kept)
        write_document(content, self._path, force=True)


def place(folder: Path) -> list[Path]:
    """Replace the results in a folder by the results in ``next/``.

    Returns the new paths of the old results. Features and adapted files are deleted, except files
    with picked labels or with networks that the calibration needs.
    """
    journal = Journal(folder)
    number = 1 + max(map(_number, map(str, folder.glob(_numbered(CALIBRATION, "*")))), default=0)
    names = [path.name for path in journal.files() if path.is_file() and _is_worth_keeping(path)]
    journal.keep({name: _numbered(name, str(number)) for name in names})
    old = [folder / name for name in journal.kept.values()]
    finish_placing(folder)
    return old


def _is_worth_keeping(path: Path) -> bool:
    if path.name not in (FEATURES, ADAPTED):
        return True
    if path.name == ADAPTED:
        needed = read_calibration(path.with_name(CALIBRATION)).networks_sha256
        if needed is not None:
            return True
    return unmarked_sha256(path) != sha256_of(path)


def _numbered(name: str, number: str) -> str:
    if name == REFERENCE:  # watch derives this name from the name of the calibration.
        return reference_path(Path(_numbered(CALIBRATION, number))).name
    path = Path(name)
    return f"{path.stem}.{number}{path.suffix}"


def _number(name: str) -> int:
    text = re.search(r"\.([1-9][0-9]{0,17})(\.reference)?\.[A-Za-z0-9]+$", name, re.ASCII)
    return 0 if text is None else int(text[1])


def finish_placing(folder: Path) -> None:
    """Complete an interrupted `place`."""
    journal = Journal(folder)
    if not journal.kept:
        return
    _keep(folder, journal.kept)
    next_folder = own_path(folder, NEXT)
    if (next_folder / JOURNAL).exists():
        # The old report names files in ``next/``, so a new report is made later.
        coming = {path.name for path in Journal(next_folder).files()} - {REPORT}
        for path in journal.files():
            if path.name not in coming:
                path.unlink(missing_ok=True)
        for name in sorted(coming):
            if (next_folder / name).exists():
                (next_folder / name).replace(folder / name)
        (next_folder / REPORT).unlink(missing_ok=True)
        (next_folder / JOURNAL).replace(folder / JOURNAL)
    shutil.rmtree(next_folder, ignore_errors=True)


def _keep(folder: Path, names: Mapping[str, str]) -> None:
    for name, second in names.items():
        path, copy = own_path(folder, name), folder / second
        if os.path.lexists(copy) or not path.exists():
            continue
        try:
            os.link(path, copy)
        except OSError:  # The file system has no hard links.
            with atomic_output(copy, force=False) as partial:
                shutil.copyfile(path, partial)


def step_key(**parts: Any) -> str:
    """Return a hash of all arguments. The order of keys does not matter."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def data_digest(path: Path) -> str:
    """Return a sha256 of a file, or of all visible files in a folder.

    File names are hashed, because moving a file to another class folder changes the data. Hidden
    files are left out, because `extract` does not read them. Links are followed.
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
    if real in above:  # Following a link to a parent folder would never end.
        return
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files_below(entry, above | {real})
        elif entry.is_file():
            yield entry
