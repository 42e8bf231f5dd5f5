"""The paper's source discriminator (Section 6): one hidden layer, dropout, squared error."""

import torch
from torch import Generator, Tensor

from covcal_cli.adapt.losses import domain_loss
from covcal_cli.adapt.networks import Dropout, Perceptrons
from covcal_cli.adapt.optimiser import ScheduledOptimiser
from covcal_cli.adapt.rows import RowStream, TrainingRows, spread_rows
from covcal_cli.adapt.settings import DiscriminatorSettings
from covcal_cli.progress import Progress, ProgressCallback

MAX_ROWS = 50_000
"""Training rows of a domain that a discriminator sees at most: psi of them is kept in memory."""


def train_discriminators(
    rows: TrainingRows,
    psi: Perceptrons | None,
    settings: DiscriminatorSettings,
    *,
    generators: list[Generator],
    device: torch.device,
    progress: ProgressCallback,
) -> tuple[Perceptrons, Tensor]:
    """Train one discriminator per member on fixed inputs.

    The inputs are psi, which is frozen, of the rows, or the rows themselves where it is None; one
    generator per member draws everything random. Return per member the weights with the least
    error on validation rows, and that error, shape (M,): class-balanced, squared; 0.25 is chance.
    """
    members = len(generators)

    @torch.no_grad()
    def mapped(inputs: Tensor) -> Tensor:
        return inputs.expand(members, -1, -1) if psi is None else psi(inputs)

    domains = (rows.source, rows.target)
    fitted = [mapped(spread_rows(domain.train, MAX_ROWS)[None]) for domain in domains]
    held_out = [mapped(domain.validation[None]) for domain in domains]
    widths = (held_out[0].shape[2], settings.hidden, 1)
    network = Perceptrons.create(widths, generators, device, xavier=True)
    best, least = network.copy(), torch.full((members,), torch.inf)
    stale = torch.zeros(members, dtype=torch.int64)
    dropout = Dropout(settings.dropout, generators)
    schedule = settings.schedule
    larger = max(inputs.shape[1] for inputs in fitted)
    optimiser = ScheduledOptimiser([(network.parameters(), 1.0)], schedule, larger)
    streams = [RowStream(inputs.shape[1], generators) for inputs in fitted]
    total, interval = schedule.total_steps(larger), schedule.check_interval(larger)
    every = torch.arange(members, device=device)[:, None]
    for start in range(0, total, interval):
        steps = min(interval, total - start)
        source, target = (stream.take(steps, schedule.batch).to(device) for stream in streams)
        for step in range(steps):
            inputs = [fitted[0][every, source[step]], fitted[1][every, target[step]]]
            logits = network(torch.cat(inputs, dim=1), dropout).squeeze(2)
            loss = domain_loss(logits[:, : schedule.batch], logits[:, schedule.batch :], "squared")
            optimiser.step(loss.sum(), start + step)
        with torch.no_grad():
            scores = [network(inputs).squeeze(2) for inputs in held_out]
            error = domain_loss(scores[0], scores[1], "squared").cpu()
        # A member that has run out of patience keeps its best weights whatever the others do.
        better = (error < least) & (stale < settings.patience)
        best.take_members(network, better.nonzero().flatten().tolist())
        least = torch.where(better, error, least)
        stale = torch.where(better, 0, stale + 1)
        progress(Progress("discriminators", start + steps, total, {"error": float(error.mean())}))
        if bool((stale >= settings.patience).all()):
            break
    return best, least
