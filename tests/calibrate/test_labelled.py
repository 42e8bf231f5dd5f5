"""``calibrate --labels``: some target labels, said so, and never judged on again."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, logit, softmax

from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.problem import CalibrateSettings
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.evaluate import evaluate
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.draws import rows_of_fit
from covcal_cli.labels.target_labels import random_labels
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.softmax import with_offsets
from covcal_cli.records import document_text, write_document
from tests.cli_runner import covcal
from tests.made_files import Arrays, edited, made_domain, only_rows, write_features

SIZES = (60, 60, 200)


@pytest.fixture
def target() -> Arrays:
    """A shifted target of which every third row has no label."""
    domain = made_domain("target", sizes=SIZES, shift=1.0)
    domain["labels"][::3] = -1
    return domain


@pytest.fixture
def path(tmp_path: Path, target: Arrays) -> Path:
    return write_features(tmp_path / "features.h5", target=target)


def fitted(path: Path, n: int, seed: int = 0) -> Calibration:
    return calibrate(path, CalibrateSettings(seed=seed), random_labels(path, n, seed))


def rows_named(target: Arrays, ids: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    names = [bytes(value).decode() for value in target["ids"]]
    return np.array([names.index(name) for name in ids])


def test_it_is_fitted_to_rows_of_any_split(path: Path, target: Arrays) -> None:
    """N labelled rows, whose mean confidence becomes the accuracy that is found."""
    found = fitted(path, 80)
    assert found.labelled_rows is not None
    rows = rows_named(target, found.labelled_rows.ids)
    assert len({*found.labelled_rows.ids}) == found.labelled_rows.n == 80
    assert (target["labels"][rows] >= 0).all()
    assert set(target["split"][rows]) == {0, 1, 2}
    assert (found.method, found.method_used) == ("labelled", "labelled")
    assert (found.labelled_rows.design, found.labelled_rows.population) == ("random", 213)
    right = target["logits"].argmax(axis=1) == target["labels"]
    errors = int((~right[rows]).sum())
    assert (found.fit["rows"], found.fit["errors"]) == (80, errors)
    said, known = found.estimates["labelled"], target["labels"] >= 0
    assert said["accuracy_low"] <= right[known].mean() <= said["accuracy_high"]
    assert 0 <= said["ece_low"] <= said["ece"] <= said["ece_high"]
    logits = with_offsets(
        target["logits"][known], found.forecaster_temperature, None, found.confidence_offset
    )
    confidence = confidences(
        logits, found.forecaster_temperature, target["logits"][known].argmax(axis=1)
    )
    assert confidence.mean() == pytest.approx(said["accuracy"], abs=0.01)


def test_more_labels_come_nearer(path: Path, target: Arrays) -> None:
    """The interval of the accuracy shrinks, and the mean confidence nears the truth."""
    found = [fitted(path, n).estimates["labelled"] for n in (10, 200)]
    widths = [one["accuracy_high"] - one["accuracy_low"] for one in found]
    assert widths[1] < widths[0] / 3
    known = target["labels"] >= 0
    right = target["logits"][known].argmax(axis=1) == target["labels"][known]
    assert found[1]["accuracy"] == pytest.approx(right.mean(), abs=0.03)


def test_extreme_logits_do_not_move_the_accuracy(tmp_path: Path) -> None:
    """Boosted trees give log odds of 90 on a rare class; no temperature fits these rows as well."""
    rng = np.random.default_rng(0)
    domains = {name: made_domain(name, classes=2) for name in ("source", "target")}
    for domain in domains.values():
        odds = rng.normal(6.5, 1.5, len(domain["labels"]))
        chance = expit(odds / 1.5)
        if domain is domains["target"]:
            odds[::25], chance[::25] = 90.0, 0.7
        domain["logits"][:] = np.stack([odds, 0 * odds], axis=1)
        domain["labels"][:] = rng.random(len(odds)) > chance
    source, target = domains.values()
    path = write_features(tmp_path / "t.h5", source=source, target=target)
    said = fitted(path, 500).estimates["labelled"]
    assert said["accuracy"] == pytest.approx(said["accuracy_by_labels"], abs=0.03)


def test_a_target_alone_is_enough(tmp_path: Path, target: Arrays) -> None:
    """Without source rows nothing is known beforehand: the labels speak alone."""
    path = write_features(tmp_path / "t.h5", target=target)
    with edited(path) as file:
        del file["source"]
    found = fitted(path, 60)
    assert found.estimates["labelled"]["accuracy_without_labels"] is None
    assert found.used_target_labels


def test_the_rows_are_a_seeded_draw(path: Path) -> None:
    """The same seed draws the same rows, another seed others."""
    draws = [random_labels(path, 50, seed) for seed in (0, 0, 1)]
    first, again, other = (draw.rows.tolist() for draw in draws)
    assert first == again
    assert first != other


def test_cal_json_says_so(path: Path, tmp_path: Path) -> None:
    """used_target_labels is true, and the hash is that of the sorted row ids."""
    arguments = ("calibrate", path, "--labels", 50, "--seed", 2, "-o", "cal.json")
    done = covcal(*arguments, cwd=tmp_path).require_success()
    assert "fitted to 50 labels" in done.out
    content = json.loads((tmp_path / "cal.json").read_text())
    assert content["used_target_labels"] is True
    rows = content["labelled_rows"]
    assert (rows["n"], rows["seed"]) == (50, 2)
    assert rows["ids"] == sorted(rows["ids"])
    assert rows["sha256"] == hashlib.sha256("\n".join(rows["ids"]).encode()).hexdigest()
    again = read_calibration(tmp_path / "cal.json")
    assert json.loads(document_text(again, tmp_path / "cal.json")) == content
    assert "50 labelled target rows, drawn" in covcal("inspect", tmp_path / "cal.json").out


def test_evaluate_leaves_exactly_those_rows_out(path: Path, target: Arrays, tmp_path: Path) -> None:
    """All metrics, of none too, equal the metrics of a file without the fitted rows."""
    found = fitted(path, 100)
    assert found.labelled_rows is not None
    used = rows_named(target, found.labelled_rows.ids)
    kept = ~np.isin(np.arange(sum(SIZES)), used)
    without = write_features(tmp_path / "without.h5", target=only_rows(target, kept))
    judged = evaluate(path, {"labelled": found})
    expected = evaluate(without, {"labelled": found})
    in_test = int((target["split"][used] == 2).sum())
    assert (judged.left_out, expected.left_out) == (in_test, 0)
    assert in_test > 20
    assert judged.n == expected.n == evaluate(path, {}).n - in_test
    for name in ("none", "labelled"):
        ours, theirs = judged.metrics[name], expected.metrics[name]
        assert ours.to_json() == pytest.approx(theirs.to_json(), nan_ok=True)


def test_apply_and_evaluate_add_the_offset(path: Path, target: Arrays, tmp_path: Path) -> None:
    """The odds of the classifier's label times e^a; the other classes share the rest."""
    found = fitted(path, 100)
    write_document(found, tmp_path / "l.json", force=False)
    covcal("apply", path, "-c", "l.json", "-o", "p.npz", cwd=tmp_path).require_success()
    before = softmax(target["logits"].astype(float) / found.forecaster_temperature, axis=1)
    label, rows = target["logits"].argmax(axis=1), np.arange(sum(SIZES))
    own = expit(logit(before[rows, label]) + found.confidence_offset)
    expected = before * ((1 - own) / (1 - before[rows, label]))[:, None]
    expected[rows, label] = own
    written = np.load(tmp_path / "p.npz")
    np.testing.assert_allclose(written["probabilities"], expected, atol=1e-5)
    np.testing.assert_allclose(written["confidence"], own, atol=1e-5)
    assert found.labelled_rows is not None
    judged = (target["split"] == 2) & (target["labels"] >= 0)
    judged[rows_named(target, found.labelled_rows.ids)] = False
    measured = evaluate(path, {"labelled": found}).metrics["labelled"]
    assert measured.mean_confidence == pytest.approx(own[judged].mean(), abs=1e-5)


def test_evaluate_says_that_it_leaves_rows_out(path: Path, tmp_path: Path) -> None:
    """A note counts them, and metrics.json too."""
    covcal("calibrate", path, "--labels", 60, "-o", "l.json", cwd=tmp_path)
    done = covcal("evaluate", path, "-c", "l.json", "-o", "m.json", cwd=tmp_path)
    left_out = json.loads((tmp_path / "m.json").read_text())["left_out"]
    assert left_out > 0
    assert (
        f"note: {left_out} rows are left out, because a calibration was fitted to them"
        in done.require_success().err
    )


def test_more_rows_than_labels_are_refused(path: Path) -> None:
    """The number of labelled rows is named."""
    with pytest.raises(
        CovcalError,
        match="has only 213 labelled target rows, but --labels asks for 214: ask for fewer",
    ):
        fitted(path, 214)


def test_no_label_at_all_is_said_so(tmp_path: Path, target: Arrays) -> None:
    """Fewer --rows would not help a target without labels."""
    target["labels"][:] = -1
    path = write_features(tmp_path / "f.h5", target=target)
    line = covcal("calibrate", path, "--labels", 10, cwd=tmp_path).error_line()
    assert "has no target labels" in line
    assert "fewer" not in line


def test_fitted_rows_are_found_under_other_ids(target: Arrays, tmp_path: Path) -> None:
    """Renamed rows, and row numbers of rows in another order, are left out by their logits.

    Rows with the same ids and other logits are left out too. Rows with other ids and other logits
    are measured, and a note says so.
    """
    number = np.arange(len(target["ids"]))
    target["ids"] = number.astype("S")
    write_features(tmp_path / "f.h5", target=target)
    covcal("calibrate", "f.h5", "--labels", 60, "-o", "l.json", cwd=tmp_path)
    fitted_ids = json.loads((tmp_path / "l.json").read_text())["labelled_rows"]["ids"]
    is_fitted = np.isin(number, np.array(fitted_ids, dtype=np.int64))

    def left_out(rows: Arrays, *, note: bool = False) -> int:
        write_features(tmp_path / "g.h5", target=rows)
        arguments = ("-c", "l.json", "--split", "all", "-o", "m.json", "-f")
        done = covcal("evaluate", "g.h5", *arguments, cwd=tmp_path).require_success()
        assert ("g.h5 has none of these rows" in done.err) == note
        return int(json.loads((tmp_path / "m.json").read_text())["left_out"])

    order = np.random.default_rng(0).permutation(number)
    moved = {name: values[order] for name, values in target.items()} | {"ids": target["ids"]}
    renamed = target | {"ids": np.array([b"new/" + name for name in target["ids"]])}
    other_logits = {"logits": 1.1 * target["logits"]}
    assert left_out(target) == left_out(renamed) == left_out(target | other_logits) == 60
    assert left_out(moved) == int((is_fitted | is_fitted[order]).sum()) > 100
    assert left_out(renamed | other_logits, note=True) == 0


def test_rows_with_equal_logits_are_not_mistaken_for_fitted_rows(
    target: Arrays, tmp_path: Path
) -> None:
    """The file has the ids of the fit, so these ids decide, also on rows outside the fit."""
    path = write_features(tmp_path / "f.h5", target=target)
    fit = fitted(path, 60).labelled_rows
    assert fit is not None
    is_of_fit = np.zeros(len(target["ids"]), dtype=bool)
    is_of_fit[rows_named(target, fit.ids)] = True
    few = np.flatnonzero(~is_of_fit)[:20]
    target["logits"][few] = target["logits"][is_of_fit][:20]  # As from a forest of small trees.
    with FeatureFile(write_features(tmp_path / "g.h5", target=target)) as file:
        domain = file.require_target()
        assert np.isin(domain.hashes(few), [int(text, 16) for text in fit.logits]).all()
        assert not rows_of_fit(domain, few, fit).any()
        assert (rows_of_fit(domain, domain.rows("all"), fit) == is_of_fit).all()


def test_nothing_left_to_judge_is_an_error(path: Path) -> None:
    """Every labelled row used: evaluate has no labelled row left, and says so."""
    found = fitted(path, 213)
    with pytest.raises(CovcalError, match="none of its 67 target test rows has a label"):
        evaluate(path, {"labelled": found})


@pytest.mark.parametrize(
    "options",
    [
        ("--labels", "0"),
        ("--labels", "-3"),
        ("--labels", "some"),
        ("--labels", "9", "--method", "temp"),
        ("--labels", "marked", "--method", "temp"),
        ("--labels", "9", "--target-prior", "uniform"),
        ("--labels", "marked", "--target-prior", "uniform"),
    ],
)
def test_labels_without_sense_are_refused(path: Path, options: tuple[str, ...]) -> None:
    done = covcal("calibrate", path, *options, "-o", path.with_name("x.json"))
    assert done.code == 2
    assert "label" in done.err
    assert not path.with_name("x.json").exists()
