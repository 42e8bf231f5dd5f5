"""``covcal calibrate-labelled``: a temperature fitted to some labelled target rows.

For people who have a few target labels. Besides `evaluate` this is the only module that reads
them; its cal.json says so and names the rows, which ``evaluate`` leaves out.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Labels, Rows
from covcal_cli.calibrate.problem import (
    fitted_fields,
    require_inside,
    warnings_on_reading,
    warnings_on_temperature,
)
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.guards import enough_errors, not_at_limit
from covcal_cli.formats.calibration import Calibration, LabelledRows
from covcal_cli.formats.features import SPLITS, Domain, FeatureFile, thinned_places
from covcal_cli.formats.scaling import Scaling
from covcal_cli.formats.target_labels import target_labels
from covcal_cli.maths.temperature import MIN_ERRORS, ROW_LOSSES, Loss, fit_temperature
from covcal_cli.maths.weights import DEFAULT_MAX_WEIGHT
from covcal_cli.records import require_at_least, require_one_of

_METHOD = "labelled"
_ROWS = "labelled target rows"


@dataclass(frozen=True, kw_only=True)
class LabelledSettings:
    """What ``covcal calibrate-labelled`` can be told."""

    rows: int  # how many labelled rows to draw, at least 1
    loss: Loss = "brier"  # what T minimises
    seed: int = 0  # chooses the rows
    allow_limit: bool = False  # take a T at a limit of its interval

    def __post_init__(self) -> None:
        require_at_least("rows", self.rows, 1)
        require_one_of("loss", self.loss, ROW_LOSSES)
        require_at_least("seed", self.seed, 0)


def calibrate_labelled(path: str | Path, settings: LabelledSettings) -> Calibration:
    """Fit T of the classifier's own logits to labelled target rows of any split.

    Raises
    ------
    CovcalError
        If the file has no target, or fewer labelled target rows, or T is at a limit of its
        interval.
    """
    rows, seed = settings.rows, settings.seed
    with FeatureFile(Path(path)) as file:
        target = file.require_target()
        chosen, labels = _drawn(target, rows, seed)
        logits = target.logits(chosen)
        errors = int((logits.argmax(axis=1) != labels).sum())
        fit = fit_temperature(
            logits, labels, loss=settings.loss, allow_sharpening=errors >= MIN_ERRORS, seed=seed
        )
        ids = sorted(target.ids(chosen))
        scaling = Scaling("original", fit.temperature)
        fitted = fitted_fields(file, scaling, fit, rows, errors, seed=seed)
        warnings = warnings_on_temperature(fit, errors, rows, of=_ROWS)
        warnings += warnings_on_reading(fitted["source_accuracy"], scaling)
        found = Calibration(
            method=_METHOD,
            method_used=_METHOD,
            reason=f"asked for, with the labels of {rows} target rows",
            discriminator_temperatures=(),
            discriminator=None,
            max_weight=DEFAULT_MAX_WEIGHT,
            loss=settings.loss,
            weights=None,
            bound=None,
            seed=seed,
            warnings=tuple(warnings),
            guards=(
                enough_errors(errors, rows, of=_ROWS),
                not_at_limit(fit.temperature, fit.at_limit),
            ),
            used_target_labels=True,
            labelled_rows=LabelledRows(
                n=rows,
                seed=seed,
                sha256=hashlib.sha256("\n".join(ids).encode("utf-8")).hexdigest(),
                ids=tuple(ids),
            ),
            notes=(),
            **fitted,
        )
        return require_inside(file.path, found, allow_limit=settings.allow_limit)


def _drawn(target: Domain, n: int, seed: int) -> tuple[Rows, Labels]:
    """Return `n` labelled rows by a seeded draw, ascending, and their labels."""
    known = sum(len(block) for block in _labelled(target))
    if known == 0:
        raise CovcalError(
            f"{target.path} has no target labels, and calibrate-labelled needs some: extract a "
            "labelled target, or use covcal calibrate, which needs none"
        )
    if known < n:
        raise CovcalError(
            f"{target.path} has {known} labelled target rows, not {n}: ask for fewer --rows"
        )
    places = thinned_places(known, n, seed)
    found, start = [], 0
    for block in _labelled(target):
        first, last = np.searchsorted(places, (start, start + len(block)))
        found.append(block[places[first:last] - start])
        start += len(block)
    rows = np.concatenate(found)
    return rows, target_labels(target, rows)


def _labelled(target: Domain) -> Iterator[Rows]:
    """Yield the rows that have a label, ascending, some at a time."""
    for rows in target.split_blocks(*SPLITS):
        yield rows[target_labels(target, rows) >= 0]
