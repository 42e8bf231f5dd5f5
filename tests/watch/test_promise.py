"""Whether the rows that a decision accepts keep its promise over time."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.problem import CalibrateSettings
from covcal_cli.decide.decide import DecideSettings, decide
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.records import line_text, write_document
from covcal_cli.report.trend import write_trend
from covcal_cli.watch.history import read_history
from covcal_cli.watch.labels import labels_for_verdict, pooled
from covcal_cli.watch.period import Measured, PeriodLabels, Promise, Watched, WatchSettings
from covcal_cli.watch.promise import error_proved_by, promise_after
from covcal_cli.watch.verdict import gate_results
from covcal_cli.watch.watch import watch
from tests.made_files import clusters_domain
from tests.watch.weeks import WEEK, alone, calibrated

A = 0.1


def labelled(wrong: int, rows: int, decision: str = "d") -> Measured:
    """Return a period with labels of accepted rows."""
    labels = PeriodLabels(rows, 1 - wrong / rows, float(rows)) if rows else None
    accepted = SimpleNamespace(decision=decision, error=A, expected=None, labels=labels)
    return cast("Measured", SimpleNamespace(accepted=accepted))


def promised(*entries: Measured, start: int = 0) -> Promise:
    promise = promise_after(entries, start)
    assert promise is not None
    return promise


@pytest.mark.parametrize("weeks", [1, 3, 8])
def test_a_good_past_does_not_hide_a_bad_week(weeks: int) -> None:
    """In either direction, and one bad week is not hidden by the average over valid pools."""
    for bad in (0.45, 0.95):
        accuracies = [0.7] * weeks + [bad]
        entries = [
            SimpleNamespace(
                period=str(number), confidence=0.7, labels=PeriodLabels(400, accuracy, 400.0)
            )
            for number, accuracy in enumerate(accuracies)
        ]
        pool = pooled(cast("list[Measured]", entries), 0.05)
        assert pool is not None
        assert pool.gap.verdict(0.05) == "off"
        assert pool.labels <= 800
        before = pooled(cast("list[Measured]", entries[:-1]), 0.05)
        assert before is not None
        assert (before.labels, before.first) == (400 * weeks, "0")


def verdict_of(rows: int, accuracy: float) -> str:
    """Return the verdict on a confidence of 0.7 after one labelled period."""
    labels = PeriodLabels(rows, accuracy, float(rows))
    entry = SimpleNamespace(period="w", confidence=0.7, labels=labels)
    pool = pooled([cast("Measured", entry)], 0.05)
    assert pool is not None
    return pool.gap.verdict(0.05)


def test_the_labels_that_prove_a_confidence() -> None:
    """As many random labels with this accuracy lead to the verdict; far fewer do not."""
    for accuracy, verdict in ((0.7, "holds"), (0.6, "off")):
        needed = labels_for_verdict(0.7, 0.05, accuracy, 100.0) or 0
        rows = round(0.3 * needed) + 100, needed + 100
        assert [verdict_of(n, accuracy) for n in rows] == ["not known", verdict]
    assert labels_for_verdict(0.7, 0.001) is labels_for_verdict(0.7, 0.05, 0.65, 100.0) is None


def test_a_few_labels_prove_a_large_error_only() -> None:
    """An error of the named size is proved, and a smaller one is not."""
    least = error_proved_by(50, 0.7, 0.05) or 0.0
    verdicts = [verdict_of(50, 0.7 - error) for error in (least - 0.02, least)]
    assert verdicts == ["not known", "off"]
    assert error_proved_by(3, 0.7, 0.05) is None


class TestVerdict:
    def test_few_errors_hold_it(self) -> None:
        promise = promised(*(labelled(1, 50) for _ in range(6)))
        assert (promise.verdict, promise.labels, promise.needed) == ("holds so far", 300, None)
        assert promise.error is not None
        assert promise.error.high <= A

    def test_many_errors_break_it(self) -> None:
        promise = promised(*(labelled(12, 50) for _ in range(4)))
        assert promise.verdict == "broken"
        assert promise.error is not None
        assert promise.error.low > A

    def test_a_long_good_past_does_not_hide_a_break(self) -> None:
        good, bad = [labelled(2, 50) for _ in range(30)], [labelled(15, 50) for _ in range(4)]
        assert promised(*good).verdict == "holds so far"
        assert promised(*good, *bad).verdict == "broken"

    def test_the_labels_needed_decide(self) -> None:
        before = promised(labelled(1, 40))
        assert before.verdict == "not known"
        assert before.needed is not None
        rate = round(before.needed * (1 + 10 * A) / 50)  # with the expected error as ten labels
        assert promised(labelled(1 + rate, 40 + before.needed)).verdict == "holds so far"

    def test_without_labels_it_is_not_known(self) -> None:
        promise = promised(labelled(0, 0))
        assert (promise.verdict, promise.labels, promise.error) == ("not known", 0, None)

    def test_labels_of_another_decision_do_not_count(self) -> None:
        promise = promised(*(labelled(30, 50, "other") for _ in range(4)), labelled(1, 20))
        assert promise.labels == 20

    def test_labels_from_before_a_change_do_not_count(self) -> None:
        assert promised(labelled(30, 50), labelled(30, 50), labelled(1, 20), start=2).labels == 20

    def test_false_alarms_are_rare_at_the_limit(self) -> None:
        rng = np.random.default_rng(0)

        def ever_broken(error: float) -> bool:
            entries = [labelled(int(rng.binomial(20, error)), 20) for _ in range(6)]
            looks = (promised(*entries[: look + 1]).verdict for look in range(6))
            return "broken" in looks

        assert sum(ever_broken(A) for _ in range(20)) <= 1
        assert sum(ever_broken(4 * A) for _ in range(5)) == 5


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration, a decision, and two weeks with labels, one much worse; not to be changed."""
    folder = tmp_path_factory.mktemp("promise")
    calibrated(folder)
    other = calibrate(folder / "features.h5", CalibrateSettings(method="none"))
    write_document(other, folder / "other.json", force=False)
    estimate = Estimate("made", 0.8, 0.75, 0.85, "")
    settings = DecideSettings(error=0.2)
    write_document(
        decide(folder / "features.h5", folder / "cal.json", settings, estimate),
        folder / "decide.json",
        force=False,
    )
    for name, moved in (("good", 0.0), ("bad", 2.5)):
        alone(folder / f"{name}.h5", clusters_domain("later", sizes=WEEK, moved=moved, seed=3))
    return folder


def watched(folder: Path, name: str, history: Path | None = None, **settings: Any) -> Watched:
    return watch(
        [folder / name],
        folder / "cal.json",
        WatchSettings(target_labels=True, **settings),
        history=history,
        decide=folder / "decide.json",
    )


class TestWatch:
    def test_without_labels_it_tells_the_expected_error(self, made: Path) -> None:
        (period,) = watch(
            [made / "good.h5"], made / "cal.json", decide=made / "decide.json"
        ).periods
        accepted = period.measured.accepted
        assert accepted is not None
        assert accepted.expected is not None
        assert accepted.rows == round(accepted.expected.share * period.measured.rows)
        assert accepted.expected.low <= accepted.expected.error <= accepted.expected.high
        assert period.promise_answer.startswith("not known: no accepted row has a label")

    def test_the_error_is_that_of_accepted_rows(self, made: Path) -> None:
        (period,) = watched(made, "good.h5").periods
        accepted = period.measured.accepted
        assert accepted is not None
        assert accepted.labels is not None
        assert accepted.labels.rows == accepted.rows  # every row has a label
        assert period.measured.labels is not None
        assert accepted.labels.accuracy > period.measured.labels.accuracy

    def test_a_broken_promise_fails_the_gate(self, made: Path, tmp_path: Path) -> None:
        history = tmp_path / "h.jsonl"
        (gate,) = gate_results(watched(made, "bad.h5", history), ["promise"])
        assert gate.outcome == "failed"
        assert 'gate "promise kept" FAILED by bad: broken' in gate.sentence
        write_trend(read_history(history), tmp_path / "trend.html", force=False)
        assert "Promise broken" in (tmp_path / "trend.html").read_text()

    def test_a_history_without_decision_reads_on(self, made: Path, tmp_path: Path) -> None:
        history = tmp_path / "h.jsonl"
        watch([made / "good.h5"], made / "cal.json", history=history)
        line = json.loads(history.read_text())
        del line["promise"], line["measured"]["accepted"]
        history.write_text(f"{line_text(line, history)}\n")
        (period,) = watched(made, "good.h5", history).periods
        assert period.promise is not None
        assert period.promise.labels > 0

    @pytest.mark.parametrize("first", ["labels", "decision"])
    def test_labels_and_decision_may_come_in_any_order(
        self, first: str, made: Path, tmp_path: Path
    ) -> None:
        """Labels that were read without the decision count once both are given."""
        history, decision = tmp_path / "h.jsonl", made / "decide.json"
        with_labels = WatchSettings(target_labels=True)
        steps: list[Any] = [(with_labels, None), (WatchSettings(), decision)]
        for settings, decide_with in steps if first == "labels" else steps[::-1]:
            document = watch(
                [made / "bad.h5"],
                made / "cal.json",
                settings,
                history=history,
                decide=decide_with,
            )
        left_out = any("labels are not yet used to check" in note for note in document.notes)
        assert left_out == (first == "decision")
        (period,) = watched(made, "bad.h5", history).periods
        assert period.promise is not None
        assert period.promise.verdict == "broken"

    def test_all_labels_count_if_some_came_with_the_decision(
        self, made: Path, tmp_path: Path
    ) -> None:
        """The rest of the labels came in a watch without it."""
        history = tmp_path / "h.jsonl"
        watched(made, "bad.h5", history)
        line = json.loads(history.read_text())
        line["measured"]["accepted"]["labels"] = {"rows": 20, "accuracy": 1.0, "size": 20.0}
        history.write_text(f"{line_text(line, history)}\n")
        (period,) = watched(made, "bad.h5", history).periods
        accepted = period.measured.accepted
        assert accepted is not None
        assert accepted.labels is not None
        assert accepted.labels.rows == accepted.rows

    def test_labels_of_joined_rows_add_up(self, made: Path, tmp_path: Path) -> None:
        """Two samples are one of both sizes, or the intervals would be too short."""
        history = tmp_path / "h.jsonl"
        counts = []
        for name in ("good", "bad"):
            document = watch(
                [Path(f"w={made / name}.h5")],
                made / "cal.json",
                WatchSettings(target_labels=True),
                history=history,
                decide=made / "decide.json",
                join=True,
            )
            accepted = document.periods[0].measured.accepted
            assert accepted is not None
            assert accepted.labels is not None
            counts.append((accepted.rows, accepted.labels.rows, accepted.labels.size))
        assert counts[1][0] > counts[0][0]
        assert {*map(float, counts[1])} == {float(counts[1][0])}

    def test_labels_of_the_decisions_own_rows_do_not_count(self, made: Path) -> None:
        document = watched(made, "features.h5")
        assert document.periods[0].promise is not None
        assert document.periods[0].promise.labels == 0
        assert any("was made with rows of" in note for note in document.notes)

    def test_a_decision_of_another_calibration_is_refused(self, made: Path) -> None:
        with pytest.raises(CovcalError, match="was not made with"):
            watch([made / "good.h5"], made / "other.json", decide=made / "decide.json")
