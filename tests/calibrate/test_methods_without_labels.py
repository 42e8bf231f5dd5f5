"""``calibrate`` beyond the paper's methods: each T against a computation of its own."""

import math
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_softmax, logsumexp, softmax

from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.calibrator import Calibrator
from covcal_cli.calibrate.methods import METHODS
from covcal_cli.calibrate.problem import CalibrateSettings, EstimateSettings, Problem
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.confidences import atc
from covcal_cli.estimators.consensus import Estimates
from covcal_cli.estimators.cot import cot
from covcal_cli.estimators.inputs import EstimatorInputs
from covcal_cli.estimators.label_shift import label_shift
from covcal_cli.formats.calibration import TargetPrior, read_calibration
from covcal_cli.formats.features import FeatureFile
from covcal_cli.maths.temperature import Loss
from covcal_cli.records import encoded, write_document
from tests.cli_runner import covcal
from tests.made_files import (
    adapted_domain,
    clusters_domain,
    edited,
    rows_of,
    write_adapted,
    write_features,
)

Floats = NDArray[np.float64]
LABEL_FREE = ("label-shift", "cot", "fl+cot", "blend", "atc")


def write(path: Path, moved: float, seed: int = 0, prior: list[float] | None = None) -> Path:
    source = clusters_domain("source", sizes=(300, 600, 100), seed=seed)
    target = clusters_domain("target", sizes=(700, 500, 300), moved=moved, seed=seed, prior=prior)
    return write_adapted(
        path,
        source=adapted_domain(source, shift=1.0),
        target=adapted_domain(target, shift=1.0),
    )


def inputs_of(path: Path, weights: Floats | None = None) -> EstimatorInputs:
    """Return the inputs with T_s by hand: SciPy's best Brier temperature."""
    with FeatureFile(path) as file:
        problem = Problem(file, EstimateSettings())
        return problem.inputs_with(weights)


def matched(logits: Floats, labels: NDArray[np.int64], accuracy: float) -> float:
    """Return SciPy's root of the mean confidence in `labels`, the largest on a fine grid."""
    every = np.arange(len(logits))

    def excess(log_t: float) -> float:
        p = softmax(logits.astype(np.float64) / math.exp(log_t), axis=1)
        return float(p[every, labels].mean()) - accuracy

    grid = np.linspace(math.log(0.01), math.log(100), 60)
    excesses = np.array([excess(log_t) for log_t in grid])
    last = np.flatnonzero((excesses[:-1] >= 0) & (excesses[1:] < 0))[-1]
    return math.exp(brentq(excess, grid[last], grid[last + 1], xtol=1e-10))


@pytest.mark.parametrize("seed", range(2))
def test_matching_methods_by_hand(tmp_path: Path, seed: int) -> None:
    """`cot`, `fl+cot` and `atc` find the T of the library's accuracies by SciPy."""
    path = write(tmp_path / "a.h5", 0.6, seed)
    inputs = inputs_of(path)
    aligned = inputs.aligned
    assert aligned is not None
    labels = inputs.target_predictions
    accuracies = {
        "cot": (cot(inputs).accuracy, inputs.target_logits),
        "fl+cot": (cot(inputs).accuracy, aligned.target_logits),
        "atc": (atc(inputs).accuracy, inputs.target_logits),
    }
    for method, (accuracy, logits) in accuracies.items():
        found = calibrate(path, CalibrateSettings(method=method))
        expected = matched(np.asarray(logits), labels, accuracy)
        if method == "cot":
            assert expected > inputs.temperature
        assert found.forecaster_temperature == pytest.approx(expected, rel=1e-4)
        assert found.forecaster == METHODS[method].forecaster
        assert found.method_used == method
        assert any(guard.name == "matched confidence" and guard.passed for guard in found.guards)


def test_a_blend_by_hand(tmp_path: Path) -> None:
    """Each T is SciPy's for the combined accuracy, which is the mean confidence of the blend."""
    path = write(tmp_path / "a.h5", 0.6)
    with edited(path) as file:  # surer of themselves than they are right
        for domain in ("source", "target"):
            file[f"{domain}/aligned_logits"][...] *= 4
    inputs = inputs_of(path)
    assert inputs.aligned is not None
    accuracy = Estimates(inputs).combined.accuracy
    labels, every = inputs.target_predictions, np.arange(inputs.n_target)
    found = calibrate(path, CalibrateSettings(method="blend"))
    assert (found.forecaster, found.method_used) == ("blend", "blend")
    given = found.forecaster_temperature, found.aligned_temperature or 0.0
    assert min(given) > 1
    pair = inputs.target_logits, inputs.aligned.target_logits
    for logits, temperature in zip(pair, given, strict=True):
        expected = matched(np.asarray(logits, np.float64), labels, accuracy)
        assert temperature == pytest.approx(expected, rel=1e-4)
    confidence = blended(pair, given)[every, labels].mean()
    assert confidence == pytest.approx(accuracy, abs=1e-6)
    clamps = {guard.name: guard.passed for guard in found.guards if "matched" in guard.name}
    assert clamps == {"matched confidence": True, "aligned matched confidence": True}


@pytest.mark.parametrize("loss", ["brier", "nll"])
def test_the_losses_of_a_blend(tmp_path: Path, loss: Loss) -> None:
    """The losses are of both's mean on source validation rows; errors are the classifier's."""
    path = write(tmp_path / "a.h5", 0.6)
    found = calibrate(path, CalibrateSettings(method="blend", loss=loss))
    source = adapted_domain(clusters_domain("source", sizes=(300, 600, 100)), shift=1.0)
    rows = rows_of(source, "validation")
    logits, labels = rows["logits"], rows["labels"]
    pair = logits, logsumexp(log_softmax(rows["aligned_logits"], axis=2), axis=0)
    fitted = found.forecaster_temperature, found.aligned_temperature or 0.0
    for given, value in ((fitted, found.fit["loss"]), ((1.0, 1.0), found.fit["loss_before"])):
        p = blended(pair, given)
        truth = p[np.arange(len(p)), labels]
        losses = -np.log(truth) if loss == "nll" else (p**2).sum(axis=1) + 1 - 2 * truth
        assert value == pytest.approx(losses.mean(), rel=1e-5)
    assert found.fit["errors"] == (logits.argmax(axis=1) != labels).sum()


def blended(pair: Sequence[NDArray[Any]], temperatures: Sequence[float]) -> Floats:
    """Return the mean of softmax(z / T) of two logits."""
    scaled = zip(pair, temperatures, strict=True)
    parts = [softmax(logits.astype(np.float64) / value, axis=1) for logits, value in scaled]
    return np.asarray((parts[0] + parts[1]) / 2)


def test_a_blend_never_sharpens(tmp_path: Path) -> None:
    """Logits that are not sure enough keep T = 1, each by itself, with a note that says which."""
    source = adapted_domain(clusters_domain("source", sizes=(300, 600, 100)), shift=1.0)
    target = adapted_domain(clusters_domain("target", sizes=(700, 500, 300)), shift=1.0)
    target["aligned_logits"] = target["aligned_logits"] / 20
    path = write_adapted(tmp_path / "a.h5", source=source, target=target)
    found = calibrate(path, CalibrateSettings(method="blend"))
    alone = calibrate(path, CalibrateSettings(method="consensus"))
    assert found.forecaster_temperature == alone.forecaster_temperature > 1
    assert found.aligned_temperature == 1
    (note,) = (note for note in found.notes if "so the temperature is 1" in note)
    assert note.startswith("on the logits of adapt: the estimated accuracy of ")
    for damage, words in (
        ({"class_offsets": [0.0] * 5}, "class_offsets must be empty for a blend"),
        ({"forecaster": "aligned"}, "temperatures.aligned is 1.0, but the forecaster is aligned"),
        (
            {"temperatures": {"forecaster": 2.0, "discriminator": []}},
            "temperatures.aligned is None, but the forecaster is blend",
        ),
        (
            {"temperatures": {"forecaster": 2.0, "aligned": 0.0, "discriminator": []}},
            "temperatures.aligned is 0, but must be above 0",
        ),
        (
            {
                "forecaster": "original",
                "temperatures": {"forecaster": 2.0, "discriminator": []},
                "class_offsets": [1e39] * 5,
            },
            "class_offsets is too large",
        ),
        (
            {"fit": {"rows": 5, "errors": 9, "loss": 0.1, "loss_before": 0.1}},
            "errors (9) is more than rows (5)",
        ),
    ):
        document = tmp_path / "cal.json"
        write_document(encoded(found, document) | damage, document, force=True)
        with pytest.raises(CovcalError, match=re.escape(f"is damaged ({words}): calibrate again")):
            read_calibration(document)
    write_document(found, document, force=True)
    assert read_calibration(document) == found


def test_cot_is_never_below_the_sources_temperature(tmp_path: Path) -> None:
    """Where the estimated accuracy would sharpen, T stays at T_s, and a note says so."""
    kept = []
    for seed in range(4):
        path = write(tmp_path / f"{seed}.h5", 0.0, seed)
        inputs = inputs_of(path)
        logits, labels = np.asarray(inputs.target_logits, np.float64), inputs.target_predictions
        wanted = matched(logits, labels, cot(inputs).accuracy)
        found = calibrate(path, CalibrateSettings(method="cot"))
        expected = max(wanted, inputs.temperature)
        assert found.forecaster_temperature == pytest.approx(expected, rel=1e-4)
        kept.append(wanted < inputs.temperature)
        assert kept[-1] == any("a lower T than the method temp" in note for note in found.notes)
    assert set(kept) == {True, False}


def test_several_crossings_and_a_clamp_are_said_in_words(tmp_path: Path) -> None:
    """`fl+cot` on forecasters that agree with nothing: no T gives the accuracy, and it says so."""
    path = write(tmp_path / "a.h5", 0.0)
    source = adapted_domain(clusters_domain("source", sizes=(300, 600, 100)), shift=1.0)
    target = adapted_domain(clusters_domain("target", sizes=(700, 500, 300)), shift=1.0)
    target["aligned_logits"] = -target["aligned_logits"]
    path.unlink()
    write_adapted(path, source=source, target=target)
    found = calibrate(path, CalibrateSettings(method="fl+cot"))
    assert any("no temperature gives a higher mean" in text for text in found.warnings)


def best_temperature(logits: Floats, labels: NDArray[np.int64], weights: Floats) -> float:
    """Return SciPy's minimiser of the weighted Brier score."""
    one_hot = np.eye(logits.shape[1])[labels]

    def loss(log_t: float) -> float:
        p = softmax(logits / math.exp(log_t), axis=1)
        return float(weights @ ((p - one_hot) ** 2).sum(axis=1))

    grid = np.linspace(-3, 3, 61)
    best = grid[int(np.argmin([loss(point) for point in grid]))]
    bounds = best - 0.1, best + 0.1
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9})
    return math.exp(found.x)


def test_label_shift_weighs_rows_by_their_class(tmp_path: Path) -> None:
    """RLLS's class ratios are the rows' weights; the ratios find the classes that became rarer."""
    prior = [0.4, 0.3, 0.2, 0.05, 0.05]
    source = clusters_domain("source", sizes=(0, 5000, 0))
    target = clusters_domain("target", sizes=(0, 3000, 0), prior=prior)
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    inputs = inputs_of(path)
    ratios = label_shift(inputs, "rlls").ratios
    assert ratios[0] > 1.2 > 0.6 > ratios[4]
    logits = np.asarray(inputs.source_logits, np.float64)
    expected = best_temperature(logits, inputs.source_labels, ratios[inputs.source_labels])
    found = calibrate(path, CalibrateSettings(method="label-shift"))
    assert found.forecaster_temperature == pytest.approx(expected, rel=1e-4)
    assert "confusion condition" in {guard.name for guard in found.guards}
    (note,) = (text for text in found.notes if "RLLS" in text)
    moved = f"{100 * label_shift(inputs, 'rlls').moved:.1f} %"
    assert note == f"RLLS estimates that the class frequencies changed by {moved} in total"


@pytest.mark.parametrize(
    ("n", "classes"), [(200, 3), (200, 10), (200, 31), (500, 3), (500, 10), (500, 31)]
)
def test_label_shift_is_never_silently_temp(n: int, classes: int) -> None:
    """From few rows of few or many classes: another T than temp's, or a note that says why not."""
    rng = np.random.default_rng([n, classes])
    calibrator = Calibrator(method="label-shift")
    centres = rng.normal(size=(classes, 8))
    shares = rng.dirichlet(np.full(classes, 2.0))

    def rows(prior: Floats | None) -> tuple[Floats, NDArray[np.int64]]:
        labels = rng.choice(classes, size=n, p=prior)
        points = centres[labels] + rng.normal(size=(n, 8))
        return 1.5 * (points @ centres.T - 0.5 * (centres**2).sum(axis=1)), labels

    (source, labels), (target, _) = rows(None), rows(shares)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator.fit(source, labels, target, classes=np.arange(classes))
        plain = Calibrator(method="temp").fit(source, labels, target, classes=np.arange(classes))
    (note,) = (text for text in calibrator.notes_ if "RLLS" in text)
    is_temp = calibrator.temperature_ == plain.temperature_
    assert is_temp == ("T comes from the method temp" in note)
    if n >= 500 and classes < 31:
        assert not is_temp


def test_label_shift_that_finds_nothing_says_so() -> None:
    """Logits that say nothing of the class cannot tell its frequency: T of temp, and a note."""
    rng = np.random.default_rng(0)
    source, target = (0.01 * rng.normal(size=(300, 4)) for _ in range(2))
    labels = rng.integers(4, size=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Calibrator(method="label-shift", allow_limit=True).fit(source, labels, target)
    assert any("T comes from the method temp" in text for text in found.notes_)


@pytest.mark.parametrize("adapted", [True, False])
def test_weights_only_leaves_out_the_half(tmp_path: Path, adapted: bool) -> None:
    """The weights are 1/g - 1, and the forecaster is aligned if the file has aligned logits."""
    path = write(tmp_path / "a.h5", 0.3)
    source = clusters_domain("source", sizes=(300, 600, 100))
    if not adapted:
        target = clusters_domain("target", sizes=(700, 500, 300), moved=0.3)
        path = write_features(tmp_path / "f.h5", source=source, target=target)
    rows = rows_of(adapted_domain(source, shift=1.0), "validation")
    logits = rows["logits"].astype(np.float64)
    if adapted:
        logs = log_softmax(rows["aligned_logits"].astype(np.float64), axis=2)
        logits = logsumexp(logs, axis=0)
    with FeatureFile(path) as file:
        weights = (
            Problem(file, EstimateSettings()).weights("aligned" if adapted else "original").weights
        )
    found = calibrate(path, CalibrateSettings(method="weights-only"))
    expected = best_temperature(logits, rows["labels"], weights)
    assert found.forecaster_temperature == pytest.approx(expected, rel=1e-4)
    assert found.forecaster == ("aligned" if adapted else "original")
    assert found.bound is None
    write_document(found, tmp_path / "cal.json", force=False)
    assert read_calibration(tmp_path / "cal.json").forecaster == found.forecaster


def test_guards_are_in_cal_json(tmp_path: Path) -> None:
    """Each guard has a name, number, threshold, verdict and sentence; failed guards are printed."""
    path = write(tmp_path / "a.h5", 0.0)
    for method in METHODS:
        prior = "uniform" if METHODS[method].needs_prior else "source"
        found = calibrate(path, CalibrateSettings(method=method, target_prior=prior))
        for guard in encoded(found, tmp_path / "cal.json")["guards"]:
            assert set(guard) == {"name", "value", "threshold", "passed", "sentence"}
            assert math.isfinite(guard["value"])
        names = [guard.name for guard in found.guards]
        assert len(set(names)) == len(names)
        if "importance weights" in METHODS[method].needs:
            assert {
                "effective sample share",
                "effective sample size",
                "discriminator error",
            } <= set(names)
    found = calibrate(path, CalibrateSettings(method="cot"))
    failed = {guard.name: guard.sentence for guard in found.guards if not guard.passed}
    assert failed["detectable shift"] in found.warnings


@pytest.mark.parametrize("method", ["label-shift", "fl+cot", "blend"])
def test_evaluate_takes_them_as_they_are(tmp_path: Path, method: str) -> None:
    """evaluate reads any of their cal.json; the classifier's labels, so accuracy, stay."""
    path = write(tmp_path / "a.h5", 0.6)
    arguments = ("calibrate", path, "--method", method, "-o", tmp_path / "cal.json")
    covcal(*arguments).require_success()
    done = covcal("evaluate", path, "-c", tmp_path / "cal.json", "--format", "markdown")
    lines = [line for line in done.require_success().out.splitlines() if line.startswith("| ")]
    rows = [line.split(" | ") for line in lines[1:]]
    assert rows[1][0] == f"| {method}"
    assert rows[0][3] == rows[1][3]


@pytest.mark.parametrize("method", LABEL_FREE)
def test_without_target_rows_they_say_what_they_need(tmp_path: Path, method: str) -> None:
    """No target, or too few rows of it: refused with the remedy."""
    path = write_features(tmp_path / "f.h5", only_source=True)
    with pytest.raises(CovcalError, match=r"needs (target rows|an adapted file)"):
        calibrate(path, CalibrateSettings(method=method))
    target = clusters_domain("target", sizes=(1, 0, 50))
    source = clusters_domain("source")
    few = write_adapted(tmp_path / "a.h5", source=source, target=target)
    with pytest.raises(CovcalError, match="needs at least 2 target training or validation rows"):
        calibrate(few, CalibrateSettings(method=method))


def test_a_prior_changes_what_reads_it_and_is_recorded(tmp_path: Path) -> None:
    """Some methods and auto take --target-prior; others refuse it; bbse only when asked."""
    path = write(tmp_path / "a.h5", 0.6)
    expected = label_shift(inputs_of(path), "bbse").prior
    for method in ("cot", "blend", "auto"):
        plain = calibrate(path, CalibrateSettings(method=method))
        assert plain.target_prior == TargetPrior("source", None)
        found = calibrate(path, CalibrateSettings(method=method, target_prior="bbse"))
        assert found.target_prior.name == "bbse"
        assert found.target_prior.shares == pytest.approx(expected.tolist())
        assert "prior drift" not in {guard.name for guard in found.guards}
    with pytest.raises(
        CovcalError,
        match=r"temp does not use a target prior: .* auto, ",
    ):
        calibrate(path, CalibrateSettings(method="temp", target_prior="uniform"))
