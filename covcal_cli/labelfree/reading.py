"""An `Evidence` read from a file, and nothing that the estimators must not know."""

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Labels, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import Domain, FeatureFile
from covcal_cli.labelfree.evidence import Aligned, Evidence
from covcal_cli.softmax import log_mean_softmax

MAX_ROWS = 50_000
MAX_VALUES = 2_500_000
"""A domain is read up to 50 000 rows and 2.5 million logits (2500 rows at 1000 classes)."""


def read_evidence(
    file: FeatureFile, temperature: float, *, source_weights: Float64s | None = None, seed: int = 0
) -> Evidence:
    """Read labelled source validation rows, and target training and validation rows.

    The target's test rows and all its labels stay unread. More rows than `MAX_ROWS` or
    `MAX_VALUES` allow are thinned by a seeded draw.

    Parameters
    ----------
    file : FeatureFile
        A features or an adapted file; of an adapted one the aligned logits are read too.
    temperature : float
        T_s of the classifier's logits, as the method ``temp`` fits it.
    source_weights : array of float64, shape (labelled source validation rows,), optional
        Importance weights in the order of the file.
    seed : int

    Raises
    ------
    CovcalError
        If a domain is missing or has fewer than 2 rows to read.
    """
    source, target = file.require_source(), file.require_target()
    held = source.require_rows("validation")
    labels = source.labels(held)
    known = labels >= 0
    held, labels = held[known], labels[known]
    chosen = _drawn(len(held), source.n_classes, seed)
    rows = np.sort(np.concatenate([target.rows("train"), target.rows("validation")]))
    target_rows = rows[_drawn(len(rows), source.n_classes, seed)]
    for domain, found in ((source, chosen), (target, target_rows)):
        if len(found) < 2:
            raise CovcalError(
                f"{file.path}: an estimate needs at least 2 labelled source validation rows and 2 "
                f"target training or validation rows ({domain.counts()})"
            )
    source_rows = held[chosen]
    aligned = None
    if file.is_adapted:
        (on_source, source_own), (on_target, target_own) = (
            _aligned(domain, some)
            for domain, some in ((source, source_rows), (target, target_rows))
        )
        aligned = Aligned(on_source, on_target, source_own, target_own)
    return Evidence(
        source_logits=source.logits(source_rows),
        source_labels=labels[chosen],
        target_logits=target.logits(target_rows),
        temperature=temperature,
        aligned=aligned,
        source_weights=None if source_weights is None else source_weights[chosen],
    )


def _drawn(n: int, n_classes: int, seed: int) -> Rows:
    most = min(MAX_ROWS, MAX_VALUES // n_classes)
    if n <= most:
        return np.arange(n, dtype=np.int64)
    return np.sort(np.random.default_rng(seed).choice(n, most, replace=False))


def _aligned(domain: Domain, rows: Rows) -> tuple[Float32s, Labels]:
    """Return log mean softmax, shape (n, K), and every member's label, shape (M, n)."""
    logits = np.empty((len(rows), domain.n_classes), dtype=np.float32)
    own = np.empty((domain.n_members, len(rows)), dtype=np.int64)
    start = 0
    for block in domain.blocks(rows):
        members: Float32s = domain.aligned_logits(block)
        stop = start + len(block)
        logits[start:stop] = log_mean_softmax(members).T
        own[:, start:stop] = members.argmax(axis=2)
        start = stop
    return logits, own
