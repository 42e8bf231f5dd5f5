"""Labels of chosen rows: `evaluate` and `watch` say that the labelled rows are no random sample."""

from pathlib import Path

import numpy as np
import pytest

import covcal_cli.api as covcal
from covcal_cli.labels.score import tell_selection

N = 1500


@pytest.mark.parametrize("tied", [False, True])
def test_random_rows_are_hardly_ever_reported(tied: bool) -> None:
    """No draw of 10 to 1000 of these rows is reported, with ties or without."""
    rng = np.random.default_rng(0)
    scores = 1 - rng.exponential(0.03, N).clip(0, 0.5)
    if tied:
        scores = scores.round(2)
    for m in (10, 50, 1000) * 200:
        assert not tell_selection(rng.choice(scores, m, replace=False), scores)
    assert tell_selection(np.sort(scores)[:30], scores).endswith(
        "less sure of the labelled rows than of all rows"
    )
    assert tell_selection(np.sort(scores)[-99:], scores).endswith(
        "more sure of the labelled rows than of all rows"
    )
    assert not tell_selection(scores, scores)


def test_labels_of_one_rare_class_are_reported(tmp_path: Path) -> None:
    """If only the rows of the rare class have labels, both commands say what follows."""
    rng = np.random.default_rng(1)
    odds = rng.normal(-4, 2, 3 * N)
    fraud = rng.random(3 * N) < 1 / (1 + np.exp(-odds))
    logits = np.stack([np.zeros(3 * N), odds], axis=1)
    calibrator = covcal.Calibrator().fit(logits[:N], fraud[:N].astype(int), logits[N : 2 * N])
    names = np.where(fraud, "fraud", "ok")
    later, truth = logits[2 * N :], fraud[2 * N :].astype(float)
    for known, is_reported in ((truth == 1, True), (rng.random(N) < 0.1, False)):
        watch = covcal.Watch(
            calibrator,
            source_logits=logits[:N],
            source_labels=fraud[:N].astype(int),
            target_logits=logits[N : 2 * N],
        )
        watch.observe(later, period="w0", labels=np.where(known, truth, np.nan))
        text = " ".join(watch.notes_)
        assert ("less sure of the labelled rows" in text) == is_reported
        for domain, rows, labels in (
            ("source", logits[:N], names[:N]),
            ("target", later, np.where(known, names[2 * N :], "")),
        ):
            name = tmp_path / f"{domain}-{is_reported}.npz"
            np.savez(name, logits=rows, y=labels, classes=["ok", "fraud"])
        source, target = (tmp_path / f"{name}-{is_reported}.npz" for name in ("source", "target"))
        file = tmp_path / f"{is_reported}.h5"
        covcal.extract(None, source, target, file, covcal.ExtractSettings(outputs="logits"))
        notes = " ".join(covcal.evaluate(file, {}).notes)
        assert ("not a random sample of all rows" in notes) == is_reported
