"""A fitted calibration: what cal.json holds, and calibrated probabilities from it.

The confidence of a row is the probability that the calibrated forecaster gives to the label which
the ORIGINAL classifier predicted (DESIGN 3.6); that label is never changed.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from covcal_cli.calibrationparts import Candidate, Input
from covcal_cli.classnames import require_same_classes
from covcal_cli.errors import CovcalError
from covcal_cli.featurecolumns import ATTRIBUTE, read_columns, require_same_columns
from covcal_cli.featurefile import FeatureFile, ForecasterName
from covcal_cli.files import relative_to_folder_of, require_file, write_text
from covcal_cli.jsonfields import DamagedFieldError, Fields
from covcal_cli.labelfree.guards import Guard

__all__ = [
    "SCHEMA",
    "Calibration",
    "Candidate",
    "Input",
    "model_of",
    "read_calibration",
    "write_calibration",
]

SCHEMA = "covcal.calibration/1"
_LEAST_TEMPERATURE = 1e-100  # beyond it, or its inverse, scaled logits would overflow
_AGAIN = "calibrate this file itself"
_FORECASTERS: tuple[ForecasterName, ...] = ("original", "aligned")


def _source_prior() -> Mapping[str, Any]:
    return {"name": "source", "shares": None}


@dataclass(frozen=True)
class Calibration:
    """Everything that ``covcal calibrate`` found, as cal.json holds it.

    Attributes
    ----------
    method, method_used, reason : str
        The method asked for, the method in force, and why in one sentence.
    forecaster : {"original", "aligned"}
        Whose logits the temperature scales: the classifier's, or those learnt on psi(phi).
    forecaster_temperature : float
        T_f; probabilities are softmax(z / T_f).
    discriminator_temperatures : tuple of float
        T_g per member; empty where no weights were computed.
    discriminator : {"logistic", "network"} or None
    max_weight : float
        U.
    loss : str
        What T_f minimises, ``"brier"`` or ``"nll"``.
    fit : mapping
        Of the fit of T_f: rows, errors, loss before and after, limit.
    weights, bound : mapping or None
        `WeightHealth` and `BoundTerms`, where weights were computed.
    estimates : mapping
        Without target labels: mean confidence on target validation rows, before and after. A
        calibrated mean confidence is an estimate of the target accuracy.
    notes, warnings : tuple of str
    seed : int
    classes : tuple of str
    model : mapping
        Name and sha256 of the classifier.
    networks_sha256 : str or None
        Of the aligned networks, which the fl methods are bound to.
    inputs : tuple of Input
    guards : tuple of Guard
        What the method rests on, each with its number and threshold.
    candidates : tuple of Candidate
        What ``auto`` chose from.
    target_prior : mapping
        ``name`` as asked, and ``shares`` per class where they are not the source's.
    used_target_labels : bool
        True for ``covcal calibrate-labelled`` alone.
    labelled_rows : mapping or None
        The target rows whose labels were used: ``n``, ``seed``, ``ids``, and the sha256 of the ids.
    feature_columns : tuple of str
        The columns of a table that went into the model, in order; empty where none did.
    """

    method: str
    method_used: str
    reason: str
    forecaster: ForecasterName
    forecaster_temperature: float
    discriminator_temperatures: tuple[float, ...]
    discriminator: str | None
    max_weight: float
    loss: str
    fit: Mapping[str, Any]
    weights: Mapping[str, Any] | None
    bound: Mapping[str, Any] | None
    estimates: Mapping[str, Any]
    seed: int
    classes: tuple[str, ...]
    model: Mapping[str, str]
    networks_sha256: str | None
    inputs: tuple[Input, ...]
    notes: tuple[str, ...] = field(default=())
    warnings: tuple[str, ...] = field(default=())
    guards: tuple[Guard, ...] = field(default=())
    candidates: tuple[Candidate, ...] = field(default=())
    target_prior: Mapping[str, Any] = field(default_factory=_source_prior)
    used_target_labels: bool = False
    labelled_rows: Mapping[str, Any] | None = None
    feature_columns: tuple[str, ...] = ()

    def to_json(self, document: Path) -> dict[str, Any]:
        """Return the content of cal.json when it is written at `document`."""
        return {
            "schema": SCHEMA,
            "method": self.method,
            "method_used": self.method_used,
            "reason": self.reason,
            "forecaster": self.forecaster,
            "temperatures": {
                "forecaster": self.forecaster_temperature,
                "discriminator": list(self.discriminator_temperatures),
            },
            "discriminator": self.discriminator,
            "max_weight": self.max_weight,
            "loss": self.loss,
            "fit": dict(self.fit),
            "weights": self.weights,
            "bound": self.bound,
            "estimates": dict(self.estimates),
            "guards": [guard.to_json() for guard in self.guards],
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "target_prior": dict(self.target_prior),
            "used_target_labels": self.used_target_labels,
            "labelled_rows": self.labelled_rows,
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "seed": self.seed,
            "classes": list(self.classes),
            "model": dict(self.model),
            "feature_columns": list(self.feature_columns),
            "networks_sha256": self.networks_sha256,
            "inputs": [
                {
                    "role": entry.role,
                    "path": relative_to_folder_of(entry.path, document),
                    "sha256": entry.sha256,
                }
                for entry in self.inputs
            ],
        }

    def require_same_classifier(self, file: FeatureFile) -> None:
        """Refuse a file whose model or classes are not those of this calibration.

        Raises
        ------
        CovcalError
            Naming the file and what differs.
        """
        same_model = model_of(file)["sha256"] == self.model["sha256"]
        require_same_classes(
            file.path, file.classes, self.classes, remedy=_AGAIN, same_model=same_model
        )
        if not same_model:
            raise CovcalError(
                f"{file.path} comes from another model than the calibration "
                f"(made for {self.model['name']}): {_AGAIN}"
            )
        found = read_columns(file.attributes.get(ATTRIBUTE))
        require_same_columns(file.path, found, self.feature_columns)

    def require_same_networks(self, file: FeatureFile) -> None:
        """Refuse a file without the aligned logits of this calibration, if it needs any.

        Raises
        ------
        CovcalError
            Naming the file and what it lacks.
        """
        if self.forecaster == "aligned" and not file.is_adapted:
            raise CovcalError(
                f"{file.path} has no aligned logits, which {self.method_used} needs: give the file "
                "that covcal adapt made, or a calibration of the classifier's own logits"
            )
        networks = file.attributes.get("networks_sha256")
        if self.forecaster == "aligned" and networks != self.networks_sha256:
            raise CovcalError(
                f"{file.path} holds other aligned networks than the calibration: {_AGAIN}"
            )


def model_of(file: FeatureFile) -> dict[str, str]:
    """Return name and sha256 of the classifier that a file comes from; empty where unknown."""
    return {name: str(file.attributes.get(f"model_{name}", "")) for name in ("name", "sha256")}


def write_calibration(calibration: Calibration, path: Path, *, force: bool) -> None:
    """Write cal.json, whole or not at all."""
    document = json.dumps(calibration.to_json(path), indent=2, allow_nan=False)
    write_text(path, document + "\n", force=force)


def read_calibration(path: Path) -> Calibration:
    """Read a cal.json.

    Raises
    ------
    CovcalError
        If the file is missing, is not JSON, or is not a calibration that this version reads.
    """
    require_file(path, remedy="make it with covcal calibrate")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CovcalError(f"{path} is not JSON: make it with covcal calibrate") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise CovcalError(
            f"{path} has schema {schema!r}; this version reads {SCHEMA}: make it with "
            "covcal calibrate"
        )
    try:
        calibration = _from_json(Fields(content), path)
    except DamagedFieldError as error:
        raise CovcalError(f"{path} is damaged ({error}): calibrate again") from error
    temperature = calibration.forecaster_temperature
    if not _LEAST_TEMPERATURE < temperature < 1 / _LEAST_TEMPERATURE:
        raise CovcalError(f"{path} holds the temperature {temperature}: calibrate again")
    return calibration


def _from_json(content: Fields, path: Path) -> Calibration:
    temperatures, model = content.inside("temperatures"), content.inside("model")
    inputs = tuple(
        Input(entry.text("role"), path.parent / entry.text("path"), entry.text("sha256"))
        for entry in content.each("inputs")
    )
    if not inputs:
        raise DamagedFieldError("inputs is empty")
    return Calibration(
        method=content.text("method"),
        method_used=content.text("method_used"),
        reason=content.text("reason"),
        forecaster=_forecaster(content),
        forecaster_temperature=temperatures.number("forecaster"),
        discriminator_temperatures=temperatures.numbers("discriminator"),
        discriminator=content.text_or_null("discriminator"),
        max_weight=content.number("max_weight"),
        loss=content.text("loss"),
        fit=content.mapping("fit"),
        weights=content.mapping_or_null("weights"),
        bound=content.mapping_or_null("bound"),
        estimates=content.mapping("estimates"),
        seed=content.integer("seed"),
        classes=content.texts("classes"),
        model={name: model.text(name) for name in ("name", "sha256")},
        networks_sha256=content.text_or_null("networks_sha256"),
        inputs=inputs,
        notes=content.texts("notes"),
        warnings=content.texts("warnings"),
        # Files of earlier versions have none of these.
        guards=tuple(map(_guard, content.each("guards"))) if "guards" in content else (),
        candidates=tuple(map(_candidate, content.each("candidates")))
        if "candidates" in content
        else (),
        target_prior=content.mapping("target_prior")
        if "target_prior" in content
        else _source_prior(),
        used_target_labels="used_target_labels" in content and content.truth("used_target_labels"),
        labelled_rows=_labelled_rows(content) if "labelled_rows" in content else None,
        feature_columns=content.texts("feature_columns") if "feature_columns" in content else (),
    )


def _forecaster(content: Fields) -> ForecasterName:
    written = content.text("forecaster")
    for known in _FORECASTERS:
        if written == known:
            return known
    raise DamagedFieldError(f"forecaster is {written!r}, which is neither original nor aligned")


def _labelled_rows(content: Fields) -> Mapping[str, Any] | None:
    rows = content.mapping_or_null("labelled_rows")
    # evaluate leaves these rows out: without their ids it would judge on them.
    ids = () if rows is None else content.inside("labelled_rows").texts("ids")
    return None if rows is None else {**rows, "ids": list(ids)}


def _guard(entry: Fields) -> Guard:
    return Guard(
        entry.text("name"),
        entry.number("value"),
        entry.number("threshold"),
        entry.truth("passed"),
        entry.text("sentence"),
    )


def _candidate(entry: Fields) -> Candidate:
    return Candidate(
        entry.text("method"),
        entry.number("temperature"),
        entry.number_or_null("target_confidence"),
        entry.number_or_null("estimated_accuracy"),
        entry.number_or_null("expected_ece"),
        entry.truth("chosen"),
        entry.text("why"),
    )
