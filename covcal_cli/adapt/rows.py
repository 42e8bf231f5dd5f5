"""The rows in memory: projected training and validation rows of both domains."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor


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
