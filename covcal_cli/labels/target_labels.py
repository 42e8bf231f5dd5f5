"""The one reader of target labels: for ``evaluate``, and ``calibrate --labels N`` alone.

Nothing else that trains or fits imports this module, and a test keeps it so: covcal's promise is
that no label of the target reaches ``adapt``, ``estimate`` or ``calibrate`` that a user did not
mark or ask for (MATHEMATICS, section 10).
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Labels, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import SPLITS, Domain, FeatureFile, read_labels, thinned_places
from covcal_cli.labels.labelled_draw import MAX_FRAME, LabelledDraw
from covcal_cli.records import require_at_least


def target_labels(target: Domain, rows: Rows) -> Labels:
    """Return the labels of target `rows`, shape (m,) int64; -1 where unknown."""
    return read_labels(target, rows)


def random_labels(path: str | Path, n: int, seed: int = 0) -> LabelledDraw:
    """Return `n` of a file's labelled target rows of any split, by a seeded draw.

    Raises
    ------
    CovcalError
        If the file has no target, or fewer labelled target rows.
    """
    require_at_least("labels", n, 1)
    require_at_least("seed", seed, 0)
    with FeatureFile(Path(path)) as file:
        target = file.require_target()
        population = sum(len(block) for block in _labelled(target))
        if population == 0:
            raise CovcalError(
                f"{target.path} has no target labels, and --labels {n} needs some: extract a "
                "labelled target, or leave --labels out, which needs none"
            )
        if population < n:
            raise CovcalError(
                f"{target.path} has {population} labelled target rows, not {n}: ask for fewer "
                "--labels"
            )
        rows, frame = (_drawn(target, population, most, seed) for most in (n, MAX_FRAME))
        return LabelledDraw(
            population=population,
            frame=frame,
            rows=rows,
            labels=target_labels(target, rows),
            inclusion=np.full(n, n / population),
            batch=np.zeros(n, dtype=np.int64),
            design="random",
            seed=seed,
        )


def _drawn(target: Domain, population: int, most: int, seed: int) -> Rows:
    """Return at most `most` of the labelled rows by a seeded draw, ascending."""
    places = None if population <= most else thinned_places(population, most, seed)
    found, start = [], 0
    for block in _labelled(target):
        stop = start + len(block)
        if places is not None:
            first, last = np.searchsorted(places, (start, stop))
            block = block[places[first:last] - start]
        found.append(block)
        start = stop
    return np.concatenate(found)


def _labelled(target: Domain) -> Iterator[Rows]:
    """Yield the rows that have a label, ascending, some at a time."""
    for rows in target.split_blocks(*SPLITS):
        yield rows[target_labels(target, rows) >= 0]
