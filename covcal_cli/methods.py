"""The methods of ``covcal calibrate``: whose logits each scales, and what its T_f answers to.

T_f minimises a loss on labelled source validation rows, each with a weight:

| method       | logits scaled by T_f | weight of a source validation row                 |
|--------------|----------------------|---------------------------------------------------|
| none         | the classifier's     | - (T = 1)                                         |
| temp         | the classifier's     | 1; its T is T_s                                   |
| iw+temp      | the classifier's     | 1/g(phi) - 1/2                                    |
| fl+temp      | the aligned          | 1                                                 |
| fl+iw+temp   | the aligned          | 1/g(psi(phi)) - 1/2                               |
| weights-only | the fullest          | 1/g - 1                                           |
| label-shift  | the classifier's     | target over source frequency of its class (RLLS)  |

or makes the mean confidence on the target what the accuracy there is estimated to be:

| method       | logits scaled by T_f | the accuracy that is matched                      |
|--------------|----------------------|---------------------------------------------------|
| cot          | the classifier's     | COT's; T_f is never below T_s                     |
| fl+cot       | the aligned          | COT's                                             |
| atc          | the classifier's     | ATC's                                             |
| transcal     | the classifier's     | TransCal's                                        |
| utdc         | the classifier's     | COT's, bin by bin                                 |

and `pseudocal` fits the classifier's T_f to mixtures of target rows. `autorule` says what ``auto``
takes. `LABELLED` is the method of ``covcal calibrate-labelled`` and of no other command.

Who reads which rows. A logistic discriminator is fitted on training rows of both domains, T_g on
validation rows of both; T_s, T_f and weights on labelled source validation rows. Estimates read
those, and target training and validation rows. No target label is read.
"""

from dataclasses import dataclass
from typing import Literal

from covcal_cli.featurefile import FeatureFile

Forecaster = Literal["original", "aligned"]
Need = Literal["importance weights", "estimate"]
MIN_ERRORS = 5
"""With fewer errors among the validation rows, T below 1 is not considered."""
MIN_ROWS = 2
"""An estimate reads at least this many rows of each domain."""


@dataclass(frozen=True)
class Method:
    """One row of the tables above.

    Attributes
    ----------
    name : str
    forecaster : {"original", "aligned"} or None
        None is the aligned forecaster where the file holds one, else the original.
    needs : frozenset of str
        ``"importance weights"``, and ``"estimate"`` for what reads unlabelled target rows.
    takes_prior : bool
        Whether the target's class frequencies matter to it.
    """

    name: str
    forecaster: Forecaster | None
    needs: frozenset[Need] = frozenset()
    takes_prior: bool = False

    @property
    def weighted(self) -> bool:
        """Whether importance weights enter it."""
        return "importance weights" in self.needs

    def forecaster_in(self, file: FeatureFile) -> Forecaster:
        """Return whose logits the method scales in `file`."""
        return self.forecaster or ("aligned" if file.is_adapted else "original")


_WEIGHTS = frozenset[Need]({"importance weights"})
_ESTIMATE = frozenset[Need]({"estimate"})
METHODS = {
    method.name: method
    for method in (
        Method("none", "original"),
        Method("temp", "original"),
        Method("iw+temp", "original", _WEIGHTS),
        Method("fl+temp", "aligned"),
        Method("fl+iw+temp", "aligned", _WEIGHTS),
        Method("weights-only", None, _WEIGHTS),
        Method("label-shift", "original", _ESTIMATE),
        Method("cot", "original", _ESTIMATE, takes_prior=True),
        Method("fl+cot", "aligned", _ESTIMATE, takes_prior=True),
        Method("atc", "original", _ESTIMATE),
        Method("transcal", "original", _WEIGHTS | _ESTIMATE),
        Method("utdc", "original", _ESTIMATE, takes_prior=True),
        Method("pseudocal", "original", _ESTIMATE),
    )
}
AUTO = "auto"
LABELLED = Method("labelled", "original")
SOURCE_PRIOR = "source"
"""``--target-prior`` when nothing is said: every class is as frequent as on the source."""


def method_named(name: str) -> Method:
    """Return the method that a cal.json names as used; raise KeyError for another name."""
    return LABELLED if name == LABELLED.name else METHODS[name]


def missing_for(file: FeatureFile, method: Method, labelled: int) -> str | None:
    """Return what `file` lacks for `method` with the remedy, or None when it lacks nothing.

    `labelled` counts its labelled source validation rows.
    """
    if method.forecaster == "aligned" and not file.is_adapted:
        return "an adapted file: run covcal adapt first"
    if "estimate" in method.needs:
        lacking = missing_for_estimate(file, labelled)
        if lacking is not None:
            return lacking
    return missing_for_weights(file) if method.weighted else None


def missing_for_estimate(file: FeatureFile, labelled: int) -> str | None:
    """Return what `file` lacks for an estimate of the target accuracy, or None."""
    if file.target is None:
        return "a target domain: extract it together with the source"
    if len(file.target.rows("train")) + len(file.target.rows("validation")) < MIN_ROWS:
        return f"{MIN_ROWS} target training or validation rows ({file.target.counts()})"
    if labelled < MIN_ROWS:
        return f"{MIN_ROWS} labelled source validation rows, not {labelled}"
    if len(file.classes) < 2:
        return "a classifier with at least 2 classes"
    return None


def missing_for_weights(file: FeatureFile) -> str | None:
    """Return what `file` lacks for importance weights, or None."""
    if file.target is None:
        return "a target domain: extract it together with the source"
    if len(file.target.rows("validation")) == 0:
        return f"target validation rows ({file.target.counts()})"
    if file.is_adapted:
        return None
    source = file.require_source()
    if source.n_features is None or file.target.n_features is None:
        return "features of both domains: extract them again with features"
    for domain in (source, file.target):
        if len(domain.rows("train")) == 0:
            return f"training rows of both domains ({domain.counts()})"
    return None
