"""Apply calibrations to features files, and refuse files of another classifier.

A "forecaster" gives the logits that are scaled: the classifier ("original"), or the networks of
covcal adapt ("aligned"). An adapted file contains the aligned logits of its own rows. For later
rows, `networks_for` returns networks that compute aligned logits from features.

A calibration can be applied to a file if both have the same model, classes, feature columns, output
tensors and preprocessing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, Booleans, Float32s, Float64s, Floats, Labels, Rows
from covcal_cli.errors import CovcalError, LimitExceededError, UnusedOptionError, percent
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.features import Domain, FeatureFile, SourceDomain
from covcal_cli.maths.networks import (
    Networks,
    aligned_logits,
    networks_sha256,
    read_networks,
    unfit,
)
from covcal_cli.maths.softmax import (
    ForecasterName,
    Scaling,
    Softmax,
    class_major,
    log_mean_softmax,
    top_confidence,
)
from covcal_cli.maths.source_accuracy import CHECKS, SourceAccuracy
from covcal_cli.multilabel import current_label
from covcal_cli.progress import Progress, ProgressCallback, silent
from covcal_cli.records import Guard

NONE = "none"
UNSCALED = Scaling("original", 1.0)


@dataclass(frozen=True)
class AlignedNetworks:
    """The networks of an adapted file."""

    path: Path
    sha256: str  # sha256 of the arrays, as in cal.json
    arrays: Networks

    @property
    def n_features(self) -> int:
        """The number of input features."""
        return len(self.arrays["projection/mean"])

    @property
    def n_members(self) -> int:
        """The number of ensemble members."""
        return len(self.arrays["psi/weight_0"])

    def aligned_logits(self, domain: Domain, rows: Rows) -> Float32s:
        """Return the logits of every member, shape (M, m, K)."""
        self.require_features(domain)
        return aligned_logits(self.arrays, domain.features(rows))

    def require_features(self, domain: Domain) -> None:
        """Refuse a domain without features, or with another number of features."""
        if domain.n_features is None:
            raise CovcalError(
                f"{domain.path}: /{domain.name}/features is missing, but the aligned networks "
                "need it: extract again with features"
            )
        if domain.n_features != self.n_features:
            raise CovcalError(
                f"{domain.path}: /{domain.name}/features has {domain.n_features} columns, but the "
                f"networks of {self.path} take {self.n_features}: pass the adapted file that was "
                "made from this model's features"
            )


def read_aligned_networks(path: Path) -> AlignedNetworks:
    """Read the networks of an adapted file."""
    with FeatureFile(path) as file:
        if not file.is_adapted:
            raise CovcalError(f"{path} holds no networks: name the file that covcal adapt made")
        if "networks" not in file.handle:
            raise CovcalError(f"{path}: /networks is missing: run covcal adapt again")
        arrays = read_networks(file.handle["networks"])
    damaged = unfit(arrays)
    if damaged is not None:
        raise CovcalError(
            f"{path}: /networks/{damaged} is missing or damaged: run covcal adapt again"
        )
    return AlignedNetworks(path, networks_sha256(arrays), arrays)


def forecaster_logits(
    domain: Domain, rows: Rows, forecaster: ForecasterName, networks: AlignedNetworks | None = None
) -> Floats:
    """Return the logits of the classifier or of the adapted networks, shape (m, K).

    `networks` compute the aligned logits if the file lacks aligned logits.
    """
    if networks is None or forecaster == "original":
        return domain.forecaster_logits(rows, forecaster)
    return log_mean_softmax(networks.aligned_logits(domain, rows)).T


def networks_for(
    calibration: Calibration,
    file: FeatureFile,
    networks: Path | None = None,
    *,
    allow_other_preprocessing: bool = False,
) -> AlignedNetworks | None:
    """Return the networks that a calibration needs for a file, or None.

    Networks are needed only if the calibration scales aligned logits and the file lacks aligned
    logits. The networks come from the adapted file `networks`, or from the file that cal.json
    names.

    Raises `CovcalError` if the networks belong to another calibration, or the calibration cannot be
    applied to the file.
    """
    require_fitting(calibration, file, allow_other_preprocessing=allow_other_preprocessing)
    aligned = calibration.scaling.reads_aligned
    if aligned and not file.is_adapted:
        return fitted_networks(calibration, networks)
    if aligned and file.attributes.get("networks_sha256") != calibration.networks_sha256:
        raise CovcalError(
            f"{file.path} and the calibration have different aligned networks: {AGAIN}"
        )
    if networks is not None:
        why = "holds" if aligned else "needs no"
        raise CovcalError(f"{file.path} {why} aligned logits: leave out --networks")
    return None


def fitted_networks(calibration: Calibration, networks: Path | None) -> AlignedNetworks:
    """Return the networks that a calibration was fitted with."""
    document, path = calibration.path, networks or calibration.inputs[0].path
    if networks is None and calibration.inputs[0].is_outside:
        raise CovcalError(
            f"{document} was fitted with the networks of {path}, which is outside the folder of "
            f"the calibration: pass --networks {path}"
        )
    if networks is None and not path.is_file():
        raise CovcalError(
            f"{document} was fitted with the networks of {path}, which is missing: pass "
            "--networks with its new path"
        )
    networks_read = read_aligned_networks(path)
    if networks_read.sha256 != calibration.networks_sha256:
        raise CovcalError(
            f"{document} was not fitted with the networks of {path}: pass --networks with the "
            "adapted file of the calibration, or calibrate again"
        )
    return networks_read


@dataclass(frozen=True)
class ScaledLogits:
    """Computes calibrated probabilities of the rows in a file."""

    scaling: Scaling
    networks: AlignedNetworks | None = None

    @property
    def reads(self) -> set[str]:
        """The names of the datasets that the calibration reads."""
        aligned = "aligned_logits" if self.networks is None else "features"
        return {"logits" if name == "original" else aligned for name in self.scaling.temperatures}

    @property
    def keys(self) -> dict[str, ForecasterName]:
        """The logits to scale, by key. Equal keys mean equal logits."""
        aligned = "aligned" if self.networks is None else self.networks.sha256
        names = self.scaling.temperatures
        return {name if name == "original" else aligned: name for name in names}

    def prepared(self, domain: Domain, rows: Rows) -> tuple[Float64s, float]:
        """Return class-major logits z, (K, m), and the temperature T of softmax(z / T)."""
        return self.scaling.prepared(self._blocks(domain, rows))

    def forecast(self, domain: Domain, rows: Rows) -> Softmax:
        """Return the calibrated probabilities of a block of rows."""
        return self.scaling.forecast(self._blocks(domain, rows))

    def confidences(self, domain: Domain, rows: Rows) -> Iterator[tuple[Labels, Float64s]]:
        """Yield predicted labels and their calibrated probabilities, in blocks."""
        for block in domain.blocks(rows, "logits", *self.reads):
            logits = domain.logits(block)
            if self.scaling.can_move_the_top:
                labels = logits.argmax(axis=1)
                yield labels, self.scaling.confidence(self._blocks(domain, block, logits), labels)
            else:
                yield top_confidence(logits, self.scaling.temperature)

    def confidence(
        self, domain: Domain, rows: Rows, progress: ProgressCallback = silent
    ) -> Float64s:
        """Return the calibrated probabilities of the predicted labels, shape (n,)."""
        values, stop = np.empty(len(rows)), 0
        for _, block in self.confidences(domain, rows):
            start, stop = stop, stop + len(block)
            values[start:stop] = block
            progress(Progress("confidence", stop, len(rows)))
        return values

    def of_labelled(self, source: SourceDomain | None, most: int) -> tuple[Float64s, Booleans]:
        """Return the confidence of labelled source validation rows, and which rows are wrong."""
        if source is None:
            return np.empty(0), np.empty(0, dtype=bool)
        drawn = source.drawn(most, 0, "validation")
        drawn = drawn[source.labels(drawn) != UNKNOWN_LABEL]
        blocks = [(np.empty(0, dtype=np.int64), np.empty(0)), *self.confidences(source, drawn)]
        predicted, confidence = map(np.concatenate, zip(*blocks, strict=True))
        return confidence, np.asarray(predicted != source.labels(drawn))

    def mean_confidence(self, domain: Domain, *splits: str) -> float:
        """Return the mean calibrated confidence of the rows in `splits`."""
        total = sum(
            float(values.sum())
            for rows in domain.split_blocks(*splits)
            for _, values in self.confidences(domain, rows)
        )
        return total / domain.count(*splits)

    def _blocks(self, domain: Domain, rows: Rows, logits: Floats | None = None) -> list[Float64s]:
        return [
            class_major(
                logits
                if logits is not None and name == "original"
                else forecaster_logits(domain, rows, name, self.networks)
            )
            for name in self.scaling.temperatures
        ]


def split_names(arguments: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Split arguments ``FILE`` or ``NAME=FILE`` into files and names.

    For ``FILE``, the name is empty. If a file called ``NAME=FILE`` exists, the argument is a file.
    """
    files, names = [], []
    for argument in arguments:
        name, equals, rest = str(argument).partition("=")
        has_name = bool(equals and name and rest) and "/" not in name and not argument.exists()
        files.append(Path(rest) if has_name else argument)
        names.append(name if has_name else "")
    return files, names


def read_named(
    documents: Sequence[Path], networks: Path | None = None, names: Sequence[str] = ()
) -> dict[str, Calibration]:
    """Read calibrations, and return a dictionary by name.

    `names` are the user's names, in the order of `documents`. The default name is the method, or
    the file name if several calibrations have the same method.

    Raises `CovcalError` if a calibration cannot be read, or two calibrations have the same name.
    Raises `UnusedOptionError` if `networks` are given and no calibration scales aligned logits.
    """
    calibrations = [read_calibration(document) for document in documents]
    if networks is not None and not any(read.scaling.reads_aligned for read in calibrations):
        raise UnusedOptionError("--networks", "no calibration uses it")
    methods = [calibration.method_used for calibration in calibrations]
    by_name: dict[str, Calibration] = {}
    for path, given, method, calibration in zip(
        documents, names or [""] * len(documents), methods, calibrations, strict=True
    ):
        is_unclear = methods.count(method) > 1 or current_label() is not None
        name = given or (path.stem if is_unclear and method != NONE else method)
        if name in by_name or (name == NONE and method != NONE):
            raise CovcalError(
                f"two calibrations have the name {name!r}: rename {path}, or give it a name: "
                f"-c NAME={path}"
            )
        by_name[name] = calibration
    return by_name


def scaled_logits(
    file: FeatureFile,
    calibrations: Mapping[str, Calibration],
    networks: Path | None,
    *,
    allow_other_preprocessing: bool = False,
) -> dict[str, ScaledLogits]:
    """Return a `ScaledLogits` for each calibration, by name.

    `networks` is the new path of the adapted file, if the file has moved.

    Raises `CovcalError` if a calibration cannot be applied to the file.
    """
    scaled, allow = {}, allow_other_preprocessing
    for name, calibration in calibrations.items():
        path = networks if calibration.scaling.reads_aligned else None
        aligned = networks_for(calibration, file, path, allow_other_preprocessing=allow)
        scaled[name] = ScaledLogits(calibration.scaling, aligned)
    return scaled


UNSEEN = ("validation", "test")
MIN_SOURCE_ERRORS = 20
SOURCE_ERRORS = "source errors"


def source_accuracy(file: FeatureFile) -> SourceAccuracy | None:
    """Return the accuracy on source validation and test rows."""
    source = file.source
    if source is None:
        return None
    rows = np.union1d(*(source.rows(split) for split in UNSEEN))
    rows = rows[source.labels(rows) != UNKNOWN_LABEL]
    predictions = [source.logits(block).argmax(axis=1) for block in source.blocks(rows, "logits")]
    if not predictions:
        return None
    return SourceAccuracy.of(
        source.labels(rows),
        np.concatenate(predictions),
        file.classes,
        lambda chosen: source.logits(rows[chosen]),
    )


def require_accuracy(accuracy: SourceAccuracy | None, expected: float, path: Path) -> None:
    """Refuse an accuracy that is significantly lower than expected.

    `path` is the features file, for messages.

    Raises `CovcalError` if no accuracy is known. Raises `LimitExceededError` if the accuracy is too
    low.
    """
    if accuracy is None:
        raise CovcalError(
            f"{path} has no labelled source rows in the validation and test splits, so the "
            "source accuracy is not known: pass other --fractions, or leave out "
            "--expect-accuracy"
        )
    if accuracy.is_below(expected):
        raise LimitExceededError(
            f"the classifier gets {accuracy} right, but you expect {percent(expected, 2)}. {CHECKS}"
        )


AGAIN = "fit another calibration on this file"


def require_fitting(
    calibration: Calibration, file: FeatureFile, *, allow_other_preprocessing: bool = False
) -> None:
    """Refuse a file to which a calibration cannot be applied.

    Raises `CovcalError` if model, classes, columns or tensors differ. Different preprocessing is
    refused too, unless `allow_other_preprocessing` is true.
    """
    same_model = file.model["sha256"] == calibration.model["sha256"]
    # Compare class names first, because the error message can show names but not hashes.
    _require_same_classes(calibration, file, same_model=same_model)
    if not same_model:
        raise CovcalError(
            f"{file.path} and the calibration come from different models (the calibration was "
            f"made for {calibration.model['name']}): {AGAIN}"
        )
    _require_same_columns(calibration, file)
    _require_same_reading(calibration, file)
    if not allow_other_preprocessing:
        _require_same_preprocessing(calibration, file)


def _require_same_classes(calibration: Calibration, file: FeatureFile, *, same_model: bool) -> None:
    classes, expected, document = file.classes, calibration.classes, calibration.path
    if len(classes) != len(expected):
        raise CovcalError(
            f"{file.path} has {len(classes)} classes, but {document} has {len(expected)}: {AGAIN}"
        )
    for index, (name, wanted) in enumerate(zip(classes, expected, strict=True)):
        if name == wanted:
            continue
        differs = f"(class {index} is {name}, not {wanted})"
        names = "different class names"
        if same_model and sorted(classes) == sorted(expected):
            names = "the same classes in different orders"
        # A model's classes can be renamed, but new names in a table mean new classes.
        elif not same_model or (not file.model["sha256"] and not _are_numbers(classes)):
            raise CovcalError(f"{file.path} and the calibration have {names} {differs}: {AGAIN}")
        raise CovcalError(
            f"{file.path} and the calibration have {names} {differs}: extract it again with "
            f"--classes {document}"
        )


def _are_numbers(names: Sequence[str]) -> bool:
    return list(names) == [str(number) for number in range(len(names))]


def _require_same_columns(calibration: Calibration, file: FeatureFile) -> None:
    columns, expected = file.feature_columns, calibration.feature_columns
    if not columns or not expected or columns == expected:
        return
    lacking = [name for name in expected if name not in columns]
    extra = [name for name in columns if name not in expected]
    if not lacking and not extra:
        place = next(i for i, (a, b) in enumerate(zip(columns, expected, strict=False)) if a != b)
        raise CovcalError(
            f"{file.path} and the calibration have their feature columns in different orders "
            f"(column {place} is {columns[place]}, not {expected[place]}): reorder the "
            "table's columns, or extract the table together with the source"
        )
    has = [f"lacks {lacking[0]}"] if lacking else []
    has += [f"has {extra[0]}"] if extra else []
    raise CovcalError(
        f"{file.path} and the calibration have different feature columns (the file "
        f"{' and '.join(has)}): give the columns of the calibration"
    )


def _require_same_reading(calibration: Calibration, file: FeatureFile) -> None:
    actual, expected = file.reading, calibration.reading
    features = [reading.get("features_tensor") for reading in (actual, expected)]
    names = ["tail"]
    if all(features):
        names.append("logits_tensor")
        if calibration.scaling.reads_aligned:
            names.append("features_tensor")
    for name in names:
        if name in actual and name in expected and actual[name] != expected[name]:
            what = {"tail": "output", "logits_tensor": "logits", "features_tensor": "features"}
            raise CovcalError(
                f"{file.path} was extracted with {actual[name]} as the model's {what[name]}, "
                f"but {calibration.path} was fitted with {expected[name]}: extract it again "
                f"with the same --model-output and --phi, or {AGAIN}"
            )


def _require_same_preprocessing(calibration: Calibration, file: FeatureFile) -> None:
    name = "preprocessing"
    actual, expected = file.reading, calibration.reading
    if name not in actual or name not in expected or actual[name] == expected[name]:
        return
    differs = setting_that_differs(actual[name], expected[name])
    raise CovcalError(
        f"{file.path} and {calibration.path} have different preprocessing ({differs}): "
        "extract the file again with the same preprocessing, or pass "
        "--allow-other-preprocessing"
    )


def setting_that_differs(actual: Any, expected: Any) -> str:
    """Return the first preprocessing setting that differs, with both values."""
    if not (isinstance(actual, Mapping) and isinstance(expected, Mapping)):
        has, had = (
            "none" if reading is None else "that of images" for reading in (actual, expected)
        )
        return f"{has}, not {had}"
    unsaid = "not given"
    pairs = (
        (name, actual.get(name, unsaid), expected.get(name, unsaid))
        for name in sorted({*actual, *expected})
    )
    name, reading, other = next(pair for pair in pairs if pair[1] != pair[2])
    if isinstance(reading, Mapping) and isinstance(other, Mapping):
        return f"{name}: {setting_that_differs(reading, other)}"
    return f"{name} {reading}, not {other}"


def enough_errors(errors: int, rows: int) -> Guard:
    """Check that labelled source validation rows contain at least 20 errors."""
    of, least = "source validation rows", MIN_SOURCE_ERRORS
    text = f"{errors} errors among {rows} {of} (at least {least} needed)"
    text += "" if errors >= least else f"; give more {of}"
    return Guard("source errors", float(errors), float(least), errors >= least, text)
