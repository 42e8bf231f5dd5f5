"""``calibrate``: the paper's methods against SciPy by hand, warnings, cal.json."""

import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit, logsumexp
from scipy.special import log_softmax as scipy_log_softmax

from covcal_cli.calibrate.calibrate import calibrate, calibrate_file, warnings_on_reading
from covcal_cli.calibrate.estimate import estimate
from covcal_cli.calibrate.fits import warnings_on_weights
from covcal_cli.calibrate.methods import AUTO, METHODS
from covcal_cli.calibrate.problem import CalibrateSettings, Problem, fit_discriminator
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.guards import guards_on_weights
from covcal_cli.files import sha256_of
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.features import FeatureFile
from covcal_cli.maths.softmax import Scaling
from covcal_cli.maths.weights import importance_weights
from covcal_cli.records import document_text, encoded, write_document
from tests.cli_runner import covcal
from tests.made_files import (
    Arrays,
    adapted_domain,
    edited,
    made_domain,
    only_rows,
    rows_of,
    write_adapted,
    write_features,
)

Floats = NDArray[np.float64]
SHIFT = 1.0


def lowest(function: Any, center: float, width: float) -> float:
    """Return the argument of the lowest value: a grid of 100 points, then SciPy around the best."""
    grid = np.linspace(center - width, center + width, 100)
    best = grid[int(np.argmin([function(point) for point in grid]))]
    step = grid[1] - grid[0]
    found = minimize_scalar(
        function, bounds=(best - step, best + step), method="bounded", options={"xatol": 1e-9}
    )
    return float(found.x)


def weights_by_hand(source: Floats, target: Floats, max_weight: float = 1000.0) -> Floats:
    """Return the members' mean weights of source rows from stored domain logits (M, n)."""
    found = []
    members = zip(source.astype(np.float64), target.astype(np.float64), strict=True)
    for on_source, on_target in members:

        def error(log_t: float, s: Floats = on_source, t: Floats = on_target) -> float:
            g_s, g_t = expit(s / math.exp(log_t)), expit(t / math.exp(log_t))
            return float(((1 - g_s) ** 2).mean() + (g_t**2).mean())

        g = expit(on_source / math.exp(lowest(error, 0.0, 5.0)))
        found.append(1 / np.clip(g, 1 / (1 + max_weight), 1) - 1)
    mean: Floats = np.mean(found, axis=0)
    return mean


def temperature_by_hand(
    logits: Floats, labels: NDArray[np.int64], weights: Floats, loss: str = "brier"
) -> float:
    """Return the T of the lowest weighted loss, from the loss's definition."""
    one_hot, exact = np.eye(logits.shape[1])[labels], logits.astype(np.float64)

    def value(log_t: float) -> float:
        logs = scipy_log_softmax(exact / math.exp(log_t), axis=1)
        rows = -(logs * one_hot).sum(axis=1)
        if loss == "brier":
            rows = ((np.exp(logs) - one_hot) ** 2).sum(axis=1)
        return float(weights @ rows)

    return math.exp(lowest(value, 0.0, 6.0))


def members_mean(aligned: Floats) -> Floats:
    """Return log mean_m softmax(z_m), shape (n, K)."""
    logs = scipy_log_softmax(aligned.astype(np.float64), axis=2)
    mean: Floats = logsumexp(logs, axis=0) - math.log(len(aligned))
    return mean


def made_pair(shift: float = SHIFT, **changes: Any) -> tuple[Arrays, Arrays]:
    """Return adapted source and target arrays."""
    return (
        adapted_domain(made_domain("source", **changes), shift=shift),
        adapted_domain(made_domain("target", shift=shift, **changes), shift=shift),
    )


def refuse_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")


def document(calibration: Calibration, *, inputs: bool = True) -> dict[str, Any]:
    content: dict[str, Any] = encoded(calibration, Path("cal.json"))
    return content if inputs else {key: content[key] for key in content if key != "inputs"}


def test_temp_is_the_best_t_of_the_classifiers_logits(tmp_path: Path) -> None:
    """`temp` minimises the plain Brier score of source validation rows; no weights, no bound."""
    source = made_domain("source")
    found = calibrate(
        write_features(tmp_path / "f.h5", source=source), CalibrateSettings(method="temp")
    )
    rows = rows_of(source, "validation")
    expected = temperature_by_hand(rows["logits"], rows["labels"], np.ones(500))
    assert found.forecaster_temperature == pytest.approx(expected, rel=1e-4)
    assert (found.method, found.method_used, found.reason) == ("temp", "temp", "asked for")
    assert (found.weights, found.bound, found.discriminator) == (None, None, None)
    assert found.discriminator_temperatures == ()
    assert found.fit["rows"] == 500
    assert found.fit["errors"] == (rows["logits"].argmax(axis=1) != rows["labels"]).sum()


@pytest.mark.parametrize("loss", ["brier", "nll"])
@pytest.mark.parametrize("max_weight", [1000.0, 2.0])
def test_iw_temp_on_an_adapted_file_by_hand(tmp_path: Path, max_weight: float, loss: Any) -> None:
    """`iw+temp` weighs rows by 1/g - 1/2 of the discriminator on phi, after T_g and the clip."""
    source, target = made_pair()
    path = write_adapted(tmp_path / "a.h5", source=source, target=target)
    found = calibrate(path, CalibrateSettings(method="iw+temp", max_weight=max_weight, loss=loss))
    rows, others = rows_of(source, "validation"), rows_of(target, "validation")
    w = weights_by_hand(rows["domain_logits"][None], others["domain_logits"][None], max_weight)
    expected = temperature_by_hand(rows["logits"], rows["labels"], w + 0.5, loss)
    assert found.forecaster_temperature == pytest.approx(expected, rel=1e-4)
    assert found.discriminator == "network"
    assert found.loss == loss
    assert found.weights is not None
    assert found.weights["mean_weight"] == pytest.approx(w.mean(), rel=1e-4)
    assert found.weights["ess"] == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-4)
    assert found.weights["clipped_share"] == (w > max_weight * (1 - 1e-9)).mean()
    assert (found.weights["clipped_share"] > 0) == (max_weight == 2.0)


def test_iw_temp_on_a_features_file_by_hand(tmp_path: Path) -> None:
    """On a features file, the weights come from a logistic discriminator, which the test fits."""
    source, target = made_domain("source"), made_domain("target", shift=SHIFT)
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    found = calibrate(path, CalibrateSettings(method="iw+temp"))
    with FeatureFile(path) as file:
        logistic = fit_discriminator(file.require_source(), file.require_target())
    rows, others = rows_of(source, "validation"), rows_of(target, "validation")
    w = weights_by_hand(
        logistic.logits(rows["features"])[None], logistic.logits(others["features"])[None]
    )
    expected = temperature_by_hand(rows["logits"], rows["labels"], w + 0.5)
    plain = temperature_by_hand(rows["logits"], rows["labels"], np.ones(500))
    assert found.forecaster_temperature == pytest.approx(expected, rel=1e-4)
    assert abs(expected - plain) > 0.05
    assert found.discriminator == "logistic"
    assert len(found.discriminator_temperatures) == 1


@pytest.mark.parametrize("members", [1, 3])
def test_fl_methods_by_hand(tmp_path: Path, members: int) -> None:
    """`fl+temp` and `fl+iw+temp` scale log mean softmax of the members; weights are their mean."""
    source, target = made_domain("source"), made_domain("target", shift=SHIFT)
    source = adapted_domain(source, shift=SHIFT, members=members)
    target = adapted_domain(target, shift=SHIFT, members=members)
    path = write_adapted(tmp_path / "a.h5", source=source, target=target)
    rows, others = rows_of(source, "validation"), rows_of(target, "validation")
    logits = members_mean(rows["aligned_logits"])
    w = weights_by_hand(rows["aligned_domain_logits"], others["aligned_domain_logits"])
    for method, weights in [("fl+temp", np.ones(500)), ("fl+iw+temp", w + 0.5)]:
        found = calibrate(path, CalibrateSettings(method=method))
        expected = temperature_by_hand(logits, rows["labels"], weights)
        assert found.forecaster_temperature == pytest.approx(expected, rel=1e-4)
        assert found.forecaster == "aligned"
        assert found.networks_sha256 == "7" * 64
        assert found.fit["errors"] == (logits.argmax(axis=1) != rows["labels"]).sum()
    assert len(found.discriminator_temperatures) == members


def test_none_leaves_the_logits_alone(tmp_path: Path) -> None:
    """`none` has T = 1, the loss at T = 1, and the classifier's own confidence."""
    found = calibrate(write_features(tmp_path / "f.h5"), CalibrateSettings(method="none"))
    assert found.forecaster_temperature == 1.0
    assert found.fit["loss"] == found.fit["loss_before"]
    assert found.fit["at_limit"] is None
    estimates = found.estimates
    assert estimates["target_confidence"] == estimates["target_confidence_before"]
    assert found.warnings == ()


def test_estimates_are_mean_confidences_in_the_classifiers_labels(tmp_path: Path) -> None:
    """Before: top softmax of the logits. After: the forecaster's probability of that same label."""
    source, target = made_pair()
    path = write_adapted(tmp_path / "a.h5", source=source, target=target)
    rows = only_rows(target, target["split"] < 2)
    label, every = rows["logits"].argmax(axis=1), np.arange(800)
    before = np.exp(scipy_log_softmax(rows["logits"].astype(np.float64), axis=1))[every, label]
    forecasts = {
        "temp": rows["logits"].astype(np.float64),
        "fl+temp": members_mean(rows["aligned_logits"]),
    }
    assert (forecasts["fl+temp"].argmax(axis=1) != label).any()
    for method, logits in forecasts.items():
        found = calibrate(path, CalibrateSettings(method=method))
        scaled = scipy_log_softmax(logits / found.forecaster_temperature, axis=1)
        assert found.estimates["rows"] == 800
        assert found.estimates["target_confidence_before"] == pytest.approx(before.mean(), 1e-6)
        assert found.estimates["target_confidence"] == pytest.approx(
            np.exp(scaled)[every, label].mean(), rel=1e-6
        )


def test_the_bound_is_that_of_the_fitted_forecaster(tmp_path: Path) -> None:
    """Weighted error of the calibrated rows in units of L, lambda (1+U)^3, and plainly vacuous."""
    source, target = made_pair()
    path = write_adapted(tmp_path / "a.h5", source=source, target=target)
    found = calibrate(path, CalibrateSettings(method="iw+temp", max_weight=20))
    rows, others = rows_of(source, "validation"), rows_of(target, "validation")
    w = weights_by_hand(rows["domain_logits"][None], others["domain_logits"][None], 20)
    logits = rows["logits"].astype(np.float64) / found.forecaster_temperature
    p = np.exp(scipy_log_softmax(logits, axis=1))
    brier = ((p - np.eye(3)[rows["labels"]]) ** 2).sum(axis=1)
    assert found.bound is not None
    assert found.weights is not None
    assert found.bound["weighted_error"] == pytest.approx(((w + 0.5) * brier).mean() / 2, rel=1e-3)
    assert found.bound["factor"] == 21**3
    assert found.bound["discriminator_error"] == found.weights["discriminator_error"]
    assert found.bound["vacuous"] is True


def test_weights_that_collapsed_are_used_when_asked_for_with_a_warning(tmp_path: Path) -> None:
    """An explicit iw on far-off domains is done, and warned about in words to act on."""
    path = write_features(tmp_path / "f.h5", shift=6.0)
    found = calibrate(path, CalibrateSettings(method="iw+temp"))
    assert found.method_used == "iw+temp"
    assert any("do not use a method with importance weights" in text for text in found.warnings)
    assert any("the mean importance weight is" in text for text in found.warnings)


@pytest.mark.parametrize("max_weight", [1.0, 2.0, 7.0])
def test_clipped_weights_are_warned_about(tmp_path: Path, max_weight: float) -> None:
    """More than 1 % of the weights at U, whatever U is: said so."""
    found = calibrate(
        write_adapted(tmp_path / "a.h5", shift=2.0),
        CalibrateSettings(method="iw+temp", max_weight=max_weight),
    )
    assert found.weights is not None
    assert found.max_weight == max_weight
    assert found.weights["clipped_share"] > 0.01
    assert any("were cut at the maximum weight" in text for text in found.warnings)


def test_no_shift_is_a_note_and_not_a_warning(tmp_path: Path) -> None:
    """Domains that cannot be told apart: weights 1, T of `temp`, a note."""
    source, target = made_pair(0.0)
    for domain in (source, target):
        domain["aligned_domain_logits"][:] = 0.3
    path = write_adapted(tmp_path / "a.h5", source=source, target=target)
    found, plain = (
        calibrate(path, CalibrateSettings(method="fl+iw+temp")),
        calibrate(path, CalibrateSettings(method="fl+temp")),
    )
    assert found.forecaster_temperature == pytest.approx(plain.forecaster_temperature, rel=1e-3)
    assert any("the domain classifier finds no shift" in text for text in found.notes)
    assert found.warnings == ()


def few_errors(count: int) -> Arrays:
    """Return a source whose classifier errs on the `count` least certain validation rows."""
    source = made_domain("source", sharpness=0.1)
    order = source["logits"].argsort(axis=1)
    highest = np.sort(source["logits"], axis=1)
    margin = np.where(source["split"] == 1, highest[:, -1] - highest[:, -2], np.inf)
    wrong = margin.argsort()[:count]
    source["labels"] = order[:, -1]
    source["labels"][wrong] = order[wrong, -2]
    return source


def test_with_fewer_than_five_errors_nothing_is_sharpened(tmp_path: Path) -> None:
    """With four errors, T is not below 1, and a warning counts the errors; with five, T may be."""
    held = calibrate(
        write_features(tmp_path / "a.h5", source=few_errors(4)), CalibrateSettings(method="temp")
    )
    assert held.forecaster_temperature == 1.0
    assert any(text.startswith("4 errors among 500") for text in held.warnings)
    free = calibrate(
        write_features(tmp_path / "b.h5", source=few_errors(5)), CalibrateSettings(method="temp")
    )
    assert free.forecaster_temperature < 0.5
    assert not any("too few" in text for text in free.warnings)


def test_a_classifier_without_an_error_is_warned_about(tmp_path: Path) -> None:
    """No error on 500 validation rows: were they its training rows?"""
    path = write_features(tmp_path / "a.h5", source=few_errors(0))
    for method in ("none", "temp", "iw+temp"):
        found = calibrate(path, CalibrateSettings(method=method))
        assert found.forecaster_temperature == 1.0
        assert any("makes no error on its 500" in text for text in found.warnings)
        assert not any("too few to raise" in text for text in found.warnings)


def test_a_note_names_a_confidence_as_on_training_rows(tmp_path: Path) -> None:
    """Unsure classifiers look like this too, so it is a note and not a warning."""
    doubt = "trained on these rows, extract other source rows"
    path = write_features(tmp_path / "a.h5", source=few_errors(5))
    for text in (calibrate(path).notes[0], estimate(path).notes[0]):
        assert text.startswith("on the source, the mean confidence is ")
        assert text.endswith(doubt)
    plain = calibrate(write_features(tmp_path / "b.h5"))
    assert not any(doubt in text for text in plain.notes)


def test_an_estimate_above_the_source_accuracy_is_doubted(tmp_path: Path) -> None:
    """Noise in some features can raise confidence, and no estimator sees that accuracy falls."""
    target = made_domain("target")
    logits = made_domain("source")["logits"][: len(target["logits"])]
    for factor, is_doubted in ((1.0, False), (1.6, True)):
        target["logits"] = np.float32(factor) * logits
        path = write_features(tmp_path / f"{factor}.h5", target=target)
        checks = [guard.name for guard in estimate(path).checks]
        assert ("rise of the accuracy" in checks) == is_doubted
        warnings = calibrate(path).warnings
        assert any("points above the source accuracy" in text for text in warnings) == is_doubted


def at_a_limit(path: Path, limit: str) -> Path:
    """Write labels upside down, or five errors of tied logits and the rest right."""
    source = made_domain("source") if limit == "upper" else few_errors(0)
    if limit == "upper":
        source["labels"] = source["logits"].argmin(axis=1)
    else:
        source["logits"][np.flatnonzero(source["split"] == 1)[:5]] = 0
        source["labels"][np.flatnonzero(source["split"] == 1)[:5]] = 2
    return write_features(path, source=source)


@pytest.mark.parametrize(
    ("limit", "why"),
    [("upper", "order of the classes"), ("lower", "every rise of the confidence lowers the loss")],
)
def test_t_at_a_limit_is_refused_unless_forced(tmp_path: Path, limit: str, why: str) -> None:
    """No cal.json with a T at its limit; --force writes it with a warning."""
    path, output = at_a_limit(tmp_path / "f.h5", limit), tmp_path / "cal.json"
    arguments = ["calibrate", str(path), "--method", "temp", "-o", str(output)]
    refused = covcal(*arguments)
    assert refused.code == 1
    assert f"{limit} limit" in refused.err
    assert why in refused.err
    assert "--force" in refused.err
    assert not output.exists()
    forced = covcal(*arguments, "--force")
    assert forced.code == 0
    assert "do not trust" in forced.err
    found = read_calibration(output)
    assert found.fit["at_limit"] == limit
    assert found.forecaster_temperature > 1000 or found.forecaster_temperature < 1e-3


def test_rows_without_a_label_are_left_out_and_counted(tmp_path: Path) -> None:
    """Unlabelled source validation rows count as absent, in T and in the weights."""
    source, target = made_pair()
    unknown = (source["split"] == 1) & (np.arange(1000) % 3 == 0)
    fewer = only_rows(source, ~unknown)
    source["labels"] = np.where(unknown, -1, source["labels"])
    with_them = calibrate(write_adapted(tmp_path / "a.h5", source=source, target=target))
    without = calibrate(write_adapted(tmp_path / "b.h5", source=fewer, target=target))
    assert (
        f"{unknown.sum()} source validation rows have no label and are left out" in with_them.notes
    )
    assert with_them.forecaster_temperature == pytest.approx(without.forecaster_temperature)
    assert with_them.fit["rows"] == without.fit["rows"] == 500 - unknown.sum()
    assert with_them.weights == pytest.approx(without.weights)


def test_a_source_without_any_label_is_refused(tmp_path: Path) -> None:
    """Source validation rows that are all unlabelled: an error with the remedy."""
    source = made_domain("source")
    source["labels"][:] = -1
    path = write_features(tmp_path / "f.h5", source=source)
    with pytest.raises(CovcalError, match="none of the 500 source validation rows has a label"):
        calibrate(path)


def test_a_class_without_a_row_is_a_note(tmp_path: Path) -> None:
    """Classes that no source validation row has are named; T is fitted all the same."""
    source = made_domain("source")
    source["labels"][(source["split"] == 1) & (source["labels"] == 2)] = 1
    path = write_features(tmp_path / "f.h5", source=source, class_names=["ant", "bee", "cat"])
    found = calibrate(path, CalibrateSettings(method="temp"))
    assert found.notes == ("no source validation row has the class cat",)
    assert found.warnings == ()


def test_a_file_without_a_target_estimates_nothing(tmp_path: Path) -> None:
    """A source alone is calibrated; weighted methods and estimates say what they need."""
    path = write_features(tmp_path / "f.h5", only_source=True)
    assert calibrate(path, CalibrateSettings(method="temp")).estimates == {
        "rows": 0,
        "target_confidence_before": None,
        "target_confidence": None,
    }
    for method in ("iw+temp", "cot", "consensus"):
        message = rf"method {re.escape(method)} needs target rows: extract them together"
        with pytest.raises(CovcalError, match=message):
            calibrate(path, CalibrateSettings(method=method))


@pytest.mark.parametrize("method", ["fl+temp", "fl+iw+temp", "fl+cot", "blend"])
def test_fl_methods_need_an_adapted_file(tmp_path: Path, method: str) -> None:
    """On a features file they are refused with the command to run first."""
    path = write_features(tmp_path / "f.h5")
    with pytest.raises(CovcalError, match="needs an adapted file: run covcal adapt first"):
        calibrate(path, CalibrateSettings(method=method))


@pytest.mark.parametrize("missing", ["features", "target validation", "target train"])
def test_weighted_methods_say_what_they_lack(tmp_path: Path, missing: str) -> None:
    """Without features, target validation or training rows they are refused; auto is not."""
    source, target = made_domain("source"), made_domain("target", shift=SHIFT)
    if missing == "features":
        del target["features"]
    else:
        split = ("train", "validation").index(missing.removeprefix("target "))
        target = only_rows(target, target["split"] != split)
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    expected = {"target train": "training rows"}.get(missing, missing)
    for method in ("iw+temp", "weights-only"):
        with pytest.raises(CovcalError, match=f"needs .*{expected}"):
            calibrate(path, CalibrateSettings(method=method))
    found = calibrate(path)
    assert "iw+temp" not in {candidate.method for candidate in found.candidates}
    assert found.weights is None


def settings_of(method: str) -> CalibrateSettings:
    """Return settings with a prior for what cannot do without."""
    needs_prior = method in METHODS and METHODS[method].needs_prior
    return CalibrateSettings(method=method, target_prior="uniform" if needs_prior else "source")


@pytest.mark.parametrize("adapted", [False, True])
def test_the_same_file_gives_the_same_bytes(tmp_path: Path, adapted: bool) -> None:
    """Two runs write byte-identical cal.json; the input is named by relative path and sha256."""
    write = write_adapted if adapted else write_features
    path = write(tmp_path / "input.h5")
    (tmp_path / "out").mkdir()
    for name in ("one.json", "two.json"):
        write_document(calibrate(path), tmp_path / "out" / name, force=False)
    one, two = (tmp_path / "out" / name for name in ("one.json", "two.json"))
    assert one.read_bytes() == two.read_bytes()
    assert json.loads(one.read_text())["inputs"] == [
        {
            "role": "adapted" if adapted else "features",
            "path": "../input.h5",
            "sha256": sha256_of(path),
        }
    ]


@pytest.mark.parametrize("method", [AUTO, "none", "iw+temp", "fl+iw+temp", "blend", "prior"])
def test_cal_json_is_strict_json_and_reads_back_whole(tmp_path: Path, method: str) -> None:
    """What is read back equals what was written, and no NaN or Infinity is in the file.

    Scrambled target labels change nothing but the hash. test_target_labels.py tries others.
    """
    source, target = made_pair(sizes=(60, 100, 40))
    file = write_adapted(tmp_path / "a.h5", source=source, target=target)
    written = calibrate(file, settings_of(method))
    path = tmp_path / "cal.json"
    write_document(written, path, force=False)
    content = json.loads(path.read_text(), parse_constant=refuse_constant)
    again = read_calibration(path)
    assert again == replace(written, inputs=again.inputs)
    for calibration in (again, written):
        assert json.loads(document_text(calibration, path)) == content
    assert again.inputs[0].path.resolve() == (tmp_path / "a.h5").resolve()
    assert content["schema"] == "covcal.calibration/1"
    assert content["used_target_labels"] is False
    with edited(file) as handle:
        labels = handle["target/labels"][:]
        handle["target/labels"][:] = np.random.default_rng(0).permutation(labels)
    scrambled = calibrate(file, settings_of(method))
    assert document(scrambled, inputs=False) == document(written, inputs=False)
    assert scrambled.inputs[0].sha256 != written.inputs[0].sha256


DAMAGES: dict[str, tuple[tuple[str, ...], Any]] = {
    "offsets of other classes": (("class_offsets",), [0.5]),
    "an offset without end": (("class_offsets",), [1e999, 0.0, 0.0]),
    "no temperatures": (("temperatures",), None),
    "temperature is null": (("temperatures", "forecaster"), None),
    "temperature is zero": (("temperatures", "forecaster"), 0.0),
    "temperature is nearly zero": (("temperatures", "forecaster"), 1e-101),
    "temperature is nearly infinite": (("temperatures", "forecaster"), 1e101),
    "temperature is infinite": (("temperatures", "forecaster"), math.inf),
    "classes are missing": (("classes",), None),
    "forecaster is unknown": (("forecaster",), "another"),
    "model is text": (("model",), "lenet"),
    "a candidate is empty": (("candidates",), [{}]),
    "labelled rows without ids": (("labelled_rows",), {"n": 3}),
    "prior has no name": (("target_prior",), {}),
    "weights are empty": (("weights",), {}),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_cal_json_is_refused(small_files: Path, tmp_path: Path, damage: str) -> None:
    """A field that is missing or of no use: one line that names the file and the remedy."""
    path = Path(shutil.copy(small_files / "auto.json", tmp_path / "cal.json"))
    content = json.loads(path.read_text())
    keys, value = DAMAGES[damage]
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    if any(word in json.dumps(content) for word in ("NaN", "Infinity")):
        path.write_text(json.dumps(content))  # which covcal never writes
    else:
        write_document(content, path, force=True)
    with pytest.raises(CovcalError, match=r"cal\.json .*calibrate again") as caught:
        read_calibration(path)
    assert "\n" not in str(caught.value)
    assert not any(word in str(caught.value) for word in PYTHON_WORDS), caught.value
    if damage == "temperature is zero":
        assert "(temperatures.forecaster is 0, but must be above 0)" in str(caught.value)


PYTHON_WORDS = ("Error", "NoneType", "object is not", "subscriptable", "argument", "'str'")
WRONG_KINDS: tuple[Any, ...] = (None, True, 3, "text", [None], {"": 0})


def every_place(content: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside."""
    inside = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in inside:
        yield (*keys, key)
        if isinstance(value, dict | list):
            yield from every_place(value, (*keys, key))


@pytest.mark.campaign
def test_no_damage_speaks_python(tmp_path: Path) -> None:
    """Every field removed and given every wrong kind: read, or refused in plain words."""
    path = tmp_path / "cal.json"
    write_document(calibrate(write_adapted(tmp_path / "a.h5")), path, force=False)
    content = json.loads(path.read_text())
    refused = []
    for keys in every_place(content):
        for kind in (*WRONG_KINDS, "REMOVED"):
            damaged = json.loads(json.dumps(content))
            place = damaged
            for key in keys[:-1]:
                place = place[key]
            if kind == "REMOVED":
                del place[keys[-1]]
            else:
                place[keys[-1]] = kind
            write_document(damaged, path, force=True)
            try:
                read_calibration(path)
            except CovcalError as error:
                refused.append(str(error))
    assert len(refused) > 100
    assert not [text for text in refused if any(word in text for word in PYTHON_WORDS)]
    assert f"{path} is damaged (temperatures.forecaster is missing): calibrate again" in refused
    assert f"{path} is damaged (classes[0] is null, not a text): calibrate again" in refused


@pytest.mark.parametrize(
    ("ess_fit", "words"),
    [
        (95.0, "is 52.8 of 719 rows (the fit of T uses 95.0, but needs 100 rows): "),
        (200.0, None),
    ],
)
def test_few_effective_rows_are_told_by_number(ess_fit: float, words: str | None) -> None:
    """The warning names the number that is too small and what is needed, and no other."""
    weights = importance_weights(np.zeros((1, 719)), np.zeros((1, 100)))
    health = replace(
        weights.health, ess=52.8, ess_share=52.8 / 719, ess_fit=ess_fit, n=719, clipped_share=0.0
    )
    found = warnings_on_weights(replace(weights, health=replace(health, mean_weight=1.0)))
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


def test_weights_that_are_all_0_are_told_with_the_remedy() -> None:
    """No number of effective rows is then of use, neither in the warning nor in the checks."""
    weights = importance_weights(np.full((1, 60), 1e6), np.full((1, 60), -1e6))
    assert not weights.weights.any()
    (warning,) = warnings_on_weights(weights)
    assert warning.startswith("no source validation row is similar to the target")
    assert warning.endswith("use auto, or label target rows with covcal pick")
    for guard in guards_on_weights(weights)[:2]:
        assert not guard.passed
        assert guard.sentence.startswith("no source row is similar")


@pytest.mark.parametrize(("domain", "value"), [("source", np.nan), ("target", np.inf)])
def test_logits_that_are_no_numbers_are_named(tmp_path: Path, domain: str, value: float) -> None:
    """One NaN or infinite logit stops everything with the dataset, the row and its id."""
    arrays = {"source": made_domain("source"), "target": made_domain("target")}
    arrays[domain]["logits"][412, 1] = value
    path = write_features(tmp_path / "f.h5", source=arrays["source"], target=arrays["target"])
    message = rf"f\.h5: /{domain}/logits row 412 \({domain}/412\.png\) holds {value}"
    with pytest.raises(CovcalError, match=message):
        calibrate(path, CalibrateSettings(method="temp"))


@pytest.mark.parametrize("label", [3, -2])
def test_a_source_label_that_is_no_class_is_named(tmp_path: Path, label: int) -> None:
    """A label outside -1 .. K-1 stops the fit with its row."""
    source = made_domain("source")
    source["labels"][333] = label
    path = write_features(tmp_path / "f.h5", source=source)
    with pytest.raises(CovcalError, match=f"labels row 333 is {label}"):
        calibrate(path)


@pytest.mark.parametrize("max_weight", [0.5, -1.0, math.nan, math.inf])
def test_a_maximum_weight_below_one_or_without_end_is_refused(max_weight: float) -> None:
    """U is at least 1 and finite, also for a method that only records it."""
    with pytest.raises(CovcalError, match="max_weight"):
        CalibrateSettings(method="temp", max_weight=max_weight)


def test_splits_may_lie_in_any_order(tmp_path: Path) -> None:
    """If the rows of the three splits are shuffled in the file, T stays the same."""
    source, target = made_pair()
    order = np.random.default_rng(0).permutation(1000)
    sorted_file = write_adapted(tmp_path / "a.h5", source=source, target=target)
    shuffled = write_adapted(
        tmp_path / "b.h5", source=only_rows(source, order), target=only_rows(target, order[::-1])
    )
    one, other = calibrate(sorted_file), calibrate(shuffled)
    assert other.forecaster_temperature == pytest.approx(one.forecaster_temperature, rel=1e-5)
    assert other.estimates == pytest.approx(one.estimates)


def test_other_rows_are_not_read(tmp_path: Path) -> None:
    """Logits of source training and target test rows, even NaN, and all labels of those and of
    source test rows, change no fit; the last are part of the source accuracy that is told."""
    source, target = made_pair()
    path = write_adapted(tmp_path / "a.h5", source=source, target=target)
    before = calibrate(path)
    with edited(path) as file:
        for domain in ("source", "target"):
            split = file[f"{domain}/split"][:]
            other = split == 0 if domain == "source" else split == 2
            for name in ("logits", "domain_logits"):
                values = file[f"{domain}/{name}"][:]
                values[other] = np.nan
                file[f"{domain}/{name}"][:] = values
            labels = file[f"{domain}/labels"][:]
            labels[split != 1] = -1
            file[f"{domain}/labels"][:] = labels
    after = calibrate(path)
    assert before.source_accuracy is not None
    assert after.source_accuracy is not None
    assert (before.source_accuracy.rows, after.source_accuracy.rows) == (700, 500)
    told = replace(before, source_accuracy=after.source_accuracy)
    assert document(after, inputs=False) == document(told, inputs=False)


def test_a_path_may_be_text_and_a_file_may_be_open(tmp_path: Path) -> None:
    """A path and the open file that it names give the same calibration."""
    path = write_features(tmp_path / "f.h5")
    found = calibrate(str(path))
    assert found == calibrate(path)
    with h5py.File(path) as handle, FeatureFile(path, handle) as file:
        assert calibrate_file(Problem(file, CalibrateSettings())) == found
    write_document(found, tmp_path / "cal.json", force=False)
    text = str(tmp_path / "cal.json")
    assert read_calibration(text).forecaster_temperature == found.forecaster_temperature


@pytest.mark.parametrize(("temperature", "warned"), [(9.9, False), (25.16, True)])
def test_outputs_far_too_sure_are_warned_of(temperature: float, warned: bool) -> None:
    """Whatever confidence T leaves: that of answers without logits may still be high."""
    found = warnings_on_reading(None, Scaling("original", temperature))
    said = ["T = 25.16 is very large"]
    assert [text.partition(":")[0] for text in found] == said * warned
