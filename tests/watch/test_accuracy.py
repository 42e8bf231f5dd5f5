"""The accuracy from the sketch of the source, whose rows have the log odds of the sketch."""

import numpy as np
import pytest

from covcal_cli.maths.odds import top_log_odds
from covcal_cli.watch.accuracy import _top_against_rest


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_rows_made_of_log_odds_have_these(classes: int, temperature: float) -> None:
    """Whatever the number of classes and T: the top class's probability at T against the rest."""
    least = -np.log(classes - 1)  # of a row whose classes are all alike
    odds = np.array([least, least + 0.1, least + 1, least + 8])
    logits = _top_against_rest(odds, classes, temperature)
    assert logits.shape == (4, classes)
    assert (logits.argmax(axis=1) == 0).all()
    assert top_log_odds(logits, temperature) == pytest.approx(odds, abs=1e-5)
