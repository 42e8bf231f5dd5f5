"""Losses of softmax(z / T) row by row, with their derivatives with respect to log T."""

import numpy as np
from numpy.typing import NDArray

from covcal_cli.softmax import Array, exp


def brier_rows(
    block: Array, labels: NDArray[np.int64], temperature: float, derivatives: bool
) -> list[Array]:
    """Return ||p - y||^2 of every row, and its derivatives with respect to s = log T.

    With u = z/T and d = u - E_p[u]: dp/ds = -p d and dd/ds = Var_p[u] - d.
    """
    columns = np.arange(block.shape[1])
    u, p = _softmax(block, temperature)
    p_y = p[labels, columns]
    squares = _sum_of_products(p, p)
    loss = squares - 2 * p_y + 1
    if not derivatives:
        return [loss]
    u -= _sum_of_products(p, u)
    d_y = u[labels, columns]
    q = p * u
    variance = _sum_of_products(q, u)
    cross = _sum_of_products(p, q)
    slope = 2 * (p_y * d_y - cross)
    curvature = (
        4 * _sum_of_products(q, q)
        + 2 * cross
        - 2 * variance * squares
        - 2 * p_y * (d_y * d_y + d_y - variance)
    )
    return [loss, slope, curvature]


def nll_rows(
    block: Array, labels: NDArray[np.int64], temperature: float, derivatives: bool
) -> list[Array]:
    """Return -log p_y of every row, and its derivatives with respect to s = log T."""
    columns = np.arange(block.shape[1])
    u, p = _softmax(block, temperature)
    u_y = u[labels, columns]
    loss = np.log(exp(u).sum(axis=0)) - u_y
    if not derivatives:
        return [loss]
    u -= _sum_of_products(p, u)
    d_y = u[labels, columns]
    return [loss, d_y, _sum_of_products(p * u, u) - d_y]


def _softmax(block: Array, temperature: float) -> tuple[Array, Array]:
    u = block / temperature
    p = exp(u)
    p /= p.sum(axis=0)
    return u, p


def _sum_of_products(left: Array, right: Array) -> Array:
    products: Array = np.einsum("km,km->m", left, right)
    return products
