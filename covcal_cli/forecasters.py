"""Logits of the two forecasters, the classifier and the aligned one, and what T makes of them.

The confidence of a row is the probability that the calibrated forecaster gives to the label which
the ORIGINAL classifier predicted; that label is never changed.
"""

from covcal_cli.alignednetworks import AlignedNetworks
from covcal_cli.arrays import Float64s, Rows
from covcal_cli.featurefile import Domain, ForecasterName
from covcal_cli.maths.softmax import class_major, log_mean_softmax, log_softmax


def forecaster_logits(
    domain: Domain,
    rows: Rows,
    forecaster: ForecasterName,
    networks: AlignedNetworks | None = None,
) -> Float64s:
    """Return the forecaster's logits of `rows`, class-major, shape (K, m).

    The aligned forecaster's are those stored in the file, or those of `networks` on its features.
    """
    if networks is None:
        return class_major(domain.forecaster_logits(rows, forecaster))
    return class_major(log_mean_softmax(networks.aligned_logits(domain, rows)).T)


def log_probabilities(logits: Float64s, temperature: float) -> Float64s:
    """Return calibrated log probabilities, shape (K, m), of class-major logits."""
    return log_softmax(logits - logits.max(axis=0), temperature)
