"""Probabilities corrected for a known prior: right, the same everywhere, and never by chance."""

import csv
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax

from covcal_cli.apply.apply import apply
from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.calibrator import Calibrator
from covcal_cli.calibrate.estimate import expect
from covcal_cli.calibrate.problem import CalibrateSettings
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.evaluate import EvaluateSettings, evaluate
from covcal_cli.evaluate.metrics import Metrics
from covcal_cli.formats.calibration import Calibration
from covcal_cli.records import write_document
from covcal_cli.run.run import RunSettings
from tests.cli_runner import covcal
from tests.made_files import Arrays, clusters_domain, rows_of, write_features

Floats = NDArray[np.float64]
NAMES = [f"class {number}" for number in range(5)]
PRIORS = ([0.6, 0.2, 0.1, 0.06, 0.04], [0.02, 0.02, 0.06, 0.3, 0.6], [0.97, 0.01, 0.01, 0.01, 0.0])


def domains(
    prior: list[float], *, moved: float = 0.0, seed: int = 0, tested: int = 2500
) -> tuple[Arrays, Arrays]:
    source = clusters_domain("source", sizes=(0, 2000, 0), seed=seed)
    sizes = (0, 1500, tested)
    return source, clusters_domain("target", sizes=sizes, moved=moved, prior=prior, seed=seed)


def prior_file(folder: Path, prior: list[float]) -> str:
    path = folder / "prior.json"
    path.write_text(json.dumps(dict(zip(NAMES, prior, strict=True))))
    return str(path)


def fitted(path: Path, method: str, prior: str) -> Calibration:
    return calibrate(path, CalibrateSettings(method=method, target_prior=prior))


def corrected(logits: Any, labels: Any, temperature: float, prior: list[float]) -> Floats:
    """Return Saerens's probabilities, shape (n, K): of the source, times q_y / p_y, normalised."""
    counts = np.bincount(labels, minlength=len(prior)) + 0.5
    ratios = np.maximum(prior, 1e-6) / (counts / counts.sum())
    found = softmax(np.asarray(logits, np.float64) / temperature, axis=1) * ratios
    return np.asarray(found / found.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("method", "prior"), [("prior", PRIORS[0]), ("prior+cot", PRIORS[1]), ("prior", PRIORS[2])]
)
def test_the_same_probabilities_everywhere(tmp_path: Path, prior: list[float], method: str) -> None:
    """evaluate, apply, estimate, cal.json's confidence and the Calibrator follow Bayes' rule."""
    source, target = domains(prior, moved=0.2, tested=300)
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    given = prior_file(tmp_path, prior)
    found = fitted(path, method, given)
    document = tmp_path / "cal.json"
    write_document(found, document, force=False)
    held, test = rows_of(source, "validation"), rows_of(target, "test")
    expected = corrected(test["logits"], held["labels"], found.forecaster_temperature, prior)
    top = test["logits"].argmax(axis=1)
    every = np.arange(len(top))
    # evaluate takes the confidence in the classifier's label, or in the corrected label.
    metrics = evaluate(path, {method: found}).metrics[method]
    brier = ((expected - np.eye(5)[test["labels"]]) ** 2).sum(axis=1).mean()
    assert metrics.mean_confidence == pytest.approx(expected[every, top].mean(), abs=1e-6)
    assert metrics.accuracy == (top == test["labels"]).mean()
    assert metrics.brier == pytest.approx(brier, abs=1e-6)
    own = evaluate(path, {method: found}, EvaluateSettings(predictions="own")).metrics[method]
    assert own.accuracy == (expected.argmax(axis=1) == test["labels"]).mean()
    assert own.mean_confidence == pytest.approx(expected.max(axis=1).mean(), abs=1e-6)
    # apply
    apply(path, document, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as handle:
        written = list(csv.reader(handle))[1:][-len(top) :]
    assert all(NAMES[label] in row for label, row in zip(top, written, strict=True))
    values = np.array([row[-6:] for row in written], dtype=float)
    assert values[:, 0] == pytest.approx(expected[every, top], abs=1e-6)
    assert values[:, 1:] == pytest.approx(expected, abs=1e-6)
    # What the documents say of unlabelled rows.
    held_out = rows_of(target, "validation")
    of_validation = corrected(
        held_out["logits"], held["labels"], found.forecaster_temperature, prior
    )
    own_labels = held_out["logits"].argmax(axis=1)
    confidence = of_validation[np.arange(len(own_labels)), own_labels].mean()
    assert found.estimates["target_confidence"] == pytest.approx(confidence, abs=1e-6)
    (seen,) = expect(path, [document]).calibrations
    assert seen.mean_confidence == pytest.approx(confidence, abs=1e-6)
    # The Calibrator, on the same rows.
    calibrator = Calibrator(method=method, target_prior=given)
    names = np.array(NAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cot's guards, which are tested elsewhere
        calibrator.fit(held["logits"], names[held["labels"]], held_out["logits"], classes=names)
    assert calibrator.predict_proba(test["logits"]) == pytest.approx(expected, abs=1e-6)
    assert np.array_equal(calibrator.predict(test["logits"]), names[top])


@pytest.mark.parametrize(("seed", "prior"), list(enumerate(PRIORS)))
def test_a_change_of_frequencies_alone_is_undone(
    tmp_path: Path, prior: list[float], seed: int
) -> None:
    """Where only P(y) changes, auto takes prior, and beats temp and cot told the same."""
    source, target = domains(prior, seed=seed)
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    given = prior_file(tmp_path, prior)
    calibrations = {
        "temp": calibrate(path, CalibrateSettings(method="temp")),
        "cot": fitted(path, "cot", given),
        "prior": fitted(path, "prior", given),
        "auto": fitted(path, "auto", given),
    }
    found = evaluate(path, calibrations).metrics
    assert calibrations["auto"].method_used == "prior"
    assert found["prior"].ece < 0.03
    assert found["prior"].brier < min(found["temp"].brier, found["cot"].brier) - 0.01
    assert _same(found["auto"], found["prior"])
    for name in ("temp", "prior"):
        assert found[name].accuracy == found["temp"].accuracy
    assert not calibrations["prior"].warnings


def _same(one: Metrics, other: Metrics) -> bool:
    return (one.ece, one.brier, one.nll) == (other.ece, other.brier, other.nll)


@pytest.mark.parametrize("seed", range(2))
def test_a_shift_besides_frequencies_takes_cot_as_well(tmp_path: Path, seed: int) -> None:
    """auto takes prior+cot where cot's guards pass, with a T above temp's that is nearer right."""
    source, target = domains(PRIORS[1], moved=0.6, seed=seed)
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    given = prior_file(tmp_path, PRIORS[1])
    calibrations = {name: fitted(path, name, given) for name in ("auto", "prior", "cot")}
    auto = calibrations["auto"]
    assert auto.method_used == "prior+cot"
    assert auto.forecaster_temperature > calibrations["prior"].forecaster_temperature
    assert {one.method for one in auto.candidates} >= {"cot", "prior", "prior+cot", "temp"}
    found = evaluate(path, calibrations).metrics
    assert found["auto"].brier < min(found["prior"].brier, found["cot"].brier)
    assert found["auto"].ece < found["prior"].ece


def test_frequencies_that_are_estimated_are_not_known(tmp_path: Path) -> None:
    """With bbse auto takes cot or temp as without a prior; prior itself corrects when asked to."""
    source, target = domains(PRIORS[0])
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    assert fitted(path, "auto", "bbse").method_used == "temp"
    found = fitted(path, "prior", "bbse")
    expected = np.exp(found.class_offsets) * np.bincount(source["labels"]) / len(source["labels"])
    assert expected == pytest.approx(found.target_prior.shares, abs=0.01)


def test_a_prior_that_is_not_the_targets_is_doubted(tmp_path: Path) -> None:
    """The corrected probabilities then have another mean than the prior: a guard, and a warning."""
    source, target = domains(PRIORS[0])
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    right = fitted(path, "prior", prior_file(tmp_path, PRIORS[0]))
    wrong = fitted(path, "prior", prior_file(tmp_path, PRIORS[1]))
    for found, passed in ((right, True), (wrong, False)):
        guards = {guard.name: guard for guard in found.guards}
        assert guards["prior reached"].passed is passed
        assert (guards["prior reached"].sentence in found.warnings) is not passed


def test_too_few_rows_to_know_the_sources_frequencies(tmp_path: Path) -> None:
    """A ratio to a frequency from three rows a class is noise: a guard, and a warning."""
    source = clusters_domain("source", sizes=(0, 20, 0))
    target = clusters_domain("target", sizes=(0, 500, 100))
    found = fitted(
        write_features(tmp_path / "f.h5", source=source, target=target), "prior", "uniform"
    )
    guards = {guard.name: guard for guard in found.guards}
    assert not guards["prior rows"].passed
    assert guards["prior rows"].sentence in found.warnings


@pytest.mark.parametrize("method", ["prior", "prior+cot"])
def test_without_a_known_prior_it_is_a_usage_error(tmp_path: Path, method: str) -> None:
    """The command line says what to give and writes nothing; so do the library and run."""
    path = write_features(tmp_path / "f.h5")
    done = covcal("calibrate", path, "--method", method, "-o", tmp_path / "cal.json")
    assert done.code == 2
    assert "give --target-prior uniform, a JSON file with a share per class" in done.err
    assert not (tmp_path / "cal.json").exists()
    with pytest.raises(CovcalError, match="class frequencies on the target"):
        CalibrateSettings(method=method)
    with pytest.raises(CovcalError, match="which covcal run does not take"):
        RunSettings(method=method)


@pytest.mark.parametrize("command", ["calibrate", "estimate"])
def test_the_prior_is_no_output(tmp_path: Path, command: str) -> None:
    """-o naming the file with the prior is refused, even with --force."""
    source, target = domains(PRIORS[0])
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    given = prior_file(tmp_path, PRIORS[0])
    before = Path(given).read_bytes()
    done = covcal(command, path, "--target-prior", given, "-o", given, "--force")
    assert done.code == 1
    assert "is an input of this command" in done.err
    assert Path(given).read_bytes() == before


def test_screens_say_what_moves(tmp_path: Path) -> None:
    """calibrate prints the offsets, inspect their reach."""
    source, target = domains(PRIORS[0])
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    given = prior_file(tmp_path, PRIORS[0])
    document = tmp_path / "cal.json"
    arguments = ("--method", "prior", "--target-prior", given, "-o", document)
    done = covcal("calibrate", path, "-v", *arguments).require_success()
    offsets = json.loads(document.read_text())["class_offsets"]
    assert f"class 0 {offsets[0]:+.2f}" in done.out
    shown = covcal("inspect", document).require_success().out
    assert f"{min(offsets):.3g} to {max(offsets):.3g} are added to the log odds of classes" in shown
