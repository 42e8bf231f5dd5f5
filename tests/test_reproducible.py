"""The same input and seed give the same bytes of calibration and evaluation.

What extract and adapt write twice is compared in test_extract.py and test_adapt.py.
"""

import shutil
from pathlib import Path

from covcal_cli.files import sha256_of
from tests.cli_runner import covcal


def test_calibrate_and_evaluate(small_files: Path, tmp_path: Path) -> None:
    """cal.json and metrics.json are the same on a second run, in another folder too."""
    hashes = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        shutil.copy(small_files / "adapted.h5", folder)
        covcal("calibrate", "adapted.h5", cwd=folder).require_success()
        covcal("evaluate", "-o", "metrics.json", cwd=folder).require_success()
        hashes.append((sha256_of(folder / "cal.json"), sha256_of(folder / "metrics.json")))
    assert hashes[0] == hashes[1]
