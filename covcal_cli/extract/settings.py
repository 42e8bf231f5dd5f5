"""The settings of ``covcal extract``, and the rows that they choose."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import numpy as np

from covcal_cli.arrays import Rows
from covcal_cli.classifiers import ModelSettings
from covcal_cli.data.output_columns import OutputKind
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.data.rows import (
    DEFAULT_FRACTIONS,
    FITTED_FRACTIONS,
    SOURCE_FRACTIONS,
    Fractions,
    hashes_of,
)
from covcal_cli.errors import CovcalError, checked_settings, require_at_least, require_one_of


@checked_settings
@dataclass(frozen=True)
class Shard:
    """One of `count` parts of the rows: every `count`-th row, from row `index` on."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read ``index/count``. Raises ValueError unless ``1 <= index <= count``."""
        index, _, count = text.partition("/")
        shard = cls(int(index), int(count))
        if not 1 <= shard.index <= shard.count:
            raise ValueError(f"{text} is not a shard")
        return shard


@checked_settings
@dataclass(frozen=True)
class Selection:
    """The rows of each domain to extract: all, a random sample, the first rows, or a shard.

    A hash of the seed and the row's id decides whether a row is in the sample. A sample changes
    little if rows are added to a domain. The splits use a different hash, so the splits are
    independent of the sample.
    """

    sample: int | None = None  # Number of rows to draw at random.
    limit: int | None = None  # Number of rows to take from the beginning.
    shard: Shard | None = None  # This run extracts only this shard of the chosen rows.

    def describe(self) -> str:
        """Describe the choice of rows without the shard, such as ``sample 5000``."""
        if self.sample is not None:
            return f"sample {self.sample}"
        return "all" if self.limit is None else f"limit {self.limit}"

    def chosen(self, ids: Sequence[str], seed: int) -> Rows:
        """Return the numbers of the chosen rows of all shards, ascending.

        Among rows with equal ids, earlier rows are chosen first.
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
        """Return the rows of this run's shard."""
        if self.shard is None:
            return rows
        return rows[self.shard.index - 1 :: self.shard.count]


@checked_settings
@dataclass(frozen=True)
class ExtractSettings(ModelSettings):
    """The settings of an extraction, for both domains."""

    # Settings for images that override `preprocess`.
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    # The source of settings for images; see `data.preprocessing.configs.load_preprocessing`.
    # Default: the model's metadata, or a file beside the model. Missing settings follow from the
    # model's input.
    preprocess: str | None = None
    # A file of class names in the order of the logits; see `data.classes.read_classes`.
    classes: Path | None = None
    # Shares of training, validation and test rows, if the data have no splits. Default:
    # `fractions_of`.
    fractions: Fractions | None = None
    seed: int = 0  # Seed of the splits and of the sample.
    selection: Selection = field(default_factory=Selection)
    # Number of rows in a run of the model; default: 16 to 256, with inputs of at most 16 MiB.
    batch: int | None = None
    threads: int | None = None  # Threads of the model and of the decoder; default: all cores.
    # Whether tables have logits or probabilities; default: by the column names.
    outputs: OutputKind | None = None
    keep: Sequence[str] = ()  # Names of further columns of tables to keep.
    choices: tuple[str, ...] = ()  # The possible answers in logs of a language model.
    multilabel: bool = False  # Whether each row can have several independent labels.
    skip_unreadable: bool = True  # Whether to skip unreadable rows, up to 1 % of all rows.

    def __post_init__(self) -> None:
        if self.outputs is not None:
            require_one_of("kind of outputs", self.outputs, get_args(OutputKind))
        require_at_least("seed", self.seed, 0)

    def fractions_of(self, domain: str, *, trained: bool) -> Fractions:
        """Return the shares of the splits.

        `trained` means that the file has features to train networks on.
        """
        if self.fractions is not None:
            return self.fractions
        if domain == "target":
            return DEFAULT_FRACTIONS
        return SOURCE_FRACTIONS if trained else FITTED_FRACTIONS

    def options(self) -> list[str]:
        """Return the command-line options that repeat this extraction.

        Options that do not change the features file are left out, and so is the shard.
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
