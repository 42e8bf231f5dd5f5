"""Every guard on both sides of its threshold, and the one estimate made out of many."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from covcal_cli.calibrate.problem import not_at_limit
from covcal_cli.cli.console import checks
from covcal_cli.estimators import guards
from covcal_cli.estimators.clusters import change_within_classes
from covcal_cli.estimators.consensus import DISAGREE, Estimates, combined, reason_to_keep
from covcal_cli.estimators.inputs import (
    AlignedForecasters,
    Estimate,
    EstimatorInputs,
    from_variance,
    variance_of_mean,
)
from covcal_cli.forecast import enough_errors
from covcal_cli.records import Guard, encoded
from tests import REPOSITORY
from tests.estimators.made_inputs import made_inputs, made_rows

PAIRS: list[tuple[Callable[[], Guard], Callable[[], Guard], str]] = [
    (
        lambda: guards.ess_share(np.ones(100)),
        lambda: guards.ess_share(np.r_[100.0, np.full(99, 1e-9)]),
        "1.0 % of 100 rows",
    ),
    (
        lambda: guards.ess_count(np.ones(50)),
        lambda: guards.ess_count(np.ones(49)),
        "size is 49.0 of",
    ),
    (
        lambda: guards.domain_overlap(0.25),
        lambda: guards.domain_overlap(0.05),
        "0.050 (at least 0.1 needed, 0.25",
    ),
    (
        lambda: guards.condition(999.0),
        lambda: guards.condition(math.inf),
        "do not determine the class frequencies",
    ),
    (
        lambda: not_at_limit(1.0, None),
        lambda: not_at_limit(1e-4, "lower"),
        "0.0001 is at its lower limit",
    ),
    (
        lambda: guards.not_clamped(0.9, 0.9, ""),
        lambda: guards.not_clamped(0.05, 0.11, "because"),
        "11.00 % instead of 5.00 %: because",
    ),
    (
        lambda: guards.detectable_shift(0.021, 0.01),
        lambda: guards.detectable_shift(0.02, 0.01),
        "2.00 points (2.0 standard errors, more than 2 needed); the rise may be due to chance",
    ),
    (
        lambda: guards.fall_in_confidence(0.03, 0.01, 0.2),
        lambda: guards.fall_in_confidence(-0.01, 0.0, 0.2),
        "Perhaps only the class frequencies changed",
    ),
    (
        lambda: guards.fall_in_confidence(0.0, 0.01, 0.7),
        lambda: guards.fall_in_confidence(0.0, 0.01, 0.4),
        "Perhaps only the class frequencies changed",
    ),
    (lambda: guards.precise(0.05), lambda: guards.precise(0.06), "by up to 6.0 points"),
    (
        lambda: guards.shift_within_classes(0.3),
        lambda: guards.shift_within_classes(0.2),
        "moved by 0.20 standard deviations",
    ),
    (
        lambda: guards.clusters_know_classes(0.5),
        lambda: guards.clusters_know_classes(0.6),
        "60.0 % of the source rows are in the cluster of another class",
    ),
    (
        lambda: guards.enough_rows(0.12),
        lambda: guards.enough_rows(0.15),
        "by up to 15.0 points (at most 12 allowed). Give more target rows",
    ),
    (
        lambda: enough_errors(20, 100),
        lambda: enough_errors(19, 100),
        "19 errors among 100",
    ),
    (
        lambda: guards.prior_drift(np.array([0.5, 0.5]), np.array([0.55, 0.45])),
        lambda: guards.prior_drift(np.array([0.5, 0.5]), np.array([0.9, 0.1])),
        "--target-prior",
    ),
    (
        lambda: guards.above_chance(0.2, 5),
        lambda: guards.above_chance(0.19, 5),
        "guessing gives 20.0 %",
    ),
    (
        lambda: guards.prior_rows(0.3),
        lambda: guards.prior_rows(0.5),
        "more labelled source validation rows",
    ),
    (
        lambda: guards.prior_reached(np.array([0.5, 0.5]), np.array([0.55, 0.45])),
        lambda: guards.prior_reached(np.array([0.5, 0.5]), np.array([0.8, 0.2])),
        "differ from the target prior by 30.0 %",
    ),
]
# As near to its threshold as anyone can tell, and on the wrong side of it.
CLOSE: list[tuple[Callable[[], Guard], str]] = [
    (lambda: guards.precise(0.05503), "by up to 5.503 points (at most 5.5 allowed)"),
    (lambda: guards.detectable_shift(0.019999, 0.01), "1.9999 standard errors"),
    (lambda: guards.prior_drift(np.array([1, 0.0]), np.array([0.8997, 0.1003])), "10.03 %"),
    (lambda: guards.above_chance(0.19998, 5), "19.998 %, and guessing gives 20.0 %"),
    (lambda: guards.ess_count(np.r_[np.ones(49), 0.9]), "size is 49.99 of"),
    (lambda: guards.domain_overlap(0.09999), "0.09999 (at least"),
    (lambda: guards.prior_rows(0.3334), "33.34 %"),
]


@pytest.mark.parametrize(
    ("fall", "words"),
    [
        (
            0.0132,
            "falls by only 1.32 points; up to 2 standard errors (each 0.66) can be noise. Perhaps",
        ),
        (0.03, "confidence falls by 3.00 points, more than 2 standard errors (each 0.66)"),
        (0.0, "the mean confidence rises by 0.00 points (standard error 0.66). Perhaps"),
        (-0.02, "the mean confidence rises by 2.00 points (standard error 0.66). Perhaps"),
    ],
)
def test_the_fall_in_confidence_agrees_with_its_numbers(fall: float, words: str) -> None:
    """A fall within the noise is a fall: the sentence says by how much, and how much is noise."""
    assert words in guards.fall_in_confidence(fall, 0.0066, 0.2).sentence


@pytest.mark.parametrize(("good", "bad", "words"), PAIRS)
def test_a_guard_has_a_number_a_threshold_and_a_sentence(
    good: Callable[[], Guard], bad: Callable[[], Guard], words: str
) -> None:
    assert good().passed
    failed = bad()
    assert not failed.passed
    assert words in failed.sentence
    for guard in (good(), failed):
        assert np.isfinite([guard.value, guard.threshold]).all()
        json.dumps(asdict(guard), allow_nan=False)


@pytest.mark.parametrize(("make", "words"), CLOSE)
def test_a_number_is_told_from_its_threshold(make: Callable[[], Guard], words: str) -> None:
    """What fails by little does not read as if it had passed."""
    found = make()
    assert not found.passed
    assert words in found.sentence


@pytest.mark.parametrize(("_", "bad", "__"), PAIRS)
def test_a_guard_that_fails_says_what_follows(
    _: Callable[[], Guard], bad: Callable[[], Guard], __: str
) -> None:
    assert any(mark in bad().sentence for mark in ("; ", ": ", ". "))


def test_an_estimate_without_a_guard_is_not_trusted_but_unchecked() -> None:
    """To pass no guard is no distinction; the JSON has both."""
    bare = from_variance("x", 0.5, 0.01, "an assumption")
    assert (bare.checked, bare.trusted) == (False, False)
    assert encoded(bare, Path("x"))["checked"] is False
    sound = from_variance("x", 0.5, 0.01, "an assumption", (guards.precise(0.01),))
    assert (sound.checked, sound.trusted) == (True, True)


def test_an_estimate_is_clipped_and_speaks_json() -> None:
    """Its noise is never less than half a row, and one failed guard costs it its trust."""
    found = from_variance("x", 1.1, 0.01, "an assumption", (guards.precise(0.5),))
    assert (found.accuracy, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(1.1 - 1.959964 * 0.1)
    assert not found.trusted
    assert found.guard("precision").value == 0.5
    with pytest.raises(KeyError):
        found.guard("nothing")
    assert encoded(found, Path("x"))["guards"][0]["name"] == "precision"
    assert variance_of_mean(np.ones(10)) == pytest.approx(0.05**2)


def test_all_estimates_are_there() -> None:
    """With aligned forecasters and weights there are eight estimates."""
    inputs, _ = made_inputs(weighted=True)
    own = inputs.source_predictions[None], inputs.target_predictions[None]
    full = replace(
        inputs, aligned=AlignedForecasters(inputs.source_logits, inputs.target_logits, *own)
    )
    estimates = Estimates(full)
    names = [estimate.name for estimate in estimates.values()]
    assert names == list(estimates)
    assert names == [
        "cot",
        "atc",
        "doc",
        "confidence",
        "clustering",
        "clustering with fixed class shares",
        "agreement",
        "weighting",
    ]


CLUSTERINGS = ["clustering", "clustering with fixed class shares"]


@pytest.mark.parametrize(
    ("classes", "failed", "used", "unused"),
    [
        (5, "", ["atc", *CLUSTERINGS], ["doc"]),
        (5, "fall in confidence", ["doc"], ["atc", *CLUSTERINGS]),
        (5, "shift within classes", ["doc"], ["atc", *CLUSTERINGS]),
        (5, "source clusters", ["doc"], ["atc", *CLUSTERINGS]),
        (2, "", ["doc", "atc", "cot"], []),
        (2, "fall in confidence", ["doc"], ["atc", "cot"]),
    ],
)
def test_combined_is_the_rule(
    classes: int, failed: str, used: list[str], unused: list[str]
) -> None:
    """By hand: the estimators used, 1.2 times the fall, the interval, and the disagreement."""
    inputs, _ = made_inputs(classes=classes)
    values = {"cot": 0.5, "atc": 0.66, "doc": 0.7}
    values |= dict(zip(CLUSTERINGS, (0.62, 0.57), strict=True))
    estimates = {
        name: Estimate(name, value, value, value, "-", (guards.precise(0.0),))
        for name, value in values.items()
    }
    checks = [
        guards.fall_in_confidence(0.0 if failed == "fall in confidence" else 0.1, 0.01, 0.0),
        guards.shift_within_classes(0.29 if failed == "shift within classes" else 0.3),
        guards.clusters_know_classes(0.51 if failed == "source clusters" else 0.5),
    ]
    assert [guard.name for guard in checks if not guard.passed] == ([failed] if failed else [])
    found = combined(inputs, estimates, checks[: 1 if classes == 2 else 3], drift=0.2)
    right = float(inputs.source_correct.mean())

    def corrected(some: list[str]) -> float:
        return right - 1.2 * (right - float(np.median([values[name] for name in some])))

    accuracy = corrected(used)
    assert found.accuracy == pytest.approx(accuracy)
    error = (inputs.source_errors + 0.5) / (inputs.n_source + 1)
    noise = error * (1 - error) / inputs.n_source
    noise += accuracy * (1 - accuracy) / inputs.n_target
    everyone = [values[name] for name in [*used, *unused]]
    distance = max(everyone) - min(everyone)
    reach = 0.1 * distance + (0.07 if classes == 2 else 0.04) + 0.15 * 0.2 + 1.959964 * noise**0.5
    ambiguous = failed in ("fall in confidence", "shift within classes")
    lowest = min([accuracy - reach, *([corrected(unused)] if ambiguous else [])])
    assert found.low == pytest.approx(lowest)
    assert found.high == pytest.approx(accuracy + reach)
    guard = found.guard("estimators disagree")
    assert guard.value == pytest.approx(distance)
    assert guard.passed == (distance < 0.2)
    assert ("label some target rows" in guard.sentence) != guard.passed
    assert found.guard("rows").value == pytest.approx(1.959964 * noise**0.5)
    assert ("independent evidence" in [guard.name for guard in found.guards]) == (classes == 2)


def test_every_check_states_its_problem() -> None:
    """No screen shows the name of a failed check: "failed: source errors" reads as its opposite."""
    code = "".join(
        path.read_text(encoding="utf-8") for path in (REPOSITORY / "covcal_cli").rglob("*.py")
    )
    names = set(re.findall(r'\bGuard\(\s*"([^"]+)"', code))
    names |= {guards.FALL_IN_CONFIDENCE, guards.SHIFT_WITHIN_CLASSES, DISAGREE}
    assert set(guards.PROBLEMS) == names
    assert guards.problem_of("aligned matched confidence") in guards.PROBLEMS.values()
    assert checks([enough_errors(3, 90)]) == (
        "0 of 1 passed. Problem: fewer than 20 source errors (give more source validation rows)"
    )


@pytest.mark.parametrize(("fall", "drift"), [(-0.4, 0.1), (0.0, 0.6)])
def test_a_shift_that_frequencies_cannot_explain_needs_no_more_checks(
    fall: float, drift: float
) -> None:
    """The confidence rises by 40 points, or most labels change: DoC alone would be absurd."""
    inputs, _ = made_inputs()
    estimates = Estimates(inputs)
    checks = [
        guards.fall_in_confidence(fall, 0.01, drift),
        guards.shift_within_classes(0.0),
        guards.clusters_know_classes(1.0),
    ]
    found = combined(inputs, estimates, checks)
    assert found.accuracy == combined(inputs, estimates, checks[:1]).accuracy
    assert "according to the median of atc" in found.assumption


@pytest.mark.parametrize("trusted", [True, False])
def test_given_class_frequencies_leave_cot_alone_in_the_rule(
    monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    """COT knows the frequencies; where its checks fail, DoC takes its place."""
    inputs, _ = made_inputs()
    estimates = Estimates(inputs, inputs.source_prior)
    check = guards.precise(0.0 if trusted else 1.0)
    monkeypatch.setitem(estimates._computed, "cot", replace(estimates["cot"], guards=(check,)))
    used = estimates["cot" if trusted else "doc"]
    right = float(inputs.source_correct.mean())
    assert estimates.combined.accuracy == pytest.approx(right - 1.2 * (right - used.accuracy))
    assert f"the change according to {used.name}" in estimates.combined.assumption


def test_rows_of_a_class_that_only_became_frequent_have_not_moved() -> None:
    """A more frequent class is not a shift within classes; a class whose rows have moved is."""
    source, labels = made_rows(3000, classes=4, moved=0.0, seed=1)
    mostly = np.array([0.85, 0.05, 0.05, 0.05])
    frequent, _ = made_rows(2000, classes=4, moved=0.0, seed=2, prior=mostly)
    moved, _ = made_rows(2000, classes=4, moved=0.6, seed=3)
    for target, passed in ((frequent, False), (moved, True)):
        inputs = EstimatorInputs(source, labels, target, 2.0)
        assert change_within_classes(inputs).passed == passed
        louder = EstimatorInputs(1e-6 * source, labels, 1e-6 * target, 2e-6)
        value = change_within_classes(louder).value
        assert value == pytest.approx(change_within_classes(inputs).value, rel=1e-6)


def test_classes_that_the_source_does_not_show_count_as_moved() -> None:
    """If most target rows have a class with under five source rows, nothing is known."""
    source, labels = made_rows(400, classes=4, moved=0.0, seed=1)
    rare = source.argmax(axis=1) != 0
    target, _ = made_rows(400, classes=4, moved=0.0, seed=2)
    of_first = source[~rare], labels[~rare]
    inputs = EstimatorInputs(*of_first, target[target.argmax(axis=1) > 0], 2.0)
    assert change_within_classes(inputs).passed


@pytest.mark.parametrize("seed", range(3))
def test_combined_on_made_shifts(seed: int) -> None:
    """The range covers the truth with a shift, without, and if only class frequencies change."""
    prior = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
    source, labels = made_rows(2000, classes=5, moved=0.0, seed=2 * seed)
    for moved, frequencies in ((0.4, None), (0.0, None), (0.0, prior)):
        target, truth = made_rows(
            2000, classes=5, moved=moved, seed=2 * seed + 1, prior=frequencies
        )
        inputs = EstimatorInputs(source, labels, target, 2.0)
        found = Estimates(inputs).combined
        true = float((target.argmax(axis=1) == truth).mean())
        assert found.low <= true <= found.high
        if moved == 0.0:
            assert found.accuracy == pytest.approx(true, abs=0.03)


@pytest.mark.parametrize("rows", [15, 30, 60])
def test_few_target_rows_of_a_calibrated_classifier_change_nothing(rows: int) -> None:
    """Nothing shifted and T = 1 is right: the estimate is never reason enough to leave it."""
    for seed in range(8):
        rng = np.random.default_rng([seed, rows])
        logits = rng.normal(size=(600 + rows, 5)) * 2.2
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        drawn = rng.random(len(chances))[:, None] > np.cumsum(chances, axis=1)
        labels = drawn.sum(axis=1).clip(0, 4)
        inputs = EstimatorInputs(logits[:600], labels[:600], logits[600:], 1.0)
        estimate = Estimates(inputs).combined
        assert reason_to_keep(inputs, estimate) is not None
        assert estimate.guard("rows").passed == (estimate.guard("rows").value <= 0.12)
        assert rows == 60 or "rows" in estimate.failed


def test_confident_rows_that_are_wrong_are_told_from_right_confidence() -> None:
    """Right confidence warns in at most 1 % of samples; a few errors of extreme rows warn."""
    rng = np.random.default_rng(0)
    confidence = 1 - rng.random((400, 1000)) ** 6 / 2
    warned = [
        guards.errors_of_confident(row, rng.random(1000) > row, 0.0) is not None
        for row in confidence
    ]
    assert sum(warned) <= 8
    extreme = np.r_[np.full(9, 1.0), np.full(991, 0.98)]
    wrong = np.isin(np.arange(1000), [0, 3, 5, *range(100, 120)])
    warning = guards.errors_of_confident(extreme, wrong, 0.99)
    assert warning is not None
    assert warning.startswith("3 of the 9 most confident source rows are wrong")
    one = guards.errors_of_confident(np.array([1.0, 0.5]), np.array([True, False]), 0.99)
    assert one == (
        "the most confident source row is wrong, but fewer than 0.01 errors were expected"
    )
    many = guards.errors_of_confident(np.full(2000, 0.75), np.arange(2000) < 700, 0.5)
    assert many is not None
    assert many.endswith("but only 500 errors were expected")
    for rows in ([], [9, 100]):  # no row; rows whose errors were expected
        assert guards.errors_of_confident(extreme[rows], wrong[rows], 0.0) is None
    # Errors below the threshold are of no matter.
    assert guards.errors_of_confident(extreme, ~wrong & (extreme < 1), 0.99) is None
