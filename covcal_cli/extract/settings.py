"""The settings of ``covcal extract``, and the rows that they choose."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Rows
from covcal_cli.data.outputs import OutputKind
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.data.splits import (
    DEFAULT_FRACTIONS,
    FITTED_FRACTIONS,
    SOURCE_FRACTIONS,
    Fractions,
    hashes_of,
)
from covcal_cli.errors import CovcalError


@dataclass(frozen=True)
class Shard:
    """Every `count`-th of the chosen rows, from the `index`-th on; the first has index 1."""

    index: int
    count: int

    def __str__(self) -> str:
        """Return ``index/count``, as ``--shard`` takes it."""
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read ``index/count``; a ValueError unless they are integers, ``1 <= index <= count``."""
        index, _, count = text.partition("/")
        shard = cls(int(index), int(count))
        if not 1 <= shard.index <= shard.count:
            raise ValueError(f"{text} is no shard")
        return shard


@dataclass(frozen=True)
class Selection:
    """The rows of each domain to extract: all, a seeded sample, the first ones; or a shard of them.

    A row is drawn by the hash of the seed and its id, so that adding rows to a domain moves few of
    those drawn before; the draw does not depend on the split, which is hashed differently.
    """

    sample: int | None = None  # rows to draw by the seed
    limit: int | None = None  # rows to take from the front
    shard: Shard | None = None  # the part of the rows chosen so far that this run does

    def describe(self) -> str:
        """Return what is chosen before any sharding, such as ``sample 5000``."""
        if self.sample is not None:
            return f"sample {self.sample}"
        return "all" if self.limit is None else f"limit {self.limit}"

    def chosen(self, ids: Sequence[str], seed: int) -> Rows:
        """Return the row numbers chosen before any sharding, ascending.

        Of equal `ids` the earlier row is drawn first.
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
        order = np.argsort(hashes_of(ids, f"sample {seed} "), kind="stable")
        return np.sort(order[: self.sample]).astype(np.int64)

    def of_shard(self, rows: Rows) -> Rows:
        """Return those of the chosen rows that this run does."""
        if self.shard is None:
            return rows
        return rows[self.shard.index - 1 :: self.shard.count]


@dataclass(frozen=True)
class ExtractSettings:
    """How to extract; the same for both domains."""

    # What to do to images, setting by setting; it overrides `preprocess`.
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    # Where the rest comes from, as `data.preprocessing.configs.load_preprocessing` takes it. By
    # default the model's own metadata or a file beside it; what stays open, the model's input.
    preprocess: str | None = None
    # The names of the classes in the order of the logits; see `data.classes.read_classes`.
    classes: Path | None = None
    # Shares of train, validation and test where the data has no splits of its own; by default those
    # of `fractions_of`.
    fractions: Fractions | None = None
    seed: int = 0  # of those splits and of a sample
    selection: Selection = field(default_factory=Selection)
    # Rows per run of the model; by default a power of two from 16 to 256 that keeps its input
    # within 16 MiB.
    batch: int | None = None
    threads: int | None = None  # for the model and for decoding each; all cores by default
    trust_model: bool = False  # open one that is a program, as torch files are
    weights: Path | None = None  # for the module that ``module:function`` returns
    model_output: str | None = None  # that holds the classes, where the model has several
    phi: str | None = None  # "input", "none" or a tensor's name, instead of the layer found
    providers: Sequence[str] = ()  # of ONNX Runtime, in order of preference
    # What the data holds where there is no model to run: tables of a classifier's outputs.
    outputs: OutputKind | None = None
    skip_unreadable: bool = True  # up to 1 % of the rows, instead of stopping at the first

    def fractions_of(self, domain: str, *, trained: bool) -> Fractions:
        """Return the shares of a domain; `trained` says whether features can be learnt on."""
        if self.fractions is not None:
            return self.fractions
        if domain == "target":
            return DEFAULT_FRACTIONS
        return SOURCE_FRACTIONS if trained else FITTED_FRACTIONS
