"""Metrics of each period: estimated as by ``covcal estimate``, or by the labels of the period."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sklearn

import covcal_cli.api as covcal
from covcal_cli.calibrate.estimate import estimate
from covcal_cli.calibrate.problem import EstimateSettings
from covcal_cli.errors import CovcalError, in_percent
from covcal_cli.estimators.metrics import MetricEstimate, parse_metrics, read_costs
from covcal_cli.report.metric_estimates import metric_cell
from covcal_cli.watch.period import Watched, WatchSettings
from covcal_cli.watch.watch import watch
from tests.cli_runner import covcal as command
from tests.made_files import clusters_domain, write_features
from tests.watch.weeks import SIZES, WEEK, calibrated, week

METRICS = "accuracy,f1,recall:class 1,auroc:macro"
CLASSES = [f"class {number}" for number in range(5)]
By = dict[tuple[str, str | None], MetricEstimate]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration with its reference data and two weeks; not to be changed."""
    folder = tmp_path_factory.mktemp("metrics")
    calibrated(folder)
    week(folder / "w0.h5", 0)
    week(folder / "w1.h5", 1, moved=0.5)
    watched(folder, "w0.h5")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "weeks"))


def watched(folder: Path, *files: str, metrics: str = "", **more: Any) -> Watched:
    wanted = parse_metrics(metrics) if metrics else ()
    settings = WatchSettings(metrics=wanted, target_labels=more.pop("target_labels", False))
    return watch([folder / name for name in files], folder / "cal.json", settings, **more)


def of_last(result: Watched) -> By:
    metrics = result.periods[-1].measured.metrics
    return {(metric.metric, metric.class_name): metric for metric in metrics}


def numbers(metric: MetricEstimate) -> list[float]:
    return [number for number in (metric.low, metric.value, metric.high) if number is not None]


def late(folder: Path, rows: int) -> Path:
    """Write labels of the first rows of w0."""
    target = clusters_domain("later", sizes=WEEK, seed=0)
    lines = [f"{target['ids'][n].decode()},{CLASSES[target['labels'][n]]}" for n in range(rows)]
    path = folder / "late.csv"
    path.write_text("\n".join(["id,label", *lines]) + "\n", encoding="utf-8")
    return path


def costs_json(folder: Path, wrong: float = 10) -> Path:
    """Write costs that depend on the pair of classes."""
    pair = {"true": CLASSES[0], "predicted": CLASSES[1], "cost": 3}
    path = folder / f"costs-{wrong}.json"
    path.write_text(json.dumps({"wrong": wrong, "pairs": [pair]}), encoding="utf-8")
    return path


class TestWithoutLabels:
    def test_the_numbers_are_those_of_estimate(self, made: Path, tmp_path: Path) -> None:
        """The same source rows, and the period as the target."""
        target = clusters_domain("later", sizes=WEEK, moved=0.5, seed=1)
        target["split"][:] = 0
        source = clusters_domain("source", sizes=SIZES)
        write_features(tmp_path / "both.h5", source=source, target=target)
        costs = costs_json(tmp_path)
        wanted = parse_metrics(METRICS)
        expected = estimate(tmp_path / "both.h5", metrics=wanted, costs=costs).metrics
        metrics = of_last(watched(made, "w1.h5", metrics=METRICS, costs=costs))
        assert len(expected) == len(metrics) == 10
        for metric in expected:
            own = metrics[metric.metric, metric.class_name]
            assert numbers(own) == pytest.approx(numbers(metric), abs=1e-6)
            assert own.interval == metric.interval

    def test_the_class_frequencies_of_the_calibration_count(self, folder: Path) -> None:
        """As for estimate with the prior that calibrate was given."""
        command("calibrate", "features.h5", "--target-prior", "uniform", "-f", cwd=folder)
        target = clusters_domain("later", sizes=WEEK, seed=0)
        target["split"][:] = 0
        source = clusters_domain("source", sizes=SIZES)
        write_features(folder / "both.h5", source=source, target=target)
        wanted = parse_metrics("recall")
        settings = EstimateSettings(target_prior="uniform")
        expected = estimate(folder / "both.h5", settings, metrics=wanted).metrics
        metrics = of_last(watched(folder, "w0.h5", metrics="recall"))
        for metric in expected:
            own = metrics[metric.metric, metric.class_name]
            assert numbers(own) == pytest.approx(numbers(metric), abs=1e-6)

    def test_a_sketch_stands_in_for_a_source_that_is_gone(self, folder: Path) -> None:
        full = of_last(watched(folder, "w0.h5", metrics="recall"))
        (folder / "features.h5").unlink()
        sketch = of_last(watched(folder, "w0.h5", metrics="recall"))
        for key, metric in full.items():
            assert numbers(sketch[key]) == pytest.approx(numbers(metric), abs=0.1)

    def test_other_metrics_later_are_added_to_a_known_period(self, folder: Path) -> None:
        """Those of the history are not estimated again, and equal ones add no line."""
        history = folder / "watch.jsonl"
        first = of_last(watched(folder, "w0.h5", metrics="f1", history=history))
        both = of_last(watched(folder, "w0.h5", metrics="recall:class 1", history=history))
        assert both == first | {("recall", "class 1"): both["recall", "class 1"]}
        before = history.read_bytes()
        assert of_last(watched(folder, "w0.h5", metrics="f1", history=history)) == both
        assert of_last(watched(folder, "w0.h5", history=history)) == both
        assert history.read_bytes() == before


class TestWithLabels:
    def test_labels_of_all_rows_give_the_counts(self, made: Path) -> None:
        metrics = of_last(watched(made, "w1.h5", metrics="f1,accuracy,recall", target_labels=True))
        rows = clusters_domain("later", sizes=WEEK, moved=0.5, seed=1)
        labels, predictions = rows["labels"], rows["logits"].argmax(axis=1)
        scores = {"f1": sklearn.f1_score, "recall": sklearn.recall_score}
        for name, score in scores.items():
            values = score(labels, predictions, average=None)
            for of, value in zip(CLASSES, values, strict=True):
                assert numbers(metrics[name, of]) == pytest.approx([value] * 3)
        assert numbers(metrics["accuracy", None]) == pytest.approx(
            [np.mean(labels == predictions)] * 3
        )

    def test_labels_of_some_rows_give_an_interval(self, folder: Path) -> None:
        """Late labels take the place of the estimates that the history has."""
        history = folder / "watch.jsonl"
        before = of_last(watched(folder, "w0.h5", metrics="recall:macro", history=history))
        late(folder, 120)
        after = of_last(watched(folder, history=history, labels=folder / "late.csv"))
        rows = clusters_domain("later", sizes=WEEK, seed=0)
        truth = sklearn.recall_score(rows["labels"], rows["logits"].argmax(axis=1), average="macro")
        low, _, high = numbers(after["recall", None])
        assert low < truth < high
        assert after["recall", None].interval.startswith("A range that was computed from labels is")
        assert high - low < before["recall", None].high - before["recall", None].low  # type: ignore[operator]
        assert of_last(watched(folder, "w0.h5", metrics="recall:macro", history=history)) == after


class TestGates:
    def test_each_period_is_judged_and_too_few_rows_are_skipped(self, folder: Path) -> None:
        arguments = ("w0.h5", "w1.h5", "--fail-below", "recall:class 1=0.2")
        good = command("watch", *arguments, cwd=folder).require_success()
        assert good.out.count("gate recall:class 1 >= 0.2 passed by the low end on w") == 2
        bad = command("watch", *arguments, "--fail-below", "accuracy=0.99", cwd=folder)
        assert bad.code == 3
        assert bad.out.count("gate accuracy >= 0.99 FAILED by the low end on w") == 2
        only = clusters_domain("later", sizes=(2, 2, 2), seed=3)
        write_features(
            folder / "few.h5", source=clusters_domain("source", sizes=SIZES), target=only
        )
        few = command("watch", "few.h5", "--fail-below", "recall:class 1=0.2", cwd=folder)
        assert "skipped on few: recall:class 1 cannot be estimated" in few.require_success().out

    def test_other_costs_replace_the_cost_of_a_known_period(self, folder: Path) -> None:
        history = folder / "h.jsonl"
        for wrong in (10, 20):
            costs = costs_json(folder, wrong)
            alone = of_last(watched(folder, "w0.h5", costs=costs))
            known = of_last(watched(folder, "w0.h5", history=history, costs=costs))
            assert numbers(known["cost", None]) == numbers(alone["cost", None])
        more = of_last(watched(folder, "w0.h5", metrics="f1", history=history))
        assert more["cost", None] == known["cost", None]

    def test_labels_measure_the_cost(self, folder: Path) -> None:
        """With every label, it is the mean cost of the rows."""
        costs = costs_json(folder)
        metrics = of_last(watched(folder, "w0.h5", costs=costs, target_labels=True))
        target = clusters_domain("later", sizes=WEEK, seed=0)
        of = read_costs(costs, CLASSES, needs_review=False)[0]
        paid = of[target["labels"], target["logits"].argmax(axis=1)].mean()
        assert numbers(metrics["cost", None]) == pytest.approx([paid] * 3)
        assert metric_cell(metrics["cost", None]) == f"{paid:.3g}"

    def test_a_metric_of_labelled_rows_shows_no_range(self, folder: Path) -> None:
        """An interval without width looks like a perfect estimate."""
        metrics = of_last(watched(folder, "w0.h5", metrics="recall", target_labels=True))
        recall = metrics["recall", "class 1"]
        assert metric_cell(recall) == f"{in_percent(recall.value or 0)} %"
        limit = ("--target-labels", "--fail-below", "recall:class 1=0.1")
        done = command("watch", "w0.h5", *limit, cwd=folder).require_success()
        assert "(measured, without a range)" in done.out

    def test_late_labels_of_an_unknown_period_name_the_known_periods(self, folder: Path) -> None:
        path = late(folder, 40)
        lines = path.read_text(encoding="utf-8").splitlines()
        texts = [f"{line},{'w9' if n else 'period'}" for n, line in enumerate(lines)]
        path.write_text("\n".join(texts), encoding="utf-8")
        unknown = "the column 'period' contains 'w9', which is not a watched period: use w0, w1"
        with pytest.raises(CovcalError, match=f"^.*late.csv: {unknown}$"):
            watched(folder, "w0.h5", "w1.h5", labels=path)
        path.write_text("\n".join([*texts[:30], *(t.replace("w9", "w0") for t in texts[30:])]))
        assert unknown in "".join(watched(folder, "w0.h5", "w1.h5", labels=path).warnings)

    def test_a_cost_has_a_gate_in_every_period(self, made: Path) -> None:
        cost = of_last(watched(made, "w1.h5", costs=(costs := costs_json(made))))["cost", None]
        limit = ("--cost", costs, "--fail-above", f"cost={cost.value}")
        assert command("watch", "w1.h5", *limit, "--end", "middle", cwd=made).code == 0
        done = command("watch", "w1.h5", *limit, cwd=made)
        assert done.code == 3
        assert "FAILED by the high end on w1" in done.out

    def test_a_joined_period_is_skipped(self, folder: Path) -> None:
        command("watch", "w0.h5", "--history", "h.jsonl", cwd=folder).require_success()
        more = ("--history", "h.jsonl", "--join", "--fail-below", "accuracy=0.99")
        done = command("watch", "w0=w1.h5", *more, cwd=folder).require_success()
        assert "gate accuracy >= 0.99 skipped on w0: this period has no metrics" in done.out

    @pytest.mark.parametrize(
        ("options", "code", "message"),
        [
            (["--end", "low"], 2, "--end"),
            (["--metrics", "recal"], 2, "'recal' must be METRIC"),
            (["--metrics", "cost"], 2, "to estimate the cost, pass --cost COSTS.JSON"),
            (["--fail-above", "cost=3"], 2, "needs --cost"),
            (["--fail-below", "cost=3"], 2, "--fail-above"),
            (["--metrics", "recall:cat"], 1, "recall:cat: the file has no class cat"),
        ],
    )
    def test_wrong_ones_are_refused(
        self, options: list[str], code: int, message: str, made: Path
    ) -> None:
        done = command("watch", "w0.h5", *options, cwd=made)
        assert done.code == code
        assert message in done.err


def test_the_python_class_gives_the_numbers_of_the_command(made: Path) -> None:
    done = command("watch", "w1.h5", "--metrics", METRICS, "-o", "-", cwd=made).require_success()
    (period,) = json.loads(done.out)["periods"]
    rows = clusters_domain("later", sizes=WEEK, moved=0.5, seed=1)
    watch = covcal.Watch(made / "cal.json", metrics=METRICS)
    own = watch.observe(rows["logits"], features=rows["features"], period="w1").measured.metrics
    assert [(metric.metric, metric.class_name, metric.value) for metric in own] == [
        (metric["metric"], metric["class"], metric["value"])
        for metric in period["measured"]["metrics"]
    ]
    with pytest.raises(covcal.CovcalError, match="metrics: 'recal' must be METRIC"):
        covcal.Watch(made / "cal.json", metrics="recal")


def test_the_trend_has_a_table_of_metrics(folder: Path) -> None:
    arguments = ("--metrics", "f1", "--history", "h.jsonl", "--plot", "trend.html")
    command("watch", "w0.h5", *arguments, cwd=folder).require_success()
    page = (folder / "trend.html").read_text(encoding="utf-8")
    assert "<h2>Metrics</h2>" in page
    assert "rules of thumb" in page


@pytest.mark.parametrize(("low", "high", "text"), [(0, 1, "not known (0 "), (0, 0.9, "40 % (0 ")])
def test_a_range_of_everything_has_no_number(low: float, high: float, text: str) -> None:
    assert metric_cell(MetricEstimate("recall", "a", 0.4, low, high, 20, "")).startswith(text)
