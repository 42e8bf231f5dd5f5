"""The settings of ``covcal extract``, and the rows that they choose."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Rows
from covcal_cli.data.output_columns import OutputKind
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.data.rows import (
    DEFAULT_FRACTIONS,
    FITTED_FRACTIONS,
    SOURCE_FRACTIONS,
    Fractions,
    hashes_of,
)
from covcal_cli.errors import CovcalError, checked_settings


@checked_settings
@dataclass(frozen=True)
class Shard:
    """One of `count` parts of the chosen rows: every `count`-th row from row `index` on.

    The first part has index 1.
    """

    index: int
    count: int

    def __str__(self) -> str:
        """Return ``index/count``, as ``--shard`` takes it."""
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read ``index/count``; raise ValueError unless ``1 <= index <= count``."""
        index, _, count = text.partition("/")
        shard = cls(int(index), int(count))
        if not 1 <= shard.index <= shard.count:
            raise ValueError(f"{text} is not a shard")
        return shard


@checked_settings
@dataclass(frozen=True)
class Selection:
    """The choice of rows of each domain: all, a random sample, the first rows, or a shard.

    The hash of the seed and a row's id decides whether the row is drawn. So if rows are added to a
    domain, most of the drawn rows are drawn again. The draw does not depend on the split, which
    uses another hash.
    """

    sample: int | None = None  # number of rows to draw at random
    limit: int | None = None  # number of first rows to take
    shard: Shard | None = None  # the part of the chosen rows that this run extracts

    def describe(self) -> str:
        """Return the choice of rows before sharding, such as ``sample 5000``."""
        if self.sample is not None:
            return f"sample {self.sample}"
        return "all" if self.limit is None else f"limit {self.limit}"

    def chosen(self, ids: Sequence[str], seed: int) -> Rows:
        """Return the numbers of the chosen rows before sharding, ascending.

        Among rows with equal ids, earlier rows are drawn first.
        """
        if self.sample is not None and self.limit is not None:
            raise CovcalError("sample and limit cannot be used together: give only one")
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
        """Return the chosen rows that this run extracts."""
        if self.shard is None:
            return rows
        return rows[self.shard.index - 1 :: self.shard.count]


@checked_settings
@dataclass(frozen=True)
class ExtractSettings:
    """The settings of an extraction, the same for both domains."""

    # Single settings for images; they override `preprocess`.
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    # Where all other settings for images come from, for
    # `data.preprocessing.configs.load_preprocessing`. Default: the model's metadata or a file
    # beside it, then the shape of the model's input.
    preprocess: str | None = None
    # A file of class names in the order of the logits; see `data.classes.read_classes`.
    classes: Path | None = None
    # Shares of train, validation and test rows if the data has no splits. Default: `fractions_of`.
    fractions: Fractions | None = None
    seed: int = 0  # seed of these splits and of a sample
    selection: Selection = field(default_factory=Selection)
    # Rows per run of the model. Default: a power of two from 16 to 256 with inputs of at most
    # 16 MiB.
    batch: int | None = None
    threads: int | None = None  # threads of the model, and as many for decoding; default: all cores
    trust_model: bool = False  # open a model file that can run code, as torch files can
    weights: Path | None = None  # weights of the module that ``module:function`` returns
    model_output: str | None = None  # the output that holds the classes, if there are several
    phi: str | None = None  # "input", "none" or a tensor's name; default: the last layer's input
    providers: Sequence[str] = ()  # providers of ONNX Runtime, in order of preference
    # The kind of numbers in tables of outputs, if there is no model. Default: the kind that the
    # column names show.
    outputs: OutputKind | None = None
    keep: Sequence[str] = ()  # further columns of tables to keep
    choices: tuple[str, ...] = ()  # the answers in logs of a language model
    multilabel: bool = False  # each output is the sigmoid of a label, independent of the others
    skip_unreadable: bool = True  # skip up to 1 % of the rows, instead of stopping at the first

    def fractions_of(self, domain: str, *, trained: bool) -> Fractions:
        """Return the shares of a domain; `trained`: whether there are features to learn from."""
        if self.fractions is not None:
            return self.fractions
        if domain == "target":
            return DEFAULT_FRACTIONS
        return SOURCE_FRACTIONS if trained else FITTED_FRACTIONS

    def options(self) -> list[str]:
        """Return the options of ``covcal extract`` that give the same file.

        Defaults and options that do not affect results are left out. For a shard, the options are
        those of the whole extraction.
        """
        options = [f"--{self.outputs}"] if self.outputs is not None else []
        texts = {
            "weights": self.weights,
            "model-output": self.model_output,
            "phi": self.phi,
            "classes": self.classes,
            "preprocess": self.preprocess,
        }
        options += [f"--{name}={value}" for name, value in texts.items() if value is not None]
        options += [f"--choices={choice}" for choice in self.choices]
        options += self.preprocessing.options()
        if self.fractions is not None:
            options.append(f"--fractions={','.join(map(repr, self.fractions))}")
        for name in ("sample", "limit"):
            if (rows := getattr(self.selection, name)) is not None:
                options.append(f"--{name}={rows}")
        options += [f"--keep={name}" for name in self.keep]
        if self.multilabel:
            options.append("--multilabel")
        if self.trust_model:
            options.append("--trust-model")
        if self.seed:
            options.append(f"--seed={self.seed}")
        return options if self.skip_unreadable else [*options, "--on-error=fail"]
