"""`covcal.Watch`: periods whose logits are in memory, judged as ``covcal watch`` judges files."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import covcal_cli.api as covcal
from covcal_cli.records import document_text
from covcal_cli.watch.period import Period
from tests.cli_runner import covcal as command
from tests.made_files import clusters_domain
from tests.watch.weeks import SIZES, WEEK, alone, calibrated

MOVED = {"w0": 0.0, "w1": 0.0, "w2": 1.0}
CLASSES = [f"class {number}" for number in range(5)]


def rows(name: str) -> dict[str, Any]:
    return clusters_domain("later", sizes=WEEK, moved=MOVED[name], seed=int(name[1]))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration and three weeks, the last of which has moved; not to be changed."""
    folder = tmp_path_factory.mktemp("arrays")
    calibrated(folder)
    for name in MOVED:
        alone(folder / f"{name}.h5", rows(name))
    return folder


def content(period: Period) -> Any:
    """A period as JSON, without the names and digests of its files."""
    return without_files(json.loads(document_text(period, Path("period.json"))))


def without_files(period: Any) -> Any:
    del period["calibration"], period["measured"]["file"], period["measured"]["rows_sha256"]
    del period["version"], period["measured"]["row_sample"]  # depends on ids
    period.pop("content_sha256", None)
    return period


class TestACalibrationFile:
    @pytest.mark.parametrize("labelled", [False, True])
    def test_the_verdicts_are_those_of_the_command(self, labelled: bool, made: Path) -> None:
        """Every number, sentence and alarm of three periods equals the command's JSON."""
        option = ["--target-labels"] if labelled else []
        done = command("watch", *(f"{name}.h5" for name in MOVED), *option, "-o", "-", cwd=made)
        expected = [without_files(one) for one in json.loads(done.require_success().out)["periods"]]
        watch = covcal.Watch(made / "cal.json")
        for name, period in zip(MOVED, expected, strict=True):
            week = rows(name)
            labels = week["labels"] if labelled else None
            judged = watch.observe(
                week["logits"], period=name, features=week["features"], labels=labels
            )
            assert content(judged) == period
        assert [one["alarm"]["raised"] for one in expected] == [False, False, True]

    def test_the_promise_of_a_decision_is_watched_as_by_the_command(
        self, made: Path, tmp_path: Path
    ) -> None:
        decision, week = tmp_path / "decide.json", rows("w1")
        decided = command("decide", "w0.h5", "--error", 0.4, "-q", "-o", decision, cwd=made)
        decided.require_success()
        words = ("watch", "w1.h5", "--target-labels", "--decide", decision, "-o", "-")
        (expected,) = json.loads(command(*words, cwd=made).require_success().out)["periods"]
        judged = covcal.Watch(made / "cal.json", decide=decision).observe(
            week["logits"], period="w1", features=week["features"], labels=week["labels"]
        )
        assert judged.promise is not None
        assert judged.promise.labels > 0
        assert content(judged) == without_files(expected)

    def test_the_command_goes_on_with_its_history(self, made: Path, tmp_path: Path) -> None:
        """The alarm of the command uses the periods that were observed in Python."""
        folder = Path(shutil.copytree(made, tmp_path / "copy"))
        watch = covcal.Watch(folder / "cal.json", history=folder / "watch.jsonl")
        for name in ("w0", "w1"):
            watch.observe(rows(name)["logits"], features=rows(name)["features"], period=name)
        words = ("watch", "w2.h5", "--history", "watch.jsonl", "-o", "-")
        watched = json.loads(command(*words, cwd=folder).require_success().out)
        assert watched["earlier"] == 2
        again = covcal.Watch(folder / "cal.json", history=folder / "watch.jsonl")
        assert [one.measured.period for one in again.periods_] == ["w0", "w1", "w2"]

    def test_labels_that_arrive_later_decide(self, made: Path) -> None:
        """The same rows with labels add these labels, even if only some rows have a label."""
        week, watch = rows("w0"), covcal.Watch(made / "cal.json")
        before = watch.observe(week["logits"], period="w0")
        labels = np.where(np.arange(len(week["labels"])) < 80, week["labels"], np.nan)
        after = watch.observe(week["logits"], period="w0", labels=labels)
        assert repr(before) == f"Period('w0': {before.answer}; rows: {before.change})"
        assert before.by_labels is None
        assert after.measured.labels is not None
        assert after.measured.labels.rows == 80
        right = (week["logits"].argmax(axis=1) == week["labels"])[:80].mean()
        assert after.measured.labels.accuracy == pytest.approx(right, abs=0.05)
        assert len(watch.periods_) == 1

    def test_a_frame_with_other_class_names_is_refused(self, made: Path) -> None:
        frame = pd.DataFrame(rows("w1")["logits"], columns=["Else", *CLASSES[1:]])
        with pytest.raises(ValueError, match=f"have no column {CLASSES[0]}, which is"):
            covcal.Watch(made / "cal.json").observe(frame, period="w")

    def test_columns_may_be_named_as_in_a_table_for_extract(self, made: Path) -> None:
        """Their order does not matter, and other columns are no logits."""
        week = rows("w1")
        frame = pd.DataFrame(week["logits"], columns=[f"logit_{name}" for name in CLASSES])
        frame.insert(0, "amount", 1.0)
        periods = [
            covcal.Watch(made / "cal.json").observe(values, period="w")
            for values in (week["logits"], frame[frame.columns[::-1]])
        ]
        assert periods[0].answer == periods[1].answer

    def test_a_calibrator_refuses_classes_in_another_order_than_its_columns(self) -> None:
        """Else each column of the frame would be read as another class."""
        week = rows("w1")
        frame = pd.DataFrame(week["logits"], columns=CLASSES)
        names = np.array(CLASSES)[week["labels"]]
        with pytest.raises(ValueError, match="in another order than the columns"):
            covcal.Calibrator("temp").fit(frame, names, classes=CLASSES[::-1])

    def test_a_frame_has_its_classes_among_other_columns(self, made: Path) -> None:
        week = rows("w1")
        frame = pd.DataFrame(week["logits"][:, ::-1], columns=CLASSES[::-1]).assign(amount=1.0)
        names = [CLASSES[number] for number in week["labels"]]
        one = covcal.Watch(made / "cal.json").observe(frame, period="w", labels=names)
        other = covcal.Watch(made / "cal.json").observe(
            week["logits"], period="w", labels=week["labels"]
        )
        assert replace(one, version="") == replace(other, version="")
        table = pytest.importorskip("pyarrow").table(frame)
        same = covcal.Watch(made / "cal.json").observe(table, period="w", labels=names)
        assert same == one
        columns = table.select(["amount"])
        same = covcal.Watch(made / "cal.json").observe(
            week["logits"], period="w", labels=names, columns=columns
        )
        assert same == one


@pytest.fixture(scope="module")
def arrays() -> tuple[Any, Any, Any]:
    """Source logits, source labels and target logits."""
    source, target = (clusters_domain(name, sizes=SIZES) for name in ("source", "target"))
    return source["logits"], source["labels"], target["logits"]


class TestACalibrator:
    def test_it_judges_as_its_file_would(self, arrays: tuple[Any, Any, Any]) -> None:
        """Confidence is that of the calibrator; the moved week raises the alarm."""
        calibrator = covcal.Calibrator("temp").fit(*arrays)
        watch = covcal.Watch(calibrator, *arrays, tolerance=0.1)
        periods = [watch.observe(rows(name)["logits"], period=name) for name in MOVED]
        assert [period.alarm.raised for period in periods] == [False, False, True]
        expected = calibrator.predict_proba(rows("w0")["logits"]).max(axis=1).mean()
        assert periods[0].measured.confidence == pytest.approx(expected, abs=1e-6)
        assert {period.tolerance for period in periods} == {0.1}

    def test_other_arrays_are_refused(self, arrays: tuple[Any, Any, Any]) -> None:
        source, labels, target = arrays
        calibrator = covcal.Calibrator("temp").fit(source, labels, target)
        for others in ((source, labels, target[1:]), (source[1:], labels[1:], target)):
            with pytest.raises(covcal.CovcalError, match="differ from the arrays of the fit"):
                covcal.Watch(calibrator, *others)
        with pytest.raises(covcal.CovcalError, match="give the source_logits, source_labels"):
            covcal.Watch(calibrator)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"logits": np.zeros((3, 4)) + np.arange(4)},
            "logits have 4 classes, but the calibration has 5",
        ),
        ({"features": np.zeros(200)}, r"features must have shape \(200, d\)"),
        ({"labels": [1, 2]}, r"labels must have shape \(200,\)"),
        ({"labels": ["cat"] * 200}, "row 0 is cat, which is not one of the classes"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    arguments: dict[str, Any], message: str, made: Path
) -> None:
    watch = covcal.Watch(made / "cal.json")
    with pytest.raises(covcal.CovcalError, match=message):
        watch.observe(**{"logits": rows("w0")["logits"], "period": "w"} | arguments)
    assert watch.periods_ == ()


def test_other_rows_of_a_known_period_are_refused(made: Path) -> None:
    watch = covcal.Watch(made / "cal.json")
    watch.observe(rows("w0")["logits"], period="w")
    with pytest.raises(covcal.CovcalError, match="has other rows for w: pass join=True"):
        watch.observe(rows("w1")["logits"], period="w")
    assert watch.observe(rows("w1")["logits"], period="w", join=True).measured.rows == 400


def test_a_period_may_have_no_rows(made: Path) -> None:
    """As a file without rows: it has no confidence, and rows that come later fill it."""
    watch = covcal.Watch(made / "cal.json")
    nothing: list[Any] = [[], pd.DataFrame(columns=CLASSES), np.zeros((0, 5))]
    for logits in nothing:
        assert watch.observe(logits, period="w").answer == "not known: the period has no rows"
    assert watch.observe(rows("w0")["logits"], period="w").measured.rows == 200
    with pytest.raises(ValueError, match=r"logits must have shape .*, not \(\)"):
        watch.observe(np.asarray(5), period="x")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([1, 2], "columns must be a data frame, or a dict"),
        ({"a/b": np.zeros(200)}, "'a/b' cannot be the name of a column"),
        ({1: np.zeros(200), "1": np.zeros(200)}, "two columns are called '1'"),
        ({"amount": 5}, r"columns\['amount'\] must have shape \(200,\)"),
    ],
)
def test_columns_that_no_file_can_keep_are_refused(columns: Any, message: str, made: Path) -> None:
    with pytest.raises(covcal.CovcalError, match=message):
        covcal.Watch(made / "cal.json").observe(rows("w0")["logits"], period="w", columns=columns)


def test_missing_values_of_every_kind_are_missing(arrays: tuple[Any, Any, Any]) -> None:
    """None, NaN, and pandas' NA in numbers and texts; texts in a column of numbers are too."""
    source, labels, target = arrays
    rng = np.random.default_rng(0)
    usual = {"amount": rng.normal(size=len(target)), "shop": rng.choice(["a", "b"], len(target))}
    calibrator = covcal.Calibrator("temp").fit(source, labels, target)
    watch = covcal.Watch(calibrator, source, labels, target, target_columns=usual)
    holes: dict[str, Any] = {
        "frame": pd.DataFrame(
            {
                "amount": pd.array([1.5, None] * 100, dtype="Float64"),
                "shop": pd.array(["a", None] * 100, dtype="string"),
            }
        ),
        "lists": {"amount": [1.5, None] * 100, "shop": ["a", float("nan")] * 100},
        "texts": {"amount": ["?"] * 200, "shop": ["a", ""] * 100},
    }
    for number, (name, columns) in enumerate(holes.items()):
        week = clusters_domain("later", sizes=WEEK, seed=number)["logits"]
        period = watch.observe(week, period=name, columns=columns)
        missing = {column.name: column.missing for column in period.measured.columns}
        assert missing == {"amount": 1.0 if name == "texts" else 0.5, "shop": 0.5}
