"""Add a calibration to a classifier, and write one model.

The new model returns the unchanged outputs of the original model, and then three more outputs:

- ``probabilities``, [N, K]: the calibrated probabilities
- ``label``, [N] int64: the predicted class of the original model
- ``confidence``, [N]: the calibrated probability of the label
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from covcal_cli import __version__
from covcal_cli.classifiers import TORCH, kind_of, names_a_function
from covcal_cli.errors import CovcalError
from covcal_cli.export.forecaster import (
    Exporter,
    ExportReport,
    Forecaster,
    Merge,
    Original,
    StoredRows,
    Tensors,
    calibrated_networks,
    extracted_tensors,
    stored_rows,
)
from covcal_cli.files import check_output, sha256_of
from covcal_cli.forecast import AlignedNetworks
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.decision import read_decision
from covcal_cli.formats.lineage import labels_of
from covcal_cli.multilabel import for_each_label

_PREFIX = "covcal."


def export(
    model: str | Path,
    document: str | Path,
    output: str | Path | None = None,
    *,
    weights: str | Path | None = None,
    networks: str | Path | None = None,
    decision: str | Path | None = None,
    model_output: str | None = None,
    trust_model: bool = False,
    force: bool = False,
) -> tuple[ExportReport, Calibration]:
    """Write a classifier that also returns calibrated probabilities.

    Parameters
    ----------
    model : str or Path
        The extracted classifier: an ONNX file, a TorchScript or torch.export file, or
        ``module:function``.
    document : Path
        The calibration, cal.json.
    output : Path, optional
        The file to write. Default: ``calibrated.onnx`` for ONNX or ``calibrated.pt2`` for torch, in
        the current folder.
    weights : Path, optional
        Weights for the module that ``module:function`` returns.
    networks : Path, optional
        The new path of the calibration's adapted file, if that file was moved.
    decision : Path, optional
        A decide.json for this calibration. The new model then also has the output ``accept``.
    model_output : str, optional
        Name of the output with the class scores, if the model has several outputs. Default: the
        output that covcal extract used.
    trust_model : bool
        Whether to open a model that can run code, such as a torch program.
    force : bool
        Replace `output` if it exists, and accept a calibration whose classes seem exchanged.

    Returns
    -------
    ExportReport
        The new files and outputs, and the results of the checks.
    Calibration
        The calibration of the new model. If rows can have several labels, this is the calibration
        of the first label.

    Raises
    ------
    CovcalError
        If the calibration does not belong to the model, if its classes seem exchanged, or if the
        new model fails a check. If an error is raised, no file is written.
    """
    kind = kind_of(model)
    path, document = Path(output or default_output(model)), Path(document)
    weights, networks = (None if extra is None else Path(extra) for extra in (weights, networks))
    if path.suffix.lower() != kind.exported:
        raise CovcalError(
            f"{path}: {kind.words} is exported as {kind.exported}: give -o a name with this ending"
        )
    inputs = [Path(model), document, *(extra for extra in (weights, networks) if extra)]
    inputs += [] if decision is None else [Path(decision)]
    check_output(path, force=force, inputs=inputs)
    labels = labels_of(None, [document])
    if labels and (kind is TORCH or decision is not None):
        what = "--decide" if decision is not None else kind.words
        raise CovcalError(
            f"{document} calibrates {len(labels)} labels per row, but covcal export cannot write "
            f"them with {what}: use covcal apply"
        )
    calibrations = for_each_label(labels, lambda: read_calibration(document))
    calibration = next(iter(calibrations.values()))
    if not calibration.model["sha256"]:
        raise CovcalError(
            f"{document} was fitted on a table, so it names no model: run covcal extract with "
            "the model, and calibrate the new features file"
        )
    accept_above = None
    if decision is not None:
        decided = read_decision(decision, document)
        if decided.promise_by is not None:
            raise CovcalError(
                f"{decision} has one threshold per group ({decided.promise_by}), and an exported "
                "model cannot use groups: use covcal apply --decide"
            )
        accept_above = decided.accept_above
    for of_label in calibrations.values():
        accuracy = of_label.source_accuracy
        if accuracy is not None and accuracy.class_order is not None and not force:
            raise CovcalError(f"{document}: {accuracy.class_order.rstrip('.')}, or pass --force")
    # Open the model, which must have the sha256 in cal.json.
    if kind is TORCH:
        from covcal_cli.export.torch import torch_exporter

        exporter = torch_exporter(model, weights, trusted=trust_model)
    else:
        from covcal_cli.export.onnx import onnx_exporter

        if weights is not None:
            raise CovcalError(f"{model} holds its own weights: leave out --weights")
        exporter = onnx_exporter(Path(model), independent=bool(labels))
    if exporter.sha256 != calibration.model["sha256"]:
        remedy = "export the model of the calibration, or extract and calibrate the new model"
        if names_a_function(model):
            remedy = f"pass the same --weights as to covcal extract, or {remedy}"
        raise CovcalError(
            f"{document} was made for the model {calibration.model['name']}, not for {model} "
            f"(its sha256 differs): {remedy}"
        )
    aligned = calibrated_networks(calibration, networks)
    scalings = [of_label.scaling for of_label in calibrations.values()] if labels else []
    stored = for_each_label(labels, lambda: stored_rows(calibration, networks))
    arrays = aligned.arrays if aligned else None
    merge = Merge(
        Forecaster(calibration.scaling, arrays, accept_above, scalings),
        stored=_joined(list(stored.values())) if labels else stored[""],
        metadata=_metadata(calibration) | _label_metadata(calibrations if labels else {}),
        output=path,
        force=force,
        inputs=inputs,
    )
    extracted = extracted_tensors(calibration, networks)
    original = _as_extracted(exporter, model_output, extracted, aligned, calibration, str(model))
    return original.write(merge), calibration


def default_output(model: str | Path) -> Path:
    """Return the default name of the exported model."""
    return Path(f"calibrated{kind_of(model).exported}")


def _as_extracted(
    exporter: Exporter,
    model_output: str | None,
    extracted: Tensors,
    networks: AlignedNetworks | None,
    calibration: Calibration,
    model: str,
) -> Original:
    document = calibration.path
    phis = ["none", None] if networks is None else [None, extracted.features]
    outputs = [model_output]
    if model_output is None and extracted.logits is not None:
        outputs += exporter.outputs
    refusal: CovcalError | None = None
    for output, phi in dict.fromkeys((output, phi) for output in outputs for phi in phis):
        try:
            original = exporter.original(output, phi)
            settled = original.settled
            settled.settle_as_extracted(extracted.tail, original.model_outputs)
        except CovcalError as error:
            refusal = refusal or error
            continue
        if extracted.logits not in (None, original.logits_tensor):
            refusal = refusal or CovcalError(
                f"{document} was made from the logits {extracted.logits} of {model}, but the "
                f"model's logits are now {original.logits_tensor}: pass the same --model-output as "
                "to covcal extract"
            )
        elif settled.tail and settled.tail != calibration.reading.get("tail", settled.tail):
            refusal = refusal or CovcalError(
                f"{document} was fitted to outputs of {model} of the kind "
                f"{calibration.reading['tail']!r}, but the outputs are now of the kind "
                f"{settled.tail!r}: pass the same --model-output as to covcal extract, or extract "
                "again"
            )
        elif networks is None:
            return original
        elif extracted.features in (None, original.features_tensor):
            if networks.n_features != original.n_features:
                raise CovcalError(
                    f"{networks.path}: its networks take {networks.n_features} features but "
                    f"{model} gives {original.n_features}: pass --networks with the adapted "
                    "file of this model"
                )
            return original
    raise refusal or CovcalError(
        f"{document} was made from the features {extracted.features} of {model}, but the "
        "model has no such features now: extract the model and calibrate again"
    )


def _joined(stored: Sequence[StoredRows | None]) -> StoredRows | None:
    """Return one column of logits per label; None without stored rows."""
    present = [rows.logits[:, 1] for rows in stored if rows is not None]
    return StoredRows(None, np.stack(present, axis=1)) if len(present) == len(stored) else None


def _label_metadata(calibrations: Mapping[str, Calibration]) -> dict[str, str]:
    if not calibrations:
        return {}
    entries = {
        "method_used": [c.method_used for c in calibrations.values()],
        "temperature": [c.forecaster_temperature for c in calibrations.values()],
        "class_offsets": [list(c.class_offsets) for c in calibrations.values()],
        "confidence_offset": [c.confidence_offset for c in calibrations.values()],
        "warnings": [len(c.warnings) for c in calibrations.values()],
        "labels": list(calibrations),
    }
    return {
        f"{_PREFIX}{name}": json.dumps(value, ensure_ascii=False) for name, value in entries.items()
    }


def _metadata(calibration: Calibration) -> dict[str, str]:
    values = {
        "version": __version__,
        "calibration_sha256": sha256_of(calibration.path),
        "model_sha256": calibration.model["sha256"],
        "model_name": calibration.model["name"],
        "networks_sha256": calibration.networks_sha256 or "",
        "method": calibration.method,
        "method_used": calibration.method_used,
        "forecaster": calibration.forecaster,
        "temperature": repr(calibration.forecaster_temperature),
        "class_offsets": json.dumps(list(calibration.class_offsets)),
        "confidence_offset": repr(calibration.confidence_offset),
        "warnings": str(len(calibration.warnings)),
        "classes": json.dumps(list(calibration.classes), ensure_ascii=False),
    }
    if calibration.aligned_temperature is not None:
        values["aligned_temperature"] = repr(calibration.aligned_temperature)
    return {f"{_PREFIX}{name}": value for name, value in values.items()}
