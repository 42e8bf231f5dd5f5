"""The drift of kept columns: its statistics, when it is told, and where."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import softmax

import covcal_cli.api as covcal
from covcal_cli.formats.writer import utf8
from covcal_cli.report.trend import write_trend
from covcal_cli.watch.columns import (
    chi_square,
    chi_square_tail,
    corrected,
    drift_of,
    ks_p,
    ks_statistic,
    psi,
    sketch,
)
from covcal_cli.watch.history import read_history
from covcal_cli.watch.period import ColumnDrift
from tests.cli_runner import covcal as command
from tests.made_files import clusters_domain, only_rows, write_features
from tests.watch.weeks import SIZES, alone

LEVEL = 0.05 / 52.18  # of a week


class TestStatistics:
    @pytest.mark.parametrize(("n", "m", "moved"), [(60, 40, 0.0), (250, 400, 0.3), (90, 900, 0.1)])
    def test_ks_is_that_of_scipy(self, n: int, m: int, moved: float) -> None:
        rng = np.random.default_rng(n)
        first, second = rng.normal(size=n), np.round(rng.normal(size=m) + moved, 1)
        expected = stats.ks_2samp(first, second)
        assert ks_statistic(first, second) == pytest.approx(expected.statistic, abs=1e-12)
        found = ks_p(expected.statistic, n, m)
        assert found == pytest.approx(expected.pvalue, rel=0.1, abs=1e-4)

    @pytest.mark.parametrize("freedom", [1, 2, 3, 6, 29])
    def test_chi_square_is_that_of_scipy(self, freedom: int) -> None:
        for value in (0.1, 3.0, 40.0, 300.0):
            assert chi_square_tail(value, freedom) == pytest.approx(
                stats.chi2.sf(value, freedom), rel=1e-9
            )
        table = np.random.default_rng(freedom).integers(20, 60, size=(2, freedom + 1))
        expected = stats.chi2_contingency(table).pvalue
        assert chi_square(*table) == pytest.approx(expected, rel=1e-9)

    def test_psi_is_that_of_a_loop(self) -> None:
        p, q = [0.5, 0.3, 0.2, 0.0], [0.2, 0.3, 0.4, 0.1]
        loop = 0.0
        for before, now in zip(p, q, strict=True):
            before = before or 1e-4
            loop += (now - before) * np.log(now / before)
        assert psi(np.array(p), np.array(q)) == pytest.approx(loop)

    def test_texts_that_are_nearly_all_different_have_no_sketch(self) -> None:
        assert sketch("id", utf8([f"row {number}" for number in range(100)])) is None
        assert sketch("day", utf8([f"2026-11-{1 + n % 28:02d}" for n in range(100)])) is None
        assert sketch("shop", utf8(["web", "store"] * 20)) is not None
        assert sketch("few", np.arange(20.0)) is None

    @pytest.mark.parametrize("name", ["id", "image_id", "imageId", "user ID", "request-uuid"])
    def test_identifiers_have_no_sketch(self, name: str) -> None:
        """Whether or not rows share an identifier, as the boxes of one image do."""
        numbers = np.random.default_rng(0).permutation(5000)[:300].astype(float)
        assert sketch(name, numbers) is None
        assert sketch(name, numbers // 50) is None
        assert sketch(name, numbers % 20) is not None  # the shares of few can drift
        assert sketch("width", numbers) is not None

    def test_a_counter_has_no_sketch_whatever_its_name(self) -> None:
        """Measured values that happen to be sorted are compared: they are not whole."""
        counter = np.arange(9e9, 9e9 + 300)
        assert sketch("request", counter) is None
        assert sketch("request", counter[::-1]) is not None
        assert sketch("weight", counter / 7) is not None


def columns_of(n: int, seed: int, *, amount: float = 18.0, **others: Any) -> dict[str, Any]:
    """Columns of n rows: log-normal amounts, some missing; shops; and one that never moves."""
    rng = np.random.default_rng(seed)
    amounts = rng.lognormal(np.log(amount), 1.0, n)
    amounts[rng.random(n) < others.get("missing", 0.0)] = np.nan
    shops = others.get("shops", ["web", "store", "store"])
    return {"amount": amounts, "shop": rng.choice(shops, n), "hour": rng.integers(0, 24, n)}


def stored(columns: dict[str, Any]) -> dict[str, Any]:
    shops = utf8(columns["shop"].tolist())
    numbers = {name: columns[name].astype(np.float64) for name in ("amount", "hour")}
    return {f"columns/{name}": values for name, values in (numbers | {"shop": shops}).items()}


def later(n: int, seed: int) -> dict[str, Any]:
    return clusters_domain("later", sizes=(0, n, 0), seed=seed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration with columns, and weeks: as before, of few rows, and with drift."""
    folder = tmp_path_factory.mktemp("columns")
    source, target = (clusters_domain(name, sizes=SIZES) for name in ("source", "target"))
    target |= stored(columns_of(sum(SIZES), 1))
    write_features(folder / "features.h5", source=source, target=target)
    command("calibrate", "features.h5", "--method", "temp", cwd=folder).require_success()
    drifted: dict[str, Any] = {"amount": 41.0, "missing": 0.06, "shops": ["web", "store", "kiosk"]}
    for name, n, others in (
        ("same", 400, dict[str, Any]()),
        ("few", 25, drifted),
        ("moved", 400, drifted),
    ):
        columns = columns_of(n, seed=len(name), **others)
        alone(folder / f"{name}.h5", later(n, 3) | stored(columns))
    return folder


def watched(folder: Path, name: str, *options: str) -> tuple[dict[str, Any], str]:
    """The drift of each column of a week by its name, and the screen."""
    done = command("watch", f"{name}.h5", *options, "-o", "watch.json", "-f", cwd=folder)
    done.require_success()
    (period,) = json.loads((folder / "watch.json").read_text())["periods"]
    return {column["name"]: column for column in period["measured"]["columns"]}, done.out


class TestCommand:
    def test_numbers_are_those_of_the_rows(self, folder: Path) -> None:
        """KS and PSI by scipy and a loop, on the validation and training rows of the target."""
        found, _ = watched(folder, "moved")
        rows = SIZES[0] + SIZES[1]
        before = columns_of(sum(SIZES), 1)["amount"][:rows]
        columns = columns_of(400, len("moved"), amount=41.0, missing=0.06,
                             shops=["web", "store", "kiosk"])  # fmt: skip
        now = columns["amount"][~np.isnan(columns["amount"])]
        amount, expected = found["amount"], stats.ks_2samp(before, now)
        # The reference has 257 quantiles of these 600 rows.
        assert amount["statistic"] == pytest.approx(expected.statistic, abs=1 / 257)
        assert amount["p"] < 1e-6
        edges = [-np.inf, *np.quantile(before, np.arange(1, 10) / 10), np.inf]
        shares = [np.histogram(part, edges)[0] / len(part) for part in (before, now)]
        loop = sum((q - p) * np.log(q / p) for p, q in zip(*shares, strict=True))
        assert amount["psi"] == pytest.approx(loop, rel=0.1)
        assert amount["missing"] == np.isnan(columns["amount"]).mean()
        assert found["shop"]["new_categories"] == ["kiosk"]
        assert found["shop"]["new"] == (columns["shop"] == "kiosk").mean()

    def test_the_screen_has_one_line_and_more_with_v(self, folder: Path) -> None:
        _, screen = watched(folder, "moved")
        (line,) = [line for line in screen.splitlines() if line.startswith("columns")]
        assert "shop: share of" in line
        assert "have a new value ('kiosk') (and 1 more: -v)" in line
        _, more = watched(folder, "moved", "-v")
        (amount,) = [line for line in more.splitlines() if line.startswith("amount")]
        assert re.search(r"median \d\d\.\d instead of 18", amount)
        assert "no drift" in next(line for line in more.splitlines() if line.startswith("hour"))

    def test_no_drift_is_not_told(self, folder: Path) -> None:
        found, screen = watched(folder, "same")
        assert set(found) == {"amount", "shop", "hour"}
        assert "columns" not in screen

    def test_few_rows_say_nothing(self, folder: Path) -> None:
        found, screen = watched(folder, "few")
        assert not found
        assert "columns" not in screen

    def test_a_column_that_is_lost_is_told(self, folder: Path) -> None:
        """Whether its values are missing, or the whole column; without any column, nothing."""
        columns = stored(columns_of(400, 5, missing=1.0))
        del columns["columns/shop"]
        alone(folder / "lost.h5", later(400, 3) | columns)
        found, screen = watched(folder, "lost")
        assert {name: found[name]["missing"] for name in found} == {
            "amount": 1.0,
            "hour": 0.0,
            "shop": 1.0,
        }
        assert "100 % of the values are missing now (before: 0 %) (and 1 more: -v)" in screen
        alone(folder / "none.h5", later(400, 3))
        assert watched(folder, "none")[0] == {}

    def test_the_trend_page_lists_the_columns(self, folder: Path, tmp_path: Path) -> None:
        words = ("watch", "moved.h5", "--history", tmp_path / "w.jsonl", "--plot")
        command(*words, tmp_path / "t.html", cwd=folder).require_success()
        page = (tmp_path / "t.html").read_text(encoding="utf-8")
        section = page[page.index("Columns of the last period") :]
        assert re.search(r"amount</t[dh]>.*median \d\d\.\d instead of 18", section)


def test_chance_is_rarely_called_drift() -> None:
    """In 100 weeks of unchanged rows, at most one column drifts, whatever its kind."""
    rng = np.random.default_rng(0)
    columns = [("a", rng.normal(size=500)), ("b", rng.integers(0, 4, 500).astype(float))]
    drifted = 0
    for _ in range(100):
        now = {"a": rng.normal(size=120), "b": rng.integers(0, 4, 120).astype(float)}
        sketches = [sketch(name, values) for name, values in columns]
        found = [
            drift for one in sketches if one is not None for drift in drift_of(one, now[one.name])
        ]
        drifted += any(one.is_drift(LEVEL) for one in corrected(found, len(found)))
    assert drifted <= 1


def test_a_frame_brings_its_columns(folder: Path) -> None:
    """In Python the drift is that of the command on the same rows."""
    expected, _ = watched(folder, "moved")
    frame = pd.DataFrame(
        later(400, 3)["logits"], columns=[f"class {number}" for number in range(5)]
    ).assign(**columns_of(400, len("moved"), amount=41.0, missing=0.06,
                          shops=["web", "store", "kiosk"]))  # fmt: skip
    period = covcal.Watch(folder / "cal.json").observe(frame, period="moved")
    by_name = {column.name: column for column in period.measured.columns}
    for name, values in expected.items():
        values["new_categories"] = tuple(values["new_categories"])
        assert ColumnDrift(**values) == by_name[name]
    assert [column.name for column in period.drifts] == ["shop", "amount"]


SHOPS = ["east", "north", "west"]  # the rows of the north have drifted, and few are in the west


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration with segments, and a week of labelled rows."""
    folder = tmp_path_factory.mktemp("shops")
    domains = {name: clusters_domain(name, sizes=SIZES) for name in ("source", "target")}
    for seed, domain in enumerate(domains.values()):
        columns = columns_of(sum(SIZES), seed, shops=SHOPS)
        domain |= stored(columns)
    write_features(folder / "features.h5", source=domains["source"], target=domains["target"])
    command("calibrate", "features.h5", "--method", "temp", cwd=folder).require_success()
    write_features(folder / "week.h5", target=week_of_shops(), source=domains["source"])
    return folder


def week_of_shops() -> dict[str, Any]:
    columns = columns_of(400, 7)
    columns["shop"] = np.array([*["north"] * 200, *["east"] * 190, *["west"] * 10])
    columns["amount"][:200] *= 4
    return later(400, 9) | stored(columns)


def segments(folder: Path, *options: str) -> dict[str, Any]:
    words = ("watch", "week.h5", *options, "-o", "-")
    content = json.loads(command(*words, cwd=folder).require_success().out)
    return {one["segment"]: one for one in content["segments"]}


class TestSegments:
    def test_each_is_judged_by_its_own_rows(self, shops: Path) -> None:
        """Confidence by hand; the drift is that of the north alone; few rows are not judged."""
        found = segments(shops, "--segment", "shop")
        assert list(found) == SHOPS
        probabilities = softmax(
            week_of_shops()["logits"]
            / covcal.read_calibration(shops / "cal.json").forecaster_temperature,
            axis=1,
        )
        assert found["north"]["confidence"] == pytest.approx(
            probabilities.max(axis=1)[:200].mean(), abs=1e-6
        )
        assert {name: [one["name"] for one in found[name]["drifts"]] for name in SHOPS} == {
            "east": [],
            "north": ["amount"],
            "west": [],
        }
        assert (found["west"]["verdict"], found["west"]["accuracy"]) == ("not known", None)
        assert "10 rows are too few" in found["west"]["why"]

    def test_an_estimate_is_that_of_the_segments_rows(self, shops: Path, tmp_path: Path) -> None:
        """The same source rows and the same target rows in a file of their own."""
        accuracy = segments(shops, "--segment", "shop")["north"]["accuracy"]
        source = clusters_domain("source", sizes=SIZES)
        is_north = columns_of(sum(SIZES), 0, shops=SHOPS)["shop"] == "north"
        target = only_rows(later(400, 9), np.arange(200))
        write_features(
            tmp_path / "north.h5",
            source=only_rows(source, np.flatnonzero(is_north)),
            target=target | {"split": np.zeros(200, dtype=np.uint8)},
        )
        assert accuracy["low"] <= accuracy["accuracy"] <= accuracy["high"]
        alone = covcal.estimate(tmp_path / "north.h5").estimates[0]
        assert accuracy["accuracy"] == pytest.approx(alone.accuracy, abs=0.02)

    def test_labels_decide_with_a_correction(self, shops: Path) -> None:
        """The interval of a segment is wider than that of a period with the same labels."""
        found = segments(shops, "--segment", "shop", "--target-labels")["north"]
        week = week_of_shops()
        right = (week["logits"].argmax(axis=1) == week["labels"])[:200].mean()
        assert found["accuracy"]["accuracy"] == pytest.approx(right, abs=0.01)
        assert "from 200 labels" in found["why"]

    def test_a_predicted_class_is_judged_by_labels_alone(self, shops: Path) -> None:
        found = segments(shops, "--segment", "predicted")
        assert {one["accuracy"] for one in found.values()} == {None}
        found = segments(shops, "--segment", "predicted", "--target-labels")
        week = week_of_shops()
        predicted = week["logits"].argmax(axis=1)
        for name, one in found.items():
            rows = predicted == int(name.removeprefix("class "))
            assert one["rows"] == rows.sum()
            right = (week["labels"][rows] == predicted[rows]).mean()
            assert one["accuracy"]["accuracy"] == pytest.approx(right, abs=0.02)

    def test_screen_and_trend_have_a_row_for_each(self, shops: Path, tmp_path: Path) -> None:
        plot = ("--history", tmp_path / "h.jsonl", "--plot", tmp_path / "t.html")
        words = ("watch", "week.h5", "--segment", "shop", *plot)
        done = command(*words, cwd=shops).require_success()
        page = (tmp_path / "t.html").read_text(encoding="utf-8")
        assert page.index("Columns of the last period") < page.index("Segments of the last period")
        rows = [line.split()[0] for line in done.out.splitlines() if line.startswith(tuple(SHOPS))]
        assert rows == SHOPS

    def test_the_history_keeps_them(self, shops: Path, tmp_path: Path) -> None:
        """A watch without ``--segment`` does not delete them, and the same rows add no line."""
        history = tmp_path / "h.jsonl"
        options = ("--history", str(history))
        asked = segments(shops, "--segment", "shop", *options)
        line = history.read_bytes()
        assert segments(shops, *options) == asked == segments(shops, "--segment", "shop", *options)
        assert history.read_bytes() == line
        write_trend(read_history(history), tmp_path / "t.html", force=False)
        assert "Segments of the last period" in (tmp_path / "t.html").read_text(encoding="utf-8")

    @pytest.mark.parametrize(
        ("column", "message"),
        [("store", "no target column 'store' to group by: use amount, hour, shop, predicted"),
         ("amount", "column amount has 600 values: for --segment, choose a column with")],
    )  # fmt: skip
    def test_a_column_that_makes_no_segments_is_refused(
        self, column: str, message: str, shops: Path
    ) -> None:
        done = command("watch", "week.h5", "--segment", column, cwd=shops)
        assert done.code == 1
        assert message in done.err

    def test_python_has_the_same_segments(self, shops: Path) -> None:
        week = week_of_shops()
        columns = {name: columns_of(400, 7)[name] for name in ("amount", "hour")}
        columns["amount"][:200] *= 4
        watch = covcal.Watch(shops / "cal.json", segment="shop")
        with pytest.raises(
            covcal.CovcalError, match="columns has no column 'shop', but segment needs it"
        ):
            watch.observe(week["logits"], period="2026-W10", columns=columns)
        shop = week["columns/shop"].astype(str)
        watch.observe(
            week["logits"],
            features=week["features"],
            period="week",
            columns=columns | {"shop": shop},
        )
        expected = segments(shops, "--segment", "shop")
        assert len(watch.segments_) == len(expected)
        for one in watch.segments_:
            assert one.confidence == expected[one.segment]["confidence"]
            assert one.verdict == expected[one.segment]["verdict"]
            assert len(one.drifts) == len(expected[one.segment]["drifts"])

    def test_a_calibrator_has_segments_too(self) -> None:
        """The accuracy of a segment is estimated from the source rows of the same segment."""
        source, target = (clusters_domain(name, sizes=SIZES) for name in ("source", "target"))
        arrays = source["logits"], source["labels"], target["logits"]
        of_source, of_target = (
            {"shop": columns_of(sum(SIZES), seed, shops=SHOPS)["shop"]} for seed in (0, 1)
        )
        watch = covcal.Watch(
            covcal.Calibrator("temp").fit(*arrays),
            *arrays,
            source_columns=of_source,
            target_columns=of_target,
            segment="shop",
        )
        week, shop = week_of_shops(), week_of_shops()["columns/shop"].astype(str)
        watch.observe(week["logits"], period="week", columns={"shop": shop})
        verdicts = {one.segment: one for one in watch.segments_}
        assert list(verdicts) == SHOPS
        assert verdicts["north"].rows == 200
        assert verdicts["north"].accuracy is not None
