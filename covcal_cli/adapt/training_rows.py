"""The rows that training may see, in memory: read, projected, and drawn in batches.

The projection is to principal components of phi, fitted on both domains with equal weight: the
domains overlap in far fewer steps on 64 components than on raw features, and the gradient penalty
keeps one meaning whatever the classifier's width and scale.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Generator, Tensor

from covcal_cli.adapt.settings import Settings
from covcal_cli.arrays import Float32s
from covcal_cli.formats.features import FeatureFile
from covcal_cli.progress import Progress, ProgressCallback

MAX_ROWS = 200_000  # of one split of one domain; of a larger one a seeded sample
_EXTRA_DIRECTIONS = 32
_ITERATIONS = 12


@dataclass(frozen=True)
class DomainRows:
    """The rows of one domain that training may see."""

    train: Tensor  # (n, k) float32
    validation: Tensor  # (m, k) float32

    def to(self, device: torch.device) -> Self:
        """Return the same rows on another device."""
        return type(self)(self.train.to(device), self.validation.to(device))


@dataclass(frozen=True)
class TrainingRows:
    """Both domains, and the source's labels: nothing here knows a label of the target."""

    source: DomainRows
    target: DomainRows
    labels: Tensor  # of the source's rows, (n,) and (m,) int64; -1 where unknown
    validation_labels: Tensor
    n_classes: int

    @property
    def width(self) -> int:
        """Number of inputs k of psi."""
        return int(self.source.train.shape[1])

    @property
    def larger(self) -> int:
        """Training rows of the larger domain, which define an epoch."""
        return max(len(self.source.train), len(self.target.train))

    def counts(self) -> dict[str, int]:
        """Return the number of rows of every kind, by name."""
        return {
            "source train": len(self.source.train),
            "labelled source train": int((self.labels >= 0).sum()),
            "source validation": len(self.source.validation),
            "labelled source validation": int((self.validation_labels >= 0).sum()),
            "target train": len(self.target.train),
            "target validation": len(self.target.validation),
        }

    def to(self, device: torch.device) -> Self:
        """Return the same rows on another device."""
        return type(self)(
            self.source.to(device),
            self.target.to(device),
            self.labels.to(device),
            self.validation_labels.to(device),
            self.n_classes,
        )


@dataclass(frozen=True)
class Projection:
    """An affine map ``(x - mean) @ components / scale``."""

    mean: Tensor  # (d,)
    components: Tensor | None  # (d, k), orthonormal columns; None leaves the features' own axes
    scale: float  # one for all directions, so that their mean variance is 1: relative sizes stay

    def __call__(self, features: Tensor) -> Tensor:
        """Return the projected features, shape (n, k) float32, of features of shape (n, d)."""
        centred = features - self.mean
        if self.components is not None:
            centred = centred @ self.components
        return centred / self.scale

    def to(self, device: torch.device) -> Self:
        """Return the same map on another device."""
        components = None if self.components is None else self.components.to(device)
        return type(self)(self.mean.to(device), components, self.scale)

    def arrays(self) -> dict[str, Float32s]:
        """Return ``mean``, ``scale`` and, where there are any, ``components`` as NumPy arrays."""
        named = {
            "mean": self.mean.cpu().numpy(),
            "scale": np.array([self.scale], dtype=np.float32),
        }
        if self.components is not None:
            named["components"] = self.components.cpu().numpy()
        return named


def read_rows(
    file: FeatureFile, settings: Settings, *, seed: int, progress: ProgressCallback
) -> tuple[TrainingRows, Projection, Tensor]:
    """Read what training may see, and fit the projection on the training rows.

    Return the rows projected, on the CPU; the projection; and the classifier's labels (not the true
    ones) of the target's validation rows, shape (m,) int64.
    """
    source, target = file.require_source(), file.require_target()
    chosen = {
        (domain.name, split): domain.drawn(MAX_ROWS, seed, split)
        for domain in (source, target)
        for split in ("train", "validation")
    }
    total, done = sum(map(len, chosen.values())), 0
    tensors: dict[tuple[str, str], Tensor] = {}
    for (name, split), numbers in chosen.items():
        domain = source if name == "source" else target
        tensors[name, split] = torch.from_numpy(domain.features(numbers))
        done += len(numbers)
        progress(Progress("read", done, total))
    if settings.components is None:
        projection = identity(tensors["source", "train"].shape[1])
    else:
        projection = principal_components(
            tensors["source", "train"], tensors["target", "train"], settings.components
        )
    domains = [
        DomainRows(*(projection(tensors.pop((name, split))) for split in ("train", "validation")))
        for name in ("source", "target")
    ]
    rows = TrainingRows(
        domains[0],
        domains[1],
        torch.from_numpy(source.labels(chosen["source", "train"])),
        torch.from_numpy(source.labels(chosen["source", "validation"])),
        source.n_classes,
    )
    predictions = target.logits(chosen["target", "validation"]).argmax(axis=1)
    return rows, projection, torch.from_numpy(predictions)


def identity(n_features: int) -> Projection:
    """Return the map that changes nothing."""
    return Projection(torch.zeros(n_features), None, 1.0)


def principal_components(source: Tensor, target: Tensor, components: int) -> Projection:
    """Fit a projection on training rows, shapes (n, d) and (m, d), float32 on the CPU.

    `components` are its directions at most; directions without variance are left out.
    """
    mean = (source.mean(dim=0, dtype=torch.float64) + target.mean(dim=0, dtype=torch.float64)) / 2
    covariance = (_second_moment(source, mean) + _second_moment(target, mean)) / 2
    values, directions = _leading(covariance, min(components, len(mean)))
    kept = values > values[0] * 1e-9
    if not bool(kept.any()):
        return Projection(mean.float(), None, 1.0)
    values, directions = values[kept], directions[:, kept]
    scale = float(values.mean().sqrt())
    return Projection(mean.float(), directions.float().contiguous(), scale)


def _second_moment(rows: Tensor, mean: Tensor) -> Tensor:
    total = torch.zeros((len(mean), len(mean)), dtype=torch.float64)
    for block in torch.split(rows, 8192):
        centred = (block - mean.float()).double() if len(mean) <= 256 else block - mean.float()
        total += (centred.T @ centred).double()
    return total / len(rows)


def _leading(covariance: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest eigenvalues and their vectors, by orthogonal iteration.

    A full decomposition of 2048 features costs seconds; this costs milliseconds, and is exact when
    all directions fit.
    """
    width = len(covariance)
    started = torch.Generator().manual_seed(0)
    size = min(width, count + _EXTRA_DIRECTIONS)
    basis = torch.randn((width, size), generator=started, dtype=torch.float64)
    for _ in range(_ITERATIONS if size < width else 1):
        basis = torch.linalg.qr(covariance @ basis).Q
    values, rotation = torch.linalg.eigh(basis.T @ covariance @ basis)
    vectors = (basis @ rotation).flip(1)[:, :count]
    # An eigenvector's sign is arbitrary: make the largest entry positive.
    largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
    return values.flip(0)[:count].clamp(min=0.0), vectors * torch.sign(largest)


# Batches, and samples.
class RowStream:
    """Endless row numbers for M members: seeded permutations, a new one whenever one is used up."""

    def __init__(self, n_rows: int, generators: list[Generator]) -> None:
        self._n_rows, self._generators = n_rows, generators
        self._left = [torch.empty(0, dtype=torch.int64) for _ in generators]

    def take(self, steps: int, batch: int) -> Tensor:
        """Return the next row numbers, shape (steps, M, batch) int64, on the CPU."""
        return (
            torch.stack([self._take(m, steps * batch) for m in range(len(self._left))])
            .view(len(self._left), steps, batch)
            .transpose(0, 1)
        )

    def _take(self, member: int, count: int) -> Tensor:
        parts, have = [self._left[member]], len(self._left[member])
        while have < count:
            parts.append(torch.randperm(self._n_rows, generator=self._generators[member]))
            have += self._n_rows
        rows = torch.cat(parts)
        self._left[member] = rows[count:]
        return rows[:count]


def spread_rows(rows: Tensor, most: int) -> Tensor:
    """Return at most `most` of `rows`, evenly spaced: files are often sorted by class."""
    return rows[:: max(1, -(-len(rows) // most))]
