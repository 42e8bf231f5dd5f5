"""List all methods of ``covcal calibrate``.

To add a method, add an entry here and a function in `fits`. Every command loads this module, so it
imports nothing else.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from covcal_cli.formats.calibration import Calibration
    from covcal_cli.maths.softmax import Forecasters
    from covcal_cli.records import Guard
# The data that a method can need. An "estimate" needs unlabelled target rows.
Need = Literal["importance weights", "estimate", "target prior"]


@dataclass(frozen=True)
class Method:
    """A calibration method."""

    name: str
    # The logits that the method scales. None stands for the logits of `Problem.fullest`.
    forecaster: "Forecasters | None"
    fit: str
    help: str
    needs: frozenset[Need] = frozenset()
    takes_prior: bool = False
    # whether auto lists the method in cal.json
    candidate: bool = False
    main: bool = False  # whether `calibrate --help` lists the method first
    reads_all_classes: bool = False

    @property
    def needs_adapt(self) -> bool:
        """Whether the method scales the logits of adapted networks."""
        return self.forecaster in ("aligned", "blend")

    @property
    def gains_by_adapt(self) -> bool:
        """Whether the method uses results of adapt."""
        return self.forecaster != "original" or "importance weights" in self.needs

    @property
    def reads_cot(self) -> bool:
        """Whether the method uses COT, which is slow with many classes."""
        return self.fit.startswith("by_transport")

    @property
    def needs_prior(self) -> bool:
        """Whether the user must give the class frequencies on the target."""
        return "target prior" in self.needs


AUTO = "auto"
AUTO_HELP = "use labels or a target prior if given, else an estimate"
AUTO_LABELS, MARKED_LABELS, NO_LABELS = "auto", "marked", "none"
LABELS = AUTO_LABELS, MARKED_LABELS, NO_LABELS
SOURCE_PRIOR = "source"
BBSE_PRIOR = "bbse"
_WEIGHT_CHECKS = ("effective sample share", "effective sample size", "discriminator error")
_WEIGHTS = frozenset[Need]({"importance weights"})
_ESTIMATE = frozenset[Need]({"estimate"})
_PRIOR = frozenset[Need]({"estimate", "target prior"})
METHODS = {
    method.name: method
    for method in (
        Method("none", "original", "unscaled", "no calibration, T = 1", candidate=True, main=True),
        Method(
            "temp",
            "original",
            "minimised",
            "temperature scaling, fitted to labelled source rows",
            candidate=True,
            main=True,
        ),
        Method(
            "iw+temp",
            "original",
            "importance_weighted",
            "temperature scaling with importance-weighted source rows",
            _WEIGHTS,
            candidate=True,
        ),
        Method(
            "fl+temp",
            "aligned",
            "minimised",
            "temperature scaling of the networks from covcal adapt",
            candidate=True,
        ),
        Method(
            "fl+iw+temp",
            "aligned",
            "importance_weighted",
            "importance-weighted temperature scaling of adapt's networks",
            _WEIGHTS,
            candidate=True,
        ),
        Method(
            "weights-only",
            None,
            "weights_alone",
            "temperature scaling with the importance weights 1/g - 1",
            _WEIGHTS,
        ),
        Method(
            "label-shift",
            "original",
            "class_weighted",
            "temperature scaling with source rows weighted by class (RLLS)",
            _ESTIMATE,
            reads_all_classes=True,
        ),
        Method(
            "cot",
            "original",
            "by_transport",
            "match confidence to the accuracy that COT estimates",
            _ESTIMATE,
            takes_prior=True,
            candidate=True,
            reads_all_classes=True,
        ),
        Method(
            "fl+cot",
            "aligned",
            "by_transport_aligned",
            "match the confidence of adapt's networks to COT's estimate",
            _ESTIMATE,
            takes_prior=True,
            candidate=True,
            reads_all_classes=True,
        ),
        Method(
            "prior",
            "original",
            "by_prior",
            "temperature scaling, then a correction for --target-prior",
            _PRIOR,
            takes_prior=True,
            candidate=True,
            main=True,
            reads_all_classes=True,
        ),
        Method(
            "prior+cot",
            "original",
            "by_prior_and_transport",
            "match confidence to COT's estimate, adjust for --target-prior",
            _PRIOR,
            takes_prior=True,
            candidate=True,
            reads_all_classes=True,
        ),
        Method(
            "consensus",
            "original",
            "by_consensus",
            "match confidence to the combined estimate of the accuracy",
            _ESTIMATE,
            takes_prior=True,
            candidate=True,
        ),
        Method(
            "blend",
            "blend",
            "by_consensus",
            "mean of the calibrated classifier and adapt's networks",
            _ESTIMATE,
            takes_prior=True,
            candidate=True,
        ),
        Method(
            "atc",
            "original",
            "by_threshold",
            "match confidence to the accuracy that ATC estimates",
            _ESTIMATE,
        ),
    )
}
TAKE_PRIOR = (AUTO, *(name for name, method in METHODS.items() if method.takes_prior))


def checks_of(calibration: "Calibration") -> "tuple[list[Guard], list[Guard]]":
    """Return the checks of the method, and separately the checks of unused importance weights."""
    method = METHODS.get(calibration.method_used)
    weighted = method is not None and "importance weights" in method.needs
    unused = [] if weighted else [g for g in calibration.guards if g.name in _WEIGHT_CHECKS]
    return [guard for guard in calibration.guards if guard not in unused], unused
