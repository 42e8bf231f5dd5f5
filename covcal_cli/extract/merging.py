"""``covcal merge``: features files of parts of the data to one file of all of it.

The parts are the shards of a run, or files of one domain each, or both. The result has the bytes
that one run over everything would have written. Parts that do not belong together are refused by
the name of what differs.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli import __version__
from covcal_cli.errors import CovcalError
from covcal_cli.extract.domainextraction import MAX_SKIPPED
from covcal_cli.extract.domainwriter import Block, RowFacts, block_rows, write_domain
from covcal_cli.extract.extraction import proof_attributes
from covcal_cli.extract.mergechecks import (
    COMMON,
    DOMAINS,
    HEAD,
    difference,
    open_part,
    require_every_shard,
    require_same_run,
)
from covcal_cli.extract.sampling import Rows
from covcal_cli.featurefile import FEATURE_COLUMNS, FEATURES_SCHEMA, SPLITS, FeatureFile
from covcal_cli.featurewriter import Attribute, HDF5Writer
from covcal_cli.files import atomic_output, check_output


@dataclass(frozen=True)
class MergeReport:
    """What was merged.

    Attributes
    ----------
    output : Path
    parts : int
        Files read.
    rows : mapping of str to (mapping of str to int)
        Rows per split of each domain, by name.
    skipped : mapping of str to int
        Rows of each domain that could not be read.
    """

    output: Path
    parts: int
    rows: Mapping[str, Mapping[str, int]]
    skipped: Mapping[str, int]


def merge(paths: Sequence[Path], output: Path, *, force: bool = False) -> MergeReport:
    """Merge shards, or files of one domain each, into one features file.

    Parameters
    ----------
    paths : sequence of Path
        Features files, in any order.
    output : Path
        The file to write.
    force : bool
        Replace `output` if it exists.

    Raises
    ------
    CovcalError
        If the files do not belong together, or a shard is missing or there twice.
    """
    if not paths:
        raise CovcalError("there is nothing to merge: give the features files of the parts")
    check_output(output, force=force, inputs=paths)
    with ExitStack() as stack:
        files = [open_part(path, stack) for path in paths]
        require_same_run(files)
        domains = {
            name: MergedDomain(name, [file for file in files if name in file.handle])
            for name in DOMAINS
            if any(name in file.handle for file in files)
        }
        first = files[0]
        attributes: dict[str, Attribute] = {"covcal_version": __version__}
        attributes |= {name: _plain(first.attributes[name]) for name in COMMON}
        fed = [a[FEATURE_COLUMNS] for a in (f.attributes for f in files) if FEATURE_COLUMNS in a]
        if fed:
            attributes[FEATURE_COLUMNS] = str(fed[0])
        attributes |= {
            f"{name}_rows": _plain(domain.files[0].attributes[f"{name}_rows"])
            for name, domain in domains.items()
        }
        partial = stack.enter_context(atomic_output(output, force=force))
        with HDF5Writer(
            partial, schema=FEATURES_SCHEMA, classes=first.classes, attributes=attributes
        ) as writer:
            for domain in domains.values():
                domain.write(writer)
            for name in HEAD:
                if f"head/{name}" in first.handle:
                    writer.write(f"head/{name}", first.handle[f"head/{name}"][:])
            ran = [file for file in files if file.attributes["largest_logit"] > 0] or files
            writer.complete(
                tail=str(ran[0].attributes["tail"]),
                **proof_attributes(
                    max(float(file.attributes["affine_difference"]) for file in files),
                    max(float(file.attributes["largest_logit"]) for file in files),
                ),
            )
        return MergeReport(
            output=output,
            parts=len(paths),
            rows={name: domain.counts() for name, domain in domains.items()},
            skipped={name: len(domain.skipped) for name, domain in domains.items()},
        )


class MergedDomain:
    """One domain of several files, its rows in their order.

    Parameters
    ----------
    name : str
    files : sequence of FeatureFile
        Those that hold the domain: one whole, or every shard.

    Attributes
    ----------
    skipped : list of (str, str)
        Id and reason of every row that could not be read, in the order of the rows.
    """

    def __init__(self, name: str, files: Sequence[FeatureFile]) -> None:
        self.name, self.files = name, files
        self._groups = [file.handle[name] for file in files]
        self._rows: list[Rows]
        skipped_rows: list[Rows]
        if len(files) == 1 and "shard" not in files[0].attributes:
            self._rows = [np.arange(len(self._groups[0]["labels"]), dtype=np.int64)]
            skipped_rows = [np.arange(len(self._groups[0].get("skipped", ())), dtype=np.int64)]
        else:
            require_every_shard(name, files)
            shards = [file.handle["shard"][name] for file in files]
            self._rows = [shard["rows"][:] for shard in shards]
            skipped_rows = [shard["skipped"][:] for shard in shards]
            self._require_chosen(
                [int(shard["chosen"][()]) for shard in shards], sum(map(len, skipped_rows))
            )
        self._order = np.argsort(np.concatenate(self._rows), kind="stable")
        self.skipped = self._all_skipped(np.concatenate(skipped_rows))
        self._widths = self._same_widths()

    def write(self, writer: HDF5Writer) -> None:
        """Write the group ``/NAME``."""
        facts = RowFacts(
            labels=self._column("labels"),
            split=self._column("split"),
            ids=self._column("ids"),
            columns={name: self._column(f"columns/{name}") for name in self._columns()},
            skipped=self.skipped,
        )
        write_domain(writer, self.name, self._widths, self._blocks(), facts)

    def counts(self) -> dict[str, int]:
        """Return the rows per split."""
        found = np.bincount(self._column("split"), minlength=len(SPLITS))
        return dict(zip(SPLITS, map(int, found), strict=True))

    def _blocks(self) -> Iterator[Block]:
        """Yield the rows in order; each part is read forwards, once."""
        ordered = np.concatenate(self._rows)[self._order]
        starts = [0] * len(self._rows)
        size = block_rows(self._widths)
        for first in range(0, len(ordered), size):
            wanted = ordered[first : first + size]
            block = {
                name: np.empty((len(wanted), width), dtype=np.float32)
                for name, width in self._widths.items()
            }
            for part, (rows, group) in enumerate(zip(self._rows, self._groups, strict=True)):
                start = starts[part]
                stop = int(np.searchsorted(rows, wanted[-1], side="right"))
                places = np.searchsorted(wanted, rows[start:stop])
                for name, values in block.items():
                    if len(places):
                        values[places] = group[name][start:stop]
                starts[part] = stop
            yield block

    def _column(self, name: str) -> NDArray[Any]:
        values = np.concatenate([group[name][:] for group in self._groups])
        return np.asarray(values[self._order])

    def _columns(self) -> list[str]:
        found = [list(group.get("columns", ())) for group in self._groups]
        for file, names in zip(self.files, found, strict=True):
            if names != found[0]:
                raise difference(
                    f"columns of the {self.name}", self.files[0], found[0], file, names
                )
        return found[0]

    def _same_widths(self) -> dict[str, int]:
        found = [
            {name: int(group[name].shape[1]) for name in ("features", "logits") if name in group}
            for group in self._groups
        ]
        # A file without rows has run no batch, which may be what shows the number of features.
        full = [index for index, rows in enumerate(self._rows) if len(rows)] or [0]
        first = full[0]
        for index in full:
            if found[index] != found[first]:
                one, two = self.files[first], self.files[index]
                raise difference("columns of numbers", one, found[first], two, found[index])
        return found[first]

    def _all_skipped(self, rows: Rows) -> list[tuple[str, str]]:
        found = [
            (bytes(known).decode(), bytes(reason).decode())
            for group in self._groups
            if "skipped" in group
            for known, reason in zip(group["skipped"], group["skipped_reasons"], strict=True)
        ]
        return [found[index] for index in np.argsort(rows, kind="stable")]

    def _require_chosen(self, chosen: Sequence[int], skipped: int) -> None:
        for file, count in zip(self.files, chosen, strict=True):
            if count != chosen[0]:
                raise difference(
                    f"number of {self.name} rows", self.files[0], chosen[0], file, count
                )
        if sum(map(len, self._rows)) + skipped != chosen[0]:
            raise CovcalError(
                f"the {self.name} shards hold {sum(map(len, self._rows)) + skipped} of "
                f"{chosen[0]} rows: extract all of them again from the same data"
            )
        if skipped > MAX_SKIPPED * chosen[0]:
            raise CovcalError(
                f"{skipped} of {chosen[0]} {self.name} images could not be read, more than "
                f"{MAX_SKIPPED:.0%}: mend or remove them, and extract again"
            )


def _plain(value: Any) -> Attribute:
    return value if isinstance(value, str) else int(value)
