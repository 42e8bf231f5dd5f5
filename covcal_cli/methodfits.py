"""Every method's fit by its name: the one place where `methods.METHODS` meets what computes it."""

from collections.abc import Callable

from covcal_cli import matched, minimised
from covcal_cli.case import Case
from covcal_cli.fitted import Fitted
from covcal_cli.methods import Method

_FITS: dict[str, Callable[[Case, Method], Fitted]] = {
    "none": minimised.unscaled,
    "temp": minimised.plain,
    "iw+temp": minimised.importance_weighted,
    "fl+temp": minimised.plain,
    "fl+iw+temp": minimised.importance_weighted,
    "weights-only": minimised.importance_weighted,
    "label-shift": minimised.class_weighted,
    "cot": matched.by_transport,
    "fl+cot": matched.by_transport_aligned,
    "atc": matched.by_threshold,
    "transcal": matched.by_control_variates,
    "utdc": matched.by_reliability,
    "pseudocal": matched.on_mixtures,
}


def fit_method(case: Case, method: Method) -> Fitted:
    """Fit a method for which the file lacks nothing (`methods.missing_for`)."""
    return _FITS[method.name](case, method)
