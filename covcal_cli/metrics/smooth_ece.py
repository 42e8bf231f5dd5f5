"""The smooth ECE of Blasiok & Nakkiran (2023), which has no bins to choose.

smECE at bandwidth s is the integral over t in [0, 1] of |r(t)|, where r is the mean over rows of
(confidence - correct) K_s(confidence, t) and K_s is the Gaussian reflected at 0 and 1. The
bandwidth is the s at which smECE equals s, found to 1/1024.

Each row is split linearly between two nodes of a grid, the grid is convolved with the kernel, and
the integral is a sum over max(200, 10/s) points divided by that of the rows' own density, as the
authors' package relplot does it; their agreement to 1e-6 is tested. So the two share what is not in
the paper: a row at exactly 0 or 1 counts half, because its mirror image, which would be the other
half, falls on the row itself. That is kept on purpose, so that the two packages' numbers compare.

Above 65 536 rows those within 1/128 000 of confidence count as rows of their mean, which moves the
result by far less than that.
"""

from dataclasses import dataclass

import numpy as np

from covcal_cli.maths.softmax import Array
from covcal_cli.metrics.binning import require_rows
from covcal_cli.metrics.rankedrows import RankedRows, confidence_of, correct_of

_MAX_ATOMS = 1 << 16
_FINE = 128_000
_HALVINGS = 10
_LEAST_BANDWIDTH = 0.001
_EVALUATIONS = 200
_DENSITY_OFFSET = 1e-4


def smooth_ece(rows: RankedRows) -> float:
    """Return smECE of ranked rows at the bandwidth that equals it."""
    require_rows(len(rows))
    mass = _mass_of(rows)
    if _is_too_small(1.0, mass):
        return smooth_ece_at(1.0, mass)
    # smECE falls as the bandwidth grows, so the two cross once: by bisection.
    bandwidth, too_small = 1.0, 0.0
    for _ in range(_HALVINGS):
        middle = (bandwidth + too_small) / 2
        if _is_too_small(middle, mass):
            too_small = middle
        else:
            bandwidth = middle
    return smooth_ece_at(bandwidth, mass)


@dataclass(frozen=True)
class Mass:
    """Rows, or groups of rows, as the kernel sees them; each array has shape (m,)."""

    positions: Array  # their confidence
    residuals: Array  # sum of (confidence - correct) at each position
    rows: Array  # number of rows at each position


def smooth_ece_at(bandwidth: float, mass: Mass) -> float:
    """Return smECE at a bandwidth above 0."""
    nodes = max(2000, round(20 / bandwidth)) // 2 + 1
    points = np.linspace(0, 1, max(round(10 / bandwidth), _EVALUATIONS))
    # Convolve what lies on a fine grid, then read the result off at the points of the integral.
    grid = np.linspace(0, 1, nodes)
    kernel = np.exp(-((grid - 0.5) ** 2) / (2 * bandwidth**2)) / (np.sqrt(2 * np.pi) * bandwidth)
    residuals, density = (
        np.interp(points, grid, _reflected(values, kernel)) for values in _on_grid(mass, nodes)
    )
    return float(np.abs(residuals).sum() / (density + _DENSITY_OFFSET).sum())


def _is_too_small(bandwidth: float, mass: Mass) -> bool:
    return bandwidth < _LEAST_BANDWIDTH or bandwidth < smooth_ece_at(bandwidth, mass)


def _mass_of(rows: RankedRows) -> Mass:
    if len(rows) <= _MAX_ATOMS:
        confidence, correct = confidence_of(rows.keys), correct_of(rows.keys)
        return Mass(confidence, confidence - correct, np.ones(len(rows)))
    starts = rows.starts_of(np.arange(_FINE) / _FINE)
    starts = starts[np.diff(starts, append=len(rows)) > 0]  # of the cells that hold rows
    counts = np.diff(starts, append=len(rows)).astype(np.float64)
    sums, hits = rows.sums_from(starts)
    return Mass(sums / counts, sums - hits, counts)


def _on_grid(mass: Mass, nodes: int) -> tuple[Array, Array]:
    """Split residuals and rows between the two nodes around their position, in proportion."""
    scaled = mass.positions * (nodes - 1)
    left = np.minimum(scaled.astype(np.int64), nodes - 2)
    right_share = scaled - left
    left_share = 1 - right_share

    def split(values: Array) -> Array:
        nodes_of: Array = np.bincount(left, left_share * values, minlength=nodes).astype(float)
        nodes_of += np.bincount(left + 1, right_share * values, minlength=nodes)
        return nodes_of

    return split(mass.residuals), split(mass.rows)


def _reflected(values: Array, kernel: Array) -> Array:
    """Convolve with a kernel as wide as the grid, the values mirrored at both ends."""
    nodes = len(values)
    mirrored = np.concatenate([values, values[-2:0:-1]])  # one period of the even extension
    centred = np.zeros(len(mirrored))
    centred[: len(kernel)] = kernel
    centred = np.roll(centred, -(nodes // 2))
    spectrum = np.fft.rfft(mirrored) * np.fft.rfft(centred)
    return np.fft.irfft(spectrum, n=len(mirrored))[:nodes]
