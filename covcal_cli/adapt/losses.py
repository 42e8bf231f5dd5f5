"""Losses per member; a sum over members trains each as if it were alone."""

import torch
from torch import Tensor
from torch.nn import functional

from covcal_cli.adapt.settings import Loss


def forecaster_loss(logits: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """Return each member's mean loss over its labelled rows, shape (M,).

    Logits are of shape (M, n, K), labels of shape (M, n); rows with label -1 do not count. The
    squared loss is the Brier score, summed over classes.
    """
    known = labels >= 0
    safe = labels.clamp(min=0)
    if loss == "squared":
        truth = functional.one_hot(safe, logits.shape[2]).to(logits.dtype)
        rows = (torch.softmax(logits, dim=2) - truth).square().sum(dim=2)
    else:
        rows = -torch.log_softmax(logits, dim=2).gather(2, safe.unsqueeze(2)).squeeze(2)
    return (rows * known).sum(dim=1) / known.sum(dim=1).clamp(min=1)


def domain_loss(source: Tensor, target: Tensor, loss: Loss) -> Tensor:
    """Return each member's class-balanced discriminator loss, shape (M,).

    `source` (M, n) and `target` (M, m) are logits of "came from the source".
    """
    if loss == "squared":
        from_source = (1.0 - torch.sigmoid(source)).square()
        from_target = torch.sigmoid(target).square()
    else:
        from_source, from_target = functional.softplus(-source), functional.softplus(target)
    return (from_source.mean(dim=1) + from_target.mean(dim=1)) / 2
