"""``covcal pick``: which rows it draws, what it writes of them, and what it says they buy."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from covcal_cli.cli.pick import _rarely_drawn
from covcal_cli.forecast import ScaledLogits
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.filled_sheet import read_sheet
from covcal_cli.labels.pick import PickReport, PickSettings, pick
from covcal_cli.labels.score import forecasters_of, in_words, score, score_blocks
from covcal_cli.maths.softmax import Scaling
from tests.cli_runner import covcal
from tests.labels.labelling import fill, lines_of
from tests.made_files import edited, made_domain, write_features

COLUMNS = ["id", "label", "inclusion", "draw"]


def drawn_ids(path: Path) -> set[str]:
    return {line["id"] for line in lines_of(path)}


@pytest.fixture(scope="module")
def picked(small_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with adapted.h5 and the 40 rows picked from it; not to be changed."""
    folder = tmp_path_factory.mktemp("picked")
    shutil.copy(small_files / "adapted.h5", folder)
    covcal("pick", "-n", 40, cwd=folder).require_success()
    shown = ("pick", "-n", 40, "--predictions", "-o", "shown.csv")
    covcal(*shown, cwd=folder).require_success()
    return folder


def test_the_sheet_says_what_a_person_and_label_need(picked: Path) -> None:
    assert list(lines_of(picked / "to-label.csv")[0]) == COLUMNS
    lines = lines_of(picked / "shown.csv")
    assert list(lines[0]) == ["id", "predicted", "confidence", *COLUMNS[1:]]
    assert drawn_ids(picked / "shown.csv") == drawn_ids(picked / "to-label.csv")
    assert len(drawn_ids(picked / "to-label.csv")) == len(lines) == 40
    with FeatureFile(picked / "adapted.h5") as file:
        target = file.require_target()
        row = {known: number for number, known in enumerate(target.ids(target.rows("all")))}
        rows = np.array([row[line["id"]] for line in lines])
        predictions = target.logits(target.rows("all")).argmax(axis=1)
        assert set(target.split[rows]) <= {0, 1}
        for line, number in zip(lines, rows, strict=True):
            assert line["predicted"] == file.classes[predictions[number]]
            assert line["label"] == ""
            assert 0 < float(line["inclusion"]) <= 1
    # If you stop early, every kind of row has been sampled.
    strata = read_sheet(picked / "to-label.csv").stratum.tolist()
    assert sorted(strata) == list(range(40)) != strata


def test_doubtful_rows_are_likelier_to_be_drawn(picked: Path) -> None:
    """In proportion to sqrt(s (1 - s)), with a floor."""
    lines = lines_of(picked / "shown.csv")
    s = np.array([float(line["confidence"]) for line in lines])
    inclusion = np.array([float(line["inclusion"]) for line in lines])
    design = np.polynomial.Polynomial.fit(np.sqrt(s * (1 - s)), inclusion, 1).convert().coef
    assert design[0] == pytest.approx(0.2 * 40 / 270, rel=0.01)
    assert design[1] > 0
    assert inclusion == pytest.approx(design[0] + design[1] * np.sqrt(s * (1 - s)), rel=5e-3)


def test_the_confidence_is_the_mean_of_both_forecasters(picked: Path) -> None:
    """Each has the T that fits the source; one forecaster is aligned if the file allows it."""
    with FeatureFile(picked / "adapted.h5") as file:
        rows = file.require_target().rows("train")
        forecasters = forecasters_of(file, None, 0)
        one, other = (
            np.concatenate([right for _, right in score_blocks(file, rows, [forecaster])])
            for forecaster in forecasters
        )
        both = score(file, rows, seed=0).right
    assert re.fullmatch(
        r"mean confidence of classifier \(T [\d.]+\) and aligned forecaster \(T [\d.]+\)",
        in_words(forecasters),
    )
    assert both == pytest.approx((one + other) / 2)
    assert not np.allclose(one, other)


@pytest.mark.parametrize("method", ["temp", "fl+temp"])
def test_a_calibration_takes_the_place_of_its_forecaster(
    picked: Path, small_files: Path, tmp_path: Path, method: str
) -> None:
    document = small_files / f"{method}.json"
    done = covcal("pick", picked / "adapted.h5", "-c", document, "-o", tmp_path / "x.csv", "-v")
    assert "classifier" in done.require_success().err
    with FeatureFile(picked / "adapted.h5") as file:
        given = ScaledLogits(Scaling("aligned" if method == "fl+temp" else "original", 3.25))
        assert "(T 3.25)" in in_words(forecasters_of(file, given, 0))


def test_networks_are_for_a_calibration_of_theirs(
    picked: Path, small_files: Path, tmp_path: Path
) -> None:
    arguments = ("pick", picked / "adapted.h5", "--networks", picked / "adapted.h5")
    output = ("-o", tmp_path / "x.csv")
    for more in ((), ("-c", small_files / "temp.json")):
        assert "calibration" in covcal(*arguments, *more, *output).usage_error()


def test_a_target_alone_is_drawn_by_its_own_confidence(tmp_path: Path) -> None:
    path = write_features(tmp_path / "features.h5")
    with edited(path) as file:
        del file["source"]
    done = covcal("pick", path, "-n", 9, "-o", tmp_path / "x.csv", "-v").require_success()
    assert "confidence of classifier (T 1)" in done.err


def test_no_label_moves_a_draw(picked: Path, tmp_path: Path) -> None:
    """Whatever stands in /target/labels, the sheet has the same bytes."""
    shutil.copy(picked / "adapted.h5", tmp_path)
    with edited(tmp_path / "adapted.h5") as file:
        file["target/labels"][...] = 12345
    covcal("pick", "-n", 40, cwd=tmp_path).require_success()
    sheets = (folder / "to-label.csv" for folder in (picked, tmp_path))
    assert next(sheets).read_bytes() == next(sheets).read_bytes()


def test_a_seed_draws_other_rows(picked: Path, tmp_path: Path) -> None:
    path = picked / "adapted.h5"
    covcal("pick", path, "-n", 40, "--seed", 1, "-o", tmp_path / "x.csv").require_success()
    assert drawn_ids(tmp_path / "x.csv") != drawn_ids(picked / "to-label.csv")


def test_a_next_batch_leaves_the_earlier_ones_out(picked: Path, tmp_path: Path) -> None:
    """By the file's marks, and by sheets whose labels are not in it yet."""
    folder = Path(shutil.copytree(picked, tmp_path / "work"))
    first = folder / "to-label.csv"
    covcal("pick", "-n", 30, "--after", first, "-o", "more.csv", cwd=folder).require_success()
    assert not drawn_ids(first) & drawn_ids(folder / "more.csv")
    fill(first, folder / "adapted.h5")
    covcal("label", "adapted.h5", first, cwd=folder).require_success()
    covcal("pick", "-n", 30, "-o", "same.csv", cwd=folder).require_success()
    assert (folder / "same.csv").read_bytes() == (folder / "more.csv").read_bytes()
    # All of the rest, batch by batch.
    sheets = [first, folder / "more.csv"]
    after = ("--after", folder / "more.csv")
    done = covcal("pick", "-n", 200, *after, "-o", "rest.csv", cwd=folder).require_success()
    assert "Label these 200 rows" in done.out
    assert "drawn from 200 train and validation rows" in done.out
    assert "with these labels and the 70 labels of earlier batches" in done.out
    assert sum(len(drawn_ids(one)) for one in (*sheets, folder / "rest.csv")) == 270
    line = covcal("pick", "adapted.h5", "-n", 201, *after, "-o", "x.csv", cwd=folder).error_line()
    assert "has only 200 target train and validation rows left to label" in line
    assert "because 70 rows were drawn before" in line


def test_what_labels_buy_is_what_they_bring(tmp_path: Path) -> None:
    """The promise is the standard deviation of draws, where the forecast is right."""
    target = made_domain("target", sizes=(500, 100, 10), sharpness=0.5)
    path = write_features(tmp_path / "features.h5", target=target)
    right = target["logits"].argmax(axis=1) == target["labels"]
    by_id = dict(zip(target["ids"].tolist(), right.tolist(), strict=True))
    truth, errors, promises = right[:600].mean(), [], []
    with FeatureFile(path) as file:
        rows = np.arange(600, dtype=np.int64)
        mean = score(file, rows, seed=0).right.mean()
    for seed in range(12):
        found = pick(path, tmp_path / "x.csv", PickSettings(rows=30, seed=seed), force=True)
        sheet = found.sheet
        right_rows = np.array([by_id[row_id.encode()] for row_id in sheet.ids])
        residuals = (right_rows - sheet.confidence) / sheet.inclusion
        errors.append(mean + residuals.sum() / 600 - truth)
        promises.append(found.half_width)
    assert np.std(promises) < 1e-12
    assert 1.96 * np.sqrt(np.mean(np.square(errors))) == pytest.approx(promises[0], rel=0.5)


def test_confidence_that_looks_certain_promises_no_exact_accuracy(tmp_path: Path) -> None:
    """One-hot outputs say nothing of their errors."""
    target = made_domain("target", sizes=(200, 50, 10))
    top = target["logits"] == target["logits"].max(axis=1, keepdims=True)
    target["logits"] = np.where(top, 0, -80).astype(np.float32)
    path = write_features(tmp_path / "features.h5", target=target)
    with edited(path) as file:
        del file["source"]
    found = pick(path, tmp_path / "x.csv", PickSettings(rows=40))
    # Of rows drawn alike, 1 in 400 wrong: the least that an estimate by labels takes for possible.
    exact = 1.96 * np.sqrt((1 - 40 / 250) * 0.0025 * 0.9975 / 40)
    assert found.half_width == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    ("rare", "rows", "sentence"),
    [(1, 100, "1 of these 100 rows is predicted as fraud"), (0, 8, "0 of these 8"), (3, 40, "")],
)
def test_rows_of_a_rare_class_are_counted(rare: int, rows: int, sentence: str) -> None:
    """Too few rows predicted as one of two classes tell nothing about this class."""
    sheet = SimpleNamespace(several={}, predicted=["fraud"] * rare + ["ok"] * (rows - rare))
    picked = SimpleNamespace(sheet=sheet, classes=("ok", "fraud"))
    assert _rarely_drawn(cast("PickReport", picked)).startswith(sentence)
    picked.classes = ("ok", "fraud", "spam")
    assert not _rarely_drawn(cast("PickReport", picked))


def test_the_sheet_is_printed_when_asked(picked: Path) -> None:
    done = covcal("pick", "-n", 40, "-o", "-", cwd=picked).require_success()
    assert done.out == (picked / "to-label.csv").read_text(encoding="utf-8")
    assert not (picked / "-").exists()


def test_splits_are_drawn_from_when_asked(picked: Path, tmp_path: Path) -> None:
    path, output = picked / "adapted.h5", tmp_path / "x.csv"
    covcal("pick", path, "-n", 9, "--split", "train", "-o", output).require_success()
    with FeatureFile(path) as file:
        target = file.require_target()
        assert drawn_ids(output) <= {*target.ids(target.rows("train"))}
    line = covcal("pick", path, "--after", output, "--split", "all", "-o", tmp_path / "y.csv")
    assert "were drawn from its train rows: leave out --split" in line.error_line()
    line = covcal("pick", path, "-n", 9, "--split", "test", "-o", tmp_path / "y.csv")
    assert "0 target test rows left to label, because 80 rows have a label" in line.error_line()


def test_paths_stand_where_the_images_are(picked: Path, tmp_path: Path) -> None:
    """Rows that have a file in the folder get its path."""
    some = sorted(drawn_ids(picked / "to-label.csv"))[3]
    (tmp_path / some).parent.mkdir(parents=True)
    (tmp_path / some).touch()
    arguments = ("pick", picked / "adapted.h5", "-n", 40, "-o", tmp_path / "x.csv")
    covcal(*arguments, "--images", tmp_path).require_success()
    paths = {line["id"]: line["path"] for line in lines_of(tmp_path / "x.csv")}
    assert paths.pop(some) == str(tmp_path / some)
    assert set(paths.values()) == {""}


def test_many_rows_are_drawn_as_few_are(
    picked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where scores are kept in 32 bits and computed in parts, the same rows are drawn."""
    expected = pick(picked / "adapted.h5", None, PickSettings(rows=40)).sheet
    monkeypatch.setattr("covcal_cli.labels.pick._EXACT_ROWS", 10)
    monkeypatch.setattr("covcal_cli.labels.pick._CHUNK", 32)
    sheet = pick(picked / "adapted.h5", tmp_path / "x.csv", PickSettings(rows=40)).sheet
    assert list(sheet.ids) == list(expected.ids)
    assert sheet.confidence == pytest.approx(expected.confidence, rel=1e-12)
    assert sheet.inclusion == pytest.approx(expected.inclusion, rel=1e-6)
