"""Read training and validation rows, reduce them to principal components, and draw batches.

Both domains have the same weight in the principal component analysis. With 64 components, the
domains overlap after far fewer training steps than without a projection.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from covcal_cli.adapt.settings import Settings
from covcal_cli.arrays import Float32s
from covcal_cli.formats.features import Domain, FeatureFile
from covcal_cli.progress import Progress, ProgressCallback

MAX_ROWS = 200_000  # Maximum number of rows per split.
_BLOCK = 8192  # Number of rows whose features are in memory at a time.
_EXTRA_DIRECTIONS = 32
_ITERATIONS = 12
# A function that yields all features in blocks, (n, d) float32 on the CPU.
Blocks = Callable[[], Iterator[Tensor]]


@dataclass(frozen=True)
class DomainRows:
    """The projected training and validation rows of a domain."""

    train: Tensor  # (n, k) float32.
    validation: Tensor  # (m, k) float32.


@dataclass(frozen=True)
class TrainingRows:
    """The projected training and validation rows of both domains, and the source's labels."""

    source: DomainRows
    target: DomainRows
    labels: Tensor  # Labels of the source's training rows, (n,) int64; -1 if unknown.
    validation_labels: Tensor  # Labels of the source's validation rows, (m,) int64; -1 if unknown.
    n_classes: int

    @property
    def width(self) -> int:
        """The number of inputs of psi, k."""
        return int(self.source.train.shape[1])

    @property
    def larger(self) -> int:
        """The number of training rows of the larger domain."""
        return max(len(self.source.train), len(self.target.train))

    def counts(self) -> dict[str, int]:
        """Return the number of rows by domain and split, such as "source train"."""
        return {
            "source train": len(self.source.train),
            "labelled source train": int((self.labels >= 0).sum()),
            "source validation": len(self.source.validation),
            "labelled source validation": int((self.validation_labels >= 0).sum()),
            "target train": len(self.target.train),
            "target validation": len(self.target.validation),
        }


@dataclass(frozen=True)
class Projection:
    """The mapping ``(x - mean) @ components / scale`` of features x."""

    mean: Tensor  # (d,).
    components: Tensor | None  # Orthonormal columns, (d, k); None without a projection.
    scale: float  # A scale that gives projected features a mean variance of 1.

    def __call__(self, features: Tensor) -> Tensor:
        """Project features, (n, d), to (n, k) float32."""
        centred = features - self.mean
        if self.components is not None:
            centred = centred @ self.components
        return centred / self.scale

    @property
    def width(self) -> int:
        """The number of projected features, k."""
        return len(self.mean) if self.components is None else int(self.components.shape[1])

    def arrays(self) -> dict[str, Float32s]:
        """Return mean, components and scale as NumPy arrays."""
        named = {"mean": self.mean.cpu().numpy(), "scale": np.array([self.scale], dtype=np.float32)}
        if self.components is not None:
            named["components"] = self.components.cpu().numpy()
        return named


def moved(value: Any, device: torch.device) -> Any:
    """Copy a tensor, or a dataclass with tensors, to another device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return replace(value, **{f.name: moved(getattr(value, f.name), device) for f in fields(value)})


def read_rows(
    file: FeatureFile, settings: Settings, *, seed: int, progress: ProgressCallback
) -> tuple[TrainingRows, Projection, Tensor]:
    """Read training and validation rows, and fit the projection on the training rows.

    Returns the projected rows, the projection, and the predicted classes of the target's validation
    rows, (m,) int64.
    """
    source, target = file.require_source(), file.require_target()
    chosen = {
        (domain.name, split): domain.drawn(MAX_ROWS, seed, split)
        for domain in (source, target)
        for split in ("train", "validation")
    }
    counts = {key: len(numbers) for key, numbers in chosen.items()}
    passes = 1 if settings.components is None else 3
    total = sum(count * (passes if key[1] == "train" else 1) for key, count in counts.items())
    done = 0

    def blocks(domain: Domain, split: str) -> Iterator[Tensor]:
        nonlocal done
        numbers = chosen[domain.name, split]
        for start in range(0, len(numbers), _BLOCK):
            block = torch.from_numpy(domain.features(numbers[start : start + _BLOCK]))
            yield block
            done += len(block)
            progress(Progress("read", done, total))

    if settings.components is None:
        projection = identity(source.n_features or 0)
    else:
        projection = principal_components(
            lambda: blocks(source, "train"), lambda: blocks(target, "train"), settings.components
        )

    def projected(domain: Domain, split: str) -> Tensor:
        rows = torch.empty((counts[domain.name, split], projection.width))
        start = 0
        for block in blocks(domain, split):
            rows[start : start + len(block)] = projection(block)
            start += len(block)
        return rows

    domains = [
        DomainRows(*(projected(domain, split) for split in ("train", "validation")))
        for domain in (source, target)
    ]
    rows = TrainingRows(
        domains[0],
        domains[1],
        torch.from_numpy(source.labels(chosen["source", "train"])),
        torch.from_numpy(source.labels(chosen["source", "validation"])),
        source.n_classes,
    )
    predictions = [
        target.logits(block).argmax(axis=1)
        for block in target.blocks(chosen["target", "validation"], "logits")
    ]
    return rows, projection, torch.from_numpy(np.concatenate(predictions))


def identity(n_features: int) -> Projection:
    """Return a projection that does not change features."""
    return Projection(torch.zeros(n_features), None, 1.0)


def principal_components(source: Blocks, target: Blocks, components: int) -> Projection:
    """Fit at most `components` principal components on the training rows of both domains."""
    mean = (_mean(source) + _mean(target)) / 2
    covariance = (_second_moment(source, mean) + _second_moment(target, mean)) / 2
    values, directions = _leading(covariance, min(components, len(mean)))
    vary = values > values[0] * 1e-9
    if not bool(vary.any()):
        return Projection(mean.float(), None, 1.0)
    values, directions = values[vary], directions[:, vary]
    scale = float(values.mean().sqrt())
    return Projection(mean.float(), directions.float().contiguous(), scale)


def _mean(blocks: Blocks) -> Tensor:
    sums, rows = torch.zeros((), dtype=torch.float64), 0
    for block in blocks():
        sums, rows = sums + block.sum(dim=0, dtype=torch.float64), rows + len(block)
    return sums / rows


def _second_moment(blocks: Blocks, mean: Tensor) -> Tensor:
    """Return the covariance matrix, (d, d) float64."""
    total, rows = torch.zeros((len(mean), len(mean)), dtype=torch.float64), 0
    for block in blocks():
        centred = (block - mean.float()).double() if len(mean) <= 256 else block - mean.float()
        total += (centred.T @ centred).double()
        rows += len(block)
    return total / rows


def _leading(covariance: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest eigenvalues and their eigenvectors, by orthogonal iteration.

    For 2048 features, this takes milliseconds, and a full decomposition takes seconds.
    """
    width = len(covariance)
    started = torch.Generator().manual_seed(0)
    size = min(width, count + _EXTRA_DIRECTIONS)
    basis = torch.randn((width, size), generator=started, dtype=torch.float64)
    for _ in range(_ITERATIONS if size < width else 1):
        basis = torch.linalg.qr(covariance @ basis).Q
    values, rotation = torch.linalg.eigh(basis.T @ covariance @ basis)
    vectors = (basis @ rotation).flip(1)[:, :count]
    # The sign of an eigenvector is arbitrary, so make its largest entry positive.
    largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
    return values.flip(0)[:count].clamp(min=0.0), vectors * torch.sign(largest)


class RowStream:
    """An endless stream of random row numbers for each ensemble member."""

    def __init__(self, n_rows: int, generators: list[Generator]) -> None:
        self._n_rows, self._generators = n_rows, generators
        self._left = [torch.empty(0, dtype=torch.int64) for _ in generators]

    def take(self, steps: int, batch: int) -> Tensor:
        """Return the next random row numbers, (steps, M, batch) int64, on the CPU."""
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
    """Return at most `most` evenly spaced rows."""
    return rows[:: max(1, -(-len(rows) // most))]
