"""``calibrate --method auto``: the rule both ways, its candidates, and the reason in words."""

import json
import re
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax
from scipy.stats import chi2

from covcal_cli.calibrate import auto
from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.methods import checks_of
from covcal_cli.calibrate.problem import CalibrateSettings
from covcal_cli.cli.calibrate import answer
from covcal_cli.errors import percent
from covcal_cli.estimators import consensus
from covcal_cli.estimators.consensus import Estimates, reason_to_keep
from covcal_cli.estimators.inputs import Estimate, EstimatorInputs, read_inputs
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.features import FeatureFile
from covcal_cli.records import write_document
from covcal_cli.report.verdict import unmeasured_action
from tests.cli_runner import covcal
from tests.made_files import (
    Arrays,
    adapted_domain,
    clusters_domain,
    only_rows,
    write_adapted,
    write_features,
)

SKEWED = [0.4, 0.3, 0.2, 0.05, 0.05]
HARM = 1.0  # the classifier is right on 38 % of the target instead of 79 %


def write(
    path: Path,
    *,
    moved: float = 0.0,
    prior: list[float] | None = None,
    target_sizes: tuple[int, int, int] = (700, 500, 300),
) -> Path:
    source = clusters_domain("source", sizes=(300, 600, 100))
    target = clusters_domain("target", sizes=target_sizes, moved=moved, prior=prior)
    return write_features(path, source=source, target=target)


def guards_of(found: Calibration) -> dict[str, bool]:
    return {guard.name: guard.passed for guard in found.guards}


def test_a_shift_that_does_harm_takes_consensus(tmp_path: Path) -> None:
    """T is that of `consensus`, above that of `temp`; the disagreement is a warning."""
    path = write(tmp_path / "f.h5", moved=HARM)
    found = calibrate(path)
    assert (found.method, found.method_used, found.forecaster) == ("auto", "consensus", "original")
    asked, plain = (
        calibrate(path, CalibrateSettings(method=name)) for name in ("consensus", "temp")
    )
    assert found.forecaster_temperature == asked.forecaster_temperature
    assert found.forecaster_temperature > 1.1 * plain.forecaster_temperature
    assert found.reason.startswith("The estimated accuracy is ")
    confidence = percent(found.estimates["target_confidence"], 1)
    assert found.reason.endswith(f"So T rises until the confidence is {confidence}.")
    assert not guards_of(found)["estimators disagree"]
    assert any("label some target rows" in text for text in found.warnings)


def test_other_class_frequencies_alone_take_temp(tmp_path: Path) -> None:
    """Most estimators mistake rarer classes for errors; the check of the confidence does not.

    The estimate does not either if the user gives the frequencies.
    """
    path = write(tmp_path / "f.h5", prior=SKEWED)
    found, plain = calibrate(path), calibrate(path, CalibrateSettings(method="temp"))
    assert found.method_used == "temp"
    assert found.forecaster_temperature == plain.forecaster_temperature
    assert "within 3 points of the mean confidence" in found.reason
    shares = tmp_path / "prior.json"
    names = [f"class {number}" for number in range(5)]
    shares.write_text(json.dumps(dict(zip(names, SKEWED, strict=True))))
    told = calibrate(path, CalibrateSettings(target_prior=str(shares)))
    assert told.method_used == "prior"
    assert told.forecaster_temperature == plain.forecaster_temperature
    assert "fall in confidence" not in guards_of(told)
    assert "a check failed (the estimated error rises by" in told.reason
    assert told.target_prior.shares == pytest.approx(SKEWED)


def unsure_file(
    path: Path, *, errors: int | None = None, moved: float = 0.0, scale: float = 0.3
) -> Path:
    """Write a file whose classifier is too unsure; keep only some source validation errors."""
    source = clusters_domain("source", sizes=(300, 600, 300))
    target = clusters_domain("target", sizes=(300, 600, 300), moved=moved)
    if errors is not None:
        wrong = source["logits"].argmax(axis=1) != source["labels"]
        late = np.cumsum(wrong & (source["split"] == 1)) > errors
        source = only_rows(source, ~(wrong & late & (source["split"] == 1)))
    for domain in (source, target):
        domain["logits"] = domain["logits"] * np.float32(scale)
    return write_features(path, source=source, target=target)


def test_an_unsure_classifier_gets_the_confidence_that_its_errors_prove(tmp_path: Path) -> None:
    """With many source errors and no shift, auto is temp although its T is below 1."""
    path = unsure_file(tmp_path / "f.h5")
    plain = calibrate(path, CalibrateSettings(method="temp"))
    assert plain.fit["errors"] >= 10
    assert plain.forecaster_temperature < 0.7
    found = calibrate(path)
    assert (found.method_used, found.forecaster_temperature) == (
        "temp",
        plain.forecaster_temperature,
    )
    # Nothing on the target shows that this is right.
    assert unmeasured_action(found)[1].startswith("Label 50 rows first: the calibration raises the")


def test_a_shift_of_an_unsure_classifier_stays_above_the_source(tmp_path: Path) -> None:
    """T may be below 1, but not below that of `temp`."""
    path = unsure_file(tmp_path / "f.h5", moved=0.3)
    plain, matched = (calibrate(path, CalibrateSettings(method=m)) for m in ("temp", "consensus"))
    assert plain.forecaster_temperature < matched.forecaster_temperature < 1


def source_validation_loss(path: Path, temperature: float) -> float:
    """The sum of the negative log-likelihoods of the source validation rows."""
    with h5py.File(path) as file:
        rows = file["source/split"][...] == 1
        logits, labels = (file[f"source/{name}"][...][rows] for name in ("logits", "labels"))
    scaled = logits.astype(np.float64) / temperature
    return float(np.sum(logsumexp(scaled, axis=1) - scaled[np.arange(len(labels)), labels]))


@pytest.mark.parametrize("errors", [5, 9])
def test_few_errors_raise_confidence_to_the_end_of_the_likelihood_interval(
    tmp_path: Path, errors: int
) -> None:
    path = unsure_file(tmp_path / "f.h5", errors=errors)
    plain = calibrate(path, CalibrateSettings(method="temp")).forecaster_temperature
    found = calibrate(path)
    assert found.method_used == "consensus"
    assert plain < found.forecaster_temperature < 0.4
    assert re.search("T (is|must be) at least", found.reason)
    least = min(source_validation_loss(path, one) for one in np.geomspace(0.01, 1, 400))
    rise = 2 * (source_validation_loss(path, found.forecaster_temperature) - least)
    assert rise == pytest.approx(chi2.ppf(0.95, 1), rel=0.05)


@pytest.mark.parametrize("errors", [7, 9])
def test_few_source_errors_that_prove_nothing_do_not_raise_confidence(
    tmp_path: Path, errors: int
) -> None:
    path = unsure_file(tmp_path / "f.h5", errors=errors, scale=1.0)
    assert calibrate(path, CalibrateSettings(method="temp")).forecaster_temperature < 1
    found = calibrate(path)
    assert found.forecaster_temperature == 1.0
    assert found.method_used == "none"
    assert "source rows are not enough evidence for a higher confidence" in found.reason
    below = next(guard for guard in found.guards if guard.name == "under-confidence")
    (chosen,) = (one for one in found.candidates if one.chosen)
    accuracy, confidence = chosen.estimated_accuracy, chosen.target_confidence
    assert accuracy is not None
    assert confidence is not None
    assert below.value == pytest.approx(accuracy - confidence)
    assert below.value > 0.05
    assert not below.passed
    assert any("below the estimated accuracy" in text for text in found.warnings)


def test_the_brier_score_of_a_rare_class_alone_does_not_raise_confidence(tmp_path: Path) -> None:
    """Many errors, and more confidence than accuracy: no T below 1, although temp has one."""
    rng = np.random.default_rng(0)
    n = 6000
    right = np.arange(n) % 60 > 0  # 100 errors
    # Errors are very sure, so only the few unsure rows move the Brier score.
    margin = np.where(right & (rng.random(n) < 0.05), 1.5, 9.0).astype(np.float32)
    domain = {
        "logits": np.stack([margin, np.zeros(n, np.float32)], axis=1),
        "labels": np.where(right, 0, 1),
        "split": np.ones(n, np.uint8),
        "ids": np.array([b"%d" % row for row in range(n)]),
    }
    path = write_features(
        tmp_path / "f.h5", source=domain, target=domain, class_names=["ok", "fraud"]
    )
    plain = calibrate(path, CalibrateSettings(method="temp", allow_limit=True))
    assert plain.forecaster_temperature < 0.9
    found = calibrate(path)
    assert found.forecaster_temperature >= 1
    assert "source rows are not enough evidence for a higher confidence" in found.reason


@pytest.mark.parametrize("adapted", [False, True])
def test_without_a_target_it_is_temp(tmp_path: Path, adapted: bool) -> None:
    """The reason says what an estimate would need; candidates have a temperature and no more."""
    source = clusters_domain("source")
    path = tmp_path / "f.h5"
    if adapted:
        target = only_rows(clusters_domain("target"), np.arange(1000) >= 800)
        write_adapted(path, source=source, target=target)
    else:
        write_features(path, source=source, only_source=True)
    found = calibrate(path)
    assert found.method_used == "temp"
    assert found.reason.startswith(
        "T is fitted to the source, because an estimate of the target accuracy needs "
    )
    assert ("target training or validation rows" in found.reason) == adapted
    names = ["none", "temp", "fl+temp"] if adapted else ["none", "temp"]
    assert [candidate.method for candidate in found.candidates] == names
    for candidate in found.candidates:
        assert candidate.target_confidence is candidate.estimated_accuracy is None
        assert candidate.expected_ece is None
        asked = calibrate(path, CalibrateSettings(method=candidate.method))
        assert candidate.temperature == asked.forecaster_temperature


def adapted_pair(moved: float) -> tuple[Arrays, Arrays]:
    source = adapted_domain(clusters_domain("source", sizes=(300, 600, 100)), shift=1.0)
    target = clusters_domain("target", sizes=(700, 500, 300), moved=moved)
    return source, adapted_domain(target, shift=1.0)


@pytest.mark.parametrize("moved", [0.0, HARM])
def test_candidates_by_hand(tmp_path: Path, moved: float) -> None:
    """Each has the T that it has when asked for, SciPy's mean confidence, and the distance."""
    source, target = adapted_pair(moved)
    path = write_adapted(tmp_path / "a.h5", source=source, target=target)
    found = calibrate(path)
    assert [candidate.method for candidate in found.candidates] == [
        "none",
        "temp",
        "iw+temp",
        "fl+temp",
        "fl+iw+temp",
        "cot",
        "fl+cot",
        "consensus",
        "blend",
    ]
    read = target["split"] < 2
    original = target["logits"][read].astype(np.float64)
    members = target["aligned_logits"][:, read].astype(np.float64)
    aligned = logsumexp(members - logsumexp(members, axis=2, keepdims=True), axis=0)
    labels, every = original.argmax(axis=1), np.arange(read.sum())
    accuracy = estimate_of(path)[1].accuracy
    for candidate in found.candidates if moved else ():
        asked = calibrate(path, CalibrateSettings(method=candidate.method))
        assert candidate.temperature == asked.forecaster_temperature
        assert candidate.aligned_temperature == asked.aligned_temperature
        logits = aligned if asked.forecaster == "aligned" else original
        p: NDArray[np.float64] = softmax(logits / candidate.temperature, axis=1)
        if candidate.aligned_temperature is not None:
            p = (p + softmax(aligned / candidate.aligned_temperature, axis=1)) / 2
        confidence = float(p[every, labels].mean())
        assert candidate.target_confidence == pytest.approx(confidence, abs=1e-6)
        assert candidate.estimated_accuracy == accuracy
        assert candidate.expected_ece == pytest.approx(abs(confidence - accuracy), abs=1e-6)
        assert candidate.least_ece == (None if candidate.matched else candidate.expected_ece)
        wanted = candidate.method in ("consensus", "blend") and candidate.aligned_temperature != 1
        assert candidate.matched == wanted
    chosen = [candidate.method for candidate in found.candidates if candidate.chosen]
    assert chosen == [found.method_used] == ["consensus" if moved else "temp"]


def estimate_of(path: Path) -> tuple[EstimatorInputs, Estimate]:
    """Return the combined estimate, and what it was made from, by the library's parts."""
    plain = calibrate(path, CalibrateSettings(method="temp")).forecaster_temperature
    with FeatureFile(path) as file:
        inputs = read_inputs(file, plain)
    return inputs, Estimates(inputs).combined


def test_the_screen_gives_the_answer_first(tmp_path: Path) -> None:
    """Verdict, accuracy, confidence, T, reason and checks; -v and inspect show the rest."""
    path = write(tmp_path / "f.h5", moved=HARM)
    done = covcal("calibrate", path, "-o", "cal.json", cwd=tmp_path).require_success()
    calibration = read_calibration(tmp_path / "cal.json")
    estimates = calibration.estimates
    lines = dict(line.split("  ", 1) for line in done.out.splitlines())
    texts = {name: text.strip() for name, text in lines.items()}
    named = ["Verdict", "Target accuracy", "Confidence", "Temperature", "Reason", "Checks"]
    assert list(texts) == named
    assert texts["Verdict"] == unmeasured_action(calibration)[1]
    assert texts["Target accuracy"].startswith(f"{100 * estimates['accuracy']:.0f} % estimated (")
    low, high = (100 * estimates[f"accuracy_{end}"] for end in ("low", "high"))
    assert f"({low:.0f} to {high:.0f} %)" in texts["Target accuracy"]
    before, after = (100 * (share or 0.0) for share in calibration.target_confidence)
    gap = round(before) - round(100 * estimates["accuracy"])  # as printed
    assert texts["Confidence"].startswith(f"{before:.0f} % before, {after:.0f} % after calibration")
    assert f"too high by about {gap} points" in texts["Confidence"]
    assert texts["Temperature"].endswith("method consensus (chosen by auto)")
    assert texts["Reason"] == calibration.reason
    assert texts["Checks"] == "4 of 5 passed. Problem: the estimators disagree"
    assert "covcal inspect cal.json shows all candidates and checks" in done.err
    assert "effective sample size" not in done.out + done.err


@pytest.mark.parametrize(
    ("accuracy", "words"),
    [
        (
            0.81,
            "too low by about 2 points. After calibration, the confidence is probably too high by ",
        ),
        (
            0.9,
            "too low by about 11 points. After calibration, the confidence is probably still too ",
        ),
        (0.99, "it was probably too low by about 20 points. After"),  # No labels: nothing is sure.
        (0.84, "too low by about 5 points\n"),
        (0.79, ": the confidence agrees with the accuracy of 69 to 89 %\n"),
    ],
)
def test_the_screen_says_whether_calibration_went_too_far(
    accuracy: float, words: str, tmp_path: Path
) -> None:
    calibration = calibrate(write(tmp_path / "f.h5"), CalibrateSettings(method="temp"))
    ends = {"accuracy_low": accuracy - 0.1, "accuracy_high": accuracy + 0.1}
    confidence = {"target_confidence_before": 0.79, "target_confidence": 0.84}
    estimates = {**calibration.estimates, **ends, **confidence, "accuracy": accuracy}
    assert words in answer(replace(calibration, estimates=estimates))


@pytest.mark.parametrize("command", ["calibrate", "inspect"])
def test_the_table_on_screen_is_that_of_cal_json(command: str, tmp_path: Path) -> None:
    """-v and inspect print every candidate with its numbers, and every check with its sentence."""
    path = write(tmp_path / "f.h5", moved=HARM)
    done = covcal("calibrate", path, "-v", "-o", "cal.json", cwd=tmp_path).require_success()
    if command == "inspect":
        done = covcal("inspect", "cal.json", cwd=tmp_path).require_success()
    found = read_calibration(tmp_path / "cal.json")
    rule = done.out.index("──\n") + 3
    # A reason may go on in the next line.
    table, *checks = re.sub(r"\n +", " ", done.out[rule:]).split("\n\n")
    assert len(table.splitlines()) == len(found.candidates) == 5
    for line, candidate in zip(table.splitlines(), found.candidates, strict=True):
        words = line.split()
        assert ("chosen, because" in line) == candidate.chosen
        assert words[0] == candidate.method
        assert words[1] == f"{candidate.temperature:.4g}"
        assert words[2] == f"{100 * (candidate.target_confidence or 0):.1f}"
        assert line.endswith(candidate.why)
        assert ("matched" in line) == candidate.matched
    headings = ["Checks"]
    if command == "calibrate":
        headings += ["Checks of the importance weights (consensus does not use them)"]
    assert [part.partition(":\n")[0] for part in checks] == headings
    lines = [line for part in checks for line in part.splitlines()[1:]]
    used, unused = checks_of(found)
    for line, guard in zip(lines, used + unused * (command == "calibrate"), strict=True):
        assert line.startswith("passed" if guard.passed else "failed")
        assert line.endswith(guard.sentence)


@pytest.mark.parametrize("factor", [1.0, 0.3])
@pytest.mark.parametrize("kind", ["harm", "below chance", "frequencies", "none"])
def test_the_reason_beside_every_candidate_is_true(
    tmp_path: Path, kind: str, factor: float
) -> None:
    """A chosen candidate is matched or almost, or near to the estimate, or kept from raising."""
    moved, prior = {"harm": HARM, "below chance": 1.5}.get(kind, 0.0), None
    if kind == "frequencies":
        prior = SKEWED
    source = clusters_domain("source", sizes=(300, 600, 100))
    target = clusters_domain("target", sizes=(700, 500, 300), moved=moved, prior=prior)
    for domain in (source, target):
        domain["logits"] = domain["logits"] * np.float32(factor)
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    calibration = calibrate(path)
    plain = calibrate(path, CalibrateSettings(method="temp")).forecaster_temperature
    for candidate in calibration.candidates:
        assert candidate.expected_ece is not None
        after = percent(candidate.target_confidence, 1)
        if candidate.why.endswith("the mean confidence is near the estimated accuracy"):
            assert reason_to_keep(*estimate_of(path)) is not None
        elif candidate.why.endswith("the mean confidence equals the estimated accuracy"):
            assert candidate.matched
            assert calibration.reason.endswith(f"until the confidence is {after}.")
        elif candidate.why.endswith("is nearest to the estimated accuracy"):
            assert kind == "below chance"
            assert not candidate.matched
            assert calibration.reason.endswith(f"T rises until the confidence is {after}.")
        elif candidate.why.endswith("the source rows are not enough evidence for a lower T"):
            assert plain < 1
        elif "without labels T must be at least" in candidate.why:
            assert candidate.temperature == min(1, plain)
        else:
            assert not candidate.chosen
            in_rule = candidate.method in ("none", "temp", "consensus")
            assert candidate.why.startswith("not chosen" if in_rule else "shown for comparison")


def test_cot_is_computed_for_many_classes_only_where_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transport takes long; without it the choice and the estimate are the same."""
    path = write(tmp_path / "f.h5", moved=HARM)
    with_cot = calibrate(path)
    assert "cot" in [candidate.method for candidate in with_cot.candidates]
    monkeypatch.setattr(auto, "_MOST_CLASSES_OF_COT", 4)
    monkeypatch.setattr(consensus, "cot", None)
    without = calibrate(path)
    assert "cot" not in [candidate.method for candidate in without.candidates]
    assert without.forecaster_temperature == with_cot.forecaster_temperature


def test_an_older_cal_json_has_neither_guards_nor_candidates(tmp_path: Path) -> None:
    """Files from before these keys load; guards, candidates and labels default to nothing."""
    path = write(tmp_path / "f.h5")
    covcal("calibrate", path, "-o", "cal.json", cwd=tmp_path).require_success()
    content = json.loads((tmp_path / "cal.json").read_text())
    assert content["guards"]
    for name in ("guards", "candidates", "target_prior", "used_target_labels", "labelled_rows"):
        del content[name]
    write_document(content, tmp_path / "old.json", force=True)
    old = read_calibration(tmp_path / "old.json")
    assert (old.guards, old.candidates, old.used_target_labels) == ((), (), False)
    covcal("evaluate", path, "-c", tmp_path / "old.json").require_success()
