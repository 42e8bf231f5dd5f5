"""Calibrations of made files: of two equal files, only the first is fitted to."""

import json
from pathlib import Path
from typing import Any

from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.problem import CalibrateSettings
from covcal_cli.files import sha256_of
from covcal_cli.records import write_document

_MADE: dict[tuple[str, str, str], str] = {}


def calibrated(file: Path, method: str, name: str = "cal.json", **temperatures: Any) -> Path:
    """Write the calibration of a file beside it, with these temperatures instead of its own."""
    path, key = file.with_name(name), (sha256_of(file), file.name, method)
    if key not in _MADE:
        # The command makes the same file, and would read the features file twice.
        settings = CalibrateSettings(method=method, allow_limit=True)
        write_document(calibrate(file, settings), path, force=True)
        _MADE[key] = path.read_text(encoding="utf-8")
    path.write_text(_MADE[key], encoding="utf-8")
    if temperatures:
        content = json.loads(_MADE[key])
        content["temperatures"] |= temperatures
        write_document(content, path, force=True)
    return path
