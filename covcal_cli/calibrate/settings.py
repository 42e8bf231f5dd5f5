"""The settings of ``covcal estimate`` and ``covcal calibrate``."""

from dataclasses import dataclass

from covcal_cli.arguments import checked_settings
from covcal_cli.calibrate.methods import (
    AUTO,
    AUTO_LABELS,
    LABELS,
    MARKED_LABELS,
    METHODS,
    SOURCE_PRIOR,
    TAKE_PRIOR,
)
from covcal_cli.errors import CovcalError
from covcal_cli.maths.temperature import ROW_LOSSES, Loss
from covcal_cli.maths.weights import DEFAULT_MAX_WEIGHT
from covcal_cli.records import require_at_least, require_one_of

NO_PRIOR = (
    "the class frequencies on the target: give --target-prior uniform, or a JSON file with a share "
    "per class (bbse estimates them)"
)


@checked_settings
@dataclass(frozen=True, kw_only=True)
class EstimateSettings:
    """The settings of ``covcal estimate``, which every method reads too."""

    max_weight: float = DEFAULT_MAX_WEIGHT  # U, the limit of importance weights
    # Labels to use: "marked" (those of covcal label), "none", or "auto" (those of covcal label, if
    # any). A number means this many random target rows with known labels (calibrate only).
    labels: str | int = AUTO_LABELS
    # Class frequencies on the target: source, uniform, bbse, or a JSON file with a share per class.
    target_prior: str = SOURCE_PRIOR
    # The shares themselves, if they are known. They replace a file.
    prior_shares: tuple[float, ...] | None = None
    seed: int = 0  # chooses rows where there are more than the fits use

    def __post_init__(self) -> None:
        if not 1 <= self.max_weight <= 1e100:
            raise CovcalError(f"max_weight must be a number from 1 to 1e100, not {self.max_weight}")
        require_at_least("seed", self.seed, 0)
        if isinstance(self.labels, str):
            require_one_of("labels", self.labels, LABELS)
        else:
            require_at_least("labels", self.labels, 1)
        if self.fits_labels and self.target_prior != SOURCE_PRIOR:
            raise CovcalError("use either --labels or --target-prior, not both")

    @property
    def fits_labels(self) -> bool:
        """Whether the user asked for labels."""
        return self.labels == MARKED_LABELS or not isinstance(self.labels, str)

    @property
    def takes_labels(self) -> bool:
        """Whether labels of covcal label are used, if there are any; not if a prior is given."""
        return self.labels == MARKED_LABELS or (
            self.labels == AUTO_LABELS and self.target_prior == SOURCE_PRIOR
        )


@checked_settings
@dataclass(frozen=True, kw_only=True)
class CalibrateSettings(EstimateSettings):
    """The settings of ``covcal calibrate``."""

    method: str = AUTO  # "auto", or a key of `METHODS`
    loss: Loss = "brier"  # what fitted temperatures minimise
    allow_limit: bool = False  # accept a T at a limit of its search interval

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("method", self.method, (AUTO, *METHODS))
        require_one_of("loss", self.loss, ROW_LOSSES)
        if self.target_prior != SOURCE_PRIOR and self.method not in TAKE_PRIOR:
            raise CovcalError(
                f"method {self.method} does not use a target prior: leave out --target-prior, or "
                f"choose one of {', '.join(TAKE_PRIOR)}"
            )
        if self.fits_labels and self.method != AUTO:
            raise CovcalError(
                f"method {self.method} does not use labels: leave out --labels, or choose {AUTO}"
            )
        method = METHODS.get(self.method)
        if method is not None and method.needs_prior and self.target_prior == SOURCE_PRIOR:
            raise CovcalError(f"method {self.method} needs {NO_PRIOR}")


DEFAULTS = CalibrateSettings()
