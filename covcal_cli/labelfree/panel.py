"""Every estimate of target accuracy side by side."""

from covcal_cli.labelfree.agreement import agreement
from covcal_cli.labelfree.atc import atc
from covcal_cli.labelfree.confidence import mean_confidence
from covcal_cli.labelfree.cot import cot
from covcal_cli.labelfree.disagreement import worst_case
from covcal_cli.labelfree.doc import doc
from covcal_cli.labelfree.estimate import Estimate
from covcal_cli.labelfree.evidence import Evidence
from covcal_cli.labelfree.weighting import weighted_accuracy
from covcal_cli.softmax import Array


def panel(evidence: Evidence, prior: Array | None = None, *, seed: int = 0) -> tuple[Estimate, ...]:
    """Return every estimate that the evidence allows, the worst case last.

    Parameters
    ----------
    evidence : Evidence
        Agreement needs its aligned forecasters, weighting its importance weights.
    prior : array of float64, shape (K,), optional
        Class frequencies on the target, for COT; by default the source's.
    seed : int
        Chooses the halves of the worst case.
    """
    return (*measures(evidence, cot(evidence, prior)), worst_case(evidence, seed=seed))


def measures(evidence: Evidence, of_cot: Estimate) -> tuple[Estimate, ...]:
    """Return what `panel` does without the worst case, which trains a critic; COT's is given."""
    found = [of_cot, atc(evidence), doc(evidence), mean_confidence(evidence)]
    if evidence.aligned is not None:
        found.append(agreement(evidence))
    if evidence.source_weights is not None:
        found.append(weighted_accuracy(evidence))
    return tuple(found)
