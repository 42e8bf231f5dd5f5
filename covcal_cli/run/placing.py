"""The results of another run put in the place of a folder's own, of which what matters is kept.

The other run's lie in ``next/`` within the folder. First what is to be kept gets a second name with
a number, then each new result takes its place, the journal last. The journal tells which names are
to be given: a process that is killed in between is followed by one that goes on, and what was in
use is lost at no time.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from covcal_cli.files import atomic_output, sha256_of
from covcal_cli.formats.calibration import read_calibration
from covcal_cli.formats.lineage import unmarked_sha256
from covcal_cli.run.journal import JOURNAL, Journal
from covcal_cli.run.steps import ADAPTED, CALIBRATION, FEATURES, REFERENCE, REPORT
from covcal_cli.watch.reference import reference_path

NEXT = "next"


def place(folder: Path) -> list[Path]:
    """Put the results in ``next/`` in the place of the folder's, and return what was kept of these.

    Kept are all but the rows: of those the aligned networks, if the calibration needs them, and
    what has labels that people put in.
    """
    journal = Journal(folder / JOURNAL)
    number = 1 + max(map(_number, folder.glob(_numbered(CALIBRATION, "*"))), default=0)
    names = [path.name for path in journal.files() if path.is_file() and _is_kept(path)]
    journal.keep({name: _numbered(name, str(number)) for name in names})
    kept = [folder / name for name in journal.kept.values()]
    finish_placing(folder)
    return kept


def _is_kept(path: Path) -> bool:
    if path.name not in (FEATURES, ADAPTED):
        return True
    if path.name == ADAPTED:
        needed = read_calibration(path.with_name(CALIBRATION)).networks_sha256
        if needed is not None:
            return True
    return unmarked_sha256(path) != sha256_of(path)


def _numbered(name: str, number: str) -> str:
    """Return the name that a result is kept under, such as cal.1.json."""
    if name == REFERENCE:  # it is found by the name of its calibration
        return reference_path(Path(_numbered(CALIBRATION, number))).name
    path = Path(name)
    return f"{path.stem}.{number}{path.suffix}"


def _number(path: Path) -> int:
    text = path.stem.rpartition(".")[2]
    return int(text) if text.isdecimal() else 0


def finish_placing(folder: Path) -> None:
    """Go on with what `place` has begun in a folder, if it was cut off."""
    journal = Journal(folder / JOURNAL)
    if not journal.kept:
        return
    _keep(folder, journal.kept)
    made = folder / NEXT
    if (made / JOURNAL).exists():
        # A report names the files that it is of, where they lie: it is made anew.
        coming = {path.name for path in Journal(made / JOURNAL).files()} - {REPORT}
        for path in journal.files():
            if path.name not in coming:
                path.unlink(missing_ok=True)
        for name in sorted(coming):
            if (made / name).exists():
                (made / name).replace(folder / name)
        (made / REPORT).unlink(missing_ok=True)
        (made / JOURNAL).replace(folder / JOURNAL)
    shutil.rmtree(made, ignore_errors=True)


def _keep(folder: Path, names: Mapping[str, str]) -> None:
    """Give results a second name; those that have it are left as they are."""
    for name, number in names.items():
        if (folder / number).exists():
            continue
        try:
            os.link(folder / name, folder / number)
        except OSError:  # a file system without links
            with atomic_output(folder / number, force=False) as partial:
                shutil.copyfile(folder / name, partial)
