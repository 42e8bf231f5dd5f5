"""Rows counted in bins and ranked, as production counts and ranks them, for tests of metrics."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.evaluate.bins import GroupBins, ReliabilityBins, bin_edges, judged_rows
from covcal_cli.evaluate.ranked import RankedRows, RowCollector


def binned(
    confidence: NDArray[np.floating[Any]], correct: NDArray[np.bool_], bins: int = 15
) -> ReliabilityBins:
    """Count rows in equally wide bins."""
    counted = GroupBins(bins)
    counted.add(judged_rows(confidence, correct, bin_edges(bins)))
    return counted.together()


def ranked(confidence: NDArray[np.floating[Any]], correct: NDArray[np.bool_]) -> RankedRows:
    """Rank rows by their confidence."""
    collector = RowCollector()
    collector.add(confidence, correct)
    return collector.ranked()
