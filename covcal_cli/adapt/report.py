"""What ``adapt`` tells its caller when it is done."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class MemberReport:
    """How one member fared.

    Attributes
    ----------
    steps : int
        Steps after which its networks were kept.
    stop_reason : str
        ``"overlap"`` (enough effective rows), ``"discriminator won"`` (the paper's rule) or
        ``"schedule ended"``.
    forecaster_loss, discriminator_loss : float
        Mean training losses between the last two checks.
    probe_accuracy : float
        Balanced accuracy of a fresh linear probe on validation rows; 0.5: domains look alike.
    ess_share, mean_weight : float
        Of the weights that the final discriminator on psi gives to source validation rows.
    domain_error : float
        Class-balanced squared error of that discriminator on validation rows; 0.25: chance.
    weighted_brier, weighted_brier_control : float
        Importance-weighted Brier score of the aligned forecaster on labelled source validation
        rows, and its control-variate form. Lower is better; no label of the target is used.
    target_agreement : float
        Share of target validation rows where its label is the classifier's.
    """

    steps: int
    stop_reason: str
    forecaster_loss: float
    discriminator_loss: float
    probe_accuracy: float
    ess_share: float
    mean_weight: float
    domain_error: float
    weighted_brier: float
    weighted_brier_control: float
    target_agreement: float


@dataclass(frozen=True)
class AdaptReport:
    """What ``covcal adapt`` prints.

    Attributes
    ----------
    preset, device : str
        As used; `device` is ``"cpu"`` or ``"cuda"``.
    seed, threads : int
    n_features, n_inputs : int
        Width of phi, and of what psi sees (principal components).
    counts : mapping of str to int
        Rows used, by ``"source train"``, ``"labelled source train"``, ``"source validation"``,
        ``"labelled source validation"``, ``"target train"`` and ``"target validation"``.
    members : tuple of MemberReport
    domain_error : float
        Class-balanced squared error on validation rows of the discriminator on phi.
    networks_sha256 : str
    warnings : tuple of str
        In plain words, each with what to do.
    """

    preset: str
    device: str
    seed: int
    threads: int
    n_features: int
    n_inputs: int
    counts: Mapping[str, int]
    members: tuple[MemberReport, ...]
    domain_error: float
    networks_sha256: str
    warnings: tuple[str, ...]
