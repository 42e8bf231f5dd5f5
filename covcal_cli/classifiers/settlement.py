"""What a model's own output is taken for, settled once every row has been seen.

Where a model prints what it has computed with no softmax or sigmoid in sight, that may be logits
or probabilities, and no first batch tells for sure. So such outputs are kept as they are until
`covcal_cli.maths.output_form.OutputEvidence` has seen all rows.
"""

import numpy as np

from covcal_cli.arrays import AnyArray, Float32s, Float64s, Floats
from covcal_cli.errors import CovcalError
from covcal_cli.maths.output_form import (
    BELOW,
    DISTRIBUTIONS,
    OutputEvidence,
    log_probabilities,
)
from covcal_cli.maths.softmax import to_float32

_MOST_SHARE = 1 << 16  # votes, percentages and scores of 8 or 16 bits are at most so large
_FAR = 1 << 12  # half of float32's digits are lost to such an offset
PLAIN, LOGGED = "none", "softmax"  # the tails that an open output is settled on
_LOGARITHMS = (
    "the model prints probabilities alone, so logits are their logarithms: float32 holds nothing "
    "below 1e-38, and what was smaller counts as that"
)
_NO_HEAD = (
    "every row of the last linear layer sums to 1, as probabilities do, so its output is no "
    "logits, and what it reads are features without a linear head"
)


class Outputs:
    """Outputs of a classifier, shape (m, K), on their way to logits.

    One number z per row is kept as the pair 0 and z.
    """

    def __init__(
        self,
        where: str,  # the model, for errors
        tail: str | None,  # what makes the output of what is read, as far as it is known
        *,
        is_single: bool,  # whether the model gives one number per row
        has_layer: bool,  # whether what is read comes from a linear layer
    ) -> None:
        self.tail, self.is_single = tail, is_single
        self._where, self._has_layer = where, has_layer
        self.is_open = tail == PLAIN  # whether all rows must tell what they are
        self.notes: tuple[str, ...] = ()  # on what they turned out to be
        self.warnings: tuple[str, ...] = ()

    def to_float32(self, outputs: AnyArray) -> Float32s:
        """Return outputs of a run as float32, without a common offset that would cost digits.

        Where `settle` decides what outputs are, rows that may be shares keep their sum.
        """
        single = to_float32(outputs)
        if self.is_open:
            may_be_shares = (outputs.min(axis=1) >= -BELOW) & (outputs.max(axis=1) <= _MOST_SHARE)
            single[may_be_shares] = outputs[may_be_shares].astype(np.float32)
        return single

    def shown(self, outputs: Floats) -> Floats:
        """Return the numbers that the model itself gives, as evidence of what they are."""
        return outputs[:, 1:] if self.is_single else outputs

    def settle(self, seen: OutputEvidence) -> None:
        """Take them for what all rows show.

        Raises
        ------
        CovcalError
            If one number per row, which no layer explains, is no probability.
        """
        if not self.is_open:
            if seen.form in DISTRIBUTIONS and not self.is_single and self.tail == LOGGED:
                self.warnings = (
                    f"softmax is applied twice: in what the last softmax reads, {seen.fact}; this "
                    "makes every confidence low, so export the model without the second softmax",
                )
            return
        alone = self.is_single and not self._has_layer
        if alone and seen.form != "bounded":
            raise CovcalError(
                f"{self._where} gives one number per row, from {seen.low:g} to {seen.high:g}, and "
                "no layer before it tells what it means: return one probability or logit per class"
            )
        if seen.form not in DISTRIBUTIONS and not alone:
            bounded = (
                f"{seen.fact}; they are read as logits: where they are probabilities of another "
                "kind, such as sigmoids, export the model with its logits"
            )
            self.warnings = (*((bounded,) if seen.form == "bounded" else ()), *seen.doubts())
            return
        if seen.lowest:
            raise CovcalError(
                f"{self._where}: {seen.fact}: add a DequantizeLinear to the model, or any other "
                "layer that makes them probabilities"
            )
        self.tail = LOGGED
        self.notes = (_LOGARITHMS, *([_NO_HEAD] if self._has_layer else []))
        self.warnings = (*_readings(seen), *seen.doubts())

    def settle_as_extracted(self, tail: str | None, made: Floats) -> None:
        """Take them for what an extraction took them for, or, if None, for what made rows show.

        Made rows that are no probabilities are not taken for them, whatever was extracted.
        """
        seen = OutputEvidence()
        seen.add(self.shown(made))
        if tail is None:
            self.settle(seen)
        elif self.is_open and tail == LOGGED and seen.may_be_distributions:
            self.tail = LOGGED

    @property
    def are_logged(self) -> bool:
        """Whether they are probabilities, whose logarithms are the logits."""
        return self.is_open and self.tail == LOGGED

    def logits(self, outputs: Floats) -> Float32s:
        """Return the logits, shape (m, K), of outputs."""
        found = log_probabilities(self.shown(outputs)) if self.are_logged else outputs
        return found.astype(np.float32)


def without_offset(bias: Float64s) -> Float64s:
    """Return a bias, shape (K,), without a common offset that float32 has no digits for.

    Softmax does not see the offset, and `Outputs.to_float32` leaves it out of the logits.
    """
    is_far = len(bias) > 1 and float(np.abs(bias).max()) > _FAR
    return to_float32(bias[None])[0].astype(np.float64) if is_far else bias


def _readings(seen: OutputEvidence) -> tuple[str, ...]:
    """Return how outputs are read that are taken for probabilities, where that is not plain."""
    if seen.width == 1:
        return (
            f"the model gives one number per row, in [0, 1] in all {seen.rows} rows, and it is "
            "taken for the probability of the second of two classes",
        )
    if seen.form in ("percentages", "shares"):
        return (f"{seen.fact}: each row is divided by its sum and read as probabilities",)
    if seen.form == "clipped":
        return (f"{seen.fact}: each row is divided by its sum",)
    return ()
