"""The methods of ``covcal calibrate``: what each scales, what each weighs, and how auto chooses.

| method     | logits scaled by T_f | weight of a source validation row |
|------------|----------------------|-----------------------------------|
| none       | the classifier's     | - (T = 1)                         |
| temp       | the classifier's     | 1                                 |
| iw+temp    | the classifier's     | 1/g(phi) - 1/2                    |
| fl+temp    | the aligned          | 1                                 |
| fl+iw+temp | the aligned          | 1/g(psi(phi)) - 1/2               |

``auto`` takes the fullest method that the file allows when the importance weights pass both
thresholds below, else the same method without them. The thresholds were chosen on the shifts of
``examples/choose_auto_thresholds.py``, no MNIST shift among them: under 5 % a weighted fit changed
the ECE of fl+temp by -7 to +23 points, above both by -2.5 to +1.3 and by -0.7 on average.

Who reads which rows: a logistic discriminator is fitted on training rows of both domains, T_g on
validation rows of both, T_f and the weights on labelled source validation rows, and the mean
confidence on target validation rows. No target label is read.
"""

from dataclasses import dataclass
from typing import Literal

from covcal_cli.featurefile import FeatureFile
from covcal_cli.weights import WeightHealth

Forecaster = Literal["original", "aligned"]
MIN_ESS_SHARE = 0.05
"""auto uses weights only if the domains overlap: ess of at least this share of the rows."""
MIN_ESS_FIT = 100.0
"""auto uses weights only if T_f rests on at least this many effective rows."""
MIN_ERRORS = 5
"""With fewer errors among the validation rows, T below 1 is not considered."""


@dataclass(frozen=True)
class Method:
    """One row of the table above.

    Attributes
    ----------
    name : str
    forecaster : {"original", "aligned"}
    weighted : bool
    scaled : bool
        Whether T_f is fitted at all.
    """

    name: str
    forecaster: Forecaster
    weighted: bool
    scaled: bool = True

    def unweighted(self) -> "Method":
        """Return the same method without importance weights."""
        return METHODS[self.name.replace("iw+", "")]


METHODS = {
    method.name: method
    for method in (
        Method("none", "original", weighted=False, scaled=False),
        Method("temp", "original", weighted=False),
        Method("iw+temp", "original", weighted=True),
        Method("fl+temp", "aligned", weighted=False),
        Method("fl+iw+temp", "aligned", weighted=True),
    )
}
AUTO = "auto"


def missing_for(file: FeatureFile, method: Method) -> str | None:
    """Return what `file` lacks for `method` with the remedy, or None when it lacks nothing."""
    if method.forecaster == "aligned" and not file.is_adapted:
        return "an adapted file: run covcal adapt first"
    if not method.weighted:
        return None
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


def choose(fullest: Method, health: WeightHealth) -> tuple[Method, str]:
    """Return auto's choice between `fullest` and the same method unweighted, and the reason."""
    plain = fullest.unweighted()
    if health.ess_share < MIN_ESS_SHARE:
        return plain, (
            f"{plain.name} without importance weights, as the domains hardly overlap: the weights "
            f"are worth {health.ess:.1f} of {health.n} rows, under {MIN_ESS_SHARE:.0%}"
        )
    if health.ess_fit < MIN_ESS_FIT:
        return plain, (
            f"{plain.name} without importance weights, as a weighted fit would rest on "
            f"{health.ess_fit:.0f} effective rows, under {MIN_ESS_FIT:.0f}"
        )
    return fullest, (
        f"{fullest.name}, as the weights pass both thresholds: they are worth "
        f"{health.ess_share:.0%} of {health.n} rows, and {health.ess_fit:.0f} in the fit"
    )
