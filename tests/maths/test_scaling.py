"""What a calibration does to logits, against SciPy in float64."""

import numpy as np
import pytest
from scipy.special import softmax

from covcal_cli.maths.softmax import Scaling, class_major


@pytest.mark.parametrize("temperatures", [(1.0, 1.0), (2.5, 0.3), (1e-3, 1e3), (1e4, 1e-2)])
@pytest.mark.parametrize("masked", [None, -np.inf, -1e38])
def test_a_blend_is_the_mean_of_two(
    temperatures: tuple[float, float], masked: float | None
) -> None:
    """At any temperatures; a class that the classifier rules out keeps the other's half."""
    rng = np.random.default_rng(0)
    own, aligned = 5 * rng.normal(size=(2, 40, 4))
    if masked is not None:
        own[::3, 1] = masked
    parts = zip((own, aligned), temperatures, strict=True)
    expected = np.mean([softmax(logits / value, axis=1) for logits, value in parts], axis=0)
    found = Scaling("blend", *temperatures).forecast([class_major(own), class_major(aligned)])
    probabilities = found.probabilities.T.tolist()
    assert probabilities == [pytest.approx(row, rel=1e-5, abs=1e-9) for row in expected.tolist()]
    every = np.arange(len(own))
    for label in range(4):
        logs = found.logs_at(label * len(own) + every)
        sure = expected[:, label] > 1e-30
        assert logs[sure] == pytest.approx(np.log(expected[sure, label]), abs=1e-5)
    assert found.logits.max(axis=0).tolist() == [0.0] * len(own)
