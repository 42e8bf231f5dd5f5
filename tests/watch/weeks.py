"""Made weeks: a calibration, and files of later rows that have moved or not."""

from pathlib import Path

import numpy as np

from tests import calibrating
from tests.made_files import Arrays, clusters_domain, only_rows, write_features

SIZES = (300, 300, 100)
WEEK = (120, 60, 20)


def calibrated(folder: Path, method: str = "temp") -> Path:
    """Write features.h5 and cal.json to a folder."""
    source, target = clusters_domain("source", sizes=SIZES), clusters_domain("target", sizes=SIZES)
    write_features(folder / "features.h5", source=source, target=target)
    return calibrating.calibrated(folder / "features.h5", method)


def week(path: Path, seed: int, moved: float = 0.0, prior: list[float] | None = None) -> Path:
    """Write a file with a target alone."""
    target = clusters_domain("later", sizes=WEEK, moved=moved, prior=prior, seed=seed)
    return alone(path, target)


def alone(path: Path, target: Arrays) -> Path:
    """Write a file whose source has no row to speak of."""
    source = only_rows(clusters_domain("source", sizes=SIZES), np.arange(2))
    return write_features(path, source=source, target=target)
