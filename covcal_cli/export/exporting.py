"""``covcal export``: from a classifier and a calibration to one model with honest probabilities.

The outputs of the original come first, as they were. Then ``probabilities`` [N, K], ``label`` [N]
(int64, the first largest of the original's logits, never changed) and ``confidence`` [N], the
probability that the calibrated forecaster gives to that label; a name that the model has already
gets the prefix ``calibrated_``.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from covcal_cli import __version__
from covcal_cli.calibration import Calibration, read_calibration
from covcal_cli.errors import CovcalError
from covcal_cli.export.fitted import calibrated_networks, extracted_tensors, stored_rows
from covcal_cli.export.merged import Exported, Forecaster
from covcal_cli.files import check_output, sha256_of
from covcal_cli.models.classifier import is_torch

_PREFIX = "covcal."


class _Opened(Protocol):
    """What both kinds of original say about themselves."""

    features_tensor: str | None
    logits_tensor: str
    n_features: int | None


Original = TypeVar("Original", bound=_Opened)


def export(
    model: str | Path,
    document: Path,
    output: Path | None = None,
    *,
    weights: Path | None = None,
    networks: Path | None = None,
    model_output: str | None = None,
    force: bool = False,
) -> tuple[Exported, Calibration]:
    """Write a classifier with calibrated probabilities beside its own outputs.

    Parameters
    ----------
    model : str or Path
        The classifier that was extracted: an ONNX file, a TorchScript or torch.export file, or
        ``module:function``.
    document : Path
        A calibration, cal.json.
    output : Path, optional
        The file to write: ``.onnx`` for ONNX, ``.pt2`` for torch; by default ``calibrated`` with
        that ending in the current folder.
    weights : Path, optional
        Weights for the module that ``module:function`` returns.
    networks : Path, optional
        The adapted file, where it is no longer where the calibration says; fl methods only.
    model_output : str, optional
        The model's output that holds the classes, where it has several; by default the one that
        was extracted, by the names of phi and the logits that the features file keeps.
    force : bool
        Replace `output` if it exists.

    Returns
    -------
    Exported
        What was written, and its proof.
    Calibration
        What was merged in.

    Raises
    ------
    CovcalError
        If the model is not the calibration's, the networks are gone or others, or the merged model
        does not agree with the original and with NumPy; nothing is written then.
    """
    torch_model = is_torch(model)
    default = default_output(model)
    path = output or default
    if path.suffix.lower() != default.suffix:
        kind = "a torch model" if torch_model else "an ONNX model"
        raise CovcalError(f"{path}: {kind} is exported as {default.suffix}: pass another -o")
    inputs = [Path(model), document, *(extra for extra in (weights, networks) if extra)]
    check_output(path, force=force, inputs=inputs)
    calibration = read_calibration(document)
    if not calibration.model["sha256"]:
        raise CovcalError(
            f"{document} was fitted on logits from elsewhere, not on a model's: extract the model, "
            "calibrate that file, and export"
        )
    if torch_model:
        return _export_torch(
            model, document, calibration, path, weights, networks, model_output, force=force
        )
    if weights is not None:
        raise CovcalError(f"{model} holds its own weights: leave --weights out")
    return _export_onnx(
        Path(model), document, calibration, path, networks, model_output, inputs, force=force
    )


def default_output(model: str | Path) -> Path:
    """Return the file that a model is exported to where none is named."""
    return Path("calibrated.pt2" if is_torch(model) else "calibrated.onnx")


def _export_onnx(
    model: Path,
    document: Path,
    calibration: Calibration,
    output: Path,
    networks: Path | None,
    model_output: str | None,
    inputs: Sequence[Path],
    *,
    force: bool,
) -> tuple[Exported, Calibration]:
    from covcal_cli.export.onnx_export import export_onnx
    from covcal_cli.export.onnx_original import OnnxOriginal
    from covcal_cli.models.onnx_file import read_onnx

    file = read_onnx(model)
    _require_model(file.sha256, model, calibration, document)
    original, forecaster = _opened(
        partial(OnnxOriginal, model),
        [model_output] if model_output else [None, *(e.name for e in file.model.graph.output)],
        model,
        document,
        calibration,
        networks,
    )
    written = export_onnx(
        original,
        forecaster,
        output,
        metadata=_metadata(calibration, document),
        stored=stored_rows(calibration, networks),
        force=force,
        inputs=inputs,
    )
    return written, calibration


def _export_torch(
    model: str | Path,
    document: Path,
    calibration: Calibration,
    output: Path,
    weights: Path | None,
    networks: Path | None,
    model_output: str | None,
    *,
    force: bool,
) -> tuple[Exported, Calibration]:
    from covcal_cli.export.torch_export import TorchOriginal, export_torch
    from covcal_cli.models.torch_classifier import open_program

    program = open_program(model, weights)
    _require_model(program.sha256, model, calibration, document)
    original, forecaster = _opened(
        partial(TorchOriginal, program),
        [model_output] if model_output else [None, *program.run(program.rows)],
        model,
        document,
        calibration,
        networks,
    )
    written = export_torch(
        original,
        forecaster,
        output,
        metadata=_metadata(calibration, document),
        stored=stored_rows(calibration, networks),
        force=force,
    )
    return written, calibration


def _require_model(
    sha256: str, model: str | Path, calibration: Calibration, document: Path
) -> None:
    if sha256 != calibration.model["sha256"]:
        raise CovcalError(
            f"{model} is not the model that {document} was made for ({calibration.model['name']}, "
            "another sha256): export that file, or extract and calibrate this one"
        )


def _opened(
    open_with: Callable[[str | None, str | None], Original],
    outputs: Sequence[str | None],
    model: str | Path,
    document: Path,
    calibration: Calibration,
    networks: Path | None,
) -> tuple[Original, Forecaster]:
    """Open a model so that phi and the logits are what was extracted.

    Parameters
    ----------
    open_with : callable
        Opens it by its output and ``--phi``, as extraction does.
    outputs : sequence of (str or None)
        Outputs that extraction may have been told to read, the likeliest first.
    """
    found = calibrated_networks(calibration, document, networks)
    extracted = extracted_tensors(calibration, networks)
    # Without networks phi is not needed, and need not be there.
    phis = ["none", None] if found is None else [None, extracted.features]
    if extracted.logits is None:
        outputs = outputs[:1]  # nothing would tell which of several is right
    refusal: CovcalError | None = None
    for output, phi in dict.fromkeys((output, phi) for output in outputs for phi in phis):
        try:
            original = open_with(output, phi)
        except CovcalError as error:
            refusal = refusal or error
            continue
        if extracted.logits not in (None, original.logits_tensor):
            refusal = refusal or CovcalError(
                f"{document} was made from the logits {extracted.logits} of {model}, and those "
                f"found now are {original.logits_tensor}: pass the --model-output that was "
                "extracted"
            )
        elif found is None:
            return original, Forecaster(calibration.forecaster_temperature, None)
        elif extracted.features in (None, original.features_tensor):
            if found.n_features != original.n_features:
                raise CovcalError(
                    f"{found.path}: its networks take {found.n_features} features and {model} "
                    f"gives {original.n_features}: pass --networks with the file adapted from "
                    "this model"
                )
            return original, Forecaster(calibration.forecaster_temperature, found.arrays)
    raise refusal or CovcalError(
        f"{document} was made from the features {extracted.features} of {model}, which are not "
        "found now: extract the model and calibrate again"
    )


def _metadata(calibration: Calibration, document: Path) -> dict[str, str]:
    values = {
        "version": __version__,
        "calibration_sha256": sha256_of(document),
        "model_sha256": calibration.model["sha256"],
        "model_name": calibration.model["name"],
        "networks_sha256": calibration.networks_sha256 or "",
        "method": calibration.method,
        "method_used": calibration.method_used,
        "forecaster": calibration.forecaster,
        "temperature": repr(calibration.forecaster_temperature),
        "warnings": str(len(calibration.warnings)),
        "classes": json.dumps(list(calibration.classes), ensure_ascii=False),
    }
    return {f"{_PREFIX}{name}": value for name, value in values.items()}
