"""The two forecasters of a file, the classifier and the aligned one, and what T makes of them.

The confidence of a row is the probability that the calibrated forecaster gives to the label which
the ORIGINAL classifier predicted (DESIGN 3.6); that label is never changed.
"""

import numpy as np

from covcal_cli.alignednetworks import AlignedNetworks
from covcal_cli.featurefile import Domain, FeatureFile, Floats, Rows
from covcal_cli.methods import Forecaster
from covcal_cli.softmax import Array, LogitBlocks, class_major, exp, log_mean_softmax, log_softmax


def forecaster_blocks(domain: Domain, rows: Rows, forecaster: Forecaster) -> LogitBlocks:
    """Return the forecaster's logits of `rows` as blocks (m, K), read anew at every call."""
    if forecaster == "original":
        return lambda: (domain.logits(block) for block in domain.blocks(rows, "logits"))
    return lambda: (
        forecaster_logits(domain, block, forecaster).T
        for block in domain.blocks(rows, "aligned_logits")
    )


def forecaster_logits(
    domain: Domain, rows: Rows, forecaster: Forecaster, networks: AlignedNetworks | None = None
) -> Array:
    """Return the forecaster's logits of `rows`, class-major, shape (K, m) float64.

    The aligned forecaster's are log mean_m softmax(z_m) over its members: those stored in the file,
    or those that `networks` give on its features.
    """
    if forecaster == "original":
        return class_major(domain.logits(rows))
    return log_mean_softmax(aligned_logits_of(domain, rows, networks))


def aligned_logits_of(domain: Domain, rows: Rows, networks: AlignedNetworks | None) -> Floats:
    """Return the logits of every member, shape (M, m, K): from `networks`, or stored if None."""
    if networks is None:
        return domain.aligned_logits(rows)
    return networks.aligned_logits(domain, rows)


def log_probabilities(logits: Array, temperature: float) -> Array:
    """Return calibrated log probabilities, shape (K, m), of class-major logits."""
    return log_softmax(logits - logits.max(axis=0), temperature)


def target_confidence(
    file: FeatureFile, forecaster: Forecaster, temperature: float
) -> dict[str, float | int | None]:
    """Return the mean confidence in the classifier's labels on target validation rows."""
    rows = None if file.target is None else file.target.rows("validation")
    if file.target is None or rows is None or len(rows) == 0:
        return {"rows": 0, "target_confidence_before": None, "target_confidence": None}
    before = after = 0.0
    for block in file.target.blocks(rows, "logits", "aligned_logits"):
        original = forecaster_logits(file.target, block, "original")
        scaled = forecaster_logits(file.target, block, forecaster)
        label, columns = original.argmax(axis=0), np.arange(len(block))
        before += float(exp(log_probabilities(original, 1.0))[label, columns].sum())
        after += float(exp(log_probabilities(scaled, temperature))[label, columns].sum())
    return {
        "rows": len(rows),
        "target_confidence_before": before / len(rows),
        "target_confidence": after / len(rows),
    }
