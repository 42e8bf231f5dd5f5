"""``--target-prior``: how often each class occurs on the target, as the user says.

``source`` (as often as on the source), ``uniform``, ``bbse`` (estimated, because it was asked for)
or a JSON file that gives every class name a share; the shares sum to 1.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file
from covcal_cli.labelfree.evidence import Evidence
from covcal_cli.labelfree.label_shift import label_shift

_TOLERANCE = 1e-3


def target_prior(value: str, evidence: Evidence, classes: Sequence[str]) -> Float64s | None:
    """Return the prior that `value` names, shape (K,), sum 1; None stands for the source's.

    Raises
    ------
    CovcalError
        If a file is missing, is not JSON, does not give every class one non-negative number, or
        its shares do not sum to 1 (within 0.001, for shares are often rounded).
    """
    if value == "source":
        return None
    if value == "uniform":
        return np.full(evidence.n_classes, 1 / evidence.n_classes)
    if value == "bbse":
        return label_shift(evidence, "bbse").prior
    return _read(Path(value), classes)


def _read(path: Path, classes: Sequence[str]) -> Float64s:
    require_file(path, remedy='give source, uniform, bbse or a JSON file like {"cat": 0.3, ...}')
    try:
        shares = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CovcalError(f'{path} is not JSON: write {{"{classes[0]}": 0.3, ...}}') from error
    if not isinstance(shares, dict):
        raise CovcalError(f'{path} must give every class a share, like {{"{classes[0]}": 0.3}}')
    for name in classes:
        if name not in shares:
            raise CovcalError(f"{path} has no share for class {name}: give every class one")
    for name, share in shares.items():
        if name not in classes:
            raise CovcalError(f"{path} has a share for {name}, which is no class of the model")
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise CovcalError(f"{path}: the share of {name} is {share!r}: give a number")
        if not (math.isfinite(share) and share >= 0):
            raise CovcalError(f"{path}: the share of {name} is {share}: give 0 or more")
    values = np.array([float(shares[name]) for name in classes])
    if abs(values.sum() - 1) > _TOLERANCE:
        raise CovcalError(
            f"{path}: the shares sum to {values.sum():.6g}, not to 1: give each class its share of "
            "the target's rows"
        )
    return np.asarray(values / values.sum())
