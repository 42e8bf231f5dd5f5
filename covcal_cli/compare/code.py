"""A hash of the code that numbers come from: other code may give other numbers."""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# What temperatures, estimates and metrics depend on.
NUMERICAL = (
    "arrays.py",
    "hdf5.py",
    "records.py",
    "maths",
    "formats",
    "estimators",
    "adapt",
    "calibrate",
    "evaluate",
    "compare/runs.py",
)


@cache
def code_sha256(parts: Sequence[str] = NUMERICAL, folder: Path = PACKAGE) -> str:
    """Return a hash of modules, and of all modules of packages, in a folder; each must be there."""
    digest = hashlib.sha256()
    for part in parts:
        path = folder / part
        for module in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(module.read_bytes())
    return digest.hexdigest()
