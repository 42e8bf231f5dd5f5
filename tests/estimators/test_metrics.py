"""Metrics without labels: the expected confusion matrix, ranges, and classes with too few rows."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax
from sklearn import metrics as sklearn

from covcal_cli.arrays import Float64s
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.inputs import Estimate, EstimatorInputs
from covcal_cli.estimators.matched_temperature import match_accuracy
from covcal_cli.estimators.metrics import (
    Groups,
    MetricEstimate,
    expected_metrics,
    parse_metrics,
)
from covcal_cli.maths.odds import probabilities

CLASSES = ("cat", "dog", "eel")
By = dict[tuple[str, str | None], MetricEstimate]


def inputs_of(classes: int = 3, n: int = 600, seed: int = 0) -> EstimatorInputs:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(2 * n, classes)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return EstimatorInputs(logits[:n] * 1.5, labels[:n], logits[n:] * 1.5, temperature=1.5)


def accuracy_of(low: float, middle: float, high: float) -> Estimate:
    return Estimate("combined", middle, low, high, "none")


def ends(entry: MetricEstimate) -> tuple[float, float, float]:
    """Return the low end, the value and the high end of a metric that has a number."""
    assert entry.low is not None
    assert entry.value is not None
    assert entry.high is not None
    return entry.low, entry.value, entry.high


def by_name(
    inputs: EstimatorInputs,
    text: str,
    accuracy: Estimate | None = None,
    offsets: Float64s | None = None,
) -> By:
    classes = CLASSES[: inputs.n_classes]
    accuracy = accuracy or accuracy_of(0.5, 0.6, 0.7)
    found = expected_metrics(inputs, accuracy, parse_metrics(text), classes, offsets)
    return {(entry.metric, entry.class_name): entry for entry in found}


def fit_of_source(inputs: EstimatorInputs) -> tuple[float, Float64s]:
    """Return T_c and the offsets of the classes, by another optimizer than covcal's."""
    logits, labels = inputs.source_logits, inputs.source_labels

    def log_loss(slope: float, offsets: Float64s) -> float:
        logs = log_softmax(slope * logits + offsets, axis=1)
        return -float(logs[np.arange(len(labels)), labels].sum())

    def penalised(values: Float64s) -> float:
        slope, offsets = values[0], values[1:]
        penalty = 0.5 * float(offsets @ offsets + (slope - 1) ** 2)
        return log_loss(slope / first, offsets) + penalty

    none = np.zeros(inputs.n_classes)
    first = 1 / float(minimize_scalar(lambda a: log_loss(a, none), (0.5, 2)).x)
    slope, *offsets = minimize(penalised, np.r_[1.0, none], tol=1e-9).x
    return first / slope, np.array(offsets)


def chances_of(inputs: EstimatorInputs, accuracy: float) -> tuple[Float64s, Float64s]:
    """Return the target's probabilities halfway to the accuracy, and matched to the accuracy."""
    logits = inputs.target_logits
    on_source, offsets = fit_of_source(inputs)
    matched = match_accuracy(logits, accuracy, inputs.target_predictions, offsets).temperature
    halfway, full = (
        probabilities(logits + temperature * offsets, temperature)
        for temperature in ((matched * on_source) ** 0.5, matched)
    )
    return halfway, full


def test_the_numbers_are_those_of_rows_that_count_once_for_each_class() -> None:
    """T is halfway, in log T, between the source's and the one that matches the accuracy."""
    inputs = inputs_of()
    found = by_name(inputs, "all")
    chances, _ = chances_of(inputs, 0.6)
    weights, labels = chances.ravel(), np.repeat([0, 1, 2], inputs.n_target)
    hard = np.tile(inputs.target_predictions, 3)
    scores = np.tile(probabilities(inputs.target_logits, 1.0).T, (3, 1))
    settings = {"sample_weight": weights}
    expected = {
        "precision": sklearn.precision_score(labels, hard, average=None, **settings),
        "recall": sklearn.recall_score(labels, hard, average=None, **settings),
        "f1": sklearn.f1_score(labels, hard, average=None, **settings),
        "auroc": [
            sklearn.roc_auc_score(labels == label, scores[:, label], **settings)
            for label in range(3)
        ],
    }
    for metric, values in expected.items():
        for label, value in zip(CLASSES, values, strict=True):
            assert found[metric, label].value == pytest.approx(value, abs=1e-6)
        assert found[metric, None].value == pytest.approx(np.mean(values), abs=1e-6)
    balanced = sklearn.balanced_accuracy_score(labels, hard, **settings)
    assert found["balanced_accuracy", None].value == pytest.approx(balanced, abs=1e-6)
    accuracy = found["accuracy", None]
    assert (accuracy.low, accuracy.value, accuracy.high) == (0.5, 0.6, 0.7)


def test_two_classes_use_the_fit_to_the_source_alone() -> None:
    """With two classes, nothing but the confidence supports the estimated accuracy."""
    inputs = replace(inputs_of(2), temperature=3.0)
    temperature, offsets = fit_of_source(inputs)
    members = probabilities(inputs.target_logits + temperature * offsets, temperature)[1]
    recall = members[inputs.target_predictions == 1].sum() / members.sum()
    for accuracy in (0.6, 0.8):
        ends_of_accuracy = accuracy_of(accuracy - 0.1, accuracy, accuracy + 0.1)
        found = by_name(inputs, "recall", ends_of_accuracy)["recall", "dog"].value
        assert found == pytest.approx(recall, abs=1e-4)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_class_that_the_classifier_finds_too_probable_is_corrected(classes: int) -> None:
    """A classifier trained with class weights says "cat" far too often."""
    honest = inputs_of(classes, n=3000)
    too_often = np.array([2.0, 0.0, 0.0])[:classes]
    inputs = replace(
        honest,
        source_logits=honest.source_logits + too_often,
        target_logits=honest.target_logits + too_often,
    )
    expected = probabilities(honest.target_logits, 1.5)  # the frequencies of the labels
    predicted = inputs.target_predictions
    chance = expected[predicted, np.arange(inputs.n_target)]
    right = float(chance.mean())
    found = by_name(inputs, "precision", accuracy_of(right, right, right))
    for label, name in enumerate(CLASSES[:classes]):
        precision = chance[predicted == label].mean()
        assert ends(found["precision", name])[1] == pytest.approx(precision, abs=0.03)


def test_the_range_grows_with_that_of_the_accuracy() -> None:
    narrow, wide = (
        by_name(inputs_of(), "all", accuracy)
        for accuracy in (accuracy_of(0.59, 0.6, 0.61), accuracy_of(0.45, 0.6, 0.75))
    )
    for key, entry in narrow.items():
        (low, value, high), (lower, _, higher) = ends(entry), ends(wide[key])
        assert lower < low < value < high < higher


def test_the_range_holds_the_truth_of_a_world_with_those_probabilities() -> None:
    inside = []
    for seed in range(12):
        rng = np.random.default_rng([1, seed])
        inputs = inputs_of(seed=seed)
        shares = probabilities(inputs.target_logits, 1.5).T
        labels = (shares.cumsum(axis=1) > rng.random((inputs.n_target, 1))).argmax(axis=1)
        accuracy = float(shares.max(axis=1).mean())
        found = by_name(inputs, "recall", accuracy_of(accuracy, accuracy, accuracy))
        recalls = sklearn.recall_score(labels, inputs.target_predictions, average=None)
        inside += [
            ends(found["recall", label])[0] <= recall <= ends(found["recall", label])[2]
            for label, recall in zip(CLASSES, recalls, strict=True)
        ]
    assert np.mean(inside) > 0.95


def test_two_classes_have_no_mean_unless_it_is_asked_for() -> None:
    inputs = inputs_of(classes=2)
    assert list(by_name(inputs, "f1")) == [("f1", "cat"), ("f1", "dog")]
    assert list(by_name(inputs, "f1:macro,f1:dog")) == [("f1", None), ("f1", "dog")]
    assert list(by_name(inputs, "balanced_accuracy")) == [("balanced_accuracy", None)]


def test_a_class_with_too_few_rows_has_no_number() -> None:
    inputs = inputs_of()
    logits = inputs.target_logits - np.array([0.0, 0.0, 60.0])
    rare = EstimatorInputs(inputs.source_logits, inputs.source_labels, logits, 1.5)
    found = by_name(rare, "precision,recall,specificity")
    assert found["recall", "eel"].value is None
    assert found["precision", "eel"].rows < 1
    assert found["specificity", "eel"].value == pytest.approx(1.0)
    seen = [ends(found["recall", label])[1] for label in CLASSES[:2]]
    assert found["recall", None].value == pytest.approx(np.mean(seen))


def test_a_class_that_is_never_predicted_has_an_f1_of_0() -> None:
    """Its precision has no number. The mean of F1 includes it, as scikit-learn's does."""
    inputs = inputs_of()
    logits = inputs.target_logits.copy()
    logits[:, 2] = np.minimum(logits[:, 2], logits[:, :2].max(axis=1) - 0.01)
    found = by_name(replace(inputs, target_logits=logits), "precision,f1")
    assert found["precision", "eel"].value is None
    assert found["f1", "eel"].value == 0
    seen = [ends(found["f1", label])[1] for label in CLASSES]
    assert found["f1", None].value == pytest.approx(np.mean(seen))


def test_given_class_frequencies_move_the_metrics() -> None:
    """A class that is more frequent has a higher precision."""
    inputs = inputs_of()
    before = by_name(inputs, "precision")
    after = by_name(inputs, "precision", offsets=np.array([1.0, 0.0, 0.0]))
    cat, dog = (
        ends(after["precision", label])[1] - ends(before["precision", label])[1]
        for label in ("cat", "dog")
    )
    assert cat > 0.05
    assert dog < 0


def test_an_unknown_class_is_named() -> None:
    with pytest.raises(CovcalError, match="recall:fox: the file has no class fox: use one of cat"):
        by_name(inputs_of(), "recall:fox")
    with pytest.raises(CovcalError, match="metric"):
        list(expected_metrics(inputs_of(), accuracy_of(0.5, 0.6, 0.7), [("ece", None)], CLASSES))


@pytest.mark.parametrize("text", ["", "ece", "recall:", "accuracy:cat", "f1,,recall"])
def test_bad_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"METRIC|all classes"):
        parse_metrics(text)


def test_a_class_may_contain_a_colon() -> None:
    assert parse_metrics("f1:cat:, recall") == (("f1", "cat:"), ("recall", None))


def test_groups_have_the_temperature_of_all_rows() -> None:
    """The accuracies of the groups add up to that of all rows; a small group has no number."""
    inputs = inputs_of()
    numbers = np.repeat([0, 1, 2], [400, 196, 4])
    groups = Groups(["north", "south", "west"], numbers)
    accuracy, wanted = accuracy_of(0.5, 0.6, 0.7), parse_metrics("accuracy,recall:dog")
    found = list(expected_metrics(inputs, accuracy, wanted, CLASSES, groups=groups))
    assert [entry.group for entry in found] == [None, None, *np.repeat(groups.names, 2)]
    of_group = {entry.group: entry for entry in found if entry.metric == "accuracy"}
    assert of_group["west"].value is None
    shares = [ends(of_group[name])[1] for name in ("north", "south")]
    halfway, full = chances_of(inputs, 0.6)
    of_rows = full[inputs.target_predictions, np.arange(inputs.n_target)]
    for number, share in enumerate(shares):
        assert share == pytest.approx(of_rows[numbers == number].mean(), abs=1e-4)
    chances = halfway[1]
    south, is_dog = numbers == 1, inputs.target_predictions == 1
    (recall,) = (entry for entry in found if (entry.group, entry.metric) == ("south", "recall"))
    expected = chances[south & is_dog].sum() / chances[south].sum()
    assert ends(recall)[1] == pytest.approx(expected, abs=1e-4)


COSTS = np.array([[0.0, 1.0, 2.0], [10.0, 0.0, 5.0], [1.0, 1.0, 0.0]])


def cost_of(inputs: EstimatorInputs, costs: Float64s, accuracy: Estimate) -> MetricEstimate:
    (entry,) = expected_metrics(inputs, accuracy, (), CLASSES, costs=costs)
    return entry


def test_one_cost_for_all_mistakes_follows_the_accuracy() -> None:
    accuracy = accuracy_of(0.5, 0.6, 0.7)
    low, value, high = ends(cost_of(inputs_of(), 10 * (1 - np.eye(3)), accuracy))
    assert (low, value, high) == pytest.approx((3, 4, 5))


def test_the_cost_is_that_of_the_expected_confusion_matrix() -> None:
    """The matrix is scaled, so that its share of mistakes agrees with the estimated accuracy."""
    inputs = inputs_of()
    _, chances = chances_of(inputs, 0.6)
    confusion = np.array([chances[:, inputs.target_predictions == j].sum(axis=1) for j in range(3)])
    low, value, high = ends(cost_of(inputs, COSTS, accuracy_of(0.5, 0.6, 0.7)))
    assert value == pytest.approx((confusion.T * COSTS).sum() / inputs.n_target, abs=1e-4)
    narrow = ends(cost_of(inputs, COSTS, accuracy_of(0.6, 0.6, 0.6)))
    assert low < narrow[0] < value < narrow[2] < high


def test_the_range_of_a_cost_contains_the_truth_of_a_world_with_those_probabilities() -> None:
    inside = []
    for seed in range(12):
        inputs = inputs_of(seed=seed)
        shares = probabilities(inputs.target_logits, 1.5)
        draws = np.random.default_rng([1, seed]).random(inputs.n_target)
        labels = (shares.cumsum(axis=0) > draws).argmax(axis=0)
        accuracy = float(shares.max(axis=0).mean())
        cost = cost_of(inputs, COSTS, accuracy_of(accuracy, accuracy, accuracy))
        low, _, high = ends(cost)
        inside.append(low <= COSTS[labels, inputs.target_predictions].mean() <= high)
    assert np.mean(inside) > 0.95


def test_groups_have_costs_that_add_up() -> None:
    inputs = inputs_of()
    groups = Groups(["north", "south", "west"], np.repeat([0, 1, 2], [400, 196, 4]))
    accuracy = accuracy_of(0.5, 0.6, 0.7)
    whole, *found = expected_metrics(inputs, accuracy, (), CLASSES, None, groups, COSTS)
    assert [entry.group for entry in found] == groups.names
    assert found[2].value is None
    sums = sum(ends(entry)[1] * entry.rows for entry in found[:2])
    assert sums / 596 == pytest.approx(ends(whole)[1], abs=0.03)
