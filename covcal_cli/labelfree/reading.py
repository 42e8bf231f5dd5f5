"""An `Evidence` read from a file, and nothing that the estimators must not know."""

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Labels, Rows
from covcal_cli.formats.features import Domain, FeatureFile, thinned
from covcal_cli.labelfree.evidence import Aligned, Evidence
from covcal_cli.maths.softmax import log_mean_softmax

MAX_ROWS = 50_000
MAX_VALUES = 2_500_000
"""A domain is read up to 50 000 rows and 2.5 million logits (2500 rows at 1000 classes)."""


def read_evidence(
    file: FeatureFile, temperature: float, *, source_weights: Float64s | None = None, seed: int = 0
) -> Evidence:
    """Read labelled source validation rows, and target training and validation rows.

    The target's test rows and all its labels stay unread. More rows than `MAX_ROWS` or
    `MAX_VALUES` allow are thinned by a seeded draw.

    Of an adapted file the aligned logits are read too. `temperature` is T_s of the classifier's
    logits, `source_weights` are importance weights of the labelled source validation rows in the
    order of the file.

    Raises
    ------
    CovcalError
        If a domain is missing.
    """
    source, target = file.require_source(), file.require_target()
    held = source.require_rows("validation")
    labels = source.labels(held)
    known = labels >= 0
    held, labels = held[known], labels[known]
    most = min(MAX_ROWS, MAX_VALUES // source.n_classes)
    chosen = thinned(np.arange(len(held)), most, seed)
    rows = np.sort(np.concatenate([target.rows("train"), target.rows("validation")]))
    target_rows = thinned(rows, most, seed)
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
