"""One run of a torch program, from which features, logits and output are read together."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covcal_cli.errors import CovcalError
from covcal_cli.models.torch_head import Head
from covcal_cli.models.torch_layers import parameter_names
from covcal_cli.models.torch_outputs import Answer, read_answer
from covcal_cli.models.torch_phi import Tap
from covcal_cli.models.torch_program import Program
from covcal_cli.models.torch_trace import LayerReader

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Values:
    """What was read for m rows.

    Attributes
    ----------
    features : array, shape (m, d), or None
    logits : array, shape (m, K)
    output : array, shape (m, K); (m,) for indices
    """

    features: Array | None
    logits: Array
    output: Array


class ProgramReader:
    """Runs a program and reads it.

    Parameters
    ----------
    program : Program
    source : Head or Answer
        Where the logits come from.
    output : str
        The output that holds the classes.
    tap : Tap or None
        Where the features come from; the head where it is None.
    features : bool
        Whether features are wanted.
    """

    def __init__(
        self,
        program: Program,
        source: Head | Answer,
        output: str,
        tap: Tap | None,
        *,
        features: bool,
    ) -> None:
        self._program, self._source, self._output = program, source, output
        self._tap, self._features = tap, features
        self._names = parameter_names(program.module)
        parts = source.parts if isinstance(source, Head) else ()
        self._keys = {part.key for part in parts} | (tap.keys if tap else set())

    def read(self, rows: Sequence[Tensor]) -> Values:
        """Return what the program computes; a fixed batch is filled up with the last row."""
        m = len(rows[0])
        size = self._program.fixed_batch or m
        starts = range(0, m, size)
        pieces = [self._read_once(_filled(rows, start, size)) for start in starts]
        if len(pieces) == 1 and len(pieces[0].logits) == m:
            return pieces[0]
        features = [piece.features for piece in pieces if piece.features is not None]
        return Values(
            np.concatenate(features)[:m] if features else None,
            np.concatenate([piece.logits for piece in pieces])[:m],
            np.concatenate([piece.output for piece in pieces])[:m],
        )

    def output(self, rows: Sequence[Tensor]) -> Array:
        """Return the output alone, with nothing read on the way."""
        size = self._program.fixed_batch or len(rows[0])
        outputs = self._program.run(_filled(rows, 0, size))
        return read_answer(outputs, self._output, size, self._program.where)[: len(rows[0])]

    def answer(self, rows: Sequence[Tensor]) -> Answer:
        """Return the output itself as what holds the logits."""
        return Answer.of(self.output(rows), self._program.where)

    def _read_once(self, rows: Sequence[Tensor]) -> Values:
        n, where = len(rows[0]), self._program.where
        reader = LayerReader(self._keys, self._names)
        with reader.listening(), self._tap.listen() if self._tap else nullcontext():
            outputs = self._program.run(rows)
        output = read_answer(outputs, self._output, n, where)
        features: Array | None = None
        if isinstance(self._source, Answer):
            logits = self._source.logits(output)
        else:
            found = self._source.read(reader.calls, n)
            if found is None:
                raise CovcalError(
                    f"{where} did not run {self._source.layer} on this batch as it did before: "
                    "covcal needs a model that takes the same way for all rows"
                )
            features, logits = found
        if self._tap is not None:
            features = self._tap.read(rows, reader.calls)
        return Values(features if self._features else None, logits, output)


def _filled(rows: Sequence[Tensor], start: int, size: int) -> list[Tensor]:
    """Return `size` rows from `start`, the last one again where there are fewer.

    A row of zeros might be no valid input.
    """
    pieces = [row[start : start + size] for row in rows]
    missing = size - len(pieces[0])
    if not missing:
        return pieces
    return [torch.cat([row, row[-1:].expand(missing, *row.shape[1:])]) for row in pieces]
