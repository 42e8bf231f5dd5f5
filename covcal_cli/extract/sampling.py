"""Which rows of a domain are extracted: all, a seeded sample, the first ones, or one shard of them.

A row is drawn by the hash of the seed and its id, so that adding rows to a domain moves few of
those drawn before; the draw does not depend on the split, which is hashed differently.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """Every `count`-th of the chosen rows, from the `index`-th on.

    Attributes
    ----------
    index : int
        1 to `count`.
    count : int
        Shards in all.
    """

    index: int
    count: int

    def __str__(self) -> str:
        """Return ``index/count``, as ``--shard`` takes it."""
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read ``index/count``.

        Raises
        ------
        ValueError
            If the text is not two integers with ``1 <= index <= count``.
        """
        index, _, count = text.partition("/")
        shard = cls(int(index), int(count))
        if not 1 <= shard.index <= shard.count:
            raise ValueError(f"{text} is no shard")
        return shard


@dataclass(frozen=True)
class Selection:
    """What the user asked for, in each domain.

    Attributes
    ----------
    sample : int, optional
        Rows to draw by the seed.
    limit : int, optional
        Rows to take from the front.
    shard : Shard, optional
        The part of the rows chosen so far that this run does.
    """

    sample: int | None = None
    limit: int | None = None
    shard: Shard | None = None

    def describe(self) -> str:
        """Return what is chosen before any sharding, such as ``sample 5000``."""
        if self.sample is not None:
            return f"sample {self.sample}"
        return "all" if self.limit is None else f"limit {self.limit}"

    def chosen(self, ids: Sequence[str], seed: int) -> Rows:
        """Return the row numbers chosen before any sharding, ascending.

        Parameters
        ----------
        ids : sequence of str, length n
            The id of every row; of equal ids the earlier row is drawn first.
        seed : int
            Seed of the sample.

        Raises
        ------
        CovcalError
            If the numbers make no sense.
        """
        if self.sample is not None and self.limit is not None:
            raise CovcalError("a sample and a limit exclude each other: give one of them")
        if any(value is not None and value < 1 for value in (self.sample, self.limit)):
            raise CovcalError("sample and limit must be at least 1")
        rows = np.arange(len(ids), dtype=np.int64)
        if self.limit is not None:
            return rows[: self.limit]
        if self.sample is None or self.sample >= len(ids):
            return rows
        order = np.argsort(_hashes(ids, seed), kind="stable")
        return np.sort(order[: self.sample]).astype(np.int64)

    def of_shard(self, rows: Rows) -> Rows:
        """Return those of the chosen rows that this run does."""
        if self.shard is None:
            return rows
        return rows[self.shard.index - 1 :: self.shard.count]


def _hashes(ids: Sequence[str], seed: int) -> NDArray[np.uint64]:
    found = np.empty(len(ids), dtype=np.uint64)
    prefix = hashlib.sha256(f"sample {seed} ".encode())
    for row, name in enumerate(ids):
        digest = prefix.copy()
        digest.update(name.encode())
        found[row] = int.from_bytes(digest.digest()[:8], "big")
    return found
