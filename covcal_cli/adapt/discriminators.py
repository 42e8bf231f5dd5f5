"""The paper's source discriminator (Section 6): one hidden layer, dropout, squared error."""

import torch
from torch import Tensor

from covcal_cli.adapt.losses import domain_loss
from covcal_cli.adapt.networks import Dropout, Perceptrons, member_generators
from covcal_cli.adapt.optimiser import ScheduledOptimiser
from covcal_cli.adapt.progress import Progress, ProgressCallback
from covcal_cli.adapt.rows import RowStream, TrainingRows
from covcal_cli.adapt.settings import DiscriminatorSettings


def train_discriminators(
    rows: TrainingRows,
    psi: Perceptrons | None,
    settings: DiscriminatorSettings,
    *,
    seed: int,
    members: int,
    purpose: int,
    device: torch.device,
    progress: ProgressCallback,
) -> tuple[Perceptrons, Tensor]:
    """Train one discriminator per member on fixed inputs.

    Parameters
    ----------
    psi : Perceptrons or None
        Frozen feature map whose outputs are the inputs; None: the rows themselves.
    purpose : int
        Keeps the random stream apart from those of other stages.

    Returns
    -------
    Perceptrons
        Per member the weights with the least validation error.
    Tensor, shape (members,)
        That error: class-balanced, squared, on validation rows; 0.25 is chance.
    """
    generators = member_generators(seed, members, purpose)

    @torch.no_grad()
    def mapped(inputs: Tensor) -> Tensor:
        return inputs.expand(members, -1, -1) if psi is None else psi(inputs)

    held_out = [mapped(domain.validation[None]) for domain in (rows.source, rows.target)]
    widths = (held_out[0].shape[2], settings.hidden, 1)
    network = Perceptrons.create(widths, generators, device, xavier=True)
    best, least = network.copy(), torch.full((members,), torch.inf)
    stale = torch.zeros(members, dtype=torch.int64)
    dropout = Dropout(settings.dropout, generators)
    schedule = settings.schedule
    optimiser = ScheduledOptimiser([(network.parameters(), 1.0)], schedule, rows.larger)
    streams = [RowStream(len(d.train), generators) for d in (rows.source, rows.target)]
    total, interval = schedule.total_steps(rows.larger), schedule.check_interval(rows.larger)
    for start in range(0, total, interval):
        steps = min(interval, total - start)
        source, target = (stream.take(steps, schedule.batch).to(device) for stream in streams)
        for step in range(steps):
            inputs = [rows.source.train[source[step]], rows.target.train[target[step]]]
            logits = network(mapped(torch.cat(inputs, dim=1)), dropout).squeeze(2)
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
