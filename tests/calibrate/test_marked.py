"""Labels that a user marked: taken by auto and estimate, batch by batch, and by no other method."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.estimate import estimate
from covcal_cli.calibrate.labelled import agreement_with_labels, effective_labels
from covcal_cli.calibrate.problem import CalibrateSettings, EstimateSettings
from covcal_cli.compare.compare import compare
from covcal_cli.compare.runs import CompareSettings
from covcal_cli.errors import CovcalError, in_percent
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.evaluate.evaluate import evaluate
from covcal_cli.formats.calibration import read_calibration
from covcal_cli.labels.draws import Draw
from covcal_cli.report.verdict import unmeasured_action
from tests.cli_runner import covcal
from tests.labels.labelling import fill
from tests.labels.made_draws import made_draw
from tests.made_files import edited, made_domain, write_features


@pytest.fixture(scope="module")
def unmarked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = made_domain("target", sizes=(300, 100, 200), shift=1.0)
    return write_features(tmp_path_factory.mktemp("marked") / "unmarked.h5", target=target)


@pytest.fixture(scope="module")
def path(unmarked: Path) -> Path:
    """A file with two batches of labels."""
    folder = unmarked.parent
    file = folder / "features.h5"
    file.write_bytes(unmarked.read_bytes())
    for number in (30, 40):
        sheet = f"{number}.csv"
        covcal("pick", file, "-n", number, "-o", sheet, cwd=folder).require_success()
        fill(folder / sheet, file)
        covcal("label", file, sheet, cwd=folder).require_success()
    return file


def test_auto_takes_them(path: Path, tmp_path: Path) -> None:
    """The summary says accuracy and ECE, a note what every batch changed, cal.json the design."""
    done = covcal("calibrate", path, "-o", tmp_path / "cal.json").require_success()
    notes = [line for line in done.err.splitlines() if "batch" in line]
    assert ["(30 labels)" in notes[0], "(70 labels)" in notes[1]] == [True, True]
    assert "without labels" in notes[0]
    content: dict[str, Any] = json.loads((tmp_path / "cal.json").read_text())
    assert (content["method"], content["method_used"]) == ("auto", "labelled")
    assert content["used_target_labels"] is True
    of_labels = content["estimates"]["labelled"]
    (first,) = (line for line in done.out.splitlines() if line.startswith("Target accuracy"))
    assert f" {100 * of_labels['accuracy']:.0f} % by 70 labels and the estimate (" in first
    assert of_labels["accuracy_low"] < of_labels["accuracy"] < of_labels["accuracy_high"]
    alone, without = (of_labels[f"accuracy_{one}"] for one in ("by_labels", "without_labels"))
    assert f"70 labels show an accuracy of {100 * alone:.1f} % (" in done.out
    assert f"the estimate without labels ({100 * without:.1f} %) together give" in done.out
    rows = content["labelled_rows"]
    assert (rows["design"], rows["population"], rows["batches"]) == ("marked", 400, [30, 40])
    found = read_calibration(tmp_path / "cal.json")
    assert found.labelled_rows is not None
    assert len(found.labelled_rows.ids) == 70
    assert "drawn by covcal pick" in covcal("inspect", tmp_path / "cal.json").out


def test_evaluate_judges_what_was_not_fitted_to(path: Path) -> None:
    """No row of the test split was drawn; with all splits, the 70 drawn rows are left out."""
    by_default = evaluate(path, {"labelled": read_calibration(save(path))})
    assert (by_default.left_out, by_default.notes) == (0, ())
    done = covcal(
        *("evaluate", path, "-c", save(path), "--split", "all", "--format", "json")
    ).require_success()
    assert json.loads(done.out)["left_out"] == 70
    assert "the classifier looks better than it is" in done.err


def save(path: Path) -> Path:
    """Write the calibration by auto beside its file, once."""
    document = path.with_name("auto.json")
    if not document.exists():
        covcal("calibrate", path, "-o", document).require_success()
    return document


def test_report_says_how_it_was_made(path: Path) -> None:
    page = path.with_name("r.html")
    covcal("report", path, "-c", save(path), "-o", page, "-f").require_success()
    text = page.read_text(encoding="utf-8")
    assert re.search(r"covcal label .*\ncovcal calibrate \S+ -o", text)
    assert '"combined" and "labels" used the 70 target labels that you gave.' in text
    rows = r"[\d,]+ target train and validation rows"
    assert re.search(rf"The estimate uses 70 labels and {rows}\.", text)
    # A calibration without labels has another accuracy.
    covcal("calibrate", path, "--labels", "none", "-o", "none.json", "-f", cwd=path.parent)
    covcal("report", path, "-c", "none.json", "-o", page, "-f", cwd=path.parent).require_success()
    shown = page.read_text(encoding="utf-8")
    assert "page used 70 labels. So they have different accuracies." in shown


@pytest.mark.parametrize("settings", [{"labels": "none"}, {"method": "cot"}])
def test_others_leave_them_alone(path: Path, unmarked: Path, settings: dict[str, Any]) -> None:
    """The same as of the file without labels."""
    asked = replace(CalibrateSettings(), **settings)
    with_labels, without = calibrate(path, asked), calibrate(unmarked, asked)
    assert with_labels.forecaster_temperature == without.forecaster_temperature
    assert not with_labels.used_target_labels


@pytest.mark.parametrize(("labels", "asked"), [("auto", "auto"), ("9", "auto with --labels 9")])
def test_inspect_says_what_was_asked_for(
    path: Path, tmp_path: Path, labels: str, asked: str
) -> None:
    document = tmp_path / "cal.json"
    covcal("calibrate", path, "--labels", labels, "-o", document).require_success()
    assert f"labelled (asked for: {asked})" in covcal("inspect", document).require_success().out


def test_compare_only_judges_by_them(path: Path, unmarked: Path, tmp_path: Path) -> None:
    """auto and the estimate are the same as without labels in the file."""
    settings = CompareSettings(methods=("auto",), seeds=1, adapt=None)
    with_labels, without = (
        compare([one], tmp_path, settings).records[one.stem][0] for one in (path, unmarked)
    )
    assert with_labels.fits == without.fits
    assert with_labels.estimates == without.estimates


def test_a_given_prior_keeps_its_rule(path: Path) -> None:
    found = calibrate(path, CalibrateSettings(target_prior="uniform"))
    assert found.method_used in ("prior", "prior+cot")
    assert not found.used_target_labels


def test_estimate_puts_them_first(path: Path, unmarked: Path) -> None:
    """The combined estimate has the labels' interval; the label-free one is shown beside."""
    found, without = estimate(path), estimate(unmarked)
    names = [one.name for one in found.estimates]
    assert names[:3] == ["combined", "labels", "without labels"]
    assert names[3:] == [one.name for one in without.estimates[1:]]
    assert found.estimates[2].accuracy == without.estimates[0].accuracy
    combined, alone = found.estimates[:2]
    assert combined.low <= alone.low <= alone.high <= combined.high
    assert combined.high - combined.low < without.estimates[0].high - without.estimates[0].low
    assert (found.used_target_labels, without.used_target_labels) == (True, False)
    ignoring = estimate(path, EstimateSettings(labels="none"))
    assert ignoring.estimates == without.estimates


@pytest.mark.parametrize(
    ("without", "failed"), [(0.6, []), *((x, ["agreement with labels"]) for x in (0.8, 0.7502))]
)
@pytest.mark.parametrize("unlabelled", [0, 5])
def test_labels_that_contradict_the_estimate_are_named(
    without: float, failed: list[str], unlabelled: int
) -> None:
    prior, by_labels = (Estimate("", at, at - 0.1, at + 0.1, "") for at in (without, 0.65))
    checks = agreement_with_labels(prior, by_labels, unlabelled)
    assert [check.name for check in checks if not check.passed] == failed
    # More labels are asked for only if there are rows without a label.
    shown = re.findall(r"[\d.]+ %", " ".join(check.sentence for check in checks))
    assert len(set(shown)) == 3  # an estimate just outside the interval is no end of it
    asks = ["label more rows" in check.sentence for check in checks]
    assert asks == [bool(failed) and unlabelled > 0]


def test_labels_that_are_not_there_are_asked_for(unmarked: Path) -> None:
    with pytest.raises(CovcalError, match="has no rows that you labelled: run covcal pick"):
        calibrate(unmarked, CalibrateSettings(labels="marked"))
    line = covcal("estimate", unmarked, "--labels", "marked").error_line()
    assert "covcal label" in line


def test_estimate_has_the_ece_by_labels(path: Path) -> None:
    """Of a calibration that knows no label, and of one fitted to them the same as in its file."""
    document = path.with_name("temp.json")
    covcal("calibrate", path, "--method", "none", "-o", document, "-f").require_success()
    labelled = save(path)
    done = covcal("estimate", path, "-c", document, "-c", labelled, "-o", "-").require_success()
    plain, own = json.loads(done.out)["calibrations"]
    found = read_calibration(labelled).estimates["labelled"]
    assert (own["ece"], own["ece_high"]) == (found["ece"], found["ece_high"])
    measured = evaluate(path, {}).metrics["none"].ece
    assert plain["ece_low"] <= measured <= plain["ece_high"]
    assert own["ece"] < plain["ece"]
    assert "ECE by labels" in covcal("estimate", path, "-c", document).out


def test_the_verdict_quotes_them_where_no_test_row_has_a_label(path: Path, tmp_path: Path) -> None:
    blind = tmp_path / "blind.h5"
    blind.write_bytes(path.read_bytes())
    with edited(blind) as file:
        file["target/labels"][...] = -1
    covcal("calibrate", blind, "-o", "cal.json", cwd=tmp_path).require_success()
    covcal("report", blind, "-c", "cal.json", "-o", "r.html", cwd=tmp_path).require_success()
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "On the rows that you labelled, the ECE is" in page
    assert "Without labels" not in page


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with labels of rows that `pick --for` drew, most of them with high confidence."""
    folder = tmp_path_factory.mktemp("decision")
    target = made_domain("target", sizes=(1500, 500, 0), shift=0.3)
    write_features(folder / "features.h5", target=target)
    covcal("calibrate", "-q", cwd=folder).require_success()
    covcal("decide", "--error", 0.1, "-q", cwd=folder).require_success()
    covcal("pick", "-n", 60, "--for", "decide.json", "-q", cwd=folder).require_success()
    fill(folder / "to-label.csv", folder / "features.h5")
    covcal("label", "features.h5", "to-label.csv", "-q", cwd=folder).require_success()
    return folder


def test_calibrate_does_not_fit_to_labels_for_a_decision(
    decided: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But it says what they show, and warns if they contradict the fit."""
    without = calibrate(decided / "features.h5", CalibrateSettings(labels="none"))
    found = calibrate(decided / "features.h5")
    note, labels, *notes = found.notes
    assert found == replace(without, notes=(note, labels, *notes))
    assert tuple(notes) == without.notes
    assert "the 60 labels were picked for a decision" in note
    assert note.endswith("too few to calibrate: run covcal pick again without --for")
    errors, expected = re.findall(
        r"(\d+) of the 60 labelled rows are wrong, and the confidence predicts ([\d.]+)", labels
    )[0]
    assert abs(int(errors) - float(expected)) < 2.58 * 0.5 * math.sqrt(60)
    monkeypatch.setattr(Draw, "right", lambda draw, _: np.arange(len(draw)) % 2.0)
    contradicted = calibrate(decided / "features.h5")
    assert contradicted.notes == (note, *notes)
    text, *warnings = contradicted.warnings
    assert tuple(warnings) == without.warnings
    assert "labels contradict this calibration: 30 of the 60 labelled rows" in text
    assert f"the confidence predicts {expected}" in text
    assert unmeasured_action(contradicted)[1].startswith("Do not trust the confidence: the labels")


def test_a_fit_to_labels_for_a_decision_warns(decided: Path) -> None:
    fitted = calibrate(decided / "features.h5", CalibrateSettings(labels="marked"))
    assert fitted.used_target_labels
    check = next(guard for guard in fitted.guards if guard.name == "effective labels")
    assert (check.passed, check.threshold) == (False, 20)
    assert 1 <= check.value < 20
    assert any(
        "labels are too few: run covcal pick again" in warning for warning in fitted.warnings
    )
    (first, *_) = fitted.warnings[0].split("; ")
    assert unmeasured_action(fitted)[1].startswith(f"Label more rows: {first[:20]}")


def test_estimate_leaves_labels_for_a_decision_out_as_calibrate_does(decided: Path) -> None:
    (decided / "alone").mkdir()
    (decided / "alone" / "features.h5").write_bytes((decided / "features.h5").read_bytes())
    for place in (decided, decided / "alone"):
        done = covcal("estimate", cwd=place).require_success()
        assert "60 labels" not in done.out
        assert "To use the labels anyway, pass --labels marked" in done.err
        assert "next: covcal decide features.h5 -" in done.err


def test_the_next_command_draws_rows_to_a_new_csv(decided: Path) -> None:
    """It fails if the CSV exists. A repeated decision would not give an estimate more labels."""
    for sheet in ("more.csv", "more-2.csv"):
        done = covcal("estimate", "--labels", "marked", cwd=decided).require_success()
        command = f"covcal pick features.h5 -n 50 -o {sheet}"
        assert f"next: {command}  # draws rows to label" in done.err
        (decided / sheet).touch()
    found = estimate(decided / "features.h5").estimates
    assert found == estimate(decided / "features.h5", EstimateSettings(labels="none")).estimates
    done = covcal("estimate", "--labels", "marked", cwd=decided).require_success()
    assert ", 60 labels" in done.out
    found = estimate(decided / "features.h5", EstimateSettings(labels="marked")).estimates
    both = [f"{in_percent(one.accuracy)} %" for one in found[1:3]]
    assert "interval from the labels" in done.out
    assert f"the labels ({both[0]}) and the estimate without labels ({both[1]})" in done.out
    assert "anyway" not in done.err


@pytest.mark.parametrize(
    ("scores", "for_decision"),
    [
        (["decision for confidences above 0.9"], True),
        (["decision for confidences above 0.9; decision for confidences above 0.8"], True),
        (["decision for confidences above -1.0"], False),  # all rows, for sets of classes
        (["confidence of classifier (T 1.2)", "decision for confidences above 0.9"], False),
    ],
)
def test_a_draw_is_for_a_decision_if_all_its_batches_are(
    scores: list[str], for_decision: bool
) -> None:
    draw = made_draw(100, 0.1, 4, batch=np.arange(4) % len(scores))
    batches = zip(draw.batches, scores, strict=True)
    draw = replace(draw, batches=tuple(replace(batch, score=text) for batch, text in batches))
    assert draw.is_for_decision is for_decision
    assert not replace(draw, labels=np.full(4, -1)).is_for_decision
    # The check compares the effective number of labels, if some rows were picked for a decision.
    checks = effective_labels(draw)
    assert bool(checks) is any("above 0" in text for text in scores)
    weights = draw.weights
    assert [check.value for check in checks] == [
        pytest.approx(weights.sum() ** 2 / (weights**2).sum()) for _ in checks
    ]
