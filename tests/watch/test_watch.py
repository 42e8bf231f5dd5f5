"""``covcal watch`` on made weeks: what it measures, says, keeps and refuses."""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covcal_cli.files import sha256_of
from covcal_cli.formats.calibration import read_calibration
from covcal_cli.formats.features import FeatureFile
from covcal_cli.formats.writer import utf8
from covcal_cli.maths.odds import confidences
from covcal_cli.records import DIGEST, digest_of
from covcal_cli.watch.labels import Pool
from covcal_cli.watch.period import (
    Gap,
    PeriodAccuracy,
    PeriodLabels,
    RaisedAlarm,
    WatchSettings,
)
from covcal_cli.watch.reference import read_reference
from covcal_cli.watch.verdict import _share_in_words, verdict_on
from covcal_cli.watch.watch import _rare, _warnings, watch
from tests.cli_runner import covcal
from tests.labels.labelling import fill
from tests.made_files import clusters_domain, made_domain, only_rows, write_adapted, write_features
from tests.watch.test_history import period
from tests.watch.weeks import SIZES, WEEK, alone, calibrated, week

PRIOR = [0.6, 0.1, 0.1, 0.1, 0.1]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration, three weeks like its target and two that are not; not to be changed."""
    folder = tmp_path_factory.mktemp("weeks")
    calibrated(folder)
    for number in range(3):
        week(folder / f"w{number}.h5", number)
    week(folder / "moved.h5", 10, moved=1.0)
    week(folder / "favoured.h5", 11, prior=PRIOR)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "weeks"))


def watched(folder: Path, *arguments: str, code: int = 0) -> Any:
    """Return what watch prints as JSON."""
    done = covcal("watch", *arguments, "-o", "-", cwd=folder)
    assert done.code == code, done.err
    return json.loads(done.out)


def verdicts(found: Mapping[str, Any]) -> dict[str, str]:
    return {one["measured"]["period"]: one["verdict"] for one in found["periods"]}


class TestNumbers:
    def test_they_are_those_of_the_rows(self, made: Path) -> None:
        """Mean confidences and shares by hand; the estimate is held by a file of both domains."""
        one = watched(made, "w0.h5")["periods"][0]["measured"]
        rows = clusters_domain("later", sizes=WEEK, seed=0)
        logits, T = rows["logits"], read_calibration(made / "cal.json").forecaster_temperature
        assert one["rows"] == one["read"] == len(logits)
        assert one["confidence_before"] == pytest.approx(confidences(logits, 1.0).mean())
        assert one["confidence"] == pytest.approx(confidences(logits, T).mean())
        shares = np.bincount(logits.argmax(axis=1), minlength=5) / len(logits)
        assert one["predicted"] == pytest.approx(shares.tolist())

    def test_the_estimate_is_that_of_estimate(self, made: Path, tmp_path: Path) -> None:
        """The same source rows and the period as a target give the same numbers."""
        one = watched(made, "moved.h5")["periods"][0]["measured"]["estimate"]
        target = clusters_domain("later", sizes=WEEK, moved=1.0, seed=10)
        target["split"][:] = 0
        source = clusters_domain("source", sizes=SIZES)
        write_features(tmp_path / "both.h5", source=source, target=target)
        done = covcal("estimate", tmp_path / "both.h5", "-o", "-").require_success()
        expected = json.loads(done.out)["estimates"][0]
        for name in ("accuracy", "low", "high"):
            assert one[name] == pytest.approx(expected[name], abs=1e-6)
        assert one["of"] == "the calibration's source rows"

    @pytest.mark.parametrize("file", ["w0.h5", "moved.h5", "favoured.h5"])
    def test_a_sketch_stands_in_for_a_source_that_is_gone(self, file: str, folder: Path) -> None:
        """Of the same kind and within each other's intervals; nothing else changes."""
        (full,) = watched(folder, file)["periods"]
        (folder / "features.h5").unlink()
        (sketch,) = watched(folder, file)["periods"]
        one, other = full["measured"].pop("estimate"), sketch["measured"].pop("estimate")
        assert sketch["measured"] == full["measured"]
        assert other["of"] == "the summary of the calibration's source rows"
        assert one["low"] <= other["accuracy"] <= one["high"]
        assert other["low"] <= other["accuracy"] <= other["high"]

    def test_domains_are_compared(self, made: Path) -> None:
        found = watched(made, "w0.h5", "moved.h5")["periods"]
        usual, moved = (one["measured"] for one in found)
        assert usual["auc_target"] < 0.6 < 0.75 < moved["auc_target"]
        assert moved["effective_rows"] < usual["effective_rows"] <= SIZES[1]

    def test_rows_without_features_are_watched_all_the_same(self, folder: Path) -> None:
        rows = clusters_domain("later", sizes=WEEK, seed=1)
        del rows["features"]
        source = {name: values[:2] for name, values in rows.items()}
        write_features(folder / "bare.h5", source=source, target=rows)
        found = watched(folder, "bare.h5")
        one = found["periods"][0]["measured"]
        assert one["auc_target"] is None
        assert "density ratio" not in one["signals"]
        assert "extract the periods with features" in found["notes"][0]


class TestVerdicts:
    def test_weeks_alike_have_not_changed(self, made: Path) -> None:
        found = watched(made, "w0.h5", "w1.h5", "w2.h5")["periods"]
        assert not any(one["alarm"]["raised"] or one["alarm"]["change"] for one in found)

    @pytest.mark.parametrize("file", ["moved.h5", "favoured.h5"])
    def test_weeks_that_moved_are_not(self, file: str, made: Path) -> None:
        found = watched(made, "w0.h5", "w1.h5", file)
        *before, last = found["periods"]
        assert [one["alarm"]["raised"] for one in before] == [False, False]
        assert last["alarm"]["raised"]
        assert last["alarm"]["since"] == last["measured"]["period"]

    def test_the_change_is_said_in_numbers_of_the_rows(self, made: Path) -> None:
        """The class has its share of the period, and its share of the calibration's target."""
        (found,) = watched(made, "favoured.h5")["periods"]
        said = re.search(
            r"class class (\d) is predicted for (\d+) % of the rows instead of (\d+) %",
            found["alarm"]["change"],
        )
        assert said is not None
        number, now, before = int(said[1]), float(said[2]), float(said[3])
        assert now == pytest.approx(100 * found["measured"]["predicted"][number], abs=0.6)
        target = clusters_domain("target", sizes=SIZES)["logits"][: sum(SIZES[:2])]
        usual = 100 * (target.argmax(axis=1) == number).mean()
        assert before == pytest.approx(usual, abs=1.0)
        assert number == 0  # the class that PRIOR favours

    def test_a_confidence_that_is_far_off_is_named(self, made: Path, tmp_path: Path) -> None:
        """Without T the classifier is far too sure of rows that all look like one class."""
        calibrated(tmp_path, method="none")
        shutil.copy(made / "moved.h5", tmp_path)
        (found,) = watched(tmp_path, "moved.h5")["periods"]
        assert found["verdict"] == "off"
        assert found["gap"]["low"] > 0.05
        done = covcal("watch", "moved.h5", cwd=tmp_path).require_success()
        points = round(100 * found["gap"]["value"])
        assert done.out.startswith(f"moved  off by about {points} points: the confidence is ")

    @pytest.mark.parametrize(("rows", "estimated"), [(1, False), (15, False), (16, True)])
    def test_a_period_of_few_rows(self, rows: int, estimated: bool, folder: Path) -> None:
        alone(folder / "few.h5", only_rows(clusters_domain("later", sizes=WEEK), np.arange(rows)))
        found = watched(folder, "few.h5")
        (one,) = found["periods"]
        assert one["verdict"] == "not known"
        assert (one["measured"]["estimate"] is not None) == (one["gap"] is not None) == estimated
        assert (f"{rows} rows are too few" in one["why"]) != estimated

    @pytest.mark.parametrize(
        ("low", "high", "tolerance", "verdict"),
        [
            (0.75, 0.85, 0.05, "holds"),
            (0.749, 0.85, 0.05, "not known"),
            (0.60, 0.75, 0.05, "not known"),
            (0.60, 0.749, 0.05, "off"),
            (0.851, 0.95, 0.05, "off"),
            (0.60, 0.75, 0.25, "holds"),
        ],
    )
    def test_the_interval_is_compared_with_the_tolerance(
        self, low: float, high: float, tolerance: float, verdict: str
    ) -> None:
        """The middle half of the range counts; estimators that disagree cannot say "holds"."""
        middle, half = (low + high) / 2, high - low
        estimate = PeriodAccuracy(middle, middle - half, middle + half, "source rows")
        entry = replace(period("w").measured, confidence=0.8, estimate=estimate)
        assert verdict_on(entry, None, tolerance + 1e-9)[0] == verdict
        doubted = replace(entry, estimate=replace(estimate, contradicted=True))
        expected = "off" if verdict == "off" else "not known"
        assert verdict_on(doubted, None, tolerance + 1e-9)[0] == expected

    @pytest.mark.parametrize(
        ("low", "high", "verdict"),
        [
            (-0.04, 0.04, "holds"),
            (0.06, 0.2, "off"),
            (-0.1, 0.1, "holds"),
            (0.02, 0.2, "not known"),
        ],
    )
    def test_labels_that_cannot_decide_leave_it_to_an_estimate_that_they_allow(
        self, low: float, high: float, verdict: str
    ) -> None:
        """Alone, the estimate says that the confidence holds."""
        estimate = PeriodAccuracy(0.8, 0.72, 0.88, "source rows")
        entry = replace(period("w").measured, confidence=0.8, estimate=estimate)
        assert verdict_on(entry, None, 0.05)[0] == "holds"
        pool = Pool(Gap((low + high) / 2, low, high), 50, "w", "w")
        found, _, why = verdict_on(entry, pool, 0.05)
        assert found == verdict
        # The screen shows the whole estimated range, as the table does without labels.
        assert ("80 % (72 to 88 %)" in why) == (found == "holds" and low < -0.05)

    def test_fewer_false_alarms_need_more_evidence(self, made: Path) -> None:
        thresholds = [
            watched(made, "w0.h5", *more)["periods"][0]["alarm"]["log_threshold"]
            for more in (("--false-alarms", "1"), (), ("--every", "day"))
        ]
        assert thresholds == sorted(thresholds)

    def test_many_periods_that_are_not_known_are_one_warning(self, folder: Path) -> None:
        for number in range(3):
            rows = clusters_domain("later", sizes=WEEK)
            rows = only_rows(rows, 10 * number + np.arange(number + 1))
            alone(folder / f"few{number}.h5", rows)
        (warning,) = watched(folder, "few0.h5", "few1.h5", "few2.h5")["warnings"]
        assert warning.startswith(
            "covcal does not know whether the confidence is right in 3 of 3 periods "
            "(few0 to few2): label some rows: covcal pick few2.h5 -n 3. If the confidence is "
            "right, about "
        )

    def test_a_period_whose_rows_all_have_labels_needs_no_labels(self) -> None:
        """Labels that are there are counted, also if they are of earlier periods."""
        entry = period("w").measured
        known = PeriodAccuracy(0.8, 0.7, 0.9, "10 labels of v")
        labelled = replace(entry, labels=PeriodLabels(entry.rows, 0.8, 10.0))
        for measured, needed, remedy in (
            (labelled, 700, "about 700 more labels are needed: watch longer periods, or"),
            (labelled, None, "is close to 5 points, so over 10,000 more labels are needed"),
            (entry, 30, ": label about 30 more rows: covcal pick week.h5 -n 30 -o more.csv"),
            (entry, 5000, "5,000 more rows of this period and later periods: covcal pick week.h5"),
        ):
            unknown = replace(period("w"), measured=measured, verdict="not known")
            unknown = replace(unknown, by_labels=known, labels_needed=needed, tolerance=0.05)
            (warning,) = _warnings([unknown])
            assert remedy in warning
            assert "label some rows" not in warning

    def test_a_class_rarer_than_the_tolerance_is_named(self) -> None:
        entry = replace(period("w").measured, predicted=(0.992, 0.008))
        rare = replace(period("w"), measured=entry, verdict="holds", tolerance=0.05)
        (warning,) = _rare([rare], ("ok", "fraud"), ())
        assert "class fraud is predicted for 0.8 % of the rows" in warning
        assert warning.endswith("--metrics precision:fraud,recall:fraud")
        assert not list(_rare([replace(rare, tolerance=0.005)], ("ok", "fraud"), ()))
        assert "fraud is predicted for 1.7 % of the rows instead of 0.8 %" in _share_in_words(
            "fraud", 0.0172, 0.0078
        )

    def test_one_alarm_has_one_start(self) -> None:
        alarm = RaisedAlarm(3.0, 1.0, True, "w2", "margin", "other rows", first_since="w1")
        assert replace(period("w"), alarm=alarm).change == "changed since w1: other rows"

    def test_the_same_rows_in_two_periods_are_refused(self, made: Path) -> None:
        line = covcal("watch", "w0.h5", "again=w0.h5", cwd=made).error_line()
        assert "has the same rows as the period w0, so these rows would count twice" in line

    def test_the_screen_begins_with_the_answer(self, made: Path) -> None:
        """The verdict on the last period, its rows, the counts; then the numbers."""
        done = covcal("watch", "w0.h5", "w1.h5", "moved.h5", cwd=made).require_success()
        answer, table = done.out.split("\n\n", 1)
        lines = dict(re.split("  +", line, maxsplit=1) for line in answer.splitlines())
        assert list(lines) == ["moved", "rows", "3 periods"]
        assert lines["rows"].startswith("changed since moved: ")
        assert lines["3 periods"].endswith("; rows changed in 1")
        assert "since moved" in table


class TestHistory:
    def test_earlier_periods_count(self, folder: Path) -> None:
        """One period a run says what one run of all says."""
        files = ("w0.h5", "w1.h5", "moved.h5")
        together = watched(folder, *files)["periods"]
        for file in files:
            watched(folder, file, "--history", "watch.jsonl")
        lines = (folder / "watch.jsonl").read_text().splitlines()
        apart = [json.loads(line) for line in lines]
        assert [one["alarm"] for one in apart] == [one["alarm"] for one in together]
        assert [one["schema"] for one in apart] == ["covcal.period/1"] * 3

    def test_a_period_with_other_rows_is_refused_or_replaced(self, folder: Path) -> None:
        watched(folder, "w0.h5", "w1.h5", "--history", "h.jsonl")
        before = (folder / "h.jsonl").read_bytes()
        shutil.copy(folder / "moved.h5", folder / "w0.h5")
        done = covcal("watch", "w0.h5", "--history", "h.jsonl", cwd=folder)
        assert (
            "h.jsonl has other rows for the period w0 (200 rows, now 200 rows)" in done.error_line()
        )
        assert (folder / "h.jsonl").read_bytes() == before
        (found,) = watched(folder, "w0.h5", "--history", "h.jsonl", "--force")["periods"]
        assert found["supersedes"]
        assert (folder / "h.jsonl").read_bytes().startswith(before)

    def test_the_same_rows_in_another_file_are_the_same_period(self, folder: Path) -> None:
        """As a table that is extracted again, with a source, labels or other splits."""
        watched(folder, "w0.h5", "w1.h5", "--history", "h.jsonl")
        before = (folder / "h.jsonl").read_bytes()
        source = clusters_domain("source", sizes=SIZES)
        target = clusters_domain("later", sizes=WEEK, seed=0)
        target |= {"split": target["split"][::-1], "columns/store": np.arange(len(target["split"]))}
        write_features(folder / "again.h5", source=source, target=target)
        found = watched(folder, "w0=again.h5", "--history", "h.jsonl")
        assert "no new period" in found["notes"][-1]
        assert (folder / "h.jsonl").read_bytes() == before
        line = covcal("watch", "w2=again.h5", "--history", "h.jsonl", cwd=folder).error_line()
        assert line.endswith("w0=again.h5")
        assert (folder / "h.jsonl").read_bytes() == before
        # Earlier versions recorded the hash of the file.
        lines = [json.loads(line) for line in before.splitlines()]
        lines[0]["measured"]["rows_sha256"] = [sha256_of(folder / "w0.h5")]
        texts = [json.dumps(line | {DIGEST: digest_of(line)}) for line in lines]
        (folder / "h.jsonl").write_text("\n".join(texts) + "\n")
        assert "no new period" in watched(folder, "w0.h5", "--history", "h.jsonl")["notes"][-1]

    @pytest.mark.parametrize("has_ids", [True, False])
    def test_rows_that_come_twice_are_named(self, has_ids: bool, folder: Path) -> None:
        """A half first and then all rows, or all rows in another order and under another name."""
        rows = clusters_domain("later", sizes=WEEK, seed=0)
        n = len(rows["split"])
        orders = {"half": np.arange(0, n, 2), "whole": np.arange(n), "back": np.arange(n)[::-1]}
        for name, order in orders.items():
            domain = only_rows(rows, order)
            if not has_ids:
                domain["ids"] = utf8([str(number) for number in range(len(order))])
            alone(folder / f"{name}.h5", domain)
        history = ("--history", "h.jsonl")
        watched(folder, "w=half.h5", *history)
        before = (folder / "h.jsonl").read_bytes()
        says = {
            ("w=whole.h5",): "% of the old rows are in whole.h5 again. To replace the old rows",
            ("w=whole.h5", "--join"): "so --join would count these rows twice",
        }
        for arguments, words in says.items():
            assert words in covcal("watch", *arguments, *history, cwd=folder).error_line()
        found = watched(folder, "whole.h5", "w1.h5", "-c", "cal.json")
        assert not [text for text in found["warnings"] if "twice" in text]
        found = watched(folder, "whole.h5", "half.h5")
        (warning,) = [text for text in found["warnings"] if "twice" in text]
        assert warning.startswith("about 100 % of the rows of half are also in whole. These rows")
        assert (folder / "h.jsonl").read_bytes() == before
        watched(folder, "w=whole.h5", "--force", *history)
        found = watched(folder, "w=back.h5", *history)
        assert "no new period" in found["notes"][-1]
        line = covcal("watch", "again=back.h5", *history, cwd=folder).error_line()
        assert line.endswith("w=back.h5")

    def test_a_calibration_is_known_by_what_changes_confidences(self, folder: Path) -> None:
        watched(folder, "w0.h5", "w1.h5", "--history", "h.jsonl")
        content = json.loads((folder / "cal.json").read_text())
        content["warnings"] = ["a warning of another version"]
        content[DIGEST] = digest_of(content)
        (folder / "cal.json").write_text(json.dumps(content, indent=4))
        (folder / "features.h5").unlink()  # the reference data cannot be made again
        assert watched(folder, "w2.h5", "--history", "h.jsonl")["earlier"] == 2

    def test_another_calibration_begins_anew(self, folder: Path) -> None:
        watched(folder, "w0.h5", "moved.h5", "--history", "h.jsonl")
        covcal(
            *("calibrate", "features.h5", "--method", "none", "-o", "other.json"), cwd=folder
        ).require_success()
        found = watched(folder, "w0.h5", "-c", "other.json", "--history", "h.jsonl")
        assert found["earlier"] == 0
        assert not found["periods"][0]["alarm"]["raised"]

    def test_a_damaged_line_is_a_warning(self, folder: Path) -> None:
        watched(folder, "w0.h5", "--history", "h.jsonl")
        with (folder / "h.jsonl").open("a") as handle:
            handle.write('{"schema"')
        done = covcal("watch", "w1.h5", "--history", "h.jsonl", cwd=folder).require_success()
        assert "warning: h.jsonl: line 2 is damaged and ignored (it was cut off)" in done.err

    @pytest.mark.parametrize("file", ["cal.json", "features.h5", "table.csv"])
    def test_another_file_is_refused_and_stays(self, file: str, folder: Path) -> None:
        """As where a calibration is named as the history."""
        (folder / "table.csv").write_text("a,b\n1,2\n")
        before = (folder / file).read_bytes()
        for more in ((), ("w0.h5",), ("w0.h5", "--force")):
            arguments = (*more, "--history", file, "--plot", "trend.html")
            done = covcal("watch", *arguments, cwd=folder)
            assert f"{file} is not a history of covcal watch" in done.error_line()
        assert (folder / file).read_bytes() == before
        assert not (folder / "trend.html").exists()

    def test_inspect_says_what_it_holds(self, folder: Path) -> None:
        arguments = ("w0.h5", "moved.h5", "--history", "h.jsonl", "-o", "watch.json")
        covcal("watch", *arguments, cwd=folder).require_success()
        for name in ("h.jsonl", "watch.json"):
            shown = covcal("inspect", name, cwd=folder).require_success().out
            assert re.search(r"^periods +2$", shown, re.MULTILINE)
            assert re.search(r"^rows +changed since moved: ", shown, re.MULTILINE)


class TestPeriodsOfOneFile:
    @pytest.mark.parametrize(
        ("every", "names"),
        [("week", ["2026-W01", "2026-W02", "2026-W03"]), ("month", ["2025-12", "2026-01"])],
    )
    def test_a_column_of_dates_cuts(self, every: str, names: list[str], folder: Path) -> None:
        """Weeks follow ISO 8601, whatever the order of rows; times of day do not matter."""
        rows = clusters_domain("later", sizes=WEEK)
        days = [date(2025, 12, 29) + timedelta(days=number % 21) for number in range(sum(WEEK))]
        rows["columns/when"] = utf8([f"{day}T10:00:00" for day in days])
        alone(folder / "all.h5", rows)
        found = watched(folder, "all.h5", "--by", "when", "--every", every)["periods"]
        assert [one["measured"]["period"] for one in found] == names
        assert sum(one["measured"]["rows"] for one in found) == sum(WEEK)

    @pytest.mark.parametrize(
        ("column", "says"),
        [
            (
                "day",
                "no column day (columns: count, when): add the column to the table",
            ),
            (
                "when",
                "column when holds 'monday', which is not a date: write dates such as 2026-11-28",
            ),
            ("count", "column count holds 7, which is not a date"),
        ],
    )
    def test_what_is_no_date_is_refused(self, column: str, says: str, folder: Path) -> None:
        rows = clusters_domain("later", sizes=WEEK)
        rows["columns/when"] = utf8(["monday"] * sum(WEEK))
        rows["columns/count"] = np.full(sum(WEEK), 7)
        alone(folder / "all.h5", rows)
        assert says in covcal("watch", "all.h5", "--by", column, cwd=folder).error_line()


class TestGates:
    def test_a_gate_that_fails_exits_with_3_and_is_reported(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        summary = folder / "summary.md"
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
        arguments = ("w0.h5", "moved.h5", "--fail-on", "changed", "--junit", "watch.xml")
        done = covcal("watch", *arguments, "--format", "github", cwd=folder)
        assert done.code == 3
        assert '::error::covcal: gate "rows unchanged" FAILED by moved: ' in done.out
        assert 'gate "rows unchanged" FAILED by moved' in summary.read_text()
        (suite,) = ET.parse(folder / "watch.xml").getroot()
        assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == (
            "covcal watch",
            "2",
            "1",
        )

    def test_a_gate_that_is_kept(self, made: Path) -> None:
        arguments = ("w0.h5", "w1.h5", "--fail-on", "changed", "--tolerance", "60")
        both = ("--fail-on", "off", "--fail-on", "unknown")
        done = covcal("watch", *arguments, *both, cwd=made).require_success()
        assert done.out.count(" passed by ") == 6

    def test_what_is_not_known_fails_only_where_asked(self, folder: Path) -> None:
        """By ``off`` it passes with a warning and is skipped in the report; by ``unknown`` not."""
        alone(folder / "few.h5", only_rows(clusters_domain("later", sizes=WEEK), np.arange(3)))
        arguments = ("few.h5", "--junit", "watch.xml", "--format", "github", "--force")
        done = covcal("watch", *arguments, "--fail-on", "off", cwd=folder).require_success()
        said = 'gate "confidence not off" skipped on few: not known: '
        assert f"::warning::covcal: {said}" in done.out
        (suite,) = ET.parse(folder / "watch.xml").getroot()
        assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")
        (skipped,) = suite.iter("skipped")
        assert str(skipped.get("message")).startswith(said)
        done = covcal("watch", *arguments, "--fail-on", "unknown", cwd=folder)
        assert done.code == 3
        assert 'gate "confidence known" FAILED by few: not known: 3 rows' in done.out

    def test_a_confidence_that_is_off_fails(self, made: Path, tmp_path: Path) -> None:
        calibrated(tmp_path, method="none")
        shutil.copy(made / "moved.h5", tmp_path)
        done = covcal("watch", "moved.h5", "--fail-on", "off", cwd=tmp_path)
        assert done.code == 3
        assert 'gate "confidence not off" FAILED by moved: off by about ' in done.out

    def test_an_error_is_no_green_report(self, folder: Path) -> None:
        arguments = ("missing.h5", "--fail-on", "changed", "--junit", "watch.xml")
        covcal("watch", *arguments, cwd=folder).error_line()
        (suite,) = ET.parse(folder / "watch.xml").getroot()
        assert suite.get("errors") == "1"


class TestRefusals:
    def test_another_classifier(self, folder: Path) -> None:
        target = made_domain("target", classes=5)
        write_features(
            folder / "x.h5", target=target, source=target, attributes={"model_sha256": "6" * 64}
        )
        reference = folder / "cal.reference.json"
        reference.unlink(missing_ok=True)
        assert "come from different models" in covcal("watch", "x.h5", cwd=folder).error_line()
        assert not reference.exists()

    def test_two_periods_of_one_name(self, folder: Path) -> None:
        done = covcal("watch", "a=w0.h5", "a=w1.h5", cwd=folder)
        assert "two periods are called a" in done.error_line()

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--junit", "x.xml"),
            ("--false-alarms", "0"),
            ("--every", "fortnight"),
            ("-o", "-", "--format", "markdown"),
            ("--fail-on", "changed", "--junit", "a", "-o", "a"),
            ("--networks", "features.h5"),
        ],
    )
    def test_bad_usage(self, arguments: tuple[str, ...], made: Path) -> None:
        covcal("watch", "w0.h5", *arguments, cwd=made).usage_error()


def test_a_calibration_of_aligned_logits_is_watched_by_them(tmp_path: Path) -> None:
    """Its confidence is that of the aligned forecaster, on rows that its fit did not see."""
    path = write_adapted(tmp_path / "adapted.h5")
    arguments = ("adapted.h5", "--method", "fl+temp", "--force")
    covcal("calibrate", *arguments, cwd=tmp_path).require_success()
    document = tmp_path / "cal.json"
    found = watch([path], document, WatchSettings()).periods[0].measured
    calibration = read_calibration(document)
    kept = read_reference(calibration)
    assert kept is not None
    assert kept.coordinates.of == "logits"  # an adapted file holds no features
    assert kept.signals[0].rows == found.rows // 2  # the validation rows: 500 of 1000
    with FeatureFile(path) as file:
        target = file.require_target()
        labels, rows = target.logits(target.rows("all")).argmax(axis=1), target.rows("all")
        logits = target.forecaster_logits(rows, "aligned")
        expected = confidences(logits, calibration.forecaster_temperature, labels)
    assert found.confidence == pytest.approx(expected.mean(), rel=1e-5)


class TestMarkedLabels:
    """Labels that a person put in stand in the estimate's place."""

    @pytest.fixture
    def labelled(self, folder: Path) -> Path:
        """The moved week with the labels of 80 rows that were drawn."""
        source, target = (
            clusters_domain(name, sizes=WEEK, moved=moved, seed=10)
            for name, moved in (("source", 0.0), ("later", 1.0))
        )
        write_features(folder / "moved.h5", source=source, target=target)
        covcal("pick", "moved.h5", "-n", 80, cwd=folder).require_success()
        fill(folder / "to-label.csv", folder / "moved.h5")
        covcal("label", "moved.h5", "to-label.csv", cwd=folder).require_success()
        return folder

    def test_they_are_used(self, labelled: Path) -> None:
        (found,) = watched(labelled, "moved.h5")["periods"]
        one, by_labels = found["measured"], found["by_labels"]
        target = clusters_domain("later", sizes=WEEK, moved=1.0, seed=10)
        drawn = target["split"] < 2
        right = (target["logits"].argmax(axis=1) == target["labels"])[drawn].mean()
        assert by_labels["of"] == "80 labels"
        assert by_labels["low"] <= right <= by_labels["high"]
        assert found["gap"]["value"] == pytest.approx(one["confidence"] - by_labels["accuracy"])

    def test_estimate_says_the_same_accuracy(self, labelled: Path) -> None:
        """The same labels; the interval is wider, because it is valid at every look."""
        (period,) = watched(labelled, "moved.h5")["periods"]
        done = covcal("estimate", "moved.h5", "-o", "-", cwd=labelled).require_success()
        by_name = {estimate["name"]: estimate for estimate in json.loads(done.out)["estimates"]}
        estimate, by_labels = by_name["labels"], period["by_labels"]
        assert by_labels["accuracy"] == pytest.approx(estimate["accuracy"])
        assert by_labels["low"] < estimate["low"] < estimate["high"] < by_labels["high"]

    def test_it_is_said_that_they_are(self, labelled: Path) -> None:
        """In the table, and in the sentence whatever the verdict, with what they allow."""
        done = covcal("watch", "moved.h5", "--format", "markdown", cwd=labelled)
        rows = [line.split(" | ") for line in done.out.splitlines() if line.startswith("| ")]
        assert rows[-1][3].endswith(" %), 80 labels")
        assert "covcal evaluate prints for one period" in done.out
        shown = json.loads(covcal("watch", "moved.h5", "-o", "-", cwd=labelled).out)
        why = shown["periods"][0]["why"]
        assert re.search(r"accuracy is \d+ % \(\d+ to \d+ %, 95 % interval from 80 labels\)", why)

    @pytest.mark.parametrize(("wrong", "verdict"), [(0, "not known"), (1, "off")])
    def test_they_judge_without_any_alarm(self, wrong: int, verdict: str, labelled: Path) -> None:
        """What no row shows: the very rows of the calibration, and labels that are all wrong."""
        rows = clusters_domain("later", sizes=WEEK, seed=3)
        rows["labels"] = (rows["labels"] + wrong) % 5
        source = clusters_domain("source", sizes=WEEK)
        write_features(labelled / "wrong.h5", source=source, target=rows)
        covcal("pick", "wrong.h5", "-n", 40, "-o", "wrong.csv", cwd=labelled).require_success()
        fill(labelled / "wrong.csv", labelled / "wrong.h5")
        covcal("label", "wrong.h5", "wrong.csv", cwd=labelled).require_success()
        (found,) = watched(labelled, "wrong.h5")["periods"]
        assert not found["alarm"]["raised"]
        assert found["verdict"] == verdict
        assert ", 95 % interval from 40 labels)" in found["why"]

    def test_labels_before_a_change_do_not_count_after_it(self, labelled: Path) -> None:
        rows = clusters_domain("later", sizes=WEEK, seed=3)
        write_features(
            labelled / "first.h5", source=clusters_domain("source", sizes=WEEK), target=rows
        )
        covcal("pick", "first.h5", "-n", 40, "-o", "first.csv", cwd=labelled).require_success()
        fill(labelled / "first.csv", labelled / "first.h5")
        covcal("label", "first.h5", "first.csv", cwd=labelled).require_success()
        found = watched(labelled, "first.h5", "w0.h5", "favoured.h5")["periods"]
        assert [one["alarm"]["raised"] for one in found] == [False, False, True]
        of = [one["by_labels"] and one["by_labels"]["of"] for one in found]
        named = [f"40 labels{periods}" for periods in ("", " of first")]
        assert of == [*named, None]
