"""Where the real data and classifiers of tests marked ``real`` lie."""

import os
from pathlib import Path

import pytest

from tests import REPOSITORY

_DEFAULT = REPOSITORY.parent / "shared" / "data"


def real_data(name: str) -> Path:
    """Return a file of the real data folder, or skip the test with the reason."""
    path = Path(os.environ.get("COVCAL_REAL_DATA", _DEFAULT)) / name
    if not path.exists():
        pytest.skip(f"{name} is missing: set COVCAL_REAL_DATA to the folder that holds it")
    return path
