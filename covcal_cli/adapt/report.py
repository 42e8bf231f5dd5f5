"""The report of ``adapt`` to its caller."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class MemberReport:
    """How one member fared."""

    steps: int  # after which its networks were kept
    # "overlap" (enough effective rows), "discriminator won" (the paper's rule) or "schedule ended".
    stop_reason: str
    forecaster_loss: float  # in training, the mean between the last two checks
    discriminator_loss: float
    # Balanced accuracy of a fresh linear probe on validation rows; 0.5: domains look alike.
    probe_accuracy: float
    # Of the weights that the final discriminator on psi gives to source validation rows, and its
    # class-balanced squared error on validation rows; 0.25: chance.
    ess_share: float
    mean_weight: float
    domain_error: float
    # Importance-weighted Brier score of the aligned forecaster on labelled source validation rows,
    # and its control-variate form. Lower is better; no label of the target is used.
    weighted_brier: float
    weighted_brier_control: float
    target_agreement: float  # share of target validation rows where its label is the classifier's


@dataclass(frozen=True)
class AdaptReport:
    """What ``covcal adapt`` prints."""

    preset: str
    device: str  # as used, "cpu" or "cuda"
    seed: int
    threads: int
    n_features: int  # width of phi, and of what psi sees (principal components)
    n_inputs: int
    # Rows used, by "source train", "labelled source train", "source validation", "labelled source
    # validation", "target train" and "target validation".
    counts: Mapping[str, int]
    members: tuple[MemberReport, ...]
    domain_error: float  # of the discriminator on phi: class-balanced, squared, on validation rows
    networks_sha256: str
    warnings: tuple[str, ...]  # in plain words, each with what to do
