"""Costs of wrong classes and of reviews, and the share of rows that is cheapest to accept.

costs.json is an object with `review`, the cost of a row that a person reviews, and `wrong`, that of
an accepted row with a wrong class. `pairs` is an optional list of objects with `true`, `predicted`
and `cost`, which replace `wrong` for single pairs of classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import Float64s, Labels
from covcal_cli.errors import CovcalError
from covcal_cli.formats.decision import CostPoint
from covcal_cli.records import json_of

_POINTS = 200  # shares that are compared
_MOST = 1e100  # the largest cost; the square of a larger one may be infinite


@dataclass(frozen=True)
class Costs:
    """The cost of a review, and of each pair of classes."""

    review: float
    wrong: Float64s  # true class by predicted class, (K, K); the diagonal is 0

    def of_accepted(self, probabilities: Float64s, labels: Labels) -> Float64s:
        """Return the expected cost of accepting each row, shape (m,)."""
        return np.asarray(np.einsum("mk,km->m", probabilities, self.wrong[:, labels]))

    def cheapest(
        self, scores: Float64s, own: Float64s, lowest: Float64s, highest: Float64s
    ) -> CostPoint:
        """Return the share of the best rows whose acceptance costs least, with the cost's range.

        `own` is the expected cost of accepting each row, and `lowest` and `highest` are those at
        both ends of the estimated accuracy.
        """
        m, order = len(scores), np.argsort(-scores, kind="stable")
        sizes = np.unique(np.linspace(0, m, min(m, _POINTS) + 1).round().astype(np.int64))
        totals = []
        for costs in (own, lowest, highest):
            accepted = np.concatenate([[0.0], np.cumsum(costs[order])])[sizes]
            totals.append((accepted + self.review * (m - sizes)) / m)
        best = int(totals[0].argmin())
        cost, *ends = (float(total[best]) for total in totals)
        share = float(sizes[best]) / m
        return CostPoint(share, cost, min(cost, *ends), max(cost, *ends), self.review)


def read_costs(path: Path, classes: Sequence[str]) -> Costs:
    """Read costs.json for the classes of a file; raise `CovcalError` with the remedy."""
    try:
        content = json_of(path)
    except (OSError, ValueError) as error:
        raise CovcalError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or not {"review", "wrong"} <= content.keys():
        raise CovcalError(f'{path}: costs are an object such as {{"review": 1, "wrong": 10}}')
    unknown = sorted(content.keys() - {"review", "wrong", "pairs"})
    if unknown:
        raise CovcalError(f"{path} has the key {unknown[0]!r}: it may have review, wrong and pairs")
    wrong = np.full((len(classes), len(classes)), _cost(path, "wrong", content["wrong"]))
    np.fill_diagonal(wrong, 0)
    pairs = content.get("pairs", [])
    if not isinstance(pairs, list):
        raise CovcalError(f"{path}: pairs must be a list")
    for pair in pairs:
        if not isinstance(pair, dict) or pair.keys() != {"true", "predicted", "cost"}:
            raise CovcalError(f"{path}: a pair must have true, predicted and cost, not {pair!r}")
        places = []
        for name in ("true", "predicted"):
            if pair[name] not in classes:
                raise CovcalError(f"{path}: {pair[name]!r} is none of the file's classes")
            places.append(classes.index(pair[name]))
        if places[0] == places[1]:
            raise CovcalError(f"{path}: {pair['true']!r} predicted as itself is right: no cost")
        wrong[places[0], places[1]] = _cost(path, "cost", pair["cost"])
    return Costs(_cost(path, "review", content["review"]), wrong)


def _cost(path: Path, name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _MOST:
        raise CovcalError(
            f"{path}: {name} must be a number of at least 0 and at most {_MOST:g}, not {value!r}"
        )
    return float(value)
