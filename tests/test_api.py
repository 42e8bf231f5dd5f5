"""The public Python API: its names, the commands on files, and the calibrator on arrays."""

import ast
import json
import pickle
import pydoc
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix
from scipy.special import softmax
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_digits
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import StackingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import estimator_checks

import covcal_cli.api as covcal
from covcal_cli.estimators.cot import cot
from covcal_cli.maths.temperature import Loss
from tests.cli_runner import covcal as command
from tests.made_files import clusters_domain, made_domain, write_features

LOSSES: tuple[Loss, ...] = ("brier", "nll")
Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


def arrays(k: int = 4, n: int = 600, shift: float = 1.0) -> Arrays:
    """Source logits, source labels, and logits of a harder target."""
    rng = np.random.default_rng(0)

    def domain(gap: float) -> tuple[NDArray[Any], NDArray[Any]]:
        labels = rng.integers(0, k, n)
        logits = rng.normal(size=(n, k))
        logits[np.arange(n), labels] += gap
        return 3 * logits, labels

    source, labels = domain(2.0)
    target, _ = domain(2.0 - shift)
    return source, labels, target


def only_validation(name: str, logits: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """A domain whose rows are all validation rows, and have these logits."""
    made = made_domain(name, sizes=(0, len(logits), 0))
    return made | {"logits": logits.astype(np.float32)}


class TestNames:
    def test_every_name_is_there(self) -> None:
        """Each public name is found, and a type checker sees the same names."""
        source = Path(covcal.__file__).read_text(encoding="utf-8")
        typed = {
            alias.name
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("covcal_cli.")
            for alias in node.names
            if alias.name != "checked"
        }
        assert typed == set(covcal.__all__) == set(dir(covcal))
        for name in covcal.__all__:
            assert getattr(covcal, name).__name__ == name

    @pytest.mark.parametrize("name", [n for n in covcal.__all__ if n != "CovcalError"])
    def test_help_shows_short_types(self, name: str) -> None:
        """NumPy's ArrayLike is a union of nine types, which hid the arguments in help()."""
        assert "_typing" not in pydoc.render_doc(getattr(covcal, name))

    def test_another_name_is_refused_with_those_there_are(self) -> None:
        with pytest.raises(AttributeError, match=r"no 'calibrat': it has .*Calibrator"):
            _ = covcal.calibrat

    def test_importing_it_loads_nothing_heavy(self) -> None:
        """Neither torch, onnx and h5py nor NumPy is loaded before a name is used."""
        script = (
            "import sys, covcal_cli.api\n"
            "heavy = {'torch', 'onnx', 'onnxruntime', 'h5py', 'numpy'}\n"
            "before = heavy & set(sys.modules)\n"
            "covcal_cli.api.Calibrator\n"
            "print(sorted(before), sorted(heavy & set(sys.modules)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "[] ['h5py', 'numpy']"


class TestFiles:
    def test_the_commands_take_paths_as_text(self, digits: Path, tmp_path: Path) -> None:
        """From a model to probabilities and a page, without a command line."""
        features, document = str(tmp_path / "f.h5"), str(tmp_path / "cal.json")
        model, source, target = (
            str(digits / name) for name in ("digits.onnx", "source.npz", "target.npz")
        )
        covcal.extract(model, source, target, features)
        calibration = covcal.calibrate(features, covcal.CalibrateSettings(method="temp"))
        covcal.write_document(calibration, document, force=False)
        assert covcal.read_calibration(document) == calibration
        assert 0 < covcal.estimate(features).estimates[0].accuracy < 1
        found = covcal.evaluate(features, {"temp": calibration})
        assert found.metrics["temp"].ece < found.metrics["none"].ece
        covcal.apply(features, document, str(tmp_path / "p.csv"))
        covcal.export(model, document, str(tmp_path / "c.onnx"))
        covcal.report(features, [document], str(tmp_path / "r.html"), covcal.EvaluateSettings())
        for name in ("p.csv", "c.onnx", "r.html"):
            assert (tmp_path / name).stat().st_size > 0

    @pytest.mark.parametrize(
        ("make", "wrong", "message"),
        [
            (
                covcal.CalibrateSettings,
                {"method": "tmep"},
                "no method 'tmep': use auto, none, temp",
            ),
            (covcal.CalibrateSettings, {"loss": "mse"}, "no loss 'mse': use brier, nll"),
            (covcal.CalibrateSettings, {"max_weight": 0.5}, "max_weight must be"),
            (covcal.EstimateSettings, {"seed": -1}, "seed must be at least 0, not -1"),
            (covcal.EvaluateSettings, {"split": "tset"}, "no split 'tset': use train"),
            (covcal.EvaluateSettings, {"predictions": "orig"}, "no kind of predictions 'orig'"),
            (covcal.EvaluateSettings, {"bins": 0}, "bins must be from 1 to 10000, not 0"),
            (
                covcal.EvaluateSettings,
                {"resamples": -3},
                "resamples must be from 0 to 100000, not -3",
            ),
            (covcal.EvaluateSettings, {"seed": -1}, "seed must be at least 0"),
            (
                covcal.ExtractSettings,
                {"outputs": "logit"},
                "no kind of outputs 'logit': use logits",
            ),
            (covcal.ApplySettings, {"domain": "targt"}, "no domain 'targt': use target, source"),
            (covcal.ApplySettings, {"split": "tset"}, "no split 'tset': use all, train"),
        ],
    )
    def test_settings_refuse_what_cannot_be(
        self, make: Any, wrong: dict[str, Any], message: str
    ) -> None:
        """A slip of the pen never turns into another meaning."""
        with pytest.raises(covcal.CovcalError, match=message):
            make(**wrong)

    @pytest.mark.parametrize("shares", [(), (0.5, 0.5), (0.5, 0.5, 0.5), (-0.5, 0.5, 1.0)])
    def test_prior_shares_are_those_of_the_classes(
        self, shares: tuple[float, ...], features: Path
    ) -> None:
        with pytest.raises(covcal.CovcalError, match="a share for each of 3 classes"):
            covcal.estimate(features, covcal.EstimateSettings(prior_shares=shares))
        assert covcal.CalibrateSettings(prior_shares=(0.5, 0.25, 0.25)).target_prior == "given"
        with pytest.raises(covcal.CovcalError, match="temp does not use a target prior"):
            covcal.CalibrateSettings(method="temp", prior_shares=(0.5, 0.25, 0.25))
        huge = covcal.EstimateSettings(max_weight=10**30)
        assert covcal.estimate(features, huge).estimates

    def test_a_report_is_about_something(self, features: Path, tmp_path: Path) -> None:
        with pytest.raises(covcal.CovcalError, match="at least one calibration"):
            covcal.report(features, [], tmp_path / "r.html")

    def test_no_calibration_takes_the_place_of_none(self, features: Path) -> None:
        """The classifier as it came stands under that name in every evaluation."""
        calibration = covcal.calibrate(features, covcal.CalibrateSettings(method="temp"))
        with pytest.raises(covcal.CovcalError, match="none is the uncalibrated classifier"):
            covcal.evaluate(features, {"none": calibration})


class TestArgumentTypes:
    """A wrong argument is a `CovcalError` that names it, never an error of a library."""

    @pytest.mark.parametrize(
        ("make", "wrong", "message"),
        [
            (covcal.Calibrator, {"labels": 50}, "unexpected keyword argument 'labels'. The argu"),
            (covcal.CalibrateSettings, {"sed": 0}, "CalibrateSettings: .* 'sed'. The arguments"),
            (covcal.CalibrateSettings, {"method": 5}, "method must be a text, not 5 of type int"),
            (covcal.CalibrateSettings, {"seed": 1.5}, "seed must be a whole number, not 1.5"),
            (covcal.CalibrateSettings, {"seed": True}, "seed must be a whole number, not True"),
            (covcal.CalibrateSettings, {"allow_limit": 1}, "must be True or False, not 1"),
            (
                covcal.CalibrateSettings,
                {"prior_shares": (0.5, "x")},
                "in which every item is a numb",
            ),
            (covcal.EvaluateSettings, {"metrics": "ece"}, "a list in which every item is a text"),
            (covcal.EvaluateSettings, {"by": 3}, "by must be a text or None, not 3"),
            (covcal.EvaluateSettings, {"bins": 10**30}, "bins must be from 1 to 10000"),
            (covcal.EvaluateSettings, {"resamples": 10**30}, "resamples must be from 0 to 100000"),
            (covcal.EstimateSettings, {"max_weight": 10**400}, "max_weight must be a number from"),
            (covcal.ExtractSettings, {"fractions": (1, 0)}, "fractions must be 3 values"),
            (covcal.ExtractSettings, {"selection": 5}, "selection must be Selection, not 5"),
            (covcal.PickSettings, {"splits": [b"test"]}, "splits must be a list in which"),
            (covcal.AdaptSettings, {"threads": "2"}, "threads must be a whole number, not '2'"),
            (covcal.CompareSettings, {"adapt": "yes"}, "adapt must be AdaptSettings or None"),
            (covcal.calibrate, {"path": 5}, "path must be a text or a path, not 5 of type int"),
            (covcal.calibrate, {"path": "f", "settings": 1}, "must be CalibrateSettings or None"),
            (
                covcal.report,
                {"path": "f", "documents": "cal.json", "output": "r"},
                "must be a list",
            ),
            (
                covcal.evaluate,
                {"path": "f", "calibrations": {"a": "b"}},
                "a dict in which every value is",
            ),
            (covcal.apply, {"path": "f", "document": "c"}, "missing a required argument: 'output'"),
            (covcal.estimate, {"path": None}, "path must be a text or a path, not None"),
            (covcal.random_labels, {"path": "f", "n": 1.0}, "n must be a whole number, not 1.0"),
        ],
    )
    def test_what_is_wrong_is_named(self, make: Any, wrong: dict[str, Any], message: str) -> None:
        with pytest.raises(covcal.CovcalError, match=message):
            make(**wrong)

    @pytest.mark.parametrize("name", ["a\0b", "\ud800", "a" * 5000])
    def test_names_that_no_file_has_are_refused(self, name: str, tmp_path: Path) -> None:
        for make in (covcal.read_calibration, covcal.estimate, covcal.random_labels):
            arguments = (name, 5) if make is covcal.random_labels else (name,)
            with pytest.raises(covcal.CovcalError, match=r"no file name can have|too long"):
                make(*arguments)
        with pytest.raises(covcal.CovcalError, match="the content is not JSON"):
            covcal.write_document({"a": object()}, tmp_path / "a.json", force=False)

    def test_numbers_of_numpy_and_lists_are_taken(self) -> None:
        settings = covcal.EvaluateSettings(seed=np.int64(3), level=np.float32(0.5), metrics=["ece"])  # type: ignore[arg-type]
        assert (type(settings.seed), type(settings.level)) == (int, float)
        assert settings.metrics == ("ece",)

    @pytest.mark.parametrize("name", ["probabilities", "labels", "classes"])
    @pytest.mark.parametrize(
        "wrong", ["auto", None, 5, [[1], [2, 3]], {"a": 1}, np.eye(3, dtype=complex), np.zeros(0),
                  np.full(3, None), np.zeros(3, dtype="M8[s]"), np.zeros(3, dtype=[("a", float)])],
    )  # fmt: skip
    def test_arrays_that_are_none_are_named(self, name: str, wrong: Any) -> None:
        arrays: dict[str, Any] = {"probabilities": np.eye(3)}
        arrays |= {"labels": np.arange(3), "classes": np.arange(3)}
        assert covcal.ece(**arrays) == 0
        if (name, wrong is None) == ("classes", True):
            return
        for call in (covcal.ece, covcal.reliability_diagram):
            with pytest.raises(
                covcal.CovcalError, match=f"^{name} must|^{name}: row 0|^{name} are"
            ):
                call(**arrays | {name: wrong})

    @pytest.mark.parametrize("bins", [0, -1, 10**30])
    def test_bins_have_limits(self, bins: int) -> None:
        for call in (covcal.ece, covcal.reliability_diagram):
            with pytest.raises(ValueError, match="bins must be from 1 to 10000"):
                call(np.eye(3), np.arange(3), bins=bins)

    @pytest.mark.parametrize(
        "call",
        [
            lambda: covcal.CalibrateSettings(seed=-1),
            lambda: covcal.CalibrateSettings(method="x"),
            lambda: covcal.EvaluateSettings(bins=0),
            lambda: covcal.PickSettings(rows=0),
            lambda: covcal.Decision(error=2),
            lambda: covcal.Calibrator(seed=-1).fit(*arrays()),
            lambda: covcal.Calibrator(max_weight=0.1).fit(*arrays()),
            lambda: covcal.Calibrator("x").fit(*arrays()),
        ],
    )
    def test_a_value_out_of_range_is_a_value_error(self, call: Callable[[], Any]) -> None:
        """As in scikit-learn; it is a `CovcalError` too."""
        with pytest.raises(ValueError, match=r".") as refused:
            call()
        assert isinstance(refused.value, covcal.CovcalError)

    def test_complex_logits_are_refused(self) -> None:
        source, labels, target = arrays()
        with pytest.raises(covcal.CovcalError, match="source_logits must be real numbers"):
            covcal.Calibrator("temp").fit(source.astype(complex), labels, target)
        fitted = covcal.Calibrator("temp").fit(source, labels, target)
        with pytest.raises(covcal.CovcalError, match=r"labels must have shape \(600,\)"):
            fitted.score(source, labels[:5])


class TestCalibrator:
    @pytest.mark.parametrize("method", ["temp", "auto"])
    def test_it_finds_what_the_command_line_finds(self, method: str, tmp_path: Path) -> None:
        """The same rows in a file give the same temperature and the same estimate."""
        source, labels, target = arrays(k=3)
        path = write_features(
            tmp_path / "f.h5",
            source=only_validation("source", source) | {"labels": labels},
            target=only_validation("target", target),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of estimators that disagree by chance
            found = covcal.Calibrator(method).fit(source, labels, target)
        written = covcal.calibrate(path, covcal.CalibrateSettings(method=method))
        assert found.temperature_ == written.forecaster_temperature
        assert (found.method_, found.reason_) == (written.method_used, written.reason)
        assert found.estimate_ is not None
        combined = covcal.estimate(path).estimates[0]
        assert found.estimate_.accuracy == pytest.approx(combined.accuracy)
        command("calibrate", path, "--method", method, "-o", tmp_path / "c.json").require_success()
        assert covcal.read_calibration(tmp_path / "c.json").forecaster_temperature == (
            found.temperature_
        )

    def test_probabilities_are_the_softmax_of_z_over_t(self) -> None:
        """As SciPy computes it; the largest stays where it was."""
        source, labels, target = arrays()
        found = covcal.Calibrator("temp").fit(source, labels, target)
        expected = softmax(target / found.temperature_, axis=1)
        np.testing.assert_allclose(found.predict_proba(target), expected, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(found.predict(target), target.argmax(axis=1))

    def test_one_number_a_row_is_the_second_of_two_classes(self) -> None:
        """A binary decision function gives what its two logits 0 and z give."""
        source, labels, target = arrays(k=2)
        one, two = covcal.Calibrator("temp"), covcal.Calibrator("temp")
        gap, new = source[:, 1] - source[:, 0], target[:, 1] - target[:, 0]
        one.fit(gap, labels, new)
        two.fit(np.stack([0 * gap, gap], axis=1), labels, np.stack([0 * new, new], axis=1))
        assert one.temperature_ == two.temperature_
        assert one.predict_proba(new).shape == (len(new), 2)

    def test_classes_may_have_names(self) -> None:
        """By default in sorted order, as scikit-learn has them, or in the order that is given."""
        source, labels, target = arrays(k=3)
        named = covcal.Calibrator("temp").fit(source, np.array(["a", "b", "c"])[labels], target)
        order = ["z", "x", "y"]
        given = covcal.Calibrator("temp").fit(
            source, np.array(order)[labels], target, classes=order
        )
        plain = covcal.Calibrator("temp").fit(source, labels, target)
        assert named.temperature_ == given.temperature_ == plain.temperature_
        assert list(named.classes_) == ["a", "b", "c"]
        assert given.predict(target)[0] == order[target[0].argmax()]

    def test_it_works_with_a_frozen_scikit_learn_model(self) -> None:
        """Its decision function gives the logits; clone and pickle keep what they should."""
        X, y = load_digits(return_X_y=True)
        model = FrozenEstimator(LogisticRegression(max_iter=2000).fit(X[:600] / 16, y[:600]))
        source, target = (
            model.decision_function(X[600:1200] / 16),
            model.decision_function(np.roll(X[1200:], 1, axis=1) / 16),
        )
        calibrator = covcal.Calibrator("temp", seed=3).fit(source, y[600:1200], target)
        copy = clone(calibrator)
        assert copy.get_params() == calibrator.get_params()
        assert not hasattr(copy, "temperature_")
        again = pickle.loads(pickle.dumps(calibrator))
        np.testing.assert_array_equal(again.predict_proba(target), calibrator.predict_proba(target))
        before = -np.log(softmax(source, axis=1)[np.arange(600), y[600:1200]]).mean()
        after = -np.log(calibrator.predict_proba(source)[np.arange(600), y[600:1200]]).mean()
        assert after < before

    def test_what_to_look_into_is_warned_of(self) -> None:
        """A source without errors is said to be suspicious, as on the command line."""
        source, labels, target = arrays(k=3, n=60)
        source[np.arange(60), labels] = 50
        with pytest.warns(UserWarning, match="error") as found:
            covcal.Calibrator("temp").fit(source, labels, target)
        assert "makes no error on its 60 source validation rows" in str(found[0].message)

    def test_t_at_its_limit_is_refused_unless_allowed(self) -> None:
        """Labels upside down: an error with the remedy, as on the command line."""
        source, _, target = arrays(k=3, n=60)
        labels = source.argmin(axis=1)
        with pytest.raises(covcal.CovcalError, match=r"upper limit.*allow_limit"):
            covcal.Calibrator("temp").fit(source, labels, target)
        with pytest.warns(UserWarning, match="do not trust|are negated|very large") as said:
            found = covcal.Calibrator("temp", allow_limit=True).fit(source, labels, target)
        assert any("do not trust" in str(warning.message) for warning in said)
        assert found.calibration_.fit["at_limit"] == "upper"

    def test_parameters_are_those_of_scikit_learn(self) -> None:
        calibrator = covcal.Calibrator("cot", seed=2)
        assert repr(calibrator) == "Calibrator(method='cot', seed=2)"
        assert calibrator.set_params(method="temp", seed=0).get_params()["method"] == "temp"
        with pytest.raises(ValueError, match="no parameter metod: use one of method, loss"):
            calibrator.set_params(metod="temp")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"source_logits": np.zeros((5, 3, 2))}, "source_logits must have shape"),
            ({"source_logits": np.zeros((0, 3))}, "source_logits must have shape"),
            ({"target_logits": np.zeros((9, 5))}, "have 3 classes but target_logits have 5"),
            (
                {"target_logits": np.full((9, 3), np.nan)},
                "target_logits: row 0 has NaN or infinity",
            ),
            (
                {"target_logits": np.full((9, 3), 1 / 3)},
                "target_logits: these are not logits, because every row sums to 1",
            ),
            ({"source_labels": np.zeros(7, dtype=int)}, r"source_labels must have shape \(600,\)"),
            (
                {"source_labels": np.full(600, 3)},
                "row 0 is 3, which is not one of the classes 0",
            ),
            (
                {"source_labels": np.full(600, "a")},
                "3 logits per row but 1 different classes",
            ),
            ({"classes": ["a", "b"]}, "there are 3 logits per row but 2 different classes"),
            ({"classes": ["a", "b", "a"]}, "there are 3 logits per row but 2 different classes"),
            (
                {"source_labels": np.arange(600) % 3 + 1},
                "row 2 is 3.*, or give classes",
            ),
            ({"source_logits": np.zeros((600, 1))}, r"or \(n,\) for two classes, .*not \(600, 1\)"),
            ({"source_logits": csr_matrix(np.eye(600))}, r"not csr_matrix: give \.toarray\(\)"),
            ({"source_logits": None}, "source_logits must be an array, not NoneType"),
            (
                {"target_logits": np.ma.masked_greater(np.eye(9, 3), 0)},
                "target_logits has masked values",
            ),
        ],
    )
    def test_arrays_that_do_not_fit_are_refused(self, change: dict[str, Any], message: str) -> None:
        source, labels, target = arrays(k=3)
        given = {"source_logits": source, "source_labels": labels, "target_logits": target}
        with pytest.raises(ValueError, match=message):
            covcal.Calibrator("temp").fit(**(given | change))

    @pytest.mark.parametrize("method", ["iw+temp", "fl+temp", "fl+cot", "blend", "weights-only"])
    def test_a_method_that_needs_more_is_refused(self, method: str) -> None:
        with pytest.raises(ValueError, match=r"needs more than logits: .*covcal\.calibrate"):
            covcal.Calibrator(method).fit(*arrays())

    def test_it_must_be_fitted_first(self) -> None:
        with pytest.raises(ValueError, match="not fitted yet"):
            covcal.Calibrator().predict_proba(np.zeros((2, 3)))
        fitted = covcal.Calibrator("temp").fit(*arrays(k=3))
        with pytest.raises(
            ValueError, match="logits have 4 classes, but the Calibrator was fitted to 3"
        ):
            fitted.predict_proba(np.zeros((2, 4)))
        with pytest.raises(ValueError, match=r"as probabilities do: give np\.log of the values"):
            fitted.predict_proba(softmax(np.eye(1, 3), axis=1))
        assert fitted.predict_proba([[0, 0, 2]]).argmax() == 2
        binary = covcal.Calibrator("temp").fit(*arrays(k=2))
        assert binary.predict_proba(np.ones(20)).shape == (20, 2)

    def test_fitting_again_starts_afresh_and_leaves_the_arrays_alone(self) -> None:
        source, labels, target = arrays()
        copies = source.copy(), labels.copy(), target.copy()
        calibrator = covcal.Calibrator("temp").fit(source, labels, target)
        first = calibrator.temperature_
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibrator.fit(source[:50], labels[:50], target)
        assert calibrator.fit(source, labels, target).temperature_ == first
        for array, copy in zip((source, labels, target), copies, strict=True):
            np.testing.assert_array_equal(array, copy)

    def test_optimal_transport_runs_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the calibration has found serves the estimate too."""
        seen = []

        def counted(*given: Any) -> Any:
            seen.append(given)
            return cot(*given)

        monkeypatch.setattr("covcal_cli.estimators.consensus.cot", counted)
        calibrator = covcal.Calibrator("cot").fit(*arrays())
        assert calibrator.estimate_ is not None
        assert len(seen) == 1

    def test_the_estimate_is_the_same_whatever_the_loss(self) -> None:
        """Its own temperature always minimises the Brier score, as that of ``covcal estimate``."""
        brier, nll = (covcal.Calibrator("temp", loss=loss).fit(*arrays()) for loss in LOSSES)
        assert brier.temperature_ != nll.temperature_
        assert brier.estimate_ == nll.estimate_


def judged(kind: str) -> NDArray[Any]:
    """Return outputs that are no logits, as other tools give them."""
    source, _, _ = arrays(k=5, n=200)
    probabilities: NDArray[Any] = softmax(source, axis=1)
    outputs: dict[str, NDArray[Any]] = {
        "probabilities": probabilities,
        "noise of float32": np.where(probabilities == probabilities.min(), -1e-9, probabilities),
        "rounded": probabilities.round(2),
        "percentages": 100 * probabilities,
        "sigmoids": 1 / (1 + np.exp(-source)),
        "votes": np.random.default_rng(0).multinomial(50, probabilities).astype(float),
        "less 1": probabilities - 1,
        "negated": -100 * probabilities,
        "complements": 1 - probabilities,
        "-log p": -np.log(probabilities),
        "ranks": source.argsort(axis=1).argsort(axis=1) + 1.0,
        "one row": probabilities[:1],
    }
    if kind == "one bad row":
        outputs[kind] = probabilities.copy()
        outputs[kind][5, 0] = 2
    return outputs[kind]


class TestOutputForms:
    @pytest.mark.parametrize("rows", [1, 2, 3])
    @pytest.mark.parametrize("is_logarithm", [True, False])
    def test_a_few_rows_of_votes_are_no_logits(self, rows: int, is_logarithm: bool) -> None:
        """So few rows do not show what they are; fit has seen what they should be."""
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 4, 600)
        logits = rng.normal(size=(600, 4))
        logits[np.arange(600), labels] += 2
        if is_logarithm:
            logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        calibrator = covcal.Calibrator().fit(logits, labels, logits)
        votes = np.array([[37.0, 6, 3, 4], [9, 30, 7, 5], [8, 9, 32, 3]])[:rows]
        with pytest.raises(ValueError, match="no number in logits is negative"):
            calibrator.predict_proba(votes)
        assert calibrator.predict_proba(logits[:rows]).shape == (rows, 4)

    KINDS = (
        "probabilities",
        "noise of float32",
        "rounded",
        "percentages",
        "sigmoids",
        "votes",
        "less 1",
        "negated",
        "one bad row",
    )

    @pytest.mark.parametrize(
        ("kind", "remedy"),
        [
            ("negated", "multiply every value by -1, divide each row by its sum, give np.log"),
            ("complements", "subtract every value from 1, divide each row by its sum, give"),
            ("-log p", "-log p of probabilities p: multiply every value by -1"),
            ("ranks", "ranks 1 to 5, which .*: give the scores from which the ranks were made"),
        ],
    )
    def test_the_remedy_does_not_reverse_the_classes(self, kind: str, remedy: str) -> None:
        """Dividing 1 - p by its sum would make the least probable class the most probable."""
        source, labels, _ = arrays(k=5, n=200)
        with pytest.raises(ValueError, match=rf"^target_logits: .*{remedy}"):
            covcal.Calibrator("temp").fit(source, labels, judged(kind))

    @pytest.mark.parametrize(
        ("kind", "where"),
        [
            *((kind, "target_logits") for kind in (*KINDS, "one row")),
            *(("percentages", where) for where in ("source_logits", "predict_proba")),
        ],
    )
    def test_outputs_that_are_no_logits_are_refused(self, kind: str, where: str) -> None:
        """The judge of extract decides in fit and in predict_proba, from the first row on."""
        source, labels, target = arrays(k=5, n=200)
        outputs = judged(kind)
        data = {"source_logits": source, "source_labels": labels, "target_logits": target}
        calibrator, name = covcal.Calibrator("temp"), where
        call: Callable[[], Any]
        if where == "predict_proba":
            call, name = partial(calibrator.fit(**data).predict_proba, outputs), "logits"
        else:
            data |= {where: outputs}
            data["source_labels"] = labels[: len(data["source_logits"])]
            call = partial(calibrator.fit, *data.values())
        with pytest.raises(ValueError, match=rf"^{name}: .*np\.log"):
            call()

    @pytest.mark.parametrize("offset", [1e6, 1e8, -1e10])
    def test_a_common_offset_costs_no_digits(self, offset: float) -> None:
        """Softmax does not see it, and neither does T, nor a probability."""
        source, labels, target = arrays(k=5)
        plain = covcal.Calibrator("temp").fit(source, labels, target)
        shift = offset * np.random.default_rng(0).uniform(size=(len(source), 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of outputs that are never negative
            moved = covcal.Calibrator("temp").fit(source + shift, labels, target + shift)
        assert moved.temperature_ == pytest.approx(plain.temperature_, rel=1e-4)
        expected = plain.predict_proba(target)
        np.testing.assert_allclose(moved.predict_proba(target + shift), expected, atol=1e-4)

    def test_equal_logits_are_no_probabilities(self) -> None:
        fitted = covcal.Calibrator("temp").fit(*arrays(k=3))
        assert fitted.predict_proba(np.zeros((9, 3))) == pytest.approx(np.full((9, 3), 1 / 3))


class Frame:
    """A data frame as far as the calibrator reads it: columns, and an array."""

    def __init__(self, values: NDArray[Any], columns: list[str]) -> None:
        self.values, self.columns, self.shape = values, columns, values.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.values, dtype=dtype)


class TestDataFrames:
    NAMES = ("pos", "neg", "odd")

    def test_columns_name_the_classes(self) -> None:
        """Labels that are columns stand for them, in the order of the columns and not sorted."""
        source, labels, target = arrays(k=3)
        named = np.array(self.NAMES)[labels]
        fitted = covcal.Calibrator("temp").fit(Frame(source, list(self.NAMES)), named, target)
        plain = covcal.Calibrator("temp").fit(source, labels, target)
        assert fitted.temperature_ == plain.temperature_
        assert fitted.classes_.tolist() == fitted.feature_names_in_.tolist() == list(self.NAMES)
        assert fitted.n_features_in_ == 3
        for name in ("logit_{}", "{} score", "p(class={})"):
            frame = Frame(source, [name.format(column) for column in self.NAMES])
            assert covcal.Calibrator("temp").fit(frame, named).classes_.tolist() == [*self.NAMES]
        shares = Frame(softmax(source, axis=1), list(self.NAMES))
        assert covcal.ece(shares, named) == covcal.ece(shares.values, labels)

    @pytest.mark.parametrize("names", [("True", "False"), ("p_yes", "p_no"), ("1", "0")])
    def test_columns_name_the_meaning_of_booleans(self, names: tuple[str, str]) -> None:
        """A table on the disk keeps the labels as booleans, and the columns as texts."""
        source, labels, _ = arrays(k=2)
        fitted = covcal.Calibrator("temp").fit(Frame(source[:, ::-1], list(names)), labels > 0)
        plain = covcal.Calibrator("temp").fit(source, labels)
        assert fitted.temperature_ == pytest.approx(plain.temperature_)
        assert fitted.classes_.tolist() == [True, False]
        shares = softmax(source, axis=1)
        assert covcal.ece(Frame(shares[:, ::-1], list(names)), labels > 0) == pytest.approx(
            covcal.ece(shares, labels)
        )

    def test_columns_that_are_numbers_as_texts_name_the_classes(self) -> None:
        """As a table on the disk names them, where the labels are whole numbers."""
        z, y, z_target = arrays()
        names = [str(number) for number in range(z.shape[1])][::-1]
        frame, target = Frame(z[:, ::-1], names), Frame(z_target[:, ::-1], names)
        found = covcal.Calibrator("temp").fit(frame, y, target)
        assert found.classes_.tolist() == [int(name) for name in names]
        expected = covcal.Calibrator("temp").fit(z, y, z_target).temperature_
        assert found.temperature_ == pytest.approx(expected)
        p = found.predict_proba(target)
        labels = np.arange(len(p)) % len(names)
        assert covcal.ece(Frame(p, names), labels) == pytest.approx(covcal.ece(p[:, ::-1], labels))
        with pytest.raises(ValueError, match="in another order than the columns"):
            covcal.Calibrator("temp").fit(frame, y, target, classes=range(len(names)))

    def test_the_columns_of_an_arrow_table_are_read(self) -> None:
        """Such a table names its columns in another attribute than a data frame."""
        pyarrow = pytest.importorskip("pyarrow")
        source, labels, _ = arrays(k=3)
        table = pyarrow.table(dict(zip(self.NAMES, source.T, strict=True)))
        fitted = covcal.Calibrator("temp").fit(table, np.array(self.NAMES)[labels])
        assert fitted.classes_.tolist() == list(self.NAMES)
        with pytest.raises(ValueError, match="same order"):
            fitted.predict(table.select(["odd", "neg", "pos"]))

    def test_reordered_columns_are_refused(self) -> None:
        """In the target and in later rows, with scikit-learn's words."""
        source, labels, target = arrays(k=3)
        frame = Frame(source, list(self.NAMES))
        other = Frame(target, ["odd", "neg", "pos"])
        with pytest.raises(ValueError, match="feature names should match"):
            covcal.Calibrator("temp").fit(frame, labels, other)
        fitted = covcal.Calibrator("temp").fit(frame, labels, target)
        with pytest.raises(ValueError, match="in the same order as they were in fit"):
            fitted.predict_proba(other)
        with pytest.raises(ValueError, match="unseen at fit time: new"):
            fitted.predict(Frame(target, ["pos", "neg", "new"]))
        same = fitted.predict_proba(Frame(target, list(self.NAMES)))
        np.testing.assert_array_equal(same, fitted.predict_proba(target))
        fitted.fit(source, labels, target)
        assert not hasattr(fitted, "feature_names_in_")
        named = np.array(self.NAMES)[labels]
        with pytest.raises(ValueError, match="target_logits must be in the order of the classes"):
            fitted.fit(source, named, other, classes=self.NAMES)
        fitted.fit(source, named, target, classes=self.NAMES)
        with pytest.raises(ValueError, match="give the order pos, neg, odd"):
            fitted.predict_proba(other)


CHECKS = (
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_estimators_unfitted",
    "check_get_params_invariance",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
)


class TestScikitLearn:
    @pytest.mark.parametrize("name", CHECKS)
    def test_the_estimator_checks_that_apply(self, name: str) -> None:
        """Checks that pass features instead of logits do not apply."""
        getattr(estimator_checks, name)("Calibrator", covcal.Calibrator("temp"))
        if name != "check_estimator_repr":
            wrapped = covcal.calibrated(LogisticRegression(), method="temp")
            getattr(estimator_checks, name)("CalibratedClassifier", wrapped)

    def test_cross_validation_and_search(self) -> None:
        """Both clone, fit and score the calibrator; the target rows are a parameter of fit."""
        source, labels, target = arrays(k=3)
        params = {"target_logits": np.concatenate([target, target])}
        accuracy = cross_val_score(covcal.Calibrator("temp"), source, labels, params=params)
        assert accuracy == pytest.approx((source.argmax(axis=1) == labels).mean(), abs=0.1)
        search = GridSearchCV(
            covcal.Calibrator("temp"), {"loss": ["brier", "nll"]}, scoring="neg_log_loss"
        ).fit(source, labels)
        assert search.best_params_["loss"] in ("brier", "nll")
        assert is_classifier(covcal.Calibrator())

    def test_parameters_of_both_parts_are_searched(self) -> None:
        """A search reaches the parameters of the classifier and of the calibrator."""
        X, y = load_digits(return_X_y=True)
        grid = {"estimator__C": [1e-6, 1.0], "calibrator__loss": ["nll"]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapped = covcal.calibrated(LogisticRegression(), method="temp", allow_limit=True)
            search = GridSearchCV(wrapped, grid, cv=2).fit(X[:600] / 16, y[:600])
        assert search.best_params_ == {"estimator__C": 1.0, "calibrator__loss": "nll"}
        assert search.best_estimator_.calibrator_.loss == "nll"
        assert search.best_estimator_.n_features_in_ == 64
        with pytest.raises(ValueError, match="there is no parameter C: set estimator"):
            wrapped.set_params(C=1)

    def test_a_calibrator_that_is_not_fitted_says_so(self) -> None:
        with pytest.raises(NotFittedError, match="call fit first"):
            covcal.Calibrator().predict(np.zeros((2, 3)))
        for method in ("predict", "predict_proba"):
            with pytest.raises(NotFittedError, match="call fit first"):
                getattr(covcal.calibrated(LogisticRegression()), method)(np.zeros((2, 3)))

    def test_a_classifier_is_wrapped(self) -> None:
        """A fitted classifier stays; an unfitted one is trained on a part of the rows."""
        X, y = load_digits(return_X_y=True)
        X = X / 16
        target = np.roll(X[1200:], 1, axis=1)
        model = LogisticRegression(max_iter=2000).fit(X[:600], y[:600])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = covcal.calibrated(model).fit(X[600:1200], y[600:1200], target)
            trained = covcal.calibrated(LogisticRegression(max_iter=2000), method="temp")
            trained.fit(X[:1200], y[:1200], target)
        assert fitted.estimator_ is model
        assert trained.estimator_ is not trained.estimator
        assert not hasattr(trained.estimator, "classes_")
        logits = (model.decision_function(rows) for rows in (X[600:1200], target))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            own = covcal.Calibrator().fit(next(logits), y[600:1200], next(logits))
        assert fitted.calibrator_.temperature_ == pytest.approx(own.temperature_, rel=1e-3)
        for wrapped in (fitted, trained):
            probabilities = wrapped.predict_proba(target)
            assert probabilities.sum(axis=1) == pytest.approx(np.ones(len(target)))
            assert wrapped.score(X[:100], y[:100]) > 0.9

    def test_a_wrapped_classifier_gets_sparse_rows(self) -> None:
        X, y = load_digits(return_X_y=True)
        rows = X[:600] / 16
        wrapped = covcal.calibrated(LogisticRegression(max_iter=2000), method="temp")
        assert repr(wrapped).startswith("CalibratedClassifier(LogisticRegression(max_iter=2000), ")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = wrapped.fit(rows, y[:600]).predict_proba(rows)
            for matrix in (csr_matrix(rows), coo_matrix(rows)):
                found = wrapped.fit(matrix, y[:600], matrix).predict_proba(matrix)
                assert found == pytest.approx(expected, abs=1e-3)

    def test_a_wrapped_classifier_gets_frames_as_frames(self) -> None:
        """So that it knows the names of columns. Frames of polars have no iloc."""

        class Rows(Frame):
            def get_columns(self) -> None:
                """Frames of polars have this method."""

            def __getitem__(self, rows: NDArray[np.int64]) -> "Rows":
                return Rows(self.values[rows], self.columns)

        class Model(DummyClassifier):  # type: ignore[misc]
            def fit(self, X: Rows, y: NDArray[Any]) -> "Model":
                self.columns = X.columns
                super().fit(X.values, y)
                return self

        source, labels, _ = arrays(k=3)
        wrapped = covcal.calibrated(Model(strategy="prior"), method="none")
        with pytest.warns(UserWarning, match="no better than always"):
            wrapped.fit(Rows(source, ["a", "b", "c"]), labels)
        assert wrapped.estimator_.columns == ["a", "b", "c"]

    def test_classifiers_of_all_kinds_are_wrapped(self) -> None:
        """A tree gives only 0 and 1, and an SVC may give one number per pair of classes."""
        X, y = load_digits(n_class=3, return_X_y=True)
        tree = covcal.calibrated(DecisionTreeClassifier(random_state=0), method="temp")
        pairs = SVC(decision_function_shape="ovo").fit(X[:200], y[:200])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert tree.fit(X, y).calibrator_.temperature_ > 1
            with pytest.raises(ValueError, match=r"differ in .*='ovr'"):
                covcal.calibrated(pairs, method="temp").fit(X[200:], y[200:])

    @pytest.mark.parametrize("k", [2, 3])
    def test_labels_in_a_column_are_labels(self, k: int) -> None:
        """CatBoost's predict has shape (n, 1), which would be compared with all n labels."""

        class Column(LogisticRegression):  # type: ignore[misc]
            def predict(self, X: NDArray[Any]) -> Any:
                return super().predict(X)[:, None]

        rows, labels, _ = arrays(k=k)
        model = Column().fit(rows, labels)
        wrapped = covcal.calibrated(model, method="temp").fit(rows, labels)
        assert wrapped.predict(rows).shape == labels.shape
        assert wrapped.score(rows, labels) == np.mean(model.predict(rows)[:, 0] == labels)

    def test_reordered_columns_are_refused_if_the_classifier_reads_positions(self) -> None:
        """LightGBM does. A transformer of named columns does not."""

        class Positions(LogisticRegression):  # type: ignore[misc]
            classes_ = None  # CatBoost has this attribute before fit

            def fit(self, X: Any, y: Any) -> Any:
                return super().fit(np.asarray(X), y)

            def predict_proba(self, X: Any) -> Any:
                return super().predict_proba(np.asarray(X))

        class Names(Positions):
            def predict_proba(self, X: Any) -> Any:
                return super().predict_proba(X[["a", "b", "c"]])

        source, labels, new = arrays(k=3)
        rows, target = (pd.DataFrame(values, columns=["a", "b", "c"]) for values in (source, new))
        other = target[["c", "a", "b"]]
        by_name = covcal.calibrated(Names(), method="temp").fit(rows, labels, other)
        np.testing.assert_array_equal(by_name.predict_proba(other), by_name.predict_proba(target))
        by_place = covcal.calibrated(Positions(), method="temp").fit(rows, labels, target)
        for call in (by_place.predict, by_place.predict_proba):
            with pytest.raises(ValueError, match="must be in the same order as they were in fit"):
                call(other)
        with pytest.raises(ValueError, match="must be in the same order as they were in fit"):
            covcal.calibrated(Positions()).fit(rows, labels, other)

    def test_a_class_with_two_rows_is_trained(self) -> None:
        rows, labels, _ = arrays(k=3)
        labels = labels % 2
        labels[:2] = 2
        for seed in range(8):
            wrapped = covcal.calibrated(LogisticRegression(), method="temp", seed=seed)
            assert wrapped.fit(rows, labels).classes_.tolist() == [0, 1, 2]

    def test_what_is_no_classifier_is_refused(self) -> None:
        for model in (LinearRegression(), "model", LogisticRegression):
            with pytest.raises(covcal.CovcalError, match="estimator must be a classifier"):
                covcal.calibrated(model).fit(np.eye(60), np.arange(60) % 2)

    def test_outputs_that_are_no_probabilities_are_refused(self) -> None:
        """LightGBM with its own loss returns scores, and other classifiers return tensors."""
        torch = pytest.importorskip("torch")

        class Model(LogisticRegression):  # type: ignore[misc]
            change: Any = None

            def predict_proba(self, X: Any) -> Any:
                return self.change(super().predict_proba(X))

        rows, labels, _ = arrays(k=3)
        wrapped = covcal.calibrated(Model().fit(rows, labels), method="temp")
        changes: dict[str, Any] = {
            "not a probability": np.log,
            r"must return shape \(n, K\), not \(600,\)": lambda shares: shares[:, 0],
            "must be an array": csr_matrix,
            "in the order of the classes": lambda shares: pd.DataFrame(shares)[[2, 0, 1]],
        }
        for message, change in changes.items():
            Model.change = staticmethod(change)
            with pytest.raises(ValueError, match=message):
                wrapped.fit(rows, labels)
        Model.change = staticmethod(lambda shares: torch.tensor(shares, requires_grad=True))
        assert wrapped.fit(rows, labels).predict_proba(rows).shape == (600, 3)
        with pytest.raises(ValueError, match=r"X must be an array .* not generator"):
            wrapped.fit((row for row in rows), labels)
        with pytest.raises(ValueError, match="X has only 3 rows"):
            covcal.calibrated(LogisticRegression()).fit(rows[:3], [0, 1, 2])
        with pytest.raises(ValueError, match=r"calibrator must be a Calibrator, not {}"):
            wrapped.set_params(calibrator={}).fit(rows, labels)

    def test_a_stack_of_classifiers_is_one(self) -> None:
        """Its predict_proba appears only when it is fitted."""
        rows, labels, _ = arrays(k=3)
        model = StackingClassifier([("linear", LogisticRegression())])
        wrapped = covcal.calibrated(model, method="temp").fit(rows, labels)
        assert wrapped.predict_proba(rows).shape == (600, 3)

    @pytest.mark.parametrize("shape", [(59,), (61,), (60, 1)])
    def test_rows_and_labels_of_a_wrapped_classifier_are_as_many(
        self, shape: tuple[int, ...]
    ) -> None:
        wrapped = covcal.calibrated(LogisticRegression())
        with pytest.raises(covcal.CovcalError, match=r"y must have shape \(60,\)"):
            wrapped.fit(np.zeros((60, 2)), np.zeros(shape))


OPTION_OR_COMMAND = re.compile(r"--|covcal (pick|label|extract|adapt|calibrate|estimate|evaluate)")


class Series:
    """A pandas Series as far as a prior is read."""

    def __init__(self, values: dict[Any, float]) -> None:
        self.values, self.index = values, list(values)

    def to_dict(self) -> dict[Any, float]:
        return self.values


class TestArguments:
    @pytest.mark.parametrize("kind", ["dict", "array", "file", "series"])
    def test_a_prior_is_a_dict_an_array_or_a_file(self, kind: str, tmp_path: Path) -> None:
        """All three give the same offsets."""
        source, labels, target = arrays(k=3)
        shares = [0.5, 0.3, 0.2]
        path = tmp_path / "prior.json"
        path.write_text(json.dumps(dict(zip("012", shares, strict=True))))
        prior: dict[str, Any] = {
            "dict": dict(enumerate(shares)),
            "array": np.array(shares),
            "file": str(path),
            "series": Series(dict([*enumerate(shares)][::-1])),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = covcal.Calibrator("prior", target_prior=prior[kind]).fit(
                source, labels, target
            )
        frequencies = (np.bincount(labels) + 0.5) / (len(labels) + 1.5)
        expected = np.log(np.array(shares) / frequencies)
        assert fitted.calibration_.class_offsets == pytest.approx(expected.tolist())
        assert fitted.calibration_.target_prior.shares == pytest.approx(shares)

    @pytest.mark.parametrize(
        ("prior", "message"),
        [
            ([0.5, 0.5], "share of at least 0 for each of 3 classes"),
            ([0.5, 0.6, -0.1], "share of at least 0"),
            ([0.5, 0.3, 0.3], "sums to 1.1, not to 1"),
            ({0: 0.5, 1: 0.5}, "has no share for 2"),
            ({0: 0.5, 1: 0.3, 2: 0.1, 3: 0.1}, "has the class 3"),
        ],
    )
    def test_a_prior_that_is_none(self, prior: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            covcal.Calibrator("prior", target_prior=prior).fit(*arrays(k=3))

    def test_arrays_of_every_kind_are_read(self) -> None:
        """Columns of lists, NumPy's texts of any length, whole numbers as objects."""
        torch = pytest.importorskip("torch")
        source, labels, target = arrays(k=3)
        plain = covcal.Calibrator("temp").fit(source, labels, target)
        lists = pd.Series(source.tolist()), pd.Series(list(target))
        kinds: list[Any] = [np.array(["a", "b", "c"], dtype=np.dtypes.StringDType())[labels]]
        kinds.append(np.array([float(n) if n == 1 else n for n in labels.tolist()], dtype=object))
        for names in kinds:
            fitted = covcal.Calibrator("temp").fit(lists[0], names, lists[1])
            assert fitted.temperature_ == plain.temperature_
        negated = torch._neg_view(torch.tensor(-source))
        with pytest.raises(ValueError, match=r"source_logits must be an array .*negative bit"):
            covcal.Calibrator("temp").fit(negated, labels)

    def test_tensors_with_gradients_are_read(self) -> None:
        torch = pytest.importorskip("torch")
        source, labels, target = arrays(k=3)
        tensors = (torch.tensor(values, requires_grad=True) for values in (source, target))
        first, second = tensors
        fitted = covcal.Calibrator("temp").fit(first, torch.tensor(labels), second)
        plain = covcal.Calibrator("temp").fit(source, labels, target)
        assert fitted.temperature_ == plain.temperature_
        np.testing.assert_array_equal(fitted.predict_proba(second), plain.predict_proba(target))

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            (np.r_[np.nan, np.zeros(599)], "source_labels: row 0 is nan"),
            (np.array([None, "a"] * 300, dtype=object), "row 0 is None: give its class"),
            (["a", "b", np.nan] * 200, "row 2 is nan: give its class"),
            (np.array([1, "a"] * 300, dtype=object), "only class names, not int and str"),
            (np.array([Fraction(1)] * 600), "only class names, not Fraction"),
            ([np.ma.masked, *[0, 1] * 299, 0], "masked values"),
            (["2", "10", "1"] * 200, "numbers as texts, so the order of the classes is not clear"),
            (2.0**53 + np.arange(600) % 3, "floats cannot represent"),
            (
                np.eye(3)[np.arange(600) % 3],
                r"for one-hot rows, give source_labels\.argmax\(axis=1\)",
            ),
            (np.array(["a", "b", "\udcff"] * 200), "not Unicode text"),
        ],
    )
    def test_labels_that_are_none(self, labels: NDArray[Any], message: str) -> None:
        source, _, target = arrays(k=3)
        with pytest.raises(ValueError, match=message):
            covcal.Calibrator("temp").fit(source, labels, target)

    @pytest.mark.parametrize("kind", [object, "Int64", "category", "int64[pyarrow]"])
    def test_numbers_of_any_column_type_are_numbers(self, kind: Any) -> None:
        """Also if a class has no row, so that the labels do not show the number of classes."""
        source, labels, target = arrays(k=3)
        rows = labels < 2
        plain = covcal.Calibrator("temp").fit(source[rows], labels[rows], target)
        column = pd.Series(labels[rows]).astype(kind)
        fitted = covcal.Calibrator("temp").fit(source[rows], column, target)
        assert fitted.temperature_ == plain.temperature_
        assert covcal.ece(fitted.predict_proba(source[rows]), column) > 0
        flags = covcal.Calibrator("temp").fit(source[rows][:, :2], labels[rows] > 0)
        assert flags.predict(source[:, :2]).dtype == bool

    def test_labels_in_another_row_order_are_refused(self) -> None:
        """The index of pandas shows the order. Other indexes are ignored, as in scikit-learn."""
        source, labels, _ = arrays(k=3)
        frame, column = pd.DataFrame(source), pd.Series(labels)
        calibrator = covcal.Calibrator("temp").fit(frame, column.set_axis(column.index + 9))
        other = column.iloc[::-1]
        p = calibrator.predict_proba(frame)
        for call in (
            lambda: covcal.Calibrator("temp").fit(frame, other),
            lambda: calibrator.score(frame, other),
            lambda: covcal.ece(pd.DataFrame(p), other),
            lambda: covcal.calibrated(LogisticRegression()).fit(frame, other),
            lambda: covcal.Watch(calibrator, frame, labels).observe(
                frame, period="2026-01", labels=other
            ),
            lambda: covcal.Decision(error=0.1).fit(source, column, other),
        ):
            with pytest.raises(ValueError, match=r"in different orders: give .*\.loc.rows"):
                call()
        assert calibrator.score(frame, other.loc[frame.index]) > 0.5

    def test_a_seed_is_a_whole_number(self) -> None:
        with pytest.raises(ValueError, match=r"seed must be a whole number, not 1\.5"):
            covcal.Calibrator("temp", seed=1.5).fit(*arrays())  # type: ignore[arg-type]

    def test_messages_name_arguments_of_python(self) -> None:
        """No message or warning of the calibrator names an option of the command line."""
        source, labels, target = arrays(k=3, shift=2.0)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fitted = covcal.Calibrator().fit(source, labels, target)
        texts = [*(str(warning.message) for warning in said), fitted.reason_, *fitted.notes_]
        wrong: list[dict[str, Any]] = [
            {"method": "prior"},
            {"method": "temp", "target_prior": "uniform"},
        ]
        for parameters in wrong:
            with pytest.raises(covcal.CovcalError) as refused:
                covcal.Calibrator(**parameters).fit(source, labels, target)
            texts.append(str(refused.value))
        with warnings.catch_warnings(record=True) as exchanged:
            warnings.simplefilter("always")
            covcal.Calibrator("temp", allow_limit=True).fit(source, (labels + 1) % 3, target)
        assert {warning.filename for warning in exchanged} == {__file__}
        texts += [str(warning.message) for warning in exchanged]
        assert any("in the model's order with classes" in text for text in texts)
        assert [text for text in texts if OPTION_OR_COMMAND.search(text)] == []

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (
                lambda path: covcal.write_document({}, path, force=False),
                "exists already: pass force=True to replace it, or another output",
            ),
            (
                lambda _: covcal.reliability_diagram(np.eye(2), [0, 1], "r.png"),
                "exists already: pass force=True",
            ),
            (
                lambda path: covcal.calibrate(path, covcal.CalibrateSettings(labels=10**6)),
                "but labels asks for 1000000",
            ),
            (lambda path: covcal.report(path, [], "r.pdf"), "give output a name"),
            (lambda _: covcal.Watch("cal.json", every="hour"), "^every 'hour' is not a period"),
            (
                lambda _: covcal.calibrate("rows.csv"),
                "run covcal extract rows.csv -o rows.h5 and give rows.h5",
            ),
        ],
    )
    def test_messages_of_commands_name_arguments_of_python(
        self, call: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Commands in messages keep their options, and the command line keeps its messages."""
        monkeypatch.chdir(tmp_path)
        Path("rows.csv").write_text("label,prob_a\n")
        Path("r.png").touch()
        path = write_features(tmp_path / "features.h5")
        with pytest.raises(covcal.CovcalError, match=message):
            call(path)
        assert "--labels asks for 1000000" in command("calibrate", path, "--labels", 10**6).err

    def test_labels_by_number(self, tmp_path: Path) -> None:
        """As --labels 50 on the command line: random rows with known labels."""
        source, target = (
            clusters_domain(name, sizes=(300, 400, 100)) for name in ("source", "target")
        )
        path = write_features(tmp_path / "f.h5", source=source, target=target)
        found = covcal.calibrate(path, covcal.CalibrateSettings(labels=50))
        assert found.labelled_rows is not None
        assert found.labelled_rows.n == 50
        command("calibrate", path, "--labels", 50, "-o", tmp_path / "c.json").require_success()
        read = covcal.read_calibration(tmp_path / "c.json")
        assert read.forecaster_temperature == found.forecaster_temperature
        for wrong in ({"labels": 0}, {"labels": 5, "method": "temp"}):
            with pytest.raises(covcal.CovcalError, match="labels"):
                covcal.CalibrateSettings(**wrong)


class TestMetrics:
    def test_ece_by_hand(self) -> None:
        """Bins of equal width, closed on the right, of the most probable class."""
        rng = np.random.default_rng(0)
        probabilities = softmax(2 * rng.normal(size=(500, 3)), axis=1)
        labels = rng.integers(3, size=500)
        top, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
        bins = np.ceil(15 * top).astype(int)
        expected = sum(abs((top - right)[bins == b].sum()) for b in range(1, 16)) / 500
        assert covcal.ece(probabilities, labels) == pytest.approx(expected)
        names = np.array(["c", "a", "b"])
        assert covcal.ece(probabilities, names[labels], classes=names) == pytest.approx(expected)
        second = probabilities[:, 1]
        binary = covcal.ece(second, labels == 1)
        both = np.stack([1 - second, second], axis=1)
        assert binary == covcal.ece(both, (labels == 1).astype(int))

    @pytest.mark.parametrize(
        ("probabilities", "labels", "message"),
        [
            (np.full((4, 2), 0.7), np.zeros(4, int), "row 0 has 1.4"),
            (
                np.full((4, 2), 0.5),
                np.full(4, 2),
                "row 0 is 2, which is not one of the classes 0, 1",
            ),
            (np.full((4, 2), 0.5), np.full(4, "yes"), "give numbers, or give classes"),
            (np.full((4, 2), 0.5), np.zeros(3, int), r"labels must have shape \(4,\)"),
            (np.array([0.5, 70.0]), np.zeros(2, int), "between 0 and 1: row 1 has 70"),
        ],
    )
    def test_what_is_no_probability_or_label(
        self, probabilities: NDArray[Any], labels: NDArray[Any], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            covcal.ece(probabilities, labels)

    def test_the_diagram_is_a_figure_and_a_file(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        probabilities = softmax(rng.normal(size=(60, 3)), axis=1)
        labels = rng.integers(3, size=60)
        figure = covcal.reliability_diagram(probabilities, labels, tmp_path / "r.svg")
        share = f"{100 * covcal.ece(probabilities, labels):.1f} %"
        titles = [axes.get_title() for axes in figure.axes]
        assert any(f"ECE {share}, n = 60" in title for title in titles)
        assert (tmp_path / "r.svg").read_text().startswith("<?xml")
