"""``covcal decide``: rows to accept, first by the estimate and then by labels."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import h5py
import numpy as np
import pytest
from onnxruntime import InferenceSession

from covcal_cli.calibrate.estimate import estimate
from covcal_cli.calibrate.problem import EstimateSettings
from covcal_cli.cli.decide import answer
from covcal_cli.decide import thresholds
from covcal_cli.decide.decide import _BELIEFS, DecideSettings, _Promise, decide
from covcal_cli.decide.thresholds import Sample
from covcal_cli.errors import CovcalError
from covcal_cli.formats.calibration import read_calibration
from covcal_cli.formats.decision import CurvePoint, beliefs_of, read_decision
from covcal_cli.formats.features import FeatureFile
from covcal_cli.maths.acceptance import Ranking
from covcal_cli.maths.odds import wilson
from covcal_cli.records import write_document
from tests.cli_runner import covcal, printed_json
from tests.labels.labelling import fill, lines_of
from tests.made_files import edited, made_domain, write_features

SIZES = (400, 400, 200)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with features.h5 and a cal.json that used no label; not to be changed."""
    folder = tmp_path_factory.mktemp("calibrated")
    write_features(
        folder / "features.h5",
        source=made_domain("source", sizes=SIZES),
        target=made_domain("target", sizes=SIZES, shift=0.3),
    )
    covcal("calibrate", "-q", cwd=folder).require_success()
    return folder


@pytest.fixture
def folder(calibrated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(calibrated, tmp_path / "work"))


@pytest.fixture(scope="module")
def promised(calibrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with labels of rows drawn for an error of 15 %, and what they promise.

    Not to be changed.
    """
    folder = Path(shutil.copytree(calibrated, tmp_path_factory.mktemp("promised") / "work"))
    covcal("decide", "--error", 0.15, "-q", cwd=folder).require_success()
    label(folder, 200)
    done = covcal("decide", "--error", 0.15, "-f", cwd=folder).require_success()
    (folder / "screen.txt").write_text(done.out)
    return folder


@pytest.fixture
def labelled(promised: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(promised, tmp_path / "labelled"))


def label(folder: Path, n: int, *options: str) -> None:
    """Pick rows for the decision and fill in all their labels."""
    covcal(
        "pick", "-n", n, "--for", "decide.json", *options, "-o", "s.csv", "-f", cwd=folder
    ).require_success()
    fill(folder / "s.csv", folder / "features.h5")
    covcal("label", "features.h5", "s.csv", "-q", cwd=folder).require_success()


def errors_above(folder: Path, threshold: float, splits: tuple[int, ...] = (0, 1)) -> float:
    """Return the true share of wrong rows among the rows that a threshold accepts."""
    covcal("apply", "-o", "p.npz", "-f", "-q", cwd=folder).require_success()
    with np.load(folder / "p.npz") as rows, h5py.File(folder / "features.h5") as file:
        target = file["target"]
        taken = np.isin(target["split"][:], splits) & (rows["confidence"] > threshold)
        return float((rows["label_index"] != target["labels"][:])[taken].mean())


def test_without_labels_it_estimates_and_says_how_many_labels_make_a_promise(folder: Path) -> None:
    done = covcal("decide", "--error", 0.1, cwd=folder).require_success()
    assert done.out.startswith("Accept")
    assert "This is an estimate, not a promise." in done.out
    assert "was above the limit on 8 to 13 % of 144 test shifts" in done.err
    assert "covcal pick -n" in done.out
    decision = read_decision(folder / "decide.json", folder / "cal.json")
    assert not decision.is_promise
    assert decision.expected is not None
    assert decision.expected.error < 0.1
    assert decision.rows == 800  # no test row
    # Without an estimated accuracy, the error has no range, and fails more often.
    settings = DecideSettings(error=0.1)
    believed = decide(folder / "features.h5", folder / "cal.json", settings)
    assert "on 39 to 47 % of 144 test shifts" in believed.notes[0]
    assert " to be wrong. This is an estimate" in answer(believed, "decide.json")
    # The words follow the probability that the suggested number of labels is enough.
    assert 0.5 <= decision.promised_chance <= 1
    likely = "probably" if decision.promised_chance >= 0.8 else "perhaps"
    assert f"{likely} needs {decision.labels_needed} labels" in done.out
    assert np.all(np.diff([point.share for point in decision.curve]) > 0)
    # The printed command reads the file of the decision, whatever its name.
    (folder / "features.h5").rename(folder / "other.h5")
    covcal("decide", "other.h5", "--error", "0.1", "-f", cwd=folder).require_success()
    fewer = covcal("pick", "-n", decision.labels_needed - 1, "--for", "decide.json", cwd=folder)
    assert "note: covcal pick reads other.h5, because decide.json was made" in fewer.err
    assert f"suggests {decision.labels_needed} labels" in fewer.require_success().err
    # No source row supports the estimate for rows with a higher confidence.
    assert not believed.warnings
    with edited(folder / "other.h5") as file:
        file["target/logits"][:] *= 20
    (warning,) = decide(folder / "other.h5", folder / "cal.json", settings).warnings
    assert re.match(r"\d\d+ % of the accepted rows are more confident than every", warning)


def test_a_stricter_promise_never_needs_fewer_labels(folder: Path) -> None:
    path = folder / "features.h5"
    accuracy = estimate(path, EstimateSettings(labels="none")).estimates[0]
    assert accuracy.high - accuracy.low > 0.1

    def needed(error: float, certainty: float) -> int:
        settings = DecideSettings(error=error, certainty=certainty, labels="none")
        return decide(path, folder / "cal.json", settings, accuracy).labels_needed

    of_errors = [needed(error, 0.9) for error in (0.2, 0.1, 0.05)]
    of_certainties = [needed(0.2, certainty) for certainty in (0.8, 0.9, 0.99)]
    assert of_errors == sorted(of_errors)
    assert of_certainties == sorted(of_certainties)
    assert 0 < of_errors[0] < of_errors[-1]


_SHARES = "'planned' is empty, or its shares are not in ascending order"
DAMAGED: list[tuple[str, str, Any]] = [
    ("certainty must be between 0 and 1, not 0", "certainty", 0.0),
    ("certainty must be between 0 and 1, not 1", "certainty", 1.0),
    ("splits must be some of train, validation, test", "splits", ["x"]),
    (_SHARES, "planned", []),
    (_SHARES, "planned", None),  # in reverse
]


def test_a_signed_decision_that_cannot_be_is_refused(promised: Path, tmp_path: Path) -> None:
    """By every command that reads it, because all of them read it with the same function."""
    for words, key, value in DAMAGED:
        content = json.loads((promised / "decide.json").read_text())
        content[key] = content[key][::-1] if value is None else value
        write_document(content, tmp_path / "decide.json", force=True)
        with pytest.raises(CovcalError, match=re.escape(f"is damaged ({words})")):
            read_decision(tmp_path / "decide.json", promised / "cal.json")


def test_labels_of_picked_rows_make_a_promise_that_the_truth_keeps(labelled: Path) -> None:
    folder = labelled
    assert "with 90 % certainty" in (folder / "screen.txt").read_text()
    decision = read_decision(folder / "decide.json", folder / "cal.json")
    assert decision.is_promise
    assert decision.labels is not None
    assert decision.labels.wrong <= decision.labels.allowed
    assert decision.threshold is not None
    assert errors_above(folder, decision.threshold) <= 0.15
    # The same labels tell nothing to a calibration that was fitted to them.
    covcal("calibrate", "--labels", "marked", "-fq", cwd=folder).require_success()
    done = covcal("decide", "--error", 0.15, "-f", cwd=folder).require_success()
    assert "was fitted to the labels of this file" in done.err
    assert "not a promise" in done.out
    # Sets follow the labels too: the estimate without labels may contradict this calibration.
    covcal("calibrate", "--labels", 60, "-qo", "random.json", cwd=folder).require_success()
    done = covcal("decide", "-c", "random.json", "--set", 0.9, "-f", cwd=folder).require_success()
    assert "because the calibration was fitted to labels" in done.err
    refused = covcal("decide", "--error", 0.15, "--labels", "marked", "-fq", cwd=folder)
    assert "covcal calibrate --labels none" in refused.error_line()


def test_if_too_many_labels_are_wrong_nothing_is_accepted(folder: Path) -> None:
    """The message says what was found, and how many labels would change the result."""
    covcal("decide", "--error", 0.1, "-q", cwd=folder).require_success()
    label(folder, 60)
    with edited(folder / "features.h5") as file:
        labels = file["marked/labels"]
        labels[:] = (labels[:] + 1) % 3
    done = covcal("decide", "--error", 0.1, "-f", cwd=folder).require_success()
    assert done.out.startswith("Accept  none of the target train and validation rows")
    assert (
        "labelled rows with the highest confidence are wrong, but a promise that at most 10 %"
        in done.out
    )
    assert "covcal apply" not in done.err  # there is nothing to apply
    assert (
        "\nLabels  even with more labels, a promise would cover only a few rows: allow" in done.out
    )


@pytest.mark.parametrize("high", [2.5, 4.0])
def test_good_labels_after_a_failed_promise_are_worth_more_labels(high: float) -> None:
    """Three of 80 labels are wrong at a limit of 10 %. A wide range of the estimate hid this."""
    scores, shares = np.linspace(1, 0.3, 1000), np.arange(1, 101) / 100
    errors = [float(1 - scores[: int(1000 * share)].mean()) for share in shares]
    curve = [
        CurvePoint(float(share), error, error / 2, min(1.0, high * error))
        for share, error in zip(shares, errors, strict=True)
    ]
    labelled = SimpleNamespace(
        scores=scores[:160:2],
        is_used=np.ones(80, dtype=bool),
        wrong=np.arange(80) >= 77,
        groups=np.zeros(80),
        promises=1,
        draw=SimpleNamespace(batch=np.zeros(80)),
    )
    rankings = [Ranking(np.sort(scores), beliefs_of(curve, parts)) for parts in _BELIEFS]
    promise = _Promise(cast("Any", labelled), DecideSettings(error=0.1), rankings, 0)
    labels, share, probability = promise.offer(2)
    assert labels > 0
    assert share > 0.05
    assert probability > 0.5


def test_a_drawn_row_without_a_label_counts_as_wrong(labelled: Path) -> None:
    folder = labelled
    whole = json.loads((folder / "decide.json").read_text())
    with edited(folder / "features.h5") as file:
        labels = file["marked/labels"][:]
        labels[::2] = -1
        file["marked/labels"][:] = labels
    done = covcal("decide", "--error", 0.15, "-f", cwd=folder).require_success()
    assert "100 of the picked rows have no label and count as wrong" in done.err
    decision = read_decision(folder / "decide.json", folder / "cal.json")
    assert decision.labels is not None
    assert decision.labels.wrong / decision.labels.labels > (
        whole["labels"]["wrong"] / whole["labels"]["labels"]
    )
    assert not decision.is_promise


def test_labels_for_the_accuracy_make_no_promise(folder: Path) -> None:
    shutil.copy(folder / "features.h5", folder / "bare.h5")
    picked = covcal("pick", "-n", 60, "-o", "s.csv", cwd=folder).require_success()
    assert " % now; with only these labels, the accuracy is known to about +/- " in picked.out
    fill(folder / "s.csv", folder / "features.h5")
    covcal("label", "features.h5", "s.csv", "-q", cwd=folder).require_success()
    done = covcal("decide", "--error", 0.15, "--labels", "marked", "-q", cwd=folder)
    assert "were picked to estimate the accuracy" in done.error_line()
    # A calibration by these labels gives the cost by these labels, too.
    covcal("calibrate", "-q", "-o", "by_labels.json", cwd=folder).require_success()
    # A file without these labels is refused before anybody labels; both remedies work.
    bare = ("decide", "bare.h5", "--error", 0.15, "-o", "bare.json", "-fq", "-c")
    covcal(*bare, "by_labels.json", cwd=folder).require_success()
    pick = ("pick", "bare.h5", "-n", 200, "--for", "bare.json", "-o", "t.csv", "-fq")
    assert "labels that are not in bare.h5: give the file" in covcal(*pick, cwd=folder).error_line()
    anew = ("calibrate", "bare.h5", "--labels", "none", "-o", "none.json", "-q")
    for step in (anew, (*bare, "none.json"), pick):
        covcal(*step, cwd=folder).require_success()
    (folder / "costs.json").write_text('{"review": 99, "wrong": 5}')
    command = ("decide", "-c", "by_labels.json", "--cost", "costs.json", "-o", "cost.json")
    done = covcal(*command, cwd=folder).require_success()
    assert "note:" not in done.err.replace("note: reading", "")
    cost = read_decision(folder / "cost.json", folder / "by_labels.json").cost
    assert cost is not None
    assert (cost.cost, cost.low, cost.high) == pytest.approx(cost_of_all(folder))
    # Later labels for the decision are used, although the calibration was fitted to the first ones,
    # which left the pool. The estimate must not use them, because they test the promise.
    promise = ("decide", "-c", "by_labels.json", "--error", 0.15)
    assert "(" in covcal(*promise, "-q", cwd=folder).require_success().out.splitlines()[1]
    label(folder, 200)
    done = covcal(*promise, "-f", "--labels", "marked", cwd=folder).require_success()
    assert "has no range, because the calibration was fitted to labels" in done.err
    decision = read_decision(folder / "decide.json", folder / "by_labels.json")
    assert decision.labels is not None
    assert all(point.low == point.error == point.high for point in decision.curve)
    # Only the calibration by the first labels keeps the promise: covcal calibrate makes it again.
    done = covcal("calibrate", "-o", "again.json", cwd=folder).require_success()
    assert (
        "200 labels were picked for a decision, so only covcal decide uses these labels" in done.err
    )
    by_labels, again = (read_calibration(folder / f"{n}.json") for n in ("by_labels", "again"))
    assert by_labels.scaling_sha256 == again.scaling_sha256


def test_a_draw_in_another_way_than_stated_is_refused(labelled: Path) -> None:
    folder = labelled
    with edited(folder / "features.h5") as file:
        inclusion = file["marked/inclusion"]
        inclusion[:] = inclusion[:] / 2
    done = covcal("decide", "--error", 0.15, "-fq", cwd=folder)
    assert "can prove a promise only with the calibration" in done.error_line()
    covcal("decide", "--error", 0.15, "-f", "--labels", "none", cwd=folder).require_success()


def test_sets_agree_with_labels_that_contradict_the_estimate(tmp_path: Path) -> None:
    """The classifier is wrong on 40 % more rows than its logits show; only labels tell this."""
    target = made_domain("target", sizes=SIZES, shift=0.3)
    moved = np.random.default_rng(0).random(len(target["labels"])) < 0.4
    target["labels"] = np.where(moved, (target["labels"] + 1) % 3, target["labels"])
    source = made_domain("source", sizes=SIZES)
    write_features(tmp_path / "features.h5", source=source, target=target)
    covcal("calibrate", "-q", cwd=tmp_path).require_success()
    covcal("decide", "--error", 0.6, "-q", cwd=tmp_path).require_success()
    label(tmp_path, 300)
    covcal("calibrate", "--labels", "marked", "-qf", cwd=tmp_path).require_success()
    covcal("decide", "--set", 0.9, "-qf", cwd=tmp_path).require_success()
    covcal("apply", "--decide", "decide.json", "-qo", "p.npz", cwd=tmp_path).require_success()
    with np.load(tmp_path / "p.npz") as rows:
        sets = rows["set"]
        covered = sets[np.arange(len(sets)), target["labels"]].mean()
    assert covered > 0.85


def test_the_next_step_names_the_file_and_the_calibration(folder: Path) -> None:
    (folder / "cal.json").rename(folder / "other.json")
    options = ("--error", 0.15, "-c", "other.json", "-o", "d.json")
    done = covcal("decide", "features.h5", *options, cwd=folder).require_success()
    following = "apply features.h5 -c other.json --decide d.json"
    assert f"next: covcal {following}  # writes" in done.err
    covcal(*following.split(), "-o", "p.csv", cwd=folder).require_success()


@pytest.mark.parametrize("value", ["0", "1", "-0.1", "nan", "1.5"])
@pytest.mark.parametrize("option", ["--error", "--set", "--certainty"])
def test_shares_outside_zero_and_one_are_bad_usage(folder: Path, option: str, value: str) -> None:
    done = covcal("decide", "--error", "0.1", option, value, cwd=folder)
    assert "must be between 0 and 1" in done.usage_error()
    assert not (folder / "decide.json").exists()


def test_it_asks_for_an_error_or_a_coverage(folder: Path) -> None:
    assert "give --error" in covcal("decide", cwd=folder).usage_error()


def test_a_decision_of_another_calibration_is_refused(folder: Path) -> None:
    covcal("decide", "--error", 0.1, "-q", cwd=folder).require_success()
    covcal("calibrate", "--method", "none", "-f", "-q", cwd=folder).require_success()
    done = covcal("pick", "--for", "decide.json", "-c", "cal.json", "-q", cwd=folder)
    assert "was not made with" in done.error_line()


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"notes": ["other"], "warnings": ["other"], "reason": "other", "guards": []}, True),
        ({"temperatures.forecaster": 1e-9}, False),
        ({"confidence_offset": 1e-9}, False),
        ({"method_used": "other"}, False),
        ({"inputs": "0" * 64}, False),
    ],
    ids=str,
)
def test_a_decision_is_bound_to_what_a_calibration_does(
    folder: Path, change: dict[str, Any], is_same: bool
) -> None:
    """Other notes or checks change no confidence; another temperature or other rows do."""
    covcal("decide", "--error", 0.1, "-q", cwd=folder).require_success()
    content = json.loads((folder / "cal.json").read_text())
    for name, value in change.items():
        place, _, key = name.partition(".")
        if key:
            content[place][key] += value
        elif place == "inputs":
            content[place][0]["sha256"] = value
        else:
            content[place] = value
    write_document(content, folder / "other.json", force=False)
    decision = read_decision(folder / "decide.json", folder / "cal.json")
    assert decision.was_made_with(folder / "other.json") == is_same
    older = replace(decision, scaling_sha256="")
    assert [older.was_made_with(folder / f"{name}.json") for name in ("cal", "other")] == [
        True,
        False,
    ]
    done = covcal("apply", "--decide", "decide.json", "-c", "other.json", "-q", cwd=folder)
    assert is_same == (done.code == 0)


def write_ties(folder: Path) -> None:
    """Write features whose rows all have one confidence, and their calibration."""
    domains = [made_domain(name, sizes=SIZES) for name in ("source", "target")]
    for domain in domains:
        top = domain["logits"].argmax(axis=1)
        domain["logits"] = np.where(np.arange(3) == top[:, None], 2, 0).astype(np.float32)
    write_features(folder / "features.h5", source=domains[0], target=domains[1])
    covcal("calibrate", "--method", "temp", "-q", cwd=folder).require_success()


def test_equal_scores_are_accepted_together_or_not_at_all(tmp_path: Path) -> None:
    """If all rows have one confidence, only all rows or none can be accepted."""
    write_ties(tmp_path)
    shares = [
        printed_json("decide", "--error", error, cwd=tmp_path)["share"] for error in (0.01, 0.9)
    ]
    assert shares == [0.0, 1.0]


def test_an_estimate_warns_if_confident_source_rows_are_wrong(tmp_path: Path) -> None:
    """Trees give some rows logits of 80 and more, which no temperature corrects."""
    source, target = (made_domain(name, sizes=SIZES, shift=0.3) for name in ("source", "target"))
    for domain in (source, target):
        domain["logits"][::40] *= 1000
        domain["labels"][::80] = (domain["labels"][::80] + 1) % 3
    write_features(tmp_path / "features.h5", source=source, target=target)
    covcal("calibrate", "--method", "temp", "-q", cwd=tmp_path).require_success()
    done = covcal("decide", "--error", 0.2, "-q", cwd=tmp_path).require_success()
    assert "of the 10 most confident source rows are wrong, but fewer than" in done.err
    decision = read_decision(tmp_path / "decide.json", tmp_path / "cal.json")
    assert len(decision.warnings) == 1


def test_an_estimate_repeats_the_verdict_on_its_calibration(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = covcal("decide", "--error", 0.1, cwd=folder).require_success()
    assert "note: cal.json: Label 50 rows first: " in done.err
    bad = "bad", "Do not use this calibration, because the classes seem to be in the wrong order"
    monkeypatch.setattr("covcal_cli.report.verdict.class_order_action", lambda _: bad)
    done = covcal("decide", "--error", 0.1, "-f", "-q", cwd=folder).require_success()
    assert f"warning: cal.json: {bad[1]}" in done.err


def test_one_predicted_class_is_decided_like_others(tmp_path: Path) -> None:
    domains = [made_domain(name, sizes=SIZES) for name in ("source", "target")]
    for domain in domains:
        domain["logits"][:, 0] += 100
        domain["labels"][:] = 0
    write_features(tmp_path / "features.h5", source=domains[0], target=domains[1])
    covcal("calibrate", "--method", "temp", "-q", cwd=tmp_path).require_success()
    assert printed_json("decide", "--error", 0.1, cwd=tmp_path)["share"] == 1.0


def test_sets_hold_the_wanted_share_of_classes(folder: Path) -> None:
    """By the mean probability without labels, and by labels of random rows with some."""
    covcal("decide", "--set", 0.9, "-q", cwd=folder).require_success()
    label(folder, 50)
    covcal("decide", "--set", 0.9, "-f", cwd=folder).require_success()
    rule = read_decision(folder / "decide.json", folder / "cal.json").sets
    assert rule is not None
    assert (rule.labels, rule.certainty) == (50, None)
    sure = printed_json("decide", "--set", 0.9, "--certainty", 0.95, cwd=folder)["sets"]
    assert sure["cut"] <= rule.cut
    assert sure["mean_size"] >= rule.mean_size
    covcal("apply", "-o", "p.npz", "-q", cwd=folder).require_success()
    with np.load(folder / "p.npz") as rows, FeatureFile(folder / "features.h5") as file:
        labels = file.handle["target/labels"][:]
        members = rule.members(rows["probabilities"])
        assert members.any(axis=1).all()
        assert members[np.arange(len(labels)), labels].mean() > 0.82


def test_apply_writes_the_decision_in_every_format(folder: Path) -> None:
    covcal("decide", "--error", 0.2, "--set", 0.9, "-q", cwd=folder).require_success()
    decision = read_decision(folder / "decide.json", folder / "cal.json")
    assert 0 < decision.share < 1
    for name in ("p.csv", "p.npz", "p.h5"):
        covcal("apply", "--decide", "decide.json", "-o", name, cwd=folder).require_success()
    with np.load(folder / "p.npz") as rows:
        accept, members, confidence = rows["accept"], rows["set"], rows["confidence"]
    np.testing.assert_array_equal(accept, confidence > decision.accept_above)
    lines = lines_of(folder / "p.csv")
    assert [line["decision"] == "accept" for line in lines] == accept.tolist()
    with FeatureFile(folder / "features.h5") as file:
        names = ["|".join(np.array(file.classes)[row].tolist()) for row in members]
    assert [line["set"] for line in lines] == names
    with h5py.File(folder / "p.h5") as file:
        np.testing.assert_array_equal(file["accept"][:], accept)
        np.testing.assert_array_equal(file["set"][:], members)
    covcal("calibrate", "--method", "none", "-fq", cwd=folder).require_success()
    done = covcal("apply", "--decide", "decide.json", "-o", "x.csv", "-q", cwd=folder)
    assert "was not made with" in done.error_line()
    assert not (folder / "x.csv").exists()


def test_evaluate_measures_the_decision_on_test_rows(folder: Path) -> None:
    """The measurement agrees with the rows that apply accepts, and gates can use it."""
    covcal("decide", "--error", 0.2, "--set", 0.9, "-q", cwd=folder).require_success()
    command = ("evaluate", "--decide", "decide.json", "-q")
    metrics = printed_json(*command, cwd=folder)["decision"]
    apply = ("apply", "--decide", "decide.json", "--split", "test", "-o", "p.npz", "-q")
    covcal(*apply, cwd=folder).require_success()
    with np.load(folder / "p.npz") as rows, h5py.File(folder / "features.h5") as file:
        labels = file["target/labels"][:][file["target/split"][:] == 2]
        accept, members = rows["accept"], rows["set"]
        wrong = rows["label_index"] != labels
    assert metrics["n"] == len(labels)
    assert metrics["accepted_share"] == pytest.approx(accept.mean())
    assert metrics["accepted_error"] == pytest.approx(wrong[accept].mean())
    assert metrics["coverage"] == pytest.approx(members[np.arange(len(labels)), labels].mean())
    assert metrics["set_size"] == pytest.approx(members.sum(axis=1).mean())
    screen = covcal(*command, cwd=folder).require_success().out
    assert re.search("\nAccepted .* The decision had the limit 20 %\n", screen)
    assert "\nSets" in screen
    passed = covcal(*command, "--fail-below", "coverage=0.5", cwd=folder).require_success()
    assert "gate coverage >= 0.5 passed" in passed.out
    failed = covcal(*command, "--fail-below", "coverage=0.999", cwd=folder)
    assert failed.code == 3
    decided = covcal(*command, "--fail-above", "accepted_error=0.0001", cwd=folder)
    assert decided.code == (3 if metrics["accepted_error"] > 0.03 else 0)


def test_evaluate_refuses_rows_that_the_decision_was_made_on(folder: Path) -> None:
    covcal("decide", "--error", 0.2, "-q", cwd=folder).require_success()
    for split in ("all", "validation"):
        done = covcal("evaluate", "--decide", "decide.json", "--split", split, "-q", cwd=folder)
        assert "--split test" in done.error_line()
    gate = ("evaluate", "--fail-below", "coverage=0.9", "-q")
    assert "--decide" in covcal(*gate, cwd=folder).error_line()
    gated = (*gate, "--decide", "decide.json")
    assert "the decision has no sets" in covcal(*gated, cwd=folder).error_line()
    covcal("calibrate", "--method", "none", "-fq", cwd=folder).require_success()
    done = covcal("evaluate", "--decide", "decide.json", "-c", "cal.json", "-q", cwd=folder)
    assert "was not made with" in done.error_line()


def test_a_promise_outlives_later_labels(labelled: Path) -> None:
    """Every batch is tested at its own level, so wrong labels of a later one take nothing back."""
    folder = labelled
    first = json.loads((folder / "decide.json").read_text())
    assert first["is_promise"]
    with h5py.File(folder / "features.h5") as file:
        earlier = file["marked/rows"][:]
    more = covcal("pick", "-n", 50, "--for", "decide.json", "-o", "-", cwd=folder)
    assert "decide.json is a promise already. With more labels" in more.err
    label(folder, 50)
    with edited(folder / "features.h5") as file:
        later = ~np.isin(file["marked/rows"][:], earlier)
        labels = file["marked/labels"][:]
        file["marked/labels"][:] = np.where(later, (labels + 1) % 3, labels)
    after = printed_json("decide", "--error", 0.15, cwd=folder)
    assert after["is_promise"]
    assert (after["threshold"], after["labels"]) == (first["threshold"], first["labels"])


def test_a_decision_by_another_score_is_refused(folder: Path) -> None:
    covcal("decide", "--error", 0.1, "-q", cwd=folder).require_success()
    decision = read_decision(folder / "decide.json", folder / "cal.json")
    write_document(
        replace(decision, score=cast("Any", "margin")), folder / "decide.json", force=True
    )
    done = covcal("apply", "--decide", "decide.json", "-o", "p.csv", "-q", cwd=folder)
    assert "is damaged (score is" in done.error_line()


def test_labels_of_ties_decide_on_all_rows_or_none(tmp_path: Path) -> None:
    write_ties(tmp_path)
    covcal("decide", "--error", 0.5, "-q", cwd=tmp_path).require_success()
    label(tmp_path, 60)
    shares = [
        printed_json("decide", "--error", error, cwd=tmp_path)["share"] for error in (0.01, 0.5)
    ]
    assert shares == [0.0, 1.0]


def test_sets_say_if_labels_were_drawn_for_rows_to_accept(folder: Path) -> None:
    covcal("decide", "--error", 0.05, "-q", cwd=folder).require_success()
    label(folder, 100)
    done = covcal("decide", "--set", 0.9, "-f", cwd=folder).require_success()
    assert "so the coverage of the prediction sets is only estimated" in done.err
    # Later rows cannot promise the sets either, so nobody labels them.
    refused = covcal("pick", "-qn", 50, "--for", "decide.json", "-o", "t.csv", cwd=folder)
    assert "extract the data to another file" in refused.error_line()
    assert (
        "is possible only after you label more rows with the highest"
        in covcal("decide", "--error", 1e-6, "-f", cwd=folder).out
    )


def test_the_demo_leads_to_a_promise_that_apply_and_export_share(
    digits: Path, tmp_path: Path
) -> None:
    """The commands of README on the digits of the demo, with their labels."""
    shutil.copy(digits / "digits.onnx", tmp_path)
    domains = (digits / "source.npz", digits / "target.npz")
    covcal("extract", "digits.onnx", *domains, "-q", cwd=tmp_path).require_success()
    covcal("calibrate", "-q", cwd=tmp_path).require_success()
    covcal("decide", "--error", 0.2, "-q", cwd=tmp_path).require_success()
    pick = ("pick", "-n", 300, "--for", "decide.json")
    assert "Promise" in covcal(*pick, cwd=tmp_path).require_success().out
    fill(tmp_path / "to-label.csv", tmp_path / "features.h5")
    done = covcal("label", "features.h5", "to-label.csv", cwd=tmp_path).require_success()
    following = "covcal decide features.h5 --error 0.2 --certainty 0.9 --force"
    assert f"next: {following}  # replaces decide.json\n" in done.err
    done = covcal(*following.split()[1:], cwd=tmp_path).require_success()
    assert "At most 20 % of these rows, and of similar future rows, are wrong" in done.out
    covcal("apply", "--decide", "decide.json", "-o", "p.npz", "-q", cwd=tmp_path).require_success()
    export = ("export", "digits.onnx", "--decide", "decide.json", "-q")
    covcal(*export, cwd=tmp_path).require_success()
    with np.load(tmp_path / "p.npz") as rows:
        accept = rows["accept"]
    with np.load(digits / "target.npz") as target:
        pixels = target["x"].astype(np.float32)[:, None] / 255
    session = InferenceSession(tmp_path / "calibrated.onnx")
    (exported,) = session.run(["accept"], {session.get_inputs()[0].name: pixels})
    np.testing.assert_array_equal(exported, accept)
    assert 0 < accept.mean() < 1


def test_report_draws_the_error_against_the_share_accepted(folder: Path) -> None:
    covcal("decide", "--error", 0.2, "--set", 0.9, "-q", cwd=folder).require_success()
    report = ("report", "--decide", "decide.json", "--bootstrap", 0, "-q", "-f")
    covcal(*report, cwd=folder).require_success()
    page = (folder / "report.html").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    # Colours are the page's variables, which change with a dark screen; ticks are round.
    assert not re.search(r'(?:fill|stroke)="#', page)
    assert not re.search(r">\d+\.\d+ ?%</text>", page)
    metrics = printed_json("evaluate", "--decide", "decide.json", "-q", cwd=folder)["decision"]
    assert "<h2>Rows to accept</h2>" in page
    assert "limit 20 %" in page
    assert re.search(
        r"An estimate expects \d+ % of these rows to be wrong \(.* The limit is 20 %", page
    )
    assert f"{100 * metrics['accepted_error']:.1f} % of the accepted rows are wrong" in page
    # What labels say of the accepted rows stands in the box, with the estimate or instead of it.
    box = page[: page.index("<h2>Rows to accept</h2>")]
    assert re.search("accepted rows (with a label )?are wrong", box)
    assert "--decide decide.json" in page[page.index("Make this page again") :]
    # Without labels there is a curve, and nothing measured.
    with edited(folder / "features.h5") as file:
        file["target/labels"][:] = -1
    covcal("report", "features.h5", "-c", "cal.json", *report[1:], cwd=folder).require_success()
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "limit 20 %" in page
    assert "of the accepted rows are wrong" not in page
    assert "</strong><p>Rows with a confidence above" in page
    assert "This is not a promise." in page
    # The page describes an area exactly if the diagram has one.
    assert "The area shows its range" in page
    content = json.loads((folder / "decide.json").read_text())
    for point in content["curve"]:
        point["low"] = point["high"] = point["error"]
    write_document(content, folder / "decide.json", force=True)
    covcal("report", "features.h5", "-c", "cal.json", *report[1:], cwd=folder).require_success()
    assert "The area shows its range" not in (folder / "report.html").read_text(encoding="utf-8")


def test_the_verdict_of_a_report_begins_with_a_promise(labelled: Path) -> None:
    share = json.loads((labelled / "decide.json").read_text())["share"]
    report = ("report", "features.h5", "-c", "cal.json", "--bootstrap", 50, "-f")
    plain = covcal(*report, cwd=labelled).require_success().out
    first, second = covcal(*report, "--decide", "decide.json", cwd=labelled).out.splitlines()[:2]
    assert first.startswith(
        f"You may accept {100 * share:.0f} % of the rows: at most 15 % of these rows are wrong "
        "(90 % certainty)"
    )
    assert second == plain.splitlines()[0]
    # A promise about rows of another file is not the answer for this file.
    shutil.copy(labelled / "features.h5", labelled / "later.h5")
    later = (report[0], "later.h5", *report[2:], "--decide", "decide.json")
    shown = covcal(*later, cwd=labelled).require_success().out
    assert shown.splitlines()[0] == plain.splitlines()[0]
    assert "The decision is about rows of features.h5, not of later.h5." in shown
    with edited(labelled / "features.h5") as file:  # Labels of test rows contradict the promise.
        rows = file["target/split"][:] == 2
        file["target/labels"][rows] = (file["target/labels"][rows] + 1) % 3
    shown = covcal(*report, "--decide", "decide.json", cwd=labelled).require_success().out
    assert "You may accept" not in shown
    assert "decide.json promises that at most 15 % of the accepted rows are wrong. But" in shown


def test_groups_are_shown_with_their_share_and_expected_error(folder: Path) -> None:
    command = ("decide", "--error", 0.2, "--by", "predicted")
    decision = printed_json(*command, cwd=folder)
    groups = decision["groups"]
    assert len(groups) == 3
    rows = sum(group["rows"] for group in groups)
    assert rows == decision["rows"]
    accepted = [group["accepted"]["share"] * group["rows"] for group in groups]
    assert sum(accepted) / rows == pytest.approx(decision["share"], abs=0.005)
    wrong = sum(
        count * group["accepted"]["error"] for count, group in zip(accepted, groups, strict=True)
    )
    assert wrong / sum(accepted) == pytest.approx(decision["expected"]["error"], abs=0.01)
    sure = Sample(np.tile([0.0, 90.0], (100, 1)), 1.0, None)
    is_accepted = np.ones(100, dtype=bool)
    expected = sure.expected(is_accepted, is_accepted, 100, 100)
    # 100 rows without an error do not prove that the error is 0.
    assert expected is not None
    assert expected.error == 0 < expected.high < 0.04
    screen = covcal(*command, cwd=folder).require_success().out
    assert "expected to be wrong" in screen
    assert "all accepted rows together" in screen
    done = covcal("decide", "--error", 0.2, "--by", "ward", "-fq", cwd=folder)
    assert "no target column 'ward'" in done.error_line()


@pytest.fixture(scope="module")
def grouped(calibrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a promise for each hospital. Not to be changed."""
    folder = Path(shutil.copytree(calibrated, tmp_path_factory.mktemp("grouped") / "work"))
    rng = np.random.default_rng(0)
    with edited(folder / "features.h5") as file:
        n = len(file["target/labels"])
        names = rng.choice(np.array([b"north", b"south", b"west"]), n, p=[0.7, 0.28, 0.02])
        file.create_dataset("target/columns/hospital", data=names)
    covcal("calibrate", "-fq", cwd=folder).require_success()
    options = ("--error", 0.25, "--promise-by", "hospital", "-f")
    done = covcal("decide", *options, cwd=folder).require_success()
    assert "the rows with a confidence above the threshold of their group" in done.out
    assert "see the table. Each error is an estimate, not a promise." in done.out
    shutil.copy(folder / "decide.json", folder / "older.json")
    os.utime(folder / "older.json", (0, 0))
    label(folder, 240)
    again = covcal("label", "features.h5", "s.csv", cwd=folder).require_success()
    following = "decide features.h5 --error 0.25 --certainty 0.9 --promise-by hospital --force"
    assert f"next: covcal {following}  # replaces decide.json\n" in again.err
    done = covcal(*following.split(), cwd=folder).require_success()
    (folder / "screen.txt").write_text(done.out)
    return folder


def test_each_group_has_its_own_threshold_and_promise(grouped: Path, tmp_path: Path) -> None:
    """Every command that accepts rows honours the groups."""
    folder = Path(shutil.copytree(grouped, tmp_path / "work"))
    decision = read_decision(folder / "decide.json", folder / "cal.json")
    above = {group.name: group.threshold for group in decision.groups}
    assert decision.is_promise
    assert (decision.threshold, decision.labels, decision.expected) == (None, None, None)
    assert None not in (above["north"], above["south"])
    assert above["north"] != above["south"]
    *_, west = decision.groups
    assert west.threshold is None  # too few rows to prove an error of 25 %
    assert west.labels is not None
    assert west.labels.drawn == west.rows < 30
    screen = (folder / "screen.txt").read_text()
    assert "In 2 of 3 groups: At most 25 % of these rows" in screen
    assert re.search(r"north .* at most 25 % +yes \(\d+ labels, \d+ wrong\)", screen)
    north, *others = decision.groups  # a threshold of 0 accepts all rows of a group
    all_of_north = replace(decision, groups=(replace(north, threshold=0.0), *others))
    assert "In 2 of 3 groups" in answer(all_of_north, "decide.json")
    with edited(folder / "features.h5") as file:
        hospitals = file["target/columns/hospital"][:]
        hospitals[:5] = b"new"
        file["target/columns/hospital"][:] = hospitals
        labels, test = file["target/labels"][:], file["target/split"][:] == 2
    given = ("features.h5", "-c", "cal.json", "--decide", "decide.json", "-q")
    applied = covcal("apply", *given, "-o", "p.npz", cwd=folder).require_success()
    with np.load(folder / "p.npz") as rows:
        n = len(rows["accept"])
        assert f" % of these rows, {rows['accept'].sum():,} of {n:,}\n" in applied.out
        least = [above.get(name.decode()) or 1.0 for name in hospitals]
        accept, wrong = rows["accept"], rows["label_index"] != labels
        np.testing.assert_array_equal(accept, rows["confidence"] > np.array(least))
    measured = printed_json("evaluate", *given, cwd=folder)["decision"]
    assert measured["accepted"] == accept[test].sum()
    assert measured["wrong"] == wrong[test & accept].sum()
    covcal("report", *given, "-o", "report.html", cwd=folder).require_success()
    assert "the threshold of their group" in (folder / "report.html").read_text(encoding="utf-8")
    for name in ("north", "south"):
        inside = accept & (hospitals == name.encode()) & ~test
        assert wrong[inside].mean() <= 0.25
    # The rows of a later file.
    shutil.copy(folder / "features.h5", folder / "new.h5")
    with edited(folder / "new.h5") as file:
        file["target/logits"][:] += np.float32(1e-3)
    given = ("new.h5", *given[1:])
    covcal("watch", *given, "-o", "watch.json", cwd=folder).require_success()
    (period,) = json.loads((folder / "watch.json").read_text())["periods"]
    assert period["measured"]["accepted"]["rows"] == accept.sum()
    with edited(folder / "new.h5") as file:
        del file["target/columns"]
    for command in ("apply", "evaluate", "watch"):
        done = covcal(command, *given, cwd=folder)
        assert "new.h5 has no target column 'hospital', which holds the groups" in done.error_line()


def test_labels_for_groups_are_used_only_for_these_groups(grouped: Path) -> None:
    command = ("decide", "--error", 0.25, "-qo", "other.json")
    for by in ((), ("--promise-by", "predicted")):
        done = covcal(*command, *by, cwd=grouped)
        assert "same -c and --promise-by" in done.error_line()
    for options, message in (
        (("--promise-by", "ward"), "no target column 'ward'"),
        (("--promise-by", "hospital", "--by", "hospital"), "leave out --by"),
    ):
        done = covcal(*command, *options, cwd=grouped)
        assert message in done.err
        assert not (grouped / "other.json").exists()
    assert (
        "--promise-by needs --error"
        in covcal("decide", "--set", 0.9, "--promise-by", "hospital", cwd=grouped).usage_error()
    )


def test_labels_of_all_rows_make_promises_for_groups_too(labelled: Path) -> None:
    decision = printed_json("decide", "--error", 0.3, "--promise-by", "predicted", cwd=labelled)
    assert decision["is_promise"]
    drawn = [group["labels"]["drawn"] for group in decision["groups"]]
    assert sum(drawn) == 200
    with edited(labelled / "features.h5") as file:
        file.create_dataset("target/columns/id", data=np.arange(len(file["target/labels"])))
    done = covcal("decide", "--error", 0.3, "--promise-by", "id", "-fq", cwd=labelled)
    assert "groups, but at most 50 are allowed" in done.error_line()


@pytest.mark.parametrize("accuracy", [None, (0.97, 0.99, 0.995)])
def test_an_estimate_expects_at_least_the_errors_of_the_source(
    accuracy: tuple[float, float, float] | None,
) -> None:
    """The source makes 60 errors in its 1000 most confident rows, and the confidence expects 4."""
    source, wrong = np.linspace(1, 0.5, 2000), np.arange(2000) % 50 < 3
    logits = np.stack([np.zeros(400), np.linspace(9, 3, 400)], axis=1)
    sample = Sample(logits, 1.0, accuracy, source=(source, wrong))
    bare, counted = sample.curve(), sample.curve(count_source=True)
    assert bare[-1].error < 0.015
    assert counted[-1].error == pytest.approx(0.06, abs=0.01)
    if accuracy is None:
        assert all(point.low == point.error == point.high for point in counted)
    else:
        assert [point.low for point in counted] == [point.low for point in bare]
        rows = int((source > sample.confidence[0].min()).sum())
        assert counted[-1].high == pytest.approx(wilson(0.06, rows, 0.95)[1], abs=0.01)
    assert thresholds.largest_share(bare, 0.05) == 1
    assert thresholds.largest_share(counted, 0.05) < 0.1
    # The groups together expect as many errors as all accepted rows.
    everything, first = np.ones(400, dtype=bool), np.arange(400) < 100
    of_groups = [
        sample.expected(rows, everything, int(rows.sum()), 400) for rows in (first, ~first)
    ]
    wrong_rows = sum(400 * point.share * point.error for point in of_groups if point is not None)
    assert wrong_rows / 400 == pytest.approx(counted[-1].error)


def test_costs_say_that_labels_are_not_used(folder: Path, labelled: Path) -> None:
    """Labels for a decision are used by neither command, so the costs agree."""
    covcal("pick", "-n", 20, "-q", cwd=folder).require_success()
    fill(folder / "to-label.csv", folder / "features.h5")
    covcal("label", "features.h5", "to-label.csv", "-q", cwd=folder).require_success()
    for place, is_told in ((folder, True), (labelled, False)):
        (place / "costs.json").write_text('{"review": 1, "wrong": 5}')
        done = covcal("decide", "--cost", "costs.json", "-f", cwd=place).require_success()
        words = "covcal decide --cost does not use the labels of this file"
        assert (words in done.err) == is_told


def cost_of_all(folder: Path) -> tuple[float, float, float]:
    """Return the cost by `estimate --cost`, and both ends of its range."""
    (cost,) = printed_json("estimate", "--cost", "costs.json", cwd=folder)["metrics"]
    return cost["value"], cost["low"], cost["high"]


def test_costs_find_the_cheapest_share(folder: Path) -> None:
    """Costly errors accept few rows, cheap errors all rows, a costly pair rows of other classes."""
    shares = []
    for wrong in (0.5, 5, 50):
        (folder / "costs.json").write_text(f'{{"review": 1, "wrong": {wrong}}}')
        printed = printed_json("decide", "--cost", "costs.json", cwd=folder)
        cost = printed["cost"]
        assert cost["low"] <= cost["cost"] <= min(cost["high"], cost["review"])
        shares.append(printed["share"])
        if printed["share"] == 1:  # then both commands are about the same rows
            assert (cost["cost"], cost["low"], cost["high"]) == pytest.approx(cost_of_all(folder))
    assert shares[0] == 1
    assert shares[0] > shares[1] > shares[2]
    pair = '{"true": "class 0", "predicted": "class 1", "cost": 1000}'
    (folder / "costs.json").write_text(f'{{"review": 1, "wrong": 0.5, "pairs": [{pair}]}}')
    done = covcal("decide", "--cost", "costs.json", cwd=folder).require_success()
    assert "for a review of every row" in done.out
    refused = covcal("pick", "features.h5", "--for", "decide.json", cwd=folder)
    assert "decide.json was made with --cost, which makes no promise" in refused.error_line()
    decision = read_decision(folder / "decide.json", folder / "cal.json")
    assert decision.share < 1
    shown = covcal("inspect", "decide.json", cwd=folder).require_success().out
    kinds = "0.5 for a wrong row, 1000 for class 0 predicted as class 1, 1 for a review"
    assert re.search(rf"^costs +{kinds}$", shown, re.MULTILINE)
    following = re.search(r"^next +covcal (.*?)  # ", shown, re.MULTILINE)
    assert following is not None
    covcal(*following[1].split(), "-o", "-", cwd=folder).require_success()
    command = ("apply", "--decide", "decide.json", "-o", "p.npz", "-q")
    covcal(*command, cwd=folder).require_success()
    with np.load(folder / "p.npz") as rows:
        np.testing.assert_array_equal(rows["accept"], rows["confidence"] > decision.accept_above)
    assert (
        printed_json("evaluate", "--decide", "decide.json", cwd=folder)["decision"]["error"] is None
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ('{"review": 1}', "wrong is missing"),
        ('{"wrong": 1}', "review is missing"),
        ("[]", "is a list, not an object"),
        ('{"review": -1, "wrong": 2}', "review is -1, outside 0"),
        ('{"review": 1, "wrong": true}', "wrong is true, not a number"),
        ('{"review": 1, "wrong": 1e308}', "outside 0 to 1e+100"),
        ('{"review": 1, "wrong": 2, "x": 1}', "'x'"),
        ('{"review": 1, "wrong": 2, "pairs": [{"true": "a"}]}', "pairs[0].predicted is missing"),
        (
            '{"review": 1, "wrong": 2, "pairs": [{"true": "a", "predicted": "b", "cost": 1}]}',
            "is not a class of the file",
        ),
    ],
)
def test_bad_costs_are_refused(
    folder: Path, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "covcal_cli.calibrate.estimate.estimate_for_decision", lambda *_, **__: (None, None, [])
    )  # of no matter here
    (folder / "costs.json").write_text(text)
    done = covcal("decide", "--cost", "costs.json", "-q", cwd=folder)
    assert message in done.error_line()
    assert not (folder / "decide.json").exists()
