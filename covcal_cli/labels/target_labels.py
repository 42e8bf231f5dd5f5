"""Read target labels, for ``evaluate``, ``watch`` and ``calibrate --labels N`` only.

``pick`` asks only which test rows have a label, and ``label`` adds labels of test rows. ``adapt``,
``estimate`` and ``calibrate`` see only labels that users give, and labels that the option
``--labels N`` asks for (MATHEMATICS, section 10). A test lists the modules that import this module.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Labels, Rows
from covcal_cli.errors import CovcalError, require_at_least
from covcal_cli.formats.features import SPLITS, Domain, FeatureFile, read_labels, thinned_blocks
from covcal_cli.labels.draws import MAX_FRAME, Batch, Draw


def target_labels(target: Domain, rows: Rows) -> Labels:
    """Return the labels of target `rows`, shape (m,) int64; -1 for an unknown label."""
    return read_labels(target, rows)


def labelled_rows(target: Domain, *splits: str) -> Rows:
    """Return the numbers of the target rows with a known label, ascending."""
    return np.concatenate([np.empty(0, dtype=np.int64), *_labelled(target, *splits)])


def random_labels(path: str | Path, n: int, seed: int = 0) -> Draw:
    """Draw `n` labelled target rows at random from all splits.

    Raises
    ------
    CovcalError
        If the file has no target, or fewer than `n` labelled target rows.
    """
    require_at_least("labels", n, 1)
    require_at_least("seed", seed, 0)
    with FeatureFile(Path(path)) as file:
        target = file.require_target()
        population = sum(len(block) for block in _labelled(target, *SPLITS))
        if population == 0:
            raise CovcalError(
                f"{target.path} has no target labels, but --labels {n} needs some: extract a "
                "target with labels, or leave out --labels"
            )
        if population < n:
            raise CovcalError(
                f"{target.path} has only {population} labelled target rows, but --labels asks "
                f"for {n}: ask for fewer labels"
            )
        rows, frame = (
            thinned_blocks(_labelled(target, *SPLITS), population, most, seed)
            for most in (n, MAX_FRAME)
        )
        return Draw(
            rows=rows,
            inclusion=np.full(n, n / population),
            batch=np.zeros(n, dtype=np.int64),
            stratum=np.arange(n),
            labels=target_labels(target, rows),
            batches=(Batch(n, population, seed, SPLITS, "random"),),
            frame=frame,
            design="random",
        )


def _labelled(target: Domain, *splits: str) -> Iterator[Rows]:
    for rows in target.split_blocks(*splits):
        yield rows[target_labels(target, rows) >= 0]
