"""Every estimate of target accuracy side by side."""

from covcal_cli.labelfree.agreement import agreement
from covcal_cli.labelfree.atc import atc
from covcal_cli.labelfree.confidence import mean_confidence
from covcal_cli.labelfree.doc import doc
from covcal_cli.labelfree.estimate import Estimate
from covcal_cli.labelfree.evidence import Evidence
from covcal_cli.labelfree.weighting import weighted_accuracy


def panel(evidence: Evidence, of_cot: Estimate) -> tuple[Estimate, ...]:
    """Return every estimate that the evidence allows; COT's is given.

    Agreement needs the evidence's aligned forecasters, weighting its importance weights.
    """
    found = [of_cot, atc(evidence), doc(evidence), mean_confidence(evidence)]
    if evidence.aligned is not None:
        found.append(agreement(evidence))
    if evidence.source_weights is not None:
        found.append(weighted_accuracy(evidence))
    return tuple(found)
