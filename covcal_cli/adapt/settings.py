"""The options of ``covcal adapt``, and the settings of its two presets.

The preset ``default`` was tuned in ``examples/research/choose_adapt_settings.py`` on eight shifts
without MNIST.
"""

from dataclasses import dataclass, replace
from math import tanh
from typing import Literal

from covcal_cli.errors import CovcalError, checked_settings

PRESETS = ("default", "paper")
DEVICES = ("auto", "cpu", "cuda")
Loss = Literal["squared", "cross-entropy"]


@dataclass(frozen=True)
class Schedule:
    """The optimiser, the learning rate and the number of training steps.

    An epoch uses each training row of the larger domain once.
    """

    optimiser: Literal["adamw", "sgd"]  # AdamW with betas (0.5, 0.99), or SGD with momentum 0.9.
    learning_rate: float
    weight_decay: float  # Decoupled weight decay for AdamW, L2 penalty for SGD.
    batch: int  # Number of rows of each domain in a training step.
    steps: int | None = None  # Maximum number of steps; None if `epochs` is given.
    epochs: int | None = None  # Maximum number of epochs; None if `steps` is given.
    check_every: int | None = None  # Number of steps between two checks; None for an epoch.
    warm_up: int = 0  # Number of steps in which the learning rate rises linearly at the start.
    halve_every: int | None = None  # Number of epochs after which the learning rate is halved.

    def steps_per_epoch(self, n_rows: int) -> int:
        """Return the number of steps in an epoch of `n_rows` training rows."""
        return -(-n_rows // self.batch)

    def total_steps(self, n_rows: int) -> int:
        """Return the maximum number of steps."""
        if self.epochs is not None:
            return self.epochs * self.steps_per_epoch(n_rows)
        return self.steps or 0

    def check_interval(self, n_rows: int) -> int:
        """Return the number of steps between two checks."""
        return self.check_every or self.steps_per_epoch(n_rows)

    def rate(self, step: int, n_rows: int) -> float:
        """Return the learning rate of a step."""
        rate = self.learning_rate
        if step < self.warm_up:
            rate *= (step + 1) / self.warm_up
        if self.halve_every is not None:
            rate *= 0.5 ** (step // self.steps_per_epoch(n_rows) // self.halve_every)
        return rate


@dataclass(frozen=True)
class DiscriminatorSettings:
    """The settings of a source discriminator."""

    hidden: int  # Width of the hidden layer.
    dropout: float  # Dropout of the hidden layer.
    schedule: Schedule
    patience: int  # Training stops after this many checks without a smaller validation error.


@dataclass(frozen=True)
class Settings:
    """All settings of the training, except the data and the seed."""

    preset: str
    members: int  # Number of ensemble members, each with its own networks.
    components: int | None  # Number of principal components; None to use the features themselves.
    psi_widths: tuple[int, ...]  # Widths of the layers of psi.
    psi_output_relu: bool  # Whether the last layer of psi has a ReLU.
    discriminator_hidden: int  # Width of the hidden layer of the domain discriminator.
    dropout: float  # Dropout rate before the head and in the domain discriminator.
    loss: Loss  # Loss of the forecaster and of the domain discriminator.
    forecaster_weight: float  # The forecaster's loss has this weight, the discriminator's has 1.
    discriminator_speed: float  # The discriminator's learning rate divided by psi's learning rate.
    # Number of iterations in which the gradient reversal grows from 0 to 1; None for no growth.
    reversal_horizon: int | None
    penalty: float  # Weight of the discriminator's gradient penalty; 0 for no penalty.
    averaging: float  # Decay of the running averages of psi and the head; 0 for no averages.
    # Training stops after two checks with at least this effective sample size (share of the rows).
    stop_ess: float | None
    stop_discriminator_error: float | None  # A lower discriminator error ends the training.
    schedule: Schedule
    discriminator: DiscriminatorSettings

    def reversal(self, iteration: int) -> float:
        """Return the coefficient of the gradient reversal."""
        if self.reversal_horizon is None:
            return 1.0
        # tanh(x / 2) equals 2 / (1 + exp(-x)) - 1, and cannot overflow.
        return tanh(5.0 * iteration / self.reversal_horizon)


def default_settings() -> Settings:
    """Return the settings of the preset "default"."""
    return Settings(
        preset="default",
        members=3,
        components=64,
        psi_widths=(64,),
        psi_output_relu=True,
        discriminator_hidden=128,
        dropout=0.0,
        loss="cross-entropy",
        forecaster_weight=1.0,
        discriminator_speed=3.0,
        reversal_horizon=None,
        penalty=1.0,
        averaging=0.99,
        stop_ess=0.3,
        stop_discriminator_error=None,
        schedule=Schedule("adamw", 1e-3, 0.01, batch=256, steps=1500, check_every=100, warm_up=100),
        discriminator=DiscriminatorSettings(
            hidden=64,
            dropout=0.5,
            schedule=Schedule("adamw", 2e-3, 0.01, batch=256, steps=600, check_every=50),
            patience=4,
        ),
    )


def paper_settings(n_features: int, weight_decay: float | None) -> Settings:
    """Return the paper's settings for LeNet-5, SVHN or ResNet-50, depending on `n_features`."""
    if n_features < 256:
        width, hidden, batch = 84, 84, 200
    elif n_features < 1280:
        width, hidden, batch = 256, 100, 200
    else:
        width, hidden, batch = 1000, 1000, 32
    decay = 5e-4 if weight_decay is None else weight_decay
    schedule = Schedule("sgd", 1e-3, decay, batch=batch, epochs=500, halve_every=100)
    return Settings(
        preset="paper",
        members=1,
        components=None,
        psi_widths=(width,),
        psi_output_relu=True,
        discriminator_hidden=hidden,
        dropout=0.5,
        loss="squared",
        forecaster_weight=1.5,
        discriminator_speed=1.0,
        reversal_horizon=10_000,
        penalty=0.0,
        averaging=0.0,
        stop_ess=None,
        # In the paper, the limit is 0.2 for the sum of both domains' errors.
        stop_discriminator_error=0.10,
        schedule=schedule,
        discriminator=DiscriminatorSettings(hidden, 0.5, schedule, patience=100),
    )


@checked_settings
@dataclass(frozen=True, kw_only=True)
class AdaptSettings:
    """The options of ``covcal adapt``."""

    preset: str = "default"  # "default" or "paper".
    members: int | None = None
    weight_decay: float | None = None  # Weight decay of the preset "paper". None means 5e-4.
    seed: int = 0  # Seed of all random numbers.
    device: str = "auto"  # "cpu", "cuda", or "auto" for CUDA if there is a device.
    threads: int = 1  # With two threads, training can be far slower on a busy machine.

    def __post_init__(self) -> None:
        decay, members = self.weight_decay, self.members
        if self.threads < 1 or self.seed < 0:
            raise CovcalError(
                f"threads must be at least 1, not {self.threads}, and seed at least 0, not "
                f"{self.seed}"
            )
        if self.device not in DEVICES:
            raise CovcalError(f"unknown device {self.device!r}: choose auto, cpu or cuda")
        if self.preset not in PRESETS:
            raise CovcalError(f"unknown preset {self.preset!r}: choose one of {', '.join(PRESETS)}")
        if decay is not None and (self.preset != "paper" or not decay >= 0):
            raise CovcalError(
                f"the preset {self.preset!r} does not allow a weight decay of {decay}: use the "
                "preset 'paper' and a weight decay of at least 0"
            )
        if members is not None and members < 1:
            raise CovcalError(f"members must be at least 1, not {members}")

    def training(self, n_features: int) -> Settings:
        """Return all training settings for `n_features` features."""
        if self.preset == "paper":
            settings = paper_settings(n_features, self.weight_decay)
        else:
            settings = default_settings()
        return settings if self.members is None else replace(settings, members=self.members)
