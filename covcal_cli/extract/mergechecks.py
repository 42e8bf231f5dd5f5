"""Whether features files are parts of one whole: what ``merge`` refuses, and by what name."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from covcal_cli.errors import CovcalError
from covcal_cli.extract.sampling import Shard
from covcal_cli.featurefile import FEATURE_COLUMNS, FeatureFile

DOMAINS = ("source", "target")
HEAD = ("weight", "bias")
COMMON = (
    "model_name",
    "model_sha256",
    "features_tensor",
    "logits_tensor",
    "preprocessing",
    "fractions",
    "seed",
)
"""Root attributes that all parts share, in the order in which ``extract`` writes them."""

_WORDS = {
    "model_name": "model",
    "model_sha256": "model",
    FEATURE_COLUMNS: "feature columns",
    "source_rows": "choice of source rows",
    "target_rows": "choice of target rows",
}


def open_part(path: Path, stack: ExitStack) -> FeatureFile:
    """Open a features file that knows enough of its origin to be merged, until `stack` closes."""
    file = stack.enter_context(FeatureFile(path))
    if file.is_adapted:
        raise CovcalError(f"{path} is an adapted file: merge features files, then adapt the result")
    missing = [name for name in (*COMMON, "largest_logit") if name not in file.attributes]
    if missing:
        raise CovcalError(
            f"{path} does not say its {missing[0]}: extract it again with this version"
        )
    return file


def require_same_run(files: Sequence[FeatureFile]) -> None:
    """Refuse files of another model, or made with other options, naming the first difference."""
    first = files[0]
    for file in files[1:]:
        if file.classes != first.classes:
            raise difference(
                "classes", first, ", ".join(first.classes), file, ", ".join(file.classes)
            )
        for name in (*COMMON, FEATURE_COLUMNS, "tail", *(f"{domain}_rows" for domain in DOMAINS)):
            one, two = first.attributes.get(name), file.attributes.get(name)
            differs = one is not None and two is not None and bool(one != two)
            if differs and not _never_ran(name, first, file):
                raise difference(_WORDS.get(name, name), first, one, file, two)
        for name in HEAD:
            heads = [found.handle.get(f"head/{name}") for found in (first, file)]
            values = [head[:].tobytes() if head is not None else b"" for head in heads]
            if values[0] != values[1]:
                raise CovcalError(
                    f"{first.path} and {file.path} differ in the {name} of the last layer: "
                    "extract both with the same model"
                )


def _never_ran(name: str, one: FeatureFile, two: FeatureFile) -> bool:
    """Return whether `name` is unknown in one of the files because it has no rows."""
    return name == "tail" and "None" in (one.attributes["tail"], two.attributes["tail"])


def require_every_shard(name: str, files: Sequence[FeatureFile]) -> None:
    """Refuse files that are not each shard of domain `name`, once."""
    found: dict[int, FeatureFile] = {}
    counts = set()
    for file in files:
        if "shard" not in file.attributes:
            other = next(entry for entry in files if entry is not file)
            raise CovcalError(
                f"{file.path} holds the whole {name}, and {other.path} has {name} rows too: give "
                "either one whole file or every shard"
            )
        shard = Shard.parse(str(file.attributes["shard"]))
        counts.add(shard.count)
        if shard.index in found:
            raise CovcalError(
                f"{found[shard.index].path} and {file.path} are both shard {shard}: give each "
                "shard once"
            )
        found[shard.index] = file
    if len(counts) > 1:
        sizes = " and ".join(map(str, sorted(counts)))
        raise CovcalError(
            f"{files[0].path} and the others are shards of {sizes}: give the shards of one run"
        )
    (count,) = counts
    missing = sorted(set(range(1, count + 1)) - set(found))
    if missing:
        names = ", ".join(f"{index}/{count}" for index in missing[:8])
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise CovcalError(
            f"{name} shard {names}{more} is missing: give all {count} of them, or run "
            f"covcal extract --shard {missing[0]}/{count}"
        )


def difference(what: str, one: FeatureFile, a: Any, two: FeatureFile, b: Any) -> CovcalError:
    """Return the error that two files differ in `what`, which is `a` in one and `b` in two."""
    return CovcalError(
        f"{one.path} and {two.path} differ in their {what} ({_short(a)} and {_short(b)}): extract "
        "both with the same model and options"
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
