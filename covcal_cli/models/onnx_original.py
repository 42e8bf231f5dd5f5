"""The model as it came: what reading tensors inside it must not change."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import ModelInput
from covcal_cli.errors import CovcalError
from covcal_cli.models import proof
from covcal_cli.models.classifier import Inputs
from covcal_cli.models.onnx_outputs import ClassOutput
from covcal_cli.models.onnx_runner import Runner

Array = NDArray[Any]


class OriginalModel:
    """The unmodified model and the output that it is compared by."""

    def __init__(
        self, where: str, session: Any, inputs: tuple[ModelInput, ...], output: ClassOutput
    ) -> None:
        self._where, self._output = where, output
        zipped = {output.name: output.zipped} if output.zipped else {}
        self._runner = Runner(where, session, inputs, zipped)

    def difference(self, batch: Inputs, values: Mapping[str, Array]) -> float:
        """Return the relative error of the output among `values` against the model's own."""
        return proof.relative_error(_rows(values[self._output.tensor]), self._run(batch))

    def require_same(
        self, batch: Inputs, values: Mapping[str, Array], limit: float, *, has_features: bool
    ) -> None:
        """Require that the output among `values` differs by no more than `limit`."""
        moved = self.difference(batch, values)
        if moved <= limit:
            return
        remedy = "extract from the model before quantisation"
        if has_features:
            remedy = f"pass --phi none to keep its own logits alone, or {remedy}"
        raise CovcalError(
            f"{self._where}: reading tensors inside the quantised model changes its output by "
            f"{moved:.1g} (relative) on some rows, where operators are fused otherwise: {remedy}"
        )

    def require_repeatable(
        self, values: Mapping[str, Array], again: Mapping[str, Array], limit: float
    ) -> None:
        """Require the same output of two runs on the same rows.

        ONNX Runtime leaves dropout out of a model as it came, but not where tensors are read.
        """
        first, second = (_rows(found[self._output.tensor]) for found in (values, again))
        moved = proof.relative_error(second, first)
        if moved > limit:
            raise CovcalError(
                f"{self._where} gives another output for the same rows each time (relative error "
                f"{moved:.1g}): export it in evaluation mode (model.eval()), so that dropout is off"
            )

    def _run(self, batch: Inputs) -> NDArray[np.float64]:
        return _rows(self._runner.run([self._output.name], batch)[self._output.name])


def _rows(values: Array) -> NDArray[np.float64]:
    rows: NDArray[np.float64] = values.reshape(len(values), -1).astype(np.float64)
    return rows
