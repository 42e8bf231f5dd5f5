"""``covcal merge``: join features files into one features file.

The files are shards of one run, or one file per domain, or both. The result has the same bytes as a
run on all data.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli import __version__
from covcal_cli.arrays import Rows
from covcal_cli.errors import CovcalError, percent
from covcal_cli.extract.domain import MAX_SKIPPED
from covcal_cli.extract.parts import (
    COMMON,
    HEAD,
    Join,
    Part,
    complete,
    difference,
    require_origin,
    require_same_run,
)
from covcal_cli.extract.settings import Shard
from covcal_cli.files import atomic_output, check_output, require_hdf5_name
from covcal_cli.formats.features import (
    DOMAINS,
    FEATURE_COLUMNS,
    FEATURES_SCHEMA,
    ONE_TABLE,
    OPTIONS,
    SOURCE_FRACTIONS,
    FeatureFile,
)
from covcal_cli.formats.writer import Attribute, HDF5Writer
from covcal_cli.labels.draws import write_draw
from covcal_cli.labels.picked_labels import joined_draw

_SKIPPED = ("skipped", "skipped_reasons")


@dataclass(frozen=True)
class MergeReport:
    """Numbers of files and rows in a merge."""

    # The keys of each mapping are domain names.
    files: Mapping[str, int]  # Number of files with rows.
    rows: Mapping[str, Mapping[str, int]]  # Number of rows in each split.
    skipped: Mapping[str, int]  # Number of unreadable rows.


def merge(paths: Sequence[Path], output: Path, *, force: bool = False) -> MergeReport:
    """Merge shards, or a source file and a target file, into one features file.

    Raises `CovcalError` if the files do not belong together, or if a shard is missing or given
    twice.
    """
    if not paths:
        raise CovcalError("there is nothing to merge: give the features files to join")
    require_hdf5_name(output)
    check_output(output, force=force, inputs=paths)
    with ExitStack() as stack:
        files = [stack.enter_context(FeatureFile(path)) for path in paths]
        for file in files:
            require_origin(file)
            require_same_run(files[0], file)
        holding = {name: [file for file in files if name in file.handle] for name in DOMAINS}
        return _join_domains(files, holding, output, force=force, keeps_draw=True)


def merge_target(earlier: Path, target: Path, output: Path) -> MergeReport:
    """Join the source of the file `earlier` with the target of the file `target`.

    The file `target` must not have a source. Raises `CovcalError` if the files do not belong
    together, if `earlier` has no source, or if `target` has no target.
    """
    check_output(output, force=True, inputs=[earlier, target])
    with FeatureFile(earlier) as with_source, FeatureFile(target) as with_target:
        files = [with_source, with_target]
        for file in files:
            require_origin(file)
        require_same_run(*files)
        with_source.require_source()
        with_target.require_target()
        if "source" in with_target.handle:
            raise CovcalError(f"{target} holds source rows too: give a file with target rows only")
        holding = {"source": [with_source], "target": [with_target]}
        return _join_domains(files, holding, output, force=True, keeps_draw=False)


def _join_domains(
    files: Sequence[FeatureFile],
    holding: Mapping[str, Sequence[FeatureFile]],
    output: Path,
    *,
    force: bool,
    keeps_draw: bool,  # Whether to write which rows `pick` drew.
) -> MergeReport:
    with ExitStack() as stack:
        parts = {name: _parts(name, opened) for name, opened in holding.items() if opened}
        domains = {name: Join(name, of_domain) for name, of_domain in parts.items()}
        # Write the attributes that one extraction of all rows would write, in the same order.
        first = files[0]
        attributes: dict[str, Attribute] = {"covcal_version": __version__}
        for name in (*COMMON, SOURCE_FRACTIONS, OPTIONS, ONE_TABLE, FEATURE_COLUMNS):
            values = [file.attributes[name] for file in files if name in file.attributes]
            if values and (name not in (OPTIONS, ONE_TABLE) or len(values) == len(files)):
                attributes[name] = _plain(values[0])
        for name in domains:
            attributes[f"{name}_rows"] = _plain(holding[name][0].attributes[f"{name}_rows"])
        for name in domains:
            kinds = {file.attributes.get(f"{name}_ids") for file in holding[name]}
            if kinds == {"integers"}:
                attributes[f"{name}_ids"] = "integers"
        partial = stack.enter_context(atomic_output(output, force=force))
        with HDF5Writer(
            partial, schema=FEATURES_SCHEMA, classes=first.classes, attributes=attributes
        ) as writer:
            for domain in domains.values():
                domain.write(writer)
            if keeps_draw:
                rows = [np.asarray(part.rows) for part in parts.get("target", ())]
                draw = joined_draw(holding["target"], rows)
                if draw.batches:
                    write_draw(writer, draw)
            for name in HEAD:
                if f"head/{name}" in first.handle:
                    writer.write(f"head/{name}", first.handle[f"head/{name}"][:])
            # A file without rows does not record how the output is read.
            ran = [file for file in files if file.attributes["largest_logit"] > 0] or files
            complete(
                writer,
                domains.values(),
                first.classes,
                attributes,
                tail=str(ran[0].attributes["tail"]),
                worst=max(float(file.attributes["affine_difference"]) for file in files),
                largest=max(float(file.attributes["largest_logit"]) for file in files),
            )
        return MergeReport(
            files={name: len(parts[name]) for name in domains},
            rows={name: domain.rows for name, domain in domains.items()},
            skipped={name: len(domain.skipped) for name, domain in domains.items()},
        )


def _parts(name: str, files: Sequence[FeatureFile]) -> list[Part]:
    if len(files) == 1 and "shard" not in files[0].attributes:
        group = files[0].handle[name]
        rows, skipped = len(group["labels"]), len(group.get("skipped", ()))
        return [_part(files[0], name, range(rows), range(skipped))]
    _require_every_shard(name, files)
    shards = [file.handle["shard"][name] for file in files]
    parts = [
        _part(file, name, _small(shard["rows"][:]), shard["skipped"][:].tolist())
        for file, shard in zip(files, shards, strict=True)
    ]
    # Every shard records the number of rows in all shards together.
    chosen = int(shards[0]["chosen"][:].sum())
    for part, shard in zip(parts, shards, strict=True):
        if (other := int(shard["chosen"][:].sum())) != chosen:
            raise difference(f"number of {name} rows", parts[0].path, chosen, part.path, other)
    skipped = sum(len(part.skipped) for part in parts)
    n_rows = sum(len(part.rows) for part in parts) + skipped
    if n_rows != chosen:
        raise CovcalError(
            f"the {name} shards hold {n_rows} of {chosen} rows: extract all shards again from "
            "the same data"
        )
    if skipped > MAX_SKIPPED * chosen:
        raise CovcalError(
            f"{skipped} of {chosen} {name} images could not be read (at most "
            f"{percent(MAX_SKIPPED, 0)} allowed): repair or remove these images, and extract again"
        )
    return parts


def _part(file: FeatureFile, name: str, rows: Any, skipped: Any) -> Part:
    group = file.handle[name]
    texts = (group[fact].texts() if fact in group else () for fact in _SKIPPED)
    return Part(
        path=file.path,
        rows=rows,
        content=group,
        columns=list(group.get("columns", ())),
        skipped=list(zip(skipped, *texts, strict=True)),
    )


def _small(rows: Rows) -> Any:
    fits = len(rows) == 0 or rows[-1] <= np.iinfo(np.uint32).max
    return rows.astype(np.uint32) if fits else rows


def _plain(value: Any) -> Attribute:
    return value if isinstance(value, str) else int(value)


def _require_every_shard(name: str, files: Sequence[FeatureFile]) -> None:
    shards: dict[int, FeatureFile] = {}
    counts = set()
    for file in files:
        if "shard" not in file.attributes:
            other = next(second for second in files if second is not file)
            raise CovcalError(
                f"{file.path} holds all {name} rows, but {other.path} has {name} rows too: "
                "give one whole file, or all shards"
            )
        shard = Shard.parse(str(file.attributes["shard"]))
        counts.add(shard.count)
        if shard.index in shards:
            raise CovcalError(
                f"{shards[shard.index].path} and {file.path} are both shard {shard}: give each "
                "shard once"
            )
        shards[shard.index] = file
    if len(counts) > 1:
        sizes = " and ".join(map(str, sorted(counts)))
        raise CovcalError(
            f"{files[0].path} and the other files are from runs with {sizes} shards: give the "
            "shards of one run"
        )
    (count,) = counts
    missing = sorted(set(range(1, count + 1)) - set(shards))
    if missing:
        names = ", ".join(f"{index}/{count}" for index in missing[:8])
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise CovcalError(
            f"{name} shard {names}{more} is missing: give all {count} shards, or run "
            f"covcal extract --shard {missing[0]}/{count}"
        )
