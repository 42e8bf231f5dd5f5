"""Whether features files are of one run, and can be joined: the first difference is named."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covcal_cli.errors import CovcalError, shown
from covcal_cli.extract.parts import difference
from covcal_cli.forecast.compatibility import setting_that_differs
from covcal_cli.formats.features import DOMAINS, FEATURE_COLUMNS, SOURCE_FRACTIONS, FeatureFile
from covcal_cli.records import parsed_json

HEAD = ("weight", "bias")  # of the last layer
_NUMBERS = ("seed", "affine_difference", "largest_logit")
# Root attributes that all parts share, in the order in which ``extract`` writes them.
COMMON = (
    "model_name",
    "model_sha256",
    "features_tensor",
    "logits_tensor",
    "preprocessing",
    "fractions",
    "seed",
)
_WORDS = {
    "model_name": "model",
    "model_sha256": "model",
    FEATURE_COLUMNS: "feature columns",
    "source_rows": "choice of source rows",
    "target_rows": "choice of target rows",
}


def require_origin(file: FeatureFile) -> None:
    """Refuse a file that does not know enough of its origin to be merged."""
    if file.is_adapted:
        raise CovcalError(
            f"{file.path} is an adapted file: merge features files, then adapt the result"
        )
    missing = [name for name in (*COMMON, *_NUMBERS, "tail") if name not in file.attributes]
    if missing:
        raise CovcalError(
            f"{file.path} does not say its {missing[0]}: extract it again with this version"
        )
    for name in _NUMBERS:
        if isinstance(file.attributes[name], str):
            raise CovcalError(f"{file.path}: its {name} is no number: extract it again")


def _setting(found: Any, expected: Any) -> str:
    """Return the setting of preprocessing that differs, of two attributes."""
    try:
        return setting_that_differs(parsed_json(found), parsed_json(expected))
    except (TypeError, ValueError):  # damaged
        return f"{shown(found)}, not {shown(expected)}"


def require_same_run(first: FeatureFile, file: FeatureFile) -> None:
    """Refuse a file of another model, or made with other options, naming the first difference."""
    require_same_settings(first, file.path, file.classes, file.attributes)
    for name in HEAD:
        heads = [found.handle.get(f"head/{name}") for found in (first, file)]
        values = [head[:].tobytes() if head is not None else b"" for head in heads]
        if values[0] != values[1]:
            raise CovcalError(
                f"{first.path} and {file.path} differ in the {name} of the last layer: extract "
                "both with the same model"
            )


def require_same_settings(
    first: FeatureFile, path: Path, classes: Sequence[str], attributes: Mapping[str, Any]
) -> None:
    """Refuse classes and root attributes of `path` that do not go with a features file.

    The first difference is named.
    """
    if list(classes) != list(first.classes):
        texts = [", ".join(names) for names in (first.classes, classes)]
        raise difference("classes", first.path, texts[0], path, texts[1])
    for name in (
        *COMMON,
        SOURCE_FRACTIONS,
        FEATURE_COLUMNS,
        "tail",
        *(f"{domain}_rows" for domain in DOMAINS),
    ):
        one, two = first.attributes.get(name), attributes.get(name)
        if one is None or two is None or one == two:
            continue
        if name == "tail" and "None" in (one, two):
            continue  # a file without rows does not know it
        if name == "preprocessing":
            raise CovcalError(
                f"{first.path} and {path} differ in their preprocessing (the second has "
                f"{_setting(two, one)}): extract both with the same model and options"
            )
        raise difference(_WORDS.get(name, name), first.path, one, path, two)
