"""The table of the methods of ``covcal calibrate``.

To add one, add an entry here and the function that it names. What the command line offers, its
help, what `calibrate` fits, what ``auto`` looks at and what ``run`` needs are read off the table.
It imports nothing, as every start of the command line reads it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from covcal_cli.maths.scaling import Forecasters
# The estimate reads unlabelled target rows; the prior is one that the user gives.
Need = Literal["importance weights", "estimate", "target prior"]


@dataclass(frozen=True)
class Method:
    """One way to a temperature T_f, and perhaps to class offsets."""

    name: str
    # Whose logits are scaled: the classifier's, those learnt by adapt, or both; None: the second
    # where the file holds them, else the first.
    forecaster: "Forecasters | None"
    # module.function that fits it: minimises a loss on labelled source validation rows (on_source),
    # answers to unlabelled target rows (on_target), or corrects for a prior too (on_prior).
    fit: str
    help: str
    needs: frozenset[Need] = frozenset()
    takes_prior: bool = False  # whether the target's class frequencies matter to it
    candidate: bool = False  # whether auto reports it beside its choice

    @property
    def needs_adapt(self) -> bool:
        """Whether it scales logits that only an adapted file holds."""
        return self.forecaster in ("aligned", "blend")

    @property
    def gains_by_adapt(self) -> bool:
        """Whether it reads what adapt learns: aligned logits, or the network's weights."""
        return self.forecaster != "original" or "importance weights" in self.needs

    @property
    def needs_prior(self) -> bool:
        """Whether the target's class frequencies must be given."""
        return "target prior" in self.needs


AUTO = "auto"
AUTO_HELP = "by marked labels, a known prior, or consensus (or temp)"
AUTO_LABELS, MARKED_LABELS, NO_LABELS = "auto", "marked", "none"
LABELS = AUTO_LABELS, MARKED_LABELS, NO_LABELS  # which labels of target rows are fitted to
SOURCE_PRIOR = "source"  # every class is as frequent as on the source, if nothing else is said
BBSE_PRIOR = "bbse"  # estimated, not known
_WEIGHTS = frozenset[Need]({"importance weights"})
_ESTIMATE = frozenset[Need]({"estimate"})
_PRIOR = frozenset[Need]({"estimate", "target prior"})
METHODS = {
    method.name: method
    for method in (
        Method(
            "none",
            "original",
            "on_source.unscaled",
            "the classifier as it is, T = 1",
            candidate=True,
        ),
        Method(
            "temp",
            "original",
            "on_source.plain",
            "one temperature on the classifier's own logits",
            candidate=True,
        ),
        Method(
            "iw+temp",
            "original",
            "on_source.importance_weighted",
            "source rows weighted to look like the target, by 1/g - 1/2",
            _WEIGHTS,
            candidate=True,
        ),
        Method(
            "fl+temp",
            "aligned",
            "on_source.plain",
            "on the logits learnt by adapt",
            candidate=True,
        ),
        Method(
            "fl+iw+temp",
            "aligned",
            "on_source.importance_weighted",
            "the same, weighted",
            _WEIGHTS,
            candidate=True,
        ),
        Method(
            "weights-only",
            None,
            "on_source.weights_alone",
            "weighted by 1/g - 1 alone",
            _WEIGHTS,
        ),
        Method(
            "label-shift",
            "original",
            "on_source.class_weighted",
            "source rows weighted by their class's frequency (RLLS)",
            _ESTIMATE,
        ),
        Method(
            "cot",
            "original",
            "on_target.by_transport",
            "whose mean target confidence is the accuracy estimated there",
            _ESTIMATE,
            takes_prior=True,
            candidate=True,
        ),
        Method(
            "fl+cot",
            "aligned",
            "on_target.by_transport_aligned",
            "cot on the logits learnt by adapt",
            _ESTIMATE,
            takes_prior=True,
            candidate=True,
        ),
        Method(
            "prior",
            "original",
            "on_prior.alone",
            "temp, and log odds moved to the given --target-prior",
            _PRIOR,
            takes_prior=True,
            candidate=True,
        ),
        Method(
            "prior+cot",
            "original",
            "on_prior.with_transport",
            "prior, at the T whose mean confidence is cot's accuracy",
            _PRIOR,
            takes_prior=True,
            candidate=True,
        ),
        Method(
            "consensus",
            "original",
            "on_target.by_consensus",
            "like cot, with the estimate that estimate acts on, T >= 1",
            _ESTIMATE,
            takes_prior=True,
            candidate=True,
        ),
        Method(
            "blend",
            "blend",
            "on_target.by_consensus",
            "half of consensus, half of the same on adapt's logits",
            _ESTIMATE,
            takes_prior=True,
            candidate=True,
        ),
        Method(
            "atc",
            "original",
            "on_target.by_threshold",
            "like cot, with ATC's estimate (by confidence, not entropy)",
            _ESTIMATE,
        ),
        Method(
            "transcal",
            "original",
            "on_target.by_control_variates",
            "like cot, with TransCal's estimate (lambda by a rule), T >= 1",
            _WEIGHTS | _ESTIMATE,
        ),
        Method(
            "utdc",
            "original",
            "on_target.by_reliability",
            "cot's accuracy (not a trained one), met bin by bin",
            _ESTIMATE,
            takes_prior=True,
        ),
        Method(
            "pseudocal",
            "original",
            "on_target.on_mixtures",
            "fitted on mixtures of target rows' logits, not inputs",
            _ESTIMATE,
        ),
    )
}
TAKE_PRIOR = (AUTO, *(name for name, method in METHODS.items() if method.takes_prior))
