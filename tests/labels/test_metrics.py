"""Metrics by labels of a known design: unbiased, with intervals that cover, or no number."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import precision_score, recall_score, roc_auc_score

from covcal_cli.arrays import Float64s, Integers, Labels
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.estimators.metrics import Groups, MetricEstimate, parse_metrics
from covcal_cli.labels.draws import drawn, inclusion_probabilities
from covcal_cli.labels.metrics import metrics_by_labels
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.softmax import Scaling
from tests.cli_runner import covcal
from tests.labels.labelling import fill
from tests.labels.made_draws import made_draw
from tests.made_files import write_features

N = 800
CLASSES = ("cat", "dog", "eel")
SCALING = Scaling("original", 1.5, of_label=0.2)  # not the true one, as any fit to labels
ACCURACY = Estimate("combined", 0.7, 0.6, 0.8, "")


@pytest.fixture
def world() -> tuple[Float64s, Labels]:
    """Logits of all rows, and their labels."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(N, 3)) * 2 - [0.0, 0.0, 1.5]
    return logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def by_labels(
    logits: Float64s, labels: Labels, places: Integers, inclusion: Float64s | float, text: str
) -> dict[tuple[str, str | None], MetricEstimate]:
    draw = made_draw(N, inclusion, len(places), labels=labels[places])
    wanted = parse_metrics(text)
    found = metrics_by_labels(draw, logits, logits[places], SCALING, ACCURACY, wanted, CLASSES)
    return {(entry.metric, entry.class_name): entry for entry in found}


def test_with_every_label_the_numbers_are_exact(world: tuple[Float64s, Labels]) -> None:
    logits, labels = world
    hard = logits.argmax(axis=1)
    found = by_labels(logits, labels, np.arange(N), 1.0, "all")
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = {
        "precision": precision_score(labels, hard, average=None),
        "recall": recall_score(labels, hard, average=None),
        "auroc": [roc_auc_score(labels == label, scores[:, label]) for label in range(3)],
    }
    for metric, values in expected.items():
        for label, value in zip(CLASSES, values, strict=True):
            entry = found[metric, label]
            assert entry.value == pytest.approx(value, abs=1e-9)
            assert entry.low == entry.high == entry.value
            assert "no range" in entry.interval
        assert found[metric, None].value == pytest.approx(np.mean(values))
    assert found["accuracy", None].value == 0.7


@pytest.mark.parametrize("n", [60, 200])
def test_intervals_cover(n: int, world: tuple[Float64s, Labels]) -> None:
    """Over 50 draws of ``pick``'s design; the classes differ in size by a factor of three."""
    logits, labels = world
    truth = by_labels(logits, labels, np.arange(N), 1.0, "all")
    order = np.lexsort((confidences(logits, 1.0), logits.argmax(axis=1)))
    logits, labels = logits[order], labels[order]
    inclusion = inclusion_probabilities(confidences(logits, 1.0), n)
    rng = np.random.default_rng(0)
    inside: dict[tuple[str, str | None], list[bool]] = {key: [] for key in truth}
    errors: dict[tuple[str, str | None], list[float]] = {key: [] for key in truth}
    for _ in range(50):
        places = drawn(inclusion, rng)
        for key, entry in by_labels(logits, labels, places, inclusion[places], "all").items():
            true = truth[key].value
            if entry.value is not None and entry.low is not None and entry.high is not None:
                assert true is not None
                inside[key].append(entry.low <= true <= entry.high)
                errors[key].append(entry.value - true)
    for key in truth:
        if key != ("accuracy", None):
            assert np.mean(inside[key]) > 0.84, key
            assert abs(np.mean(errors[key])) < 0.03, key
    assert np.mean([np.mean(values) for values in inside.values()]) > 0.92


def test_a_class_with_few_labels_has_no_number(world: tuple[Float64s, Labels]) -> None:
    logits, labels = world
    eels, others = np.flatnonzero(labels == 2)[:4], np.flatnonzero(labels < 2)[:80]
    places = np.sort(np.concatenate([eels, others]))
    found = by_labels(logits, labels, places, 0.105, "recall")
    assert (found["recall", "eel"].value, found["recall", "eel"].rows) == (None, 4)
    assert found["recall", "cat"].value is not None


def test_groups(world: tuple[Float64s, Labels]) -> None:
    """With every label of the groups the numbers are exact; other groups have none."""
    logits, labels = world
    numbers = np.arange(N) % 2
    draw = made_draw(N, 1.0, N, labels=labels)
    groups = Groups(["north", "south", "west"], np.tile(numbers, 2))
    wanted = parse_metrics("accuracy,precision:dog")
    found = {
        (entry.group, entry.metric): entry
        for entry in metrics_by_labels(
            draw, logits, logits, SCALING, ACCURACY, wanted, CLASSES, groups
        )
    }
    hard = logits.argmax(axis=1)
    for number, name in enumerate(groups.names[:2]):
        inside = numbers == number
        accuracy = float((hard == labels)[inside].mean())
        assert found[name, "accuracy"].value == pytest.approx(accuracy)
        precision = precision_score(labels[inside], hard[inside], average=None)[1]
        assert found[name, "precision"].value == pytest.approx(precision)
    assert found["west", "accuracy"].value is None
    assert found["west", "precision"].rows == 0


def test_costs_by_labels(world: tuple[Float64s, Labels]) -> None:
    """With every label the cost is exact; by 60 labels the interval contains it, unbiased."""
    logits, labels = world
    costs = np.array([[0.0, 1.0, 2.0], [10.0, 0.0, 5.0], [1.0, 1.0, 0.0]])
    true = float(costs[labels, logits.argmax(axis=1)].mean())

    def cost(places: Integers, inclusion: Float64s | float) -> MetricEstimate:
        draw = made_draw(N, inclusion, len(places), labels=labels[places])
        (entry,) = metrics_by_labels(
            draw, logits, logits[places], SCALING, ACCURACY, (), CLASSES, costs=costs
        )
        return entry

    whole = cost(np.arange(N), 1.0)
    assert whole.low == whole.high == whole.value == pytest.approx(true)
    assert cost(np.arange(4), 4 / N).value is None
    inclusion = inclusion_probabilities(confidences(logits, 1.0), 60)
    rng = np.random.default_rng(0)
    errors, inside = [], []
    for _ in range(200):
        places = drawn(inclusion, rng)
        entry = cost(places, inclusion[places])
        assert entry.low is not None
        assert entry.value is not None
        assert entry.high is not None
        errors.append(entry.value - true)
        inside.append(entry.low <= true <= entry.high)
    assert abs(np.mean(errors)) < 0.1
    assert np.mean(inside) > 0.9


def test_marked_labels_are_used(tmp_path: Path) -> None:
    path = write_features(tmp_path / "f.h5")
    asked = ("estimate", path, "--metrics", "recall,f1")
    before = covcal(*asked).require_success().out
    sheet = tmp_path / "sheet.csv"
    covcal("pick", path, "-n", 120, "-o", sheet).require_success()
    fill(sheet, path)
    covcal("label", path, sheet).require_success()
    after = covcal(*asked).require_success().out
    assert "ranges of metrics are rules of thumb" in before
    assert "A range that was computed from labels is a 95 % interval." in after
    assert covcal(*asked, "--labels", "none").require_success().out == before
