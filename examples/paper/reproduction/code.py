"""A hash of the code that numbers come from: other code may give other numbers."""

import hashlib
from pathlib import Path

import covcal_cli

COVCAL = Path(covcal_cli.__file__).parent
# What an adapted file depends on.
TRAINING = ("arrays.py", "hdf5.py", "records.py", "maths", "formats", "adapt")
# What temperatures, estimates and errors depend on.
FITTING = (*TRAINING, "estimators", "calibrate", "evaluate")


def code_sha256(*parts: str, folder: Path = COVCAL) -> str:
    """Return a hash of modules, and of all modules of packages, in a folder; each must be there."""
    digest = hashlib.sha256()
    for part in parts:
        path = folder / part
        for module in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(module.read_bytes())
    return digest.hexdigest()
