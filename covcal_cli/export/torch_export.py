"""A torch classifier with a calibrated forecaster merged in as ``.pt2``, proved first."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covcal_cli.classifiers import proof
from covcal_cli.classifiers.torch.classifier import OpenedTorch, open_program
from covcal_cli.classifiers.torch.program import Program
from covcal_cli.errors import CovcalError
from covcal_cli.export.forecaster import ADDED, Forecaster, Merge, StoredRows, free_name
from covcal_cli.export.proof import Answers, Exported, prove
from covcal_cli.export.torch_forecaster import CalibratedModule, TorchForecaster
from covcal_cli.export.torch_program import as_graph, example_rows, signature_of, trace
from covcal_cli.export.torch_values import Found, ValueReader, find_values
from covcal_cli.files import atomic_output

METADATA = "covcal.json"
"""Extra file of the ``.pt2`` that holds the metadata."""


class TorchOriginal:
    """A torch classifier as extraction opened it, run once on made rows."""

    def __init__(self, program: Program, model_output: str | None, phi: str | None) -> None:
        self.program = program
        opened = OpenedTorch(program, output=model_output, phi=phi)
        self.rows = example_rows(program)
        batch = {
            wanted.name: row.numpy().astype(wanted.dtype, copy=False)
            for wanted, row in zip(program.inputs, program.rows, strict=True)
        }
        classifier = opened.prove(batch)
        self.features, self.logits = classifier.run(batch)
        self.is_single = classifier.is_single
        self.features_tensor = classifier.features_tensor
        self.logits_tensor = classifier.logits_tensor
        self.n_features, self._class_output = classifier.n_features, classifier.output_name
        self.outputs = program.run(program.rows)

    def answers(self) -> Answers:
        """Return what the model gives on the made rows."""
        given = self.outputs[self._class_output]
        shown = to_numpy(given)
        return Answers(
            where=self.program.where,
            features=self.features,
            logits=self.logits,
            outputs=[to_numpy(value) for value in self.outputs.values()],
            shown=[shown],
            is_rounded=shown.dtype == np.float64,
            # Operators that torch fuses in eager mode (attention, say) are traced one by one, and
            # round differently.
            output_tolerance=proof.tolerance(np.dtype(np.float16 if given.itemsize == 2 else "f4")),
        )


class TorchExporter:
    """A torch program on its way to a ``.pt2`` with a calibrated forecaster in it."""

    def __init__(self, model: str | Path, weights: Path | None) -> None:
        self._program = open_program(model, weights)
        self.sha256 = self._program.sha256
        self.outputs: Sequence[str] = tuple(self._program.run(self._program.rows))

    def original(self, output: str | None, phi: str | None) -> TorchOriginal:
        """Open the classifier as `covcal_cli.classifiers.open.open_classifier` does."""
        return TorchOriginal(self._program, output, phi)

    def write(self, original: TorchOriginal, merge: Merge) -> Exported:
        """Write the merged model, whole and proved, or nothing."""
        program, rows, kept = self._program, original.rows, tuple(self.outputs)
        added = tuple(free_name(name, {*kept}) for name in ADDED)
        graph = as_graph(program, rows)
        with torch.inference_mode():
            reader = ValueReader(graph)
            reader.run(*(row.clone() for row in rows))
        # Of two logits made of a single number the program holds the second alone.
        held = original.logits[:, 1:] if original.is_single else original.logits
        logits = _find(program, reader.values, held, "logits")
        features: tuple[Found, ...] = ()
        if merge.forecaster.networks is not None and original.features is not None:
            features = _find(program, reader.values, original.features, "features")
        module = CalibratedModule(
            graph,
            signature_of(program),
            kept,
            features=features,
            logits=logits,
            is_single=original.is_single,
            forecaster=merge.forecaster,
            added=added,
        )
        exported = trace(program, module, rows)
        with atomic_output(merge.output, force=merge.force) as partial:
            content = json.dumps(dict(merge.metadata), indent=2, ensure_ascii=False)
            with partial.open("wb") as handle:
                torch.export.save(exported, handle, extra_files={METADATA: content})
            with torch.inference_mode():
                with partial.open("rb") as handle:
                    merged = torch.export.load(handle).module()
                answer: dict[str, Tensor] = merged(*(row.clone() for row in rows))
            if program.fixed_batch is None:
                _require_free_batch(program, merged, rows)
            agreement = prove(
                original.answers(),
                merge,
                [to_numpy(answer[name]) for name in (*kept, *added)],
                lambda stored: _of_stored(merge.forecaster, stored),
            )
        return Exported(merge.output, kept, added, None, agreement)


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


def _of_stored(forecaster: Forecaster, stored: StoredRows) -> Sequence[NDArray[Any]]:
    """Run the merged part without the classifier, from phi and logits."""
    features = None if stored.features is None else torch.from_numpy(stored.features)
    with torch.inference_mode():
        found = TorchForecaster(forecaster)(features, torch.from_numpy(stored.logits)).numpy()
    label = stored.logits.argmax(axis=1)
    return found, label, found[np.arange(len(label)), label]


def to_numpy(value: Tensor) -> NDArray[Any]:
    """Return a tensor as an array; bfloat16, which NumPy does not have, as float32."""
    kept = value.detach()
    return (kept.float() if kept.dtype == torch.bfloat16 else kept).numpy()
