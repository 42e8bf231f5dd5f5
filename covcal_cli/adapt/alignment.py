"""Train the feature network psi, the forecaster's head and the domain discriminator D-bar together.

The head predicts the labels of source rows, and the discriminator predicts the domain of a row. Psi
learns features from which the head predicts well. A gradient reversal layer also trains psi to
mislead the discriminator (Ganin et al. 2016). At every check, a new linear classifier (a "probe")
tests whether psi still separates the domains. The probe finds differences that the discriminator
misses (MATHEMATICS, section 5).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from covcal_cli.adapt.perceptrons import (
    Dropout,
    Perceptrons,
    ScheduledOptimiser,
    domain_loss,
    forecaster_loss,
    input_gradient_penalty,
    member_generators,
    reverse_gradient,
)
from covcal_cli.adapt.settings import Settings
from covcal_cli.adapt.training_rows import RowStream, TrainingRows, spread_rows
from covcal_cli.arrays import Float32s, Float64s, Floats
from covcal_cli.errors import CovcalError
from covcal_cli.maths.weights import fit_logistic, importance_weights
from covcal_cli.progress import Progress, ProgressCallback

PROBE_ROWS = 3000  # Largest number of rows per domain for a probe.
_PURPOSE = 1  # See `member_generators`.
EVALUATION_BLOCK = 16384
_FIRST_CHECK = 200  # The first step after which a probe may end the training.
_MEAN_WEIGHT_TOLERANCE = 0.1


@dataclass
class MemberTrace:
    """A report on the alignment of one ensemble member."""

    steps: int  # The training step at which the networks were stored.
    stop_reason: str
    losses: list[dict[str, float]]  # The mean losses and the domain overlap at each check.


@dataclass(frozen=True)
class Alignment:
    """The aligned networks of all ensemble members."""

    psi: Perceptrons
    head: Perceptrons
    traces: list[MemberTrace]


class Aligner:
    """A trainer for the feature networks, heads and discriminators of all ensemble members."""

    def __init__(
        self, rows: TrainingRows, settings: Settings, seed: int, device: torch.device
    ) -> None:
        self._rows, self._settings, self._device = rows, settings, device
        members = settings.members
        self._generators = member_generators(seed, members, _PURPOSE)
        widths = settings.psi_widths
        self.psi = Perceptrons.create(
            (rows.width, *widths), self._generators, device, output_relu=settings.psi_output_relu
        )
        self.head = Perceptrons.create((widths[-1], rows.n_classes), self._generators, device)
        self.discriminator = Perceptrons.create(
            (widths[-1], settings.discriminator_hidden, 1), self._generators, device, xavier=True
        )
        self._dropout = Dropout(settings.dropout, self._generators)
        self._streams = (
            RowStream(len(rows.source.train), self._generators),
            RowStream(len(rows.target.train), self._generators),
        )
        self._optimiser = ScheduledOptimiser(
            [
                (self.psi.parameters() + self.head.parameters(), 1.0),
                (self.discriminator.parameters(), settings.discriminator_speed),
            ],
            settings.schedule,
            rows.larger,
        )
        self._kept = (self.psi.copy(), self.head.copy())
        self._averaged = (self.psi.copy(), self.head.copy())
        self._iteration = 0

    def losses(self, source_rows: Tensor, target_rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return forecaster loss, discriminator loss and gradient penalty, each of shape (M,).

        `source_rows` and `target_rows` are row numbers, (M, batch) int64.
        """
        settings, rows = self._settings, self._rows
        batch = source_rows.shape[1]
        inputs = torch.cat([rows.source.train[source_rows], rows.target.train[target_rows]], dim=1)
        aligned = self.psi(inputs)
        logits = self.head(self._dropout(aligned[:, :batch]))
        reversed_ = reverse_gradient(aligned, settings.reversal(self._iteration))
        domain, hidden = self.discriminator.forward(reversed_, self._dropout)
        fit = forecaster_loss(logits, rows.labels[source_rows], settings.loss)
        fooled = domain_loss(domain[:, :batch, 0], domain[:, batch:, 0], settings.loss)
        if settings.penalty == 0.0:
            return fit, fooled, torch.zeros_like(fit)
        return fit, fooled, input_gradient_penalty(self.discriminator, hidden)

    def run(self, progress: ProgressCallback) -> Alignment:
        """Train until every member has stopped, or the schedule ends."""
        settings = self._settings
        schedule, larger = settings.schedule, self._rows.larger
        total, interval = schedule.total_steps(larger), schedule.check_interval(larger)
        running = set(range(settings.members))
        traces = [MemberTrace(total, "schedule ended", []) for _ in running]
        good = [0] * settings.members  # How many checks in a row found overlapping domains.
        while self._iteration < total and running:
            # Stopped networks are trained further, because their steps take no extra time.
            steps = min(interval, total - self._iteration)
            means = self._train(steps)
            checks = self._checks()
            for member in sorted(running):
                trace = traces[member]
                trace.losses.append(
                    {"step": self._iteration}
                    | {name: float(values[member]) for name, values in (means | checks).items()}
                )
                good[member] = (
                    good[member] + 1 if domains_overlap(trace.losses[-1], settings.stop_ess) else 0
                )
                most = settings.stop_discriminator_error
                if most is not None and trace.losses[-1]["training_domain_error"] < most:
                    # Keep the networks of the previous check. The first check has no previous
                    # networks, so store the current networks.
                    trace.steps = max(interval, self._iteration - steps)
                    trace.stop_reason = "discriminator won"
                    running.discard(member)
                    if len(trace.losses) > 1:
                        continue
                elif good[member] == 2:
                    trace.steps, trace.stop_reason = self._iteration, "overlap"
                    running.discard(member)
                for best, current in zip(self._kept, self._current(), strict=True):
                    best.take_members(current, [member])
            progress(Progress("align", self._iteration, total, self._shown(checks)))
        return Alignment(*self._kept, traces)

    def _train(self, steps: int) -> dict[str, Tensor]:
        settings = self._settings
        batch = settings.schedule.batch
        source, target = (stream.take(steps, batch).to(self._device) for stream in self._streams)
        sums = torch.zeros((2, settings.members), device=self._device)
        for step in range(steps):
            fit, fooled, penalty = self.losses(source[step], target[step])
            loss = (settings.forecaster_weight * fit + fooled + settings.penalty * penalty).sum()
            self._optimiser.step(loss, self._iteration)
            sums += torch.stack([fit.detach(), fooled.detach()])
            self._iteration += 1
            self._average()
        forecaster, discriminator = (sums / steps).cpu()
        return {"forecaster": forecaster, "discriminator": discriminator}

    @torch.no_grad()
    def _shown(self, checks: Mapping[str, Tensor]) -> dict[str, str]:
        numbers = {}
        labels = spread_rows(self._rows.validation_labels, PROBE_ROWS)
        is_labelled = labels >= 0
        if is_labelled.any():
            psi, head = self._current()
            inputs = spread_rows(self._rows.source.validation, PROBE_ROWS)[is_labelled]
            wrong = head(psi(inputs[None])).argmax(dim=2) != labels[is_labelled]
            numbers["source error"] = f"{100 * float(wrong.double().mean()):.0f} %"
        if "ess_share" in checks:
            numbers["effective rows (quick check)"] = (
                f"{100 * float(checks['ess_share'].mean()):.0f} %"
            )
        return numbers

    def _average(self) -> None:
        if self._settings.averaging == 0.0:
            return
        # Begin with a small decay, so that the average soon forgets the initial weights.
        decay = min(self._settings.averaging, self._iteration / (self._iteration + 10))
        with torch.no_grad():
            for mean, now in zip(self._averaged, (self.psi, self.head), strict=True):
                for average, value in zip(mean.parameters(), now.parameters(), strict=True):
                    average.lerp_(value, 1.0 - decay)

    def _current(self) -> tuple[Perceptrons, Perceptrons]:
        return (self.psi, self.head) if self._settings.averaging == 0.0 else self._averaged

    def _checks(self) -> dict[str, Tensor]:
        if self._settings.stop_discriminator_error is not None:
            return {"training_domain_error": self._training_domain_error()}
        if self._settings.stop_ess is None or self._iteration < _FIRST_CHECK:
            return {}
        return probe_overlap(self._current()[0], self._rows)

    @torch.no_grad()
    def _training_domain_error(self) -> Tensor:
        def errors(rows: Tensor, truth: float) -> Tensor:
            total = torch.zeros(self._settings.members, device=self._device)
            for block in torch.split(rows, EVALUATION_BLOCK):
                chance = torch.sigmoid(self.discriminator(self.psi(block[None])).squeeze(2))
                total += (chance - truth).square().sum(dim=1)
            return (total / len(rows)).cpu()

        return (errors(self._rows.source.train, 1.0) + errors(self._rows.target.train, 0.0)) / 2


def domains_overlap(check: Mapping[str, float], least: float | None) -> bool:
    """Return whether the domains overlap enough to stop the training."""
    if least is None or "ess_share" not in check:
        return False
    near_one = abs(check["mean_weight"] - 1.0) <= _MEAN_WEIGHT_TOLERANCE
    return near_one and check["ess_share"] >= least


def diverged() -> CovcalError:
    """Return the error for networks whose weights are not finite."""
    return CovcalError(
        "training diverged, because the features or the weight decay are too large: use "
        "--preset default, or less weight decay"
    )


@torch.no_grad()
def probe_overlap(psi: Perceptrons, rows: TrainingRows) -> dict[str, Tensor]:
    """Fit a linear probe on training rows, and measure its domain overlap on validation rows."""
    domains = (rows.source, rows.target)
    train = [psi(spread_rows(domain.train, PROBE_ROWS)[None]).cpu().numpy() for domain in domains]
    probes = [fit_probe(source, target) for source, target in zip(*train, strict=True)]
    # Store only logits, because the features of all rows may not fit into memory.
    logits: list[Float64s] = []
    for domain in domains:
        blocks = [
            np.stack([probe(x) for probe, x in zip(probes, aligned, strict=True)])
            for aligned in (
                psi(block[None]).cpu().numpy()
                for block in torch.split(domain.validation, EVALUATION_BLOCK)
            )
        ]
        logits.append(np.concatenate(blocks, axis=1))
    checks: list[tuple[float, float, float]] = []
    for source, target in zip(*logits, strict=True):
        health = importance_weights(source[None], target[None]).health
        accuracy = balanced_accuracy(source, target)
        checks.append((accuracy, health.ess_share, health.mean_weight))
    names = ("probe_accuracy", "ess_share", "mean_weight")
    return dict(zip(names, torch.tensor(checks).unbind(dim=1), strict=True))


def fit_probe(source: Float32s, target: Float32s) -> Callable[[Float32s], Float64s]:
    """Fit a logistic regression that predicts the domain.

    Returns a function from rows, (r, p), to logits, (r,). A positive logit predicts the source
    domain.
    """
    both = np.concatenate([source, target]).astype(np.float64)
    centre, spread = both.mean(axis=0), np.maximum(both.std(axis=0, ddof=1), 1e-9)

    def blocks() -> Iterator[tuple[Floats, float, float]]:
        # Each domain has half of the total weight.
        yield (source - centre) / spread, 1.0, 0.5 / len(source)
        yield (target - centre) / spread, 0.0, 0.5 / len(target)

    weights = fit_logistic(blocks, len(centre))
    if weights is None:  # The loss is convex, so the fit fails only if inputs are not finite.
        raise diverged()

    def probe(rows: Float32s) -> Float64s:
        return np.asarray((rows - centre) / spread @ weights[:-1] + weights[-1])

    return probe


def balanced_accuracy(source: Float64s, target: Float64s) -> float:
    """Return the balanced accuracy of the predicted domains."""
    return float(((source > 0).mean() + (target <= 0).mean()) / 2)
