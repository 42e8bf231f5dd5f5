"""Writes an ONNX classifier with a calibrated forecaster merged in, proved before it appears."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.export.agreement import (
    Agreement,
    Batch,
    labels_agree,
    output_error,
    probability_error,
    require_agreement,
)
from covcal_cli.export.fitted import StoredRows
from covcal_cli.export.merged import ADDED, Exported, Forecaster
from covcal_cli.export.onnx_merging import FEATURES, LOGITS, forecaster_alone, merge
from covcal_cli.export.onnx_original import OnnxOriginal
from covcal_cli.export.onnx_weights import location_of, pack_weights, relocate
from covcal_cli.files import atomic_output, check_output
from covcal_cli.models.onnx_external import external_tensors
from covcal_cli.models.onnx_session import start_session


def export_onnx(
    original: OnnxOriginal,
    forecaster: Forecaster,
    output: Path,
    *,
    metadata: Mapping[str, str],
    stored: StoredRows | None,
    force: bool,
    inputs: Sequence[Path],
) -> Exported:
    """Write the merged model, whole and proved, or nothing.

    Parameters
    ----------
    original : OnnxOriginal
        Its model in memory is changed.
    forecaster : Forecaster
    output : Path
        External weights go beside it, to its name with ``.data`` appended.
    metadata : mapping of str to str
        Goes into ``metadata_props``.
    stored : StoredRows or None
        Real rows for a second proof of the merged part.
    force : bool
        Replace files that exist.
    inputs : sequence of Path
        Files that must not be replaced.

    Raises
    ------
    CovcalError
        If the merged model does not agree with the original and with NumPy.
    """
    kept = original.kept
    added = merge(original, forecaster, metadata)
    model = original.file.model
    tensors = external_tensors(model)
    weights = output.with_name(f"{output.name}.data") if tensors else None
    if weights is not None:
        own = {original.file.folder / location_of(tensor) for tensor in tensors}
        check_output(weights, force=force, inputs=[*inputs, *sorted(own)])
    with ExitStack() as stack:
        partial = stack.enter_context(atomic_output(output, force=force))
        if weights is not None:
            # Entered last, it appears first: a model is never there without its weights.
            packed = stack.enter_context(atomic_output(weights, force=force))
            pack_weights(tensors, original.file.folder, packed)
        partial.write_bytes(model.SerializeToString(deterministic=True))
        agreement = _prove(original, forecaster, partial, [*kept, *added], stored)
        if weights is not None:
            relocate(tensors, weights.name)
            partial.write_bytes(model.SerializeToString(deterministic=True))
    return Exported(output, kept, tuple(added), weights, agreement)


def _prove(
    original: OnnxOriginal,
    forecaster: Forecaster,
    partial: Path,
    names: Sequence[str],
    stored: StoredRows | None,
) -> Agreement:
    batch, logits = original.batch, original.logits
    before = original.file.session(original.file.data).run(list(original.kept), batch)
    after = _run(original, partial.read_bytes(), partial.parent, names, batch)
    probabilities, label, confidence = after[len(original.kept) :]
    expected = forecaster.probabilities(original.features, logits)
    finite = np.isfinite(logits).all(axis=1)
    errors = [
        probability_error(
            probabilities[finite], confidence[finite], label[finite], expected[finite]
        )
    ]
    if stored is not None:
        errors.append(_stored_error(original, forecaster, stored))
    found = Agreement(
        rows=int(finite.sum()),
        stored_rows=0 if stored is None else len(stored.logits),
        output_error=output_error(before, after[: len(original.kept)]),
        probability_error=max(errors),
    )
    shown = [before[original.kept.index(name)] for name in original.class_outputs]
    require_agreement(
        found,
        output_tolerance=original.output_tolerance(),
        same_labels=labels_agree(label, logits, shown, rounded=original.is_rounded),
        where=str(original.file.path),
    )
    return found


def _stored_error(original: OnnxOriginal, forecaster: Forecaster, stored: StoredRows) -> float:
    """Return the error of the merged part alone on rows that the calibration was fitted on."""
    feeds: Batch = {LOGITS: stored.logits}
    if stored.features is not None:
        feeds[FEATURES] = stored.features
    data = forecaster_alone(original, forecaster)
    probabilities, label, confidence = _run(original, data, original.file.folder, ADDED, feeds)
    expected = forecaster.probabilities(stored.features, stored.logits)
    return probability_error(probabilities, confidence, label, expected)


def _run(
    original: OnnxOriginal, data: bytes, folder: Path, names: Sequence[str], feeds: Batch
) -> list[Any]:
    session = start_session(
        data, path=original.file.path, folder=folder.absolute(), opset=original.file.opset
    )
    found: list[Any] = session.run(list(names), feeds)
    return found
