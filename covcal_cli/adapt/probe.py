"""A fresh linear probe, which tells whether the domains can still be told apart on psi.

The discriminator that psi was trained against says nothing (it can be fooled while a new one tells
the domains apart at 99 %), so alignment is judged by a logistic regression fitted from scratch.
"""

import torch
from torch import Tensor

PROBE_ROWS = 3000
_RIDGE = 1e-3
_NEWTON_STEPS = 12


def probe_logits(source: Tensor, target: Tensor, rows: Tensor) -> Tensor:
    """Return the logits of "came from the source", (M, r) float64, of `rows`, (M, r, p).

    One class-balanced logistic regression per member is fitted on `source`, (M, n, p), and
    `target`, (M, m, p).
    """
    inputs = torch.cat([source, target], dim=1).double()
    centre, spread = inputs.mean(dim=1, keepdim=True), inputs.std(dim=1, keepdim=True)
    spread = spread.clamp(min=1e-9)
    design = _with_intercept((inputs - centre) / spread)
    n_source, n_target = source.shape[1], target.shape[1]
    truth = torch.zeros(design.shape[:2], dtype=torch.float64, device=design.device)
    truth[:, :n_source] = 1.0
    share = torch.full_like(truth, 0.5 / n_target)
    share[:, :n_source] = 0.5 / n_source
    ridge = torch.full((design.shape[2],), _RIDGE, dtype=torch.float64, device=design.device)
    ridge[-1] = 1e-9
    weights = torch.zeros((len(design), design.shape[2], 1), dtype=torch.float64).to(design.device)
    for _ in range(_NEWTON_STEPS):
        chance = torch.sigmoid(torch.bmm(design, weights).squeeze(2))
        residual = share * (chance - truth)
        gradient = torch.bmm(design.transpose(1, 2), residual.unsqueeze(2))
        gradient = gradient + ridge[:, None] * weights
        curvature = (share * chance * (1 - chance)).clamp(min=share * 1e-6).unsqueeze(2)
        hessian = torch.bmm(design.transpose(1, 2), design * curvature) + torch.diag(ridge)
        move = torch.linalg.solve(hessian, gradient)
        weights = weights - move
        if float(move.abs().max()) < 1e-5:
            break
    return torch.bmm(_with_intercept((rows.double() - centre) / spread), weights).squeeze(2)


def balanced_accuracy(source: Tensor, target: Tensor) -> Tensor:
    """Return the mean of both domains' share on the right side of 0, shape (M,)."""
    right_source = (source > 0).double().mean(dim=1)
    right_target = (target <= 0).double().mean(dim=1)
    return (right_source + right_target) / 2


def _with_intercept(values: Tensor) -> Tensor:
    return torch.cat([values, torch.ones_like(values[:, :, :1])], dim=2)
