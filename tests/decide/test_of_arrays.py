"""`Decision`: rows to accept and sets of classes for logits in memory."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

import covcal_cli.api as covcal
from covcal_cli.arrays import Float64s, Labels


def world(n: int, seed: int = 0) -> tuple[Float64s, Labels]:
    """Draw logits, and labels from their softmax."""
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(n, 4))
    return logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def test_calibrated_logits_are_accepted_at_their_error() -> None:
    logits, labels = world(20_000)
    decision = covcal.Decision(error=0.1, coverage=0.9).fit(logits)
    accept = decision.accept(logits)
    assert (logits.argmax(axis=1) != labels)[accept].mean() == pytest.approx(0.1, abs=0.01)
    covered = decision.sets(logits)[np.arange(len(labels)), labels].mean()
    assert covered == pytest.approx(0.9, abs=0.02)


def test_labels_keep_the_promise_of_an_over_confident_classifier() -> None:
    """At a certainty of 90 %, few of 8 draws accept rows of which more are wrong."""
    broken, accepted = 0.0, 0.0
    for seed in range(8):
        logits, labels = world(2000, seed)
        rows = np.random.default_rng(seed).permutation(2000)[:100]
        decision = covcal.Decision(error=0.1).fit(3 * logits, rows, labels[rows])
        accept = decision.accept(3 * logits)
        accepted += float(accept.mean()) / 8
        broken += float(accept.any() and (logits.argmax(axis=1) != labels)[accept].mean() > 0.1)
    assert broken <= 2
    assert accepted > 0.1


def test_it_shows_the_rows_that_it_accepts() -> None:
    logits, labels = world(200)
    decision = covcal.Decision(error=0.1, temperature=2.0)
    settings = "Decision(error=0.1, temperature=2.0)"
    assert repr(decision) == settings
    shown = repr(decision.fit(logits))
    assert (
        shown
        == f"{settings}: accepts confidence above {100 * decision.threshold_:.4f} %, an estimate"
    )
    assert repr(decision.fit(logits, [0, 1], labels[:2])) == f"{settings}: accepts no row"


@pytest.mark.parametrize("prefix", ["", "logit_"])
def test_class_names_are_the_columns_of_a_frame(prefix: str) -> None:
    logits, labels = world(400)
    classes = np.array(["d", "a", "c", "b"])
    frame = pd.DataFrame(logits, columns=[f"{prefix}{name}" for name in classes])
    rows = np.random.default_rng(0).permutation(400)[:150]
    named = covcal.Decision(error=0.2).fit(frame, rows, classes[labels[rows]])
    numbered = covcal.Decision(error=0.2).fit(logits, rows, labels[rows])
    assert named.threshold_ == numbered.threshold_


def test_bad_input_is_refused() -> None:
    logits, labels = world(50)
    with pytest.raises(covcal.CovcalError, match="between 0 and 1"):
        covcal.Decision(error=1.0)
    with pytest.raises(covcal.CovcalError, match=r"not 5; did you mean 0\.05\?"):
        covcal.Decision(error=5)
    with pytest.raises(covcal.CovcalError, match="give each number once"):
        covcal.Decision(error=0.1).fit(logits, [1, 1], labels[:2])
    with pytest.raises(covcal.CovcalError, match="1 rows but 0 labels"):
        covcal.Decision(error=0.1).fit(logits, [1])
    with pytest.raises(covcal.CovcalError, match="has no coverage"):
        covcal.Decision(error=0.1).fit(logits).sets(logits)
    with pytest.raises(covcal.CovcalError, match="class numbers"):
        covcal.Decision(error=0.1).fit(logits, [1], [4])
    with pytest.raises(covcal.CovcalError, match=r"not class names: give \[classes\.index"):
        covcal.Decision(error=0.1).fit(logits, [1, 2], ["cat", "dog"])
    with pytest.raises(covcal.CovcalError, match="not fitted yet"):
        covcal.Decision(error=0.1).accept(logits)
    with pytest.raises(covcal.CovcalError, match="needs a limit"):
        covcal.Decision().fit(logits)
    with pytest.raises(covcal.CovcalError, match="fitted to"):
        covcal.Decision(error=0.1).fit(logits).accept(logits[:, :2])
    with pytest.raises(covcal.CovcalError, match="fitted to"):
        covcal.Decision(coverage=0.9).fit(logits).sets(logits[:, :2])
    with pytest.raises(covcal.CovcalError, match="logits must have shape"):
        covcal.Decision(error=0.1).fit(logits[None])
    with pytest.raises(covcal.CovcalError, match=r"probabilities do: give np\.log of the values"):
        covcal.Decision(error=0.1).fit(softmax(logits, axis=1))
    with pytest.raises(covcal.CovcalError, match="rows must be a list of whole numbers"):
        covcal.Decision(error=0.1).fit(logits, [0.5], [1])
    with pytest.raises(covcal.CovcalError, match="error must be a number or None, not 'x'"):
        covcal.Decision(error="x")  # type: ignore[arg-type]


def test_frames_are_read_by_name_and_position() -> None:
    """Reordered columns would give other classes, and an index is no position."""
    logits = np.random.default_rng(0).normal(size=(40, 3))
    frame = pd.DataFrame(logits, columns=list("abc"))
    decision = covcal.Decision(error=0.3).fit(frame, np.arange(5), np.zeros(5))
    np.testing.assert_array_equal(decision.accept(frame), decision.accept(logits))
    with pytest.raises(ValueError, match="same order as they were in fit"):
        decision.accept(frame[["b", "a", "c"]])
    labelled = frame.sample(frac=1, random_state=0)
    with pytest.raises(covcal.CovcalError, match="index of logits must be 0, 1, 2"):
        decision.fit(labelled, np.arange(5), np.zeros(5))
    decision.fit(labelled)
