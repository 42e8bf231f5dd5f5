"""Periods over time: files that grow, late and missing periods, late labels, alarms that end."""

import csv
import json
import re
import shutil
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covcal_cli.errors import CovcalError
from covcal_cli.formats.writer import utf8
from covcal_cli.watch.calendar import missing_between, place_in_time
from covcal_cli.watch.history import read_history
from covcal_cli.watch.period import WatchSettings
from tests.cli_runner import covcal
from tests.labels.labelling import truth
from tests.made_files import clusters_domain, only_rows
from tests.watch.weeks import SIZES, WEEK, alone, calibrated, week

MONDAY = date(2026, 1, 5)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration, and weeks like its target; not to be changed."""
    folder = tmp_path_factory.mktemp("time")
    calibrated(folder)
    for number in range(2):
        week(folder / f"w{number}.h5", number)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "time"))


def growing(path: Path, rows: int, days: Sequence[int] | None = None) -> Path:
    """Write the first rows of a year with ten rows a day, or the rows of some days."""
    target = clusters_domain("later", sizes=SIZES, seed=1)
    number = np.arange(len(target["split"])) // 10
    target["columns/when"] = utf8([str(MONDAY + timedelta(days=int(day))) for day in number])
    chosen = np.arange(rows) if days is None else np.flatnonzero(np.isin(number, days))
    return alone(path, only_rows(target, chosen))


def watched(folder: Path, *arguments: str, code: int = 0) -> Any:
    done = covcal("watch", *arguments, "--history", "h.jsonl", "-o", "-", cwd=folder)
    assert done.code == code, done.err
    return json.loads(done.out)


def names(found: Any) -> list[str]:
    return [one["measured"]["period"] for one in found["periods"]]


def lines(folder: Path) -> list[bytes]:
    return (folder / "h.jsonl").read_bytes().splitlines()


UNUSED = "all.h5 has {} labelled target rows: to use these labels, add --target-labels"


class TestGrowing:
    def test_only_new_weeks_are_added(self, folder: Path) -> None:
        growing(folder / "all.h5", 140)
        assert names(watched(folder, "all.h5", "--by", "when")) == ["2026-W02", "2026-W03"]
        before = lines(folder)
        growing(folder / "all.h5", 280)
        found = watched(folder, "all.h5", "--by", "when")
        assert names(found) == ["2026-W04", "2026-W05"]
        assert lines(folder)[:2] == before
        assert found["notes"] == [UNUSED.format(280)]
        by_labels = watched(folder, "all.h5", "--by", "when", "--target-labels", "-f")
        assert UNUSED.format(280) not in by_labels["notes"]

    def test_the_same_file_again_adds_nothing(self, folder: Path) -> None:
        """A gate still judges the last period, so that a job that is repeated ends alike."""
        growing(folder / "all.h5", 140)
        gate = ("--by", "when", "--fail-on", "unknown")
        watched(folder, "all.h5", *gate, code=3)
        before = lines(folder)
        found = watched(folder, "all.h5", *gate, code=3)
        assert names(found) == ["2026-W03"]
        assert found["notes"] == [
            "no new period, because the history already has all given periods"
        ]
        assert lines(folder) == before

    def test_a_week_that_was_not_over_grows(self, folder: Path) -> None:
        growing(folder / "all.h5", 100)
        watched(folder, "all.h5", "--by", "when")
        growing(folder / "all.h5", 140)
        found = watched(folder, "all.h5", "--by", "when")
        assert names(found) == ["2026-W03"]
        assert found["periods"][0]["measured"]["rows"] == 70
        assert found["notes"] == ["2026-W03 has grown from 30 to 70 rows", UNUSED.format(140)]

    def test_a_period_in_two_files_is_joined(self, folder: Path) -> None:
        """As if it had come in one; a part that comes again changes nothing."""
        growing(folder / "whole.h5", 70)
        whole = watched(folder, "whole.h5", "--by", "when", "--join")["periods"][0]["measured"]
        (folder / "h.jsonl").unlink()
        growing(folder / "a.h5", 0, days=[0, 1, 2])
        growing(folder / "b.h5", 0, days=[3, 4, 5, 6])
        watched(folder, "a.h5", "--by", "when")
        refused = covcal("watch", "b.h5", "--by", "when", "--history", "h.jsonl", cwd=folder)
        assert (
            "has other rows for the period 2026-W02 (30 rows, now 40 rows)" in refused.error_line()
        )
        both = watched(folder, "b.h5", "--by", "when", "--join")["periods"][0]["measured"]
        assert both["rows"] == whole["rows"] == 70
        assert both["confidence"] == pytest.approx(whole["confidence"])
        assert both["predicted"] == pytest.approx(whole["predicted"])
        assert both["signals"] == pytest.approx(whole["signals"])
        before = lines(folder)
        watched(folder, "a.h5", "--by", "when", "--join")
        assert lines(folder) == before
        (folder / "h.jsonl").unlink()
        together = watched(folder, "a.h5", "b.h5", "--by", "when", "--join")
        assert names(together) == ["2026-W02"]
        assert together["periods"][0]["measured"]["signals"] == pytest.approx(whole["signals"])

    def test_blocks_of_rows(self, folder: Path) -> None:
        """A number of rows is a period; the last one grows until it is full."""
        growing(folder / "all.h5", 120)
        assert names(watched(folder, "all.h5", "--every", "50")) == ["row 1", "row 51", "row 101"]
        growing(folder / "all.h5", 190)
        found = watched(folder, "all.h5", "--every", "50")
        assert names(found) == ["row 101", "row 151"]


class TestOrder:
    def test_a_late_week_takes_its_place(self, folder: Path) -> None:
        """The history says what it would say if the week had come in time."""
        for day in (0, 7, 14):
            growing(folder / f"d{day}.h5", 0, days=[day])
        week(folder / "moved.h5", 10, moved=1.0)
        files = {"2026-W02": "d0.h5", "2026-W03": "d7.h5", "2026-W05": "moved.h5"}
        given = [f"{name}={file}" for name, file in files.items()]
        watched(folder, *given, "2026-W04=d14.h5")
        in_time = read_history(folder / "h.jsonl").periods
        (folder / "h.jsonl").unlink()
        watched(folder, *given)
        late = watched(folder, "2026-W04=d14.h5")
        assert names(late) == ["2026-W04"]
        assert late["periods"][0]["alarm"]["since"] != "2026-W05"
        again = {one.measured.period: one for one in read_history(folder / "h.jsonl").periods}
        for one in in_time:
            assert again[one.measured.period].alarm == one.alarm

    def test_weeks_without_rows_are_named_and_drawn(self, folder: Path) -> None:
        growing(folder / "all.h5", 0, days=[0, 21])
        found = watched(folder, "all.h5", "--by", "when")
        assert found["notes"] == [
            "2 periods have no rows (2026-W03 to 2026-W04)",
            UNUSED.format(20),
        ]
        draw = ("watch", "--history", "h.jsonl", "--plot", "trend.html")
        covcal(*draw, cwd=folder).require_success()
        page = (folder / "trend.html").read_text()
        for name in ("2026-W03", "2026-W04"):
            assert page.count(f"{name}: no rows") == 2

    @pytest.mark.parametrize(
        ("every", "expected"),
        [
            ("day", ["2026-03-29", "2026-03-30"]),
            ("week", ["2026-W13", "2026-W14"]),
            ("month", ["2026-03"]),
            ("quarter", ["2026-Q1"]),
            ("year", ["2026"]),
        ],
    )
    def test_offsets_count(self, every: str, expected: list[str], folder: Path) -> None:
        """In UTC; around the night when the clocks of Europe change."""
        times = [
            "2026-03-28T23:59:00-00:30",
            "2026-03-29T01:59:59+01:00",
            "2026-03-29T23:30:00Z",
            "2026-03-30T01:30:00+02:00",
            "2026-03-29T23:30:00-10:00",
        ]
        rows = only_rows(clusters_domain("later", sizes=WEEK), np.arange(100))
        rows["columns/when"] = utf8(times * 20)
        alone(folder / "all.h5", rows)
        assert names(watched(folder, "all.h5", "--by", "when", "--every", every)) == expected

    @pytest.mark.parametrize(
        ("before", "after", "missing"),
        [
            ("2026-12-30", "2027-01-02", ["2026-12-31", "2027-01-01"]),
            ("2020-W52", "2021-W02", ["2020-W53", "2021-W01"]),
            ("2026-11", "2027-02", ["2026-12", "2027-01"]),
            ("2026-Q3", "2027-Q1", ["2026-Q4"]),
            ("2025", "2027", ["2026"]),
            ("2026-W01", "2026-02", []),
            ("row 1", "row 101", []),
            ("a", "c", []),
        ],
    )
    def test_missing_periods_have_names(self, before: str, after: str, missing: list[str]) -> None:
        assert missing_between(before, after) == missing
        for name in missing:
            assert place_in_time(name) is not None

    @pytest.mark.parametrize("every", ["fortnight", "0", "-5", "2.5", ""])
    def test_another_length_is_refused(self, every: str) -> None:
        with pytest.raises(CovcalError, match="is not a period"):
            WatchSettings(every=every)


class TestLateLabels:
    def sheet(self, folder: Path, file: str, count: int, **more: str) -> Path:
        """Write the labels of the first rows of a file."""
        path = folder / "late.csv"
        with path.open("w", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(["id", "label", *more])
            for row_id, label in list(truth(folder / file).items())[:count]:
                writer.writerow([row_id, label, *more.values()])
        return path

    def test_they_are_joined_by_id(self, folder: Path) -> None:
        """Without files, to those of the history; all rows labelled give the true accuracy."""
        watched(folder, "w0.h5", "w1.h5")
        self.sheet(folder, "w1.h5", sum(WEEK), period="w1")
        found = watched(folder, "--labels", "late.csv")
        assert names(found) == ["w1"]
        (one,) = found["periods"]
        rows = clusters_domain("later", sizes=WEEK, seed=1)
        right = (rows["logits"].argmax(axis=1) == rows["labels"]).mean()
        assert one["measured"]["labels"]["accuracy"] == pytest.approx(right)
        assert one["measured"]["labels"]["rows"] == sum(WEEK)
        assert one["by_labels"]["of"].startswith("200 labels")
        before = lines(folder)
        watched(folder, "--labels", "late.csv")  # again
        assert lines(folder) == before

    def test_repeated_ids_need_a_column_of_periods(self, folder: Path) -> None:
        watched(folder, "w0.h5", "w1.h5")
        self.sheet(folder, "w1.h5", 50)
        done = covcal("watch", "--labels", "late.csv", "--history", "h.jsonl", cwd=folder)
        assert "(in w0 and in w1): use unique ids" in done.error_line()

    def test_ids_that_no_period_has(self, folder: Path) -> None:
        watched(folder, "w0.h5")
        (folder / "late.csv").write_text("id,label\nnobody,class 1\n")
        arguments = ("--labels", "late.csv", "--history", "h.jsonl")
        done = covcal("watch", *arguments, cwd=folder)
        assert (
            "no watched period has a row with one of the ids, such as 'nobody'" in done.error_line()
        )
        first = next(iter(truth(folder / "w0.h5")))
        (folder / "late.csv").write_text(f"id,label\nnobody,class 1\n{first},class 1\n")
        done = covcal("watch", *arguments, cwd=folder).require_success()
        assert "1 of 2 ids are in no watched period (for example 'nobody')" in done.err
        (folder / "late.csv").write_text(f"id,label\n{first},Klasse 1\n")
        line = covcal("watch", *arguments, cwd=folder).error_line()
        assert "label 'Klasse 1' is not a class of the features file" in line
        assert line.endswith("correct it")

    def test_a_file_elsewhere_is_opened_only_if_it_is_named(self, folder: Path) -> None:
        """A history may come from somebody else."""
        (folder / "kept").mkdir()
        (folder / "kept/h.jsonl").write_text("")
        arguments = ("--history", "kept/h.jsonl")
        covcal("watch", "w0.h5", *arguments, cwd=folder).require_success()
        self.sheet(folder, "w0.h5", 20)
        done = covcal("watch", "--labels", "late.csv", *arguments, cwd=folder)
        assert "is outside the folder of kept/h.jsonl" in done.error_line()
        named = covcal("watch", "w0.h5", "--labels", "late.csv", *arguments, cwd=folder)
        assert "20 labels" in named.require_success().out

    def test_labels_of_many_periods_add_up(self, folder: Path) -> None:
        """A later period has a narrower interval, and an unlabelled one uses it too."""
        growing(folder / "all.h5", 280)
        watched(folder, "all.h5", "--by", "when")
        self.sheet(folder, "all.h5", 210)
        found = watched(folder, "all.h5", "--by", "when", "--labels", "late.csv")
        widths = [one["gap"]["high"] - one["gap"]["low"] for one in found["periods"]]
        assert names(found) == ["2026-W02", "2026-W03", "2026-W04", "2026-W05"]
        assert widths == sorted(widths, reverse=True)
        last = found["periods"][-1]
        assert last["measured"]["labels"] is None
        assert last["by_labels"]["of"] == "210 labels of 2026-W02 to 2026-W04"


class TestSegments:
    def weeks(self, folder: Path, moved: int, *more: str) -> list[Any]:
        """Watch two weeks like the calibration's rows, and some that moved."""
        found = []
        for number in range(2 + moved):
            name = f"2026-W{number + 10}"
            week(folder / "week.h5", number, moved=1.0 if number >= 2 else 0.0)
            found += watched(folder, f"{name}=week.h5", *more)["periods"]
        return found

    def test_an_alarm_ends_when_rows_are_stable(self, folder: Path) -> None:
        """And another change raises it again. The reference data never change."""
        covcal("watch", "w0.h5", cwd=folder).require_success()
        reference = (folder / "cal.reference.json").read_bytes()
        found = self.weeks(folder, 5, "--stable", "4")
        raised = [one["alarm"]["raised"] for one in found]
        assert raised == [False, False, True, True, True, False, False]
        segment = {"since": "2026-W12", "reason": "stable for 4 periods"}
        assert [one["segment"] for one in found[-2:]] == [segment, segment]
        week(folder / "week.h5", 50, prior=[0.6, 0.1, 0.1, 0.1, 0.1])
        (last,) = watched(folder, "2026-W17=week.h5", "--stable", "4")["periods"]
        assert last["alarm"]["raised"]
        assert last["alarm"]["since"] == "2026-W17"
        before = found[2]["measured"]["predicted"]
        change = last["alarm"]["change"]
        number, said = re.findall(r"class (\d) .* instead of ([\d.]+) %", change)[0]
        assert float(said) == pytest.approx(100 * before[int(number)], abs=0.5)
        assert (folder / "cal.reference.json").read_bytes() == reference

    def test_it_never_ends_by_itself_where_nobody_wants_that(self, folder: Path) -> None:
        assert self.weeks(folder, 4, "--stable", "0")[-1]["alarm"]["raised"]

    def test_it_ends_if_later_rows_are_as_before(self, folder: Path) -> None:
        """The note says so, and no later line denies that a change was found."""
        said = []
        for number, moved in enumerate([0.0, 0.3, 0.0, 0.0, 0.0, 0.0]):
            week(folder / "week.h5", number, moved=moved)
            name = f"2026-W{number + 10}=week.h5"
            done = covcal("watch", name, "--history", "h.jsonl", "--stable", "0", cwd=folder)
            said.append(
                (done.out, "ends when enough new rows look like the rows before" in done.err)
            )
        assert said[1][1]
        assert "changed since 2026-W11" in said[1][0]
        assert not said[-1][1]
        assert "no lasting change was found since the calibration" in said[-1][0]

    def test_somebody_acknowledges_it(self, folder: Path) -> None:
        found = self.weeks(folder, 2)
        assert found[-1]["alarm"]["raised"]
        arguments = ("watch", "--history", "h.jsonl", "--acknowledge", "a new camera")
        done = covcal(*arguments, "--plot", "trend.html", cwd=folder).require_success()
        assert "accepted: changed since 2026-W12: " in done.err
        accepted = "(accepted: a new camera)"
        assert accepted in (folder / "trend.html").read_text(encoding="utf-8")
        assert accepted in covcal("inspect", "h.jsonl", cwd=folder).require_success().out
        week(folder / "week.h5", 30, moved=1.0)
        done = covcal("watch", "2026-W14=week.h5", "--history", "h.jsonl", cwd=folder)
        assert "(accepted: a new camera)" in done.out
        again = covcal(*arguments, cwd=folder).error_line()
        assert "there is no alarm to acknowledge" in again
        assert json.loads(lines(folder)[-2])["reason"] == "a new camera"

    @pytest.mark.parametrize("more", [(), ("w0.h5", "--history", "h.jsonl")])
    def test_an_acknowledgement_needs_a_history_and_no_files(
        self, more: tuple[str, ...], folder: Path
    ) -> None:
        done = covcal("watch", "--acknowledge", "why not", *more, cwd=folder)
        assert "needs --history, and no files" in done.usage_error()


def test_labels_in_the_files_count_only_if_asked(folder: Path) -> None:
    """With all rows labelled the accuracy is the true one; repeated nights add up."""
    rows = clusters_domain("later", sizes=WEEK, seed=5)
    alone(folder / "night.h5", rows)
    assert watched(folder, "night.h5")["periods"][0]["by_labels"] is None
    (one,) = watched(folder, "night.h5", "--target-labels")["periods"]
    right = (rows["logits"].argmax(axis=1) == rows["labels"]).mean()
    assert one["by_labels"]["accuracy"] == pytest.approx(right)
    usage = covcal("watch", "night.h5", "--target-labels", "--labels", "x.csv", cwd=folder)
    assert "use either this option or --labels" in usage.usage_error()


class TestEmptyNights:
    @pytest.fixture
    def empty(self, folder: Path) -> Path:
        """A week without rows."""
        return alone(folder / "empty.h5", only_rows(clusters_domain("later"), np.arange(0)))

    def test_a_file_without_rows_is_a_period_of_no_rows(self, folder: Path, empty: Path) -> None:
        (period,) = watched(folder, f"2026-W03={empty.name}", "--fail-on", "unknown")["periods"]
        assert period["measured"]["rows"] == 0
        assert period["measured"]["estimate"] is None
        assert (period["verdict"], period["why"]) == ("not known", "the period has no rows")

    def test_it_has_no_segments(self, folder: Path, empty: Path) -> None:
        assert watched(folder, empty.name, "--segment", "predicted")["segments"] == []

    def test_it_does_not_change_later_periods(self, folder: Path, empty: Path) -> None:
        alone = watched(folder, "2026-W04=w0.h5")
        (folder / "h.jsonl").unlink()
        watched(folder, f"2026-W03={empty.name}")
        with_empty = watched(folder, "2026-W04=w0.h5")
        assert with_empty["periods"][-1]["gap"] == alone["periods"][-1]["gap"]
        assert not with_empty["periods"][-1]["alarm"]["raised"]

    def test_rows_that_come_later_fill_it(self, folder: Path, empty: Path) -> None:
        watched(folder, f"2026-W03={empty.name}")
        (period,) = watched(folder, "2026-W03=w0.h5")["periods"]
        assert period["measured"]["rows"] == sum(WEEK)

    def test_a_file_that_is_cut_has_no_period(self, folder: Path, empty: Path) -> None:
        document = watched(folder, empty.name, "--by", "when")
        assert document["periods"] == []
        assert document["notes"] == ["empty.h5 has no rows, so it has no period"]

    def test_the_trend_draws_a_gap(self, folder: Path, empty: Path) -> None:
        for name in ("2026-W02=w0.h5", f"2026-W03={empty.name}"):
            watched(folder, name, "--plot", "trend.html", "--force")
        text = (folder / "trend.html").read_text()
        assert text.count('class="gap"') == 1 + 2  # in the key and in both figures
        assert "The period has no rows" in text
