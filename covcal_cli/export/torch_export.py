"""Writes a torch classifier with a calibrated forecaster merged in as ``.pt2``, proved first."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covcal_cli.errors import CovcalError
from covcal_cli.export.agreement import (
    Agreement,
    labels_agree,
    output_error,
    probability_error,
    require_agreement,
)
from covcal_cli.export.fitted import StoredRows
from covcal_cli.export.merged import ADDED, Exported, Forecaster, free_name
from covcal_cli.export.torch_forecaster import CalibratedModule, TorchForecaster
from covcal_cli.export.torch_program import as_graph, example_rows, signature_of, trace
from covcal_cli.export.torch_values import Found, ValueReader, find_values
from covcal_cli.files import atomic_output
from covcal_cli.models import proof
from covcal_cli.models.torch_classifier import TorchClassifier
from covcal_cli.models.torch_program import Program

METADATA = "covcal.json"
"""Extra file of the ``.pt2`` that holds the metadata."""


class TorchOriginal:
    """A torch classifier as extraction opened it, run once on made rows.

    Parameters
    ----------
    program : Program
    model_output, phi : str, optional
        As `open_classifier` takes them.
    """

    def __init__(self, program: Program, model_output: str | None, phi: str | None) -> None:
        self.program = program
        classifier = TorchClassifier(program, output=model_output, phi=phi)
        self.rows = example_rows(program)
        batch = {
            wanted.name: row.numpy().astype(wanted.dtype, copy=False)
            for wanted, row in zip(program.inputs, program.rows, strict=True)
        }
        self.features, self.logits = classifier.run(batch)
        self.is_single = classifier.is_single
        self.features_tensor, self.logits_tensor = (
            classifier.features_tensor,
            classifier.logits_tensor,
        )
        self.n_features, self.class_output = classifier.n_features, classifier.output_name
        self.outputs = program.run(program.rows)


def export_torch(
    original: TorchOriginal,
    forecaster: Forecaster,
    output: Path,
    *,
    metadata: Mapping[str, str],
    stored: StoredRows | None,
    force: bool,
) -> Exported:
    """Write the merged model, whole and proved, or nothing.

    Parameters
    ----------
    original : TorchOriginal
    forecaster : Forecaster
    output : Path
    metadata : mapping of str to str
        Goes into the extra file ``covcal.json``.
    stored : StoredRows or None
        Real rows for a second proof of the merged part.
    force : bool
        Replace a file that exists.

    Raises
    ------
    CovcalError
        If torch.export cannot follow the model, phi or the logits are no values of it, or the
        merged model does not agree with the original and with NumPy.
    """
    program, rows = original.program, original.rows
    kept = tuple(original.outputs)
    added = tuple(free_name(name, {*kept}) for name in ADDED)
    graph = as_graph(program, rows)
    with torch.inference_mode():
        reader = ValueReader(graph)
        reader.run(*(row.clone() for row in rows))
    # Of two logits made of a single number the program holds the second alone.
    held = original.logits[:, 1:] if original.is_single else original.logits
    logits = _find(program, reader.values, held, "logits")
    features: tuple[Found, ...] = ()
    if forecaster.networks is not None and original.features is not None:
        features = _find(program, reader.values, original.features, "features")
    module = CalibratedModule(
        graph,
        signature_of(program),
        kept,
        features=features,
        logits=logits,
        is_single=original.is_single,
        forecaster=forecaster,
        added=added,
    )
    exported = trace(program, module, rows)
    with atomic_output(output, force=force) as partial:
        content = json.dumps(dict(metadata), indent=2, ensure_ascii=False)
        with partial.open("wb") as handle:
            torch.export.save(exported, handle, extra_files={METADATA: content})
        agreement = _prove(original, forecaster, partial, kept, added, stored)
    return Exported(output, kept, added, None, agreement)


def _find(
    program: Program, values: Mapping[str, Tensor], expected: NDArray[np.float32], what: str
) -> tuple[Found, ...]:
    found = find_values(values, torch.from_numpy(expected))
    if not found:
        raise CovcalError(
            f"{program.where}: the {what} that were extracted are no tensor of the traced program: "
            "export it to ONNX and calibrate that, or keep covcal apply"
        )
    return found


def _prove(
    original: TorchOriginal,
    forecaster: Forecaster,
    partial: Path,
    kept: tuple[str, ...],
    added: tuple[str, ...],
    stored: StoredRows | None,
) -> Agreement:
    program = original.program
    with torch.inference_mode():
        with partial.open("rb") as handle:
            merged = torch.export.load(handle).module()
        answer: dict[str, Tensor] = merged(*(row.clone() for row in original.rows))
    after = {name: to_numpy(value) for name, value in answer.items()}
    before = [to_numpy(original.outputs[name]) for name in kept]
    probabilities, label, confidence = (after[name] for name in added)
    expected = forecaster.probabilities(original.features, original.logits)
    errors = [probability_error(probabilities, confidence, label, expected)]
    if stored is not None:
        errors.append(_stored_error(forecaster, stored))
    if program.fixed_batch is None:
        _require_free_batch(program, merged, original.rows)
    found = Agreement(
        rows=len(label),
        stored_rows=0 if stored is None else len(stored.logits),
        output_error=output_error(before, [after[name] for name in kept]),
        probability_error=max(errors),
    )
    given = original.outputs[original.class_output]
    shown = [to_numpy(given)]
    require_agreement(
        found,
        # Operators that torch fuses in eager mode (attention, say) are traced one by one, and
        # round differently.
        output_tolerance=proof.tolerance(np.dtype(np.float16 if given.itemsize == 2 else "f4")),
        same_labels=labels_agree(
            label, original.logits, shown, rounded=shown[0].dtype == np.float64
        ),
        where=program.where,
    )
    return found


def _require_free_batch(program: Program, merged: Any, rows: tuple[Tensor, ...]) -> None:
    """Refuse a merged model that takes no other number of rows, where the original does."""
    for count in (1, len(rows[0]) + 3):
        batch = [row[:1].expand(count, *row.shape[1:]).clone() for row in rows]
        try:
            with torch.inference_mode():
                merged(*batch)
        except Exception as error:
            raise CovcalError(
                f"{program.where}: torch.export binds this model to batches of {len(rows[0])} "
                "rows: export it to ONNX and calibrate that, or keep covcal apply"
            ) from error


def _stored_error(forecaster: Forecaster, stored: StoredRows) -> float:
    """Return the error of the merged part alone on rows that the calibration was fitted on."""
    features = None if stored.features is None else torch.from_numpy(stored.features)
    with torch.inference_mode():
        merged = TorchForecaster(forecaster)(features, torch.from_numpy(stored.logits))
    found, label = merged.numpy(), stored.logits.argmax(axis=1)
    expected = forecaster.probabilities(stored.features, stored.logits)
    return probability_error(found, found[np.arange(len(label)), label], label, expected)


def to_numpy(value: Tensor) -> NDArray[Any]:
    """Return a tensor as an array; bfloat16, which NumPy does not have, as float32."""
    kept = value.detach()
    return (kept.float() if kept.dtype == torch.bfloat16 else kept).numpy()
