"""Rows counted in bins and ranked, as production counts and ranks them, for tests of metrics."""

from covcal_cli.arrays import Booleans, Floats
from covcal_cli.evaluate.bins import GroupBins, ReliabilityBins, bin_edges, confidence_block
from covcal_cli.evaluate.ranked import RankedRows, RowCollector


def binned(confidence: Floats, correct: Booleans, bins: int = 15) -> ReliabilityBins:
    """Count rows in equally wide bins."""
    counted = GroupBins(bins)
    counted.add(confidence_block(confidence, correct, bin_edges(bins)))
    return counted.together()


def ranked(confidence: Floats, correct: Booleans) -> RankedRows:
    """Rank rows by their confidence."""
    collector = RowCollector()
    collector.add(confidence, correct)
    return collector.ranked()
