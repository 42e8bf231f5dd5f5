"""Estimators on logits that each domain has centred by its own mean.

A shift moves the logits of all rows alike: a darker image favours the same few classes whatever it
shows. That part of it says nothing about a single row, and confidence cannot tell it from evidence.
With the mean of every class's logit taken out, domain by domain, rows of one class lie where rows
of that class lay on the source, and who has left the others' company is wrong. Both take the
classes to be about as frequent as on the source: where they are not, that too is taken out.
"""

import numpy as np

from covcal_cli.arrays import Booleans, Float32s, Float64s, Floats, Labels
from covcal_cli.estimators.evidence import Estimate, Evidence, from_variance, variance_of_mean
from covcal_cli.formats.features import thinned
from covcal_cli.maths.masks import masked

NEIGHBOURS = 10
_MOST_ROWS = 5000  # of a domain: distances are between all pairs
_BLOCK = 1000
_FREQUENCIES = "and classes are about as frequent as on the source"
NEIGHBOURS_ASSUMPTION = (
    "a row that the shift makes the classifier get wrong lies among source rows of another class, "
    f"once each domain's logits are standardised by themselves, {_FREQUENCIES}"
)
BALANCE_ASSUMPTION = (
    "the shift adds to the logits of a class what it adds to their mean, so that a row is wrong "
    f"if it has another label without, {_FREQUENCIES}"
)


def neighbours(evidence: Evidence) -> Estimate:
    """Estimate the target accuracy by the labels of the nearest source rows.

    Every row looks at its 10 nearest labelled source validation rows, by the cosine between
    standardised logits: row by row less their mean, then class by class less the domain's mean and
    by its standard deviation. The share of them that has the classifier's label falls from source
    (a row is not its own neighbour) to target: the estimate is A_v + (share on the target - on the
    source). At most 5000 rows of a domain are read.
    """
    chosen = thinned(np.arange(evidence.n_source), _MOST_ROWS, 0)
    labels, source = evidence.source_labels[chosen], _directions(evidence.source_logits[chosen])
    rows = thinned(np.arange(evidence.n_target), _MOST_ROWS, 0)
    target = _directions(evidence.target_logits[rows])
    on_source = _shares(source, labels, source, evidence.source_predictions[chosen], itself=True)
    on_target = _shares(source, labels, target, evidence.target_predictions[rows], itself=False)
    right = evidence.source_correct
    accuracy = float(right.mean() - on_source.mean() + on_target.mean())
    variance = variance_of_mean(right[chosen] - on_source) + variance_of_mean(on_target)
    return from_variance("neighbours", accuracy, variance, NEIGHBOURS_ASSUMPTION)


def balance(evidence: Evidence) -> Estimate:
    """Estimate the target accuracy by the labels that stay when classes are balanced anew.

    Logits of the target, row by row less their mean, are moved class by class so that their mean
    is the source's. The estimate is A_v less the share of rows whose label that changes.
    """
    source, _ = _row_centred(evidence.source_logits)
    target, out = _row_centred(evidence.target_logits)
    moved = target - target.mean(axis=0) + source.mean(axis=0)
    changed = np.where(out, -np.inf, moved).argmax(axis=1) != evidence.target_predictions
    right = evidence.source_correct
    variance = variance_of_mean(right) + variance_of_mean(changed.astype(np.float64))
    accuracy = float(right.mean() - changed.mean())
    return from_variance("balance", accuracy, variance, BALANCE_ASSUMPTION)


def _row_centred(logits: Floats) -> tuple[Float64s, Booleans]:
    """Return logits less the mean of their row, 0 where a class is masked, and what is masked."""
    out = masked(logits)
    values = np.where(out, 0.0, logits).astype(np.float64)
    values -= (values.sum(axis=1) / (~out).sum(axis=1))[:, None]
    values[out] = 0.0
    return values, out


def _directions(logits: Floats) -> Float32s:
    """Return standardised rows of length 1, shape (n, K); a row or class without any stays 0."""
    values, _ = _row_centred(logits)
    values -= values.mean(axis=0)
    sizes = values.std(axis=0)
    values /= np.where(sizes > 0, sizes, 1.0)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    values /= np.where(lengths > 0, lengths, 1.0)
    return values.astype(np.float32)


def _shares(
    source: Float32s, labels: Labels, rows: Float32s, wanted: Labels, *, itself: bool
) -> Float64s:
    """Return the share of every row's nearest source rows that have the label it wants, (n,)."""
    count = min(NEIGHBOURS, len(source) - 1)
    found = np.empty(len(rows))
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        cosines = rows[part] @ source.T
        if itself:  # the rows are the source's: none is its own neighbour
            places = np.arange(len(cosines))
            cosines[places, start + places] = -np.inf
        nearest = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
        found[part] = (labels[nearest] == wanted[part, None]).mean(axis=1)
    return found
