"""Check that features files can be joined: same model, classes and options.

Every error names the first difference.
"""

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
    """Refuse a file that does not say enough about its origin to be merged."""
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
            raise CovcalError(f"{file.path}: its {name} is not a number: extract it again")


def _setting(value: Any, expected: Any) -> str:
    """Return the setting in which two attributes with preprocessing differ."""
    try:
        return setting_that_differs(parsed_json(value), parsed_json(expected))
    except (TypeError, ValueError):  # damaged
        return f"{shown(value)}, not {shown(expected)}"


def require_same_run(first: FeatureFile, file: FeatureFile) -> None:
    """Refuse a file that comes from another model or other options."""
    require_same_settings(first, file.path, file.classes, file.attributes)
    for name in HEAD:
        heads = [opened.handle.get(f"head/{name}") for opened in (first, file)]
        values = [head[:].tobytes() if head is not None else b"" for head in heads]
        if values[0] != values[1]:
            raise CovcalError(
                f"{first.path} and {file.path} differ in the {name} of the last layer: extract "
                "both with the same model"
            )


def require_same_settings(
    first: FeatureFile, path: Path, classes: Sequence[str], attributes: Mapping[str, Any]
) -> None:
    """Refuse a file at `path` whose classes or root attributes do not fit the file `first`."""
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
        expected, value = first.attributes.get(name), attributes.get(name)
        if expected is None or value is None or expected == value:
            continue
        if name == "tail" and "None" in (expected, value):
            continue  # a file without rows does not know its tail
        if name == "preprocessing":
            raise CovcalError(
                f"{first.path} and {path} differ in their preprocessing (the second has "
                f"{_setting(value, expected)}): extract both with the same model and options"
            )
        raise difference(_WORDS.get(name, name), first.path, expected, path, value)
