"""covcal's ECE against torchmetrics' definition, away from the edges where that one errs."""

import numpy as np
import pytest
import torch

from covcal_cli.evaluate.metrics import LabelledRows, MetricsAccumulator
from covcal_cli.maths.softmax import class_major, log_softmax, softmax


@pytest.mark.parametrize("bins", [5, 10, 15, 40])
@pytest.mark.parametrize("seed", [0, 1])
def test_ece_equals_torchmetrics(bins: int, seed: int) -> None:
    """Top-label ECE of softmax probabilities equals torchmetrics' L1 norm on float64 input."""
    # Imported here: it takes a second, which only the worker that runs this test need spend.
    from torchmetrics.functional.classification import multiclass_calibration_error

    rng = np.random.default_rng(seed)
    truth = 1.5 * rng.normal(size=(3000, 6))
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    logits = 2.5 * truth
    probabilities = np.exp(log_softmax(class_major(logits), 1.0))
    confidence = probabilities.max(axis=0)
    from_edge = np.abs(confidence * bins - np.round(confidence * bins))
    away = (from_edge > 1e-4) & (confidence < 1 - 1e-6)
    assert away.mean() > 0.9
    accumulator = MetricsAccumulator(bins, 6)
    accumulator.add(
        softmax(class_major(logits[away]), 1.0),
        LabelledRows(truth.argmax(axis=1)[away], labels[away]),
    )
    expected = multiclass_calibration_error(
        torch.from_numpy(probabilities.T[away]),
        torch.from_numpy(labels[away]),
        num_classes=6,
        n_bins=bins,
        norm="l1",
    )
    assert accumulator.result().ece == pytest.approx(float(expected), abs=1e-6)
