"""What fitting one method gives: a temperature, and what it rests on."""

from dataclasses import dataclass

from covcal_cli.methods import Forecaster, Method
from covcal_cli.records import Guard
from covcal_cli.temperature import Limit
from covcal_cli.weights import ImportanceWeights


@dataclass(frozen=True)
class Fitted:
    """A method's temperature on one file.

    Attributes
    ----------
    method : Method
    forecaster : {"original", "aligned"}
        Whose logits `temperature` scales.
    temperature : float
        T_f.
    loss, loss_before : float
        Mean loss of labelled source validation rows, weighted as in the fit, at T_f and at T = 1.
    at_limit : {"lower", "upper"} or None
        The end of the search interval that T_f stands at.
    guards : tuple of Guard
    weights : ImportanceWeights or None
        Those that entered.
    notes, warnings : tuple of str
    """

    method: Method
    forecaster: Forecaster
    temperature: float
    loss: float
    loss_before: float
    at_limit: Limit | None = None
    guards: tuple[Guard, ...] = ()
    weights: ImportanceWeights | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
