"""``covcal label``: labels go in whole or not at all, and whatever is wrong is one line."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from covcal_cli.files import sha256_of
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.draws import Draw
from covcal_cli.labels.label import _cohens_kappa, _fleiss_kappa
from covcal_cli.labels.picked_labels import labelled_draw
from tests.cli_runner import covcal, printed_json
from tests.labels.labelling import Lines, fill, lines_of, truth, write_lines
from tests.made_files import edited
from tests.short_training import short_training

N = 20


@pytest.fixture(scope="module")
def sheets(small_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both files, a filled batch of N rows and one after it; not to be changed."""
    folder = tmp_path_factory.mktemp("sheets")
    for name in ("features.h5", "adapted.h5", "temp.json"):
        shutil.copy(small_files / name, folder)
    covcal("pick", "-n", N, "-o", "first.csv", cwd=folder).require_success()
    after = ("--after", "first.csv", "-o", "second.csv")
    covcal("pick", "-n", 10, *after, cwd=folder).require_success()
    for name in ("first.csv", "second.csv"):
        fill(folder / name, folder / "adapted.h5")
    return folder


@pytest.fixture
def folder(sheets: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sheets, tmp_path / "work"))


def labelled(path: Path) -> Draw:
    with FeatureFile(path) as file:
        draw = labelled_draw(file)
    assert draw is not None
    return draw


def without_marks(path: Path) -> dict[str, bytes]:
    """Return every dataset and root attribute of a file but what label puts in."""
    found: dict[str, bytes] = {}
    with h5py.File(path) as file:
        own = ("unmarked_sha256", "attributes_sha256")
        found |= {name: str(file.attrs[name]).encode() for name in file.attrs if name not in own}

        def keep(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and not name.startswith("marked/"):
                found[name] = item[()].tobytes()

        file.visititems(keep)
    return found


def test_labels_go_in_by_id_with_the_design(folder: Path) -> None:
    """What the sheet says of a row is what calibration reads of it; nothing else has changed."""
    path = folder / "adapted.h5"
    before = without_marks(path)
    done = covcal("label", path, folder / "first.csv").require_success()
    assert f"{N} added; {N} of the {N} picked rows" in done.out
    assert without_marks(path) == before
    found, known = labelled(path), truth(path)
    with FeatureFile(path) as file:
        ids = file.require_target().ids(found.rows)
        classes = [file.classes[label] for label in found.labels]
    lines = {line["id"]: line for line in lines_of(folder / "first.csv")}
    assert set(ids) == set(lines)
    assert classes == [known[one] for one in ids]
    assert found.inclusion.tolist() == [float(lines[one]["inclusion"]) for one in ids]
    assert found.notes == ()
    (batch,) = found.batches
    assert (batch.drawn, batch.population, batch.splits) == (N, 270, ("train", "validation"))


def test_the_file_has_the_same_bytes_whatever_the_order(folder: Path) -> None:
    """Both batches are given at once, in any order, twice, or one after the other."""
    orders: dict[str, list[tuple[str, ...]]] = {
        "one.h5": [("first.csv",), ("second.csv",)],
        "two.h5": [("second.csv", "first.csv")],
        "three.h5": [("first.csv",), ("first.csv", "second.csv"), ("second.csv",)],
    }
    for name, steps in orders.items():
        shutil.copy(folder / "adapted.h5", folder / name)
        for step in steps:
            covcal("label", name, *step, "-q", cwd=folder).require_success()
    assert sha256_of(folder / "one.h5") == sha256_of(folder / "two.h5")
    assert sha256_of(folder / "one.h5") == sha256_of(folder / "three.h5")
    assert np.bincount(labelled(folder / "one.h5").batch).tolist() == [N, 10]


def test_a_sheet_of_what_adapt_made_fits_its_features_file(folder: Path) -> None:
    """The rows are the same; logits that adapt carried over prove it."""
    covcal("label", "features.h5", "first.csv", cwd=folder).require_success()
    assert len(labelled(folder / "features.h5").rows) == N


def test_the_hint_fits_what_the_labels_are_for(folder: Path) -> None:
    """A second calibration needs --force; rows without a source are a period for watch."""
    label = ("label", "features.h5", "first.csv")
    done = covcal(*label, cwd=folder).require_success()
    assert done.err.endswith("next: covcal calibrate features.h5\n")
    (folder / "cal.json").touch()
    done = covcal(*label, cwd=folder).require_success()
    assert done.err.endswith("features.h5 --force  # replaces cal.json\n")
    with edited(folder / "features.h5") as file:
        del file["source"]
    done = covcal(*label, cwd=folder).require_success()
    assert "next: covcal watch PERIOD=features.h5 -c cal.json --history FILE" in done.err
    (folder / "watch.jsonl").touch()
    done = covcal(*label, cwd=folder).require_success()
    assert "next: covcal watch features.h5 -c cal.json --history watch.jsonl  # " in done.err


def test_another_file_can_be_written(folder: Path) -> None:
    before = (folder / "adapted.h5").read_bytes()
    arguments = ("label", "adapted.h5", "first.csv", "-o", "new.h5")
    covcal(*arguments, cwd=folder).require_success()
    assert (folder / "adapted.h5").read_bytes() == before
    assert len(labelled(folder / "new.h5").rows) == N
    assert "new.h5 exists already" in covcal(*arguments, cwd=folder).error_line()


def first_label(text: str) -> Callable[[Lines], Lines]:
    return lambda lines: [lines[0] | {"label": text}, *lines[1:]]


def emptied(lines: Lines) -> Lines:
    return [*(line | {"label": ""} for line in lines[:3]), *lines[3:]]


def test_part_of_a_batch_waits_for_the_rest(folder: Path) -> None:
    """Until it comes the labelled rows stand for all of them, and the command says so."""
    sheet, path = folder / "first.csv", folder / "adapted.h5"
    whole = lines_of(sheet)
    fill(sheet, path, emptied)
    done = covcal("label", path, sheet, "--partial").require_success()
    assert "3 rows have no label yet" in done.err
    found = labelled(path)
    assert len(found) == N - 3
    assert found.notes[0].startswith("3 of the rows that covcal pick drew have no label yet")
    inclusion = {line["id"]: float(line["inclusion"]) for line in whole}
    with FeatureFile(path) as file:
        ids = file.require_target().ids(found.rows)
    assert found.inclusion == pytest.approx([inclusion[one] * (N - 3) / N for one in ids])
    # Those without a label are not drawn again.
    covcal("pick", path, "-n", 250, "-o", folder / "rest.csv").require_success()
    assert not {line["id"] for line in lines_of(folder / "rest.csv")} & set(inclusion)
    write_lines(sheet, whole)
    done = covcal("label", path, sheet).require_success()
    assert "3 added" in done.out
    assert labelled(path).notes == ()


def test_a_label_is_replaced_when_asked(folder: Path) -> None:
    sheet, path = folder / "first.csv", folder / "adapted.h5"
    covcal("label", path, sheet).require_success()
    first = lines_of(sheet)[0]
    other = "class 1" if first["label"] != "class 1" else "class 2"
    fill(sheet, path, first_label(other))
    before = path.read_bytes()
    line = covcal("label", path, sheet).error_line()
    assert f"'{first['id']}' is '{first['label']}' in {path}, '{other}' in {sheet}" in line
    assert path.read_bytes() == before
    done = covcal("label", path, sheet, "--force").require_success()
    assert "0 added, 1 replaced" in done.out


@pytest.mark.parametrize("name", ["first.csv", "./first.csv", "link.csv"])
def test_one_sheet_is_not_two_people(name: str, folder: Path) -> None:
    """Else it would agree with itself on every row."""
    (folder / "link.csv").symlink_to("first.csv")
    line = covcal("label", "adapted.h5", "first.csv", name, cwd=folder).error_line()
    assert f"{name.removeprefix('./')} is given twice: give the CSV of each person once" in line


CHANGES: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "no label": (lambda lines: [line | {"label": ""} for line in lines], "has no labels yet"),
    "some labels": (emptied, f"3 of {N} labels are empty"),
    "misspelt": (first_label("clas 2"), "is not a class: did you mean class 2?"),
    "unlike any": (
        first_label("??"),
        "use one of class 0, class 1, class 2. Leave an unknown label empty",
    ),
    "unknown id": (
        lambda lines: [lines[0] | {"id": "target/x.png"}, *lines[1:]],
        "the cells 'id' and 'draw' in line 2 belong to different rows",
    ),
    "id twice": (lambda lines: [*lines, lines[0]], "occurs twice"),
    "rows gone": (lambda lines: lines[:-2], f"2 of the {N} picked rows are missing"),
    "rows more": (
        lambda lines: [*lines, lines[1] | {"id": "target/1.png"}],
        f"has {N + 1} lines for {N} picked rows",
    ),
    "no column": (
        lambda lines: [{k: v for k, v in line.items() if k != "draw"} for line in lines],
        "has no column draw: give the CSV file that covcal pick wrote",
    ),
    "no draw": (
        lambda lines: [lines[0] | {"draw": "by hand"}, *lines[1:]],
        "covcal pick did not write 'by hand' into the column 'draw' of line 2",
    ),
    "several draws": (
        lambda lines: ([lines[0] | {"draw": lines[0]["draw"].replace("b1_", "b2_")}, *lines[1:]]),
        "holds rows of several batches (2 and 1)",
    ),
    "no probability": (
        lambda lines: [lines[0] | {"inclusion": "about 0.05"}, *lines[1:]],
        "inclusion in line 2 is 'about 0.05', but covcal pick wrote 0.",
    ),
    "another probability": (
        lambda lines: [lines[0] | {"inclusion": "1e-06"}, *lines[1:]],
        "inclusion in line 2 is '1e-06', but covcal pick wrote 0.",
    ),
    "another population": (
        lambda lines: [line | {"draw": line["draw"].replace(":270:", ":271:")} for line in lines],
        "the cells 'id' and 'draw' in line 2 belong to different rows",
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_sheet_that_is_wrong_is_one_line(folder: Path, kind: str) -> None:
    change, said = CHANGES[kind]
    before = (folder / "adapted.h5").read_bytes()
    fill(folder / "first.csv", folder / "adapted.h5")
    write_lines(folder / "first.csv", change(lines_of(folder / "first.csv")))
    line = covcal("label", "adapted.h5", "first.csv", cwd=folder).error_line()
    assert line.startswith("first.csv")
    assert said in line
    assert (folder / "adapted.h5").read_bytes() == before
    assert not list(folder.glob(".*"))


def test_a_sheet_of_another_file(folder: Path) -> None:
    """It is refused even with the same ids, because row numbers fit any table."""
    with edited(folder / "features.h5") as file:
        file["target/logits"][0] = 0
    line = covcal("label", "features.h5", "first.csv", cwd=folder).error_line()
    assert line.startswith("first.csv was picked from other data than features.h5")
    done = covcal("pick", "features.h5", "--after", "first.csv", "-o", "x.csv", cwd=folder)
    assert "was picked from other data" in done.error_line()


def test_a_batch_after_one_that_is_not_there(folder: Path) -> None:
    line = covcal("label", "adapted.h5", "second.csv", cwd=folder).error_line()
    assert line.startswith("second.csv is batch 2, but adapted.h5 does not have batch 1 yet")


def test_a_batch_that_did_not_know_of_another(folder: Path) -> None:
    """Two draws from the same rows cannot both be the first."""
    covcal("pick", "-n", N, "--seed", 5, "-o", "other.csv", cwd=folder).require_success()
    covcal("label", "adapted.h5", "first.csv", cwd=folder).require_success()
    fill(folder / "other.csv", folder / "adapted.h5")
    line = covcal("label", "adapted.h5", "other.csv", cwd=folder).error_line()
    assert "other.csv differs from batch 1 of adapted.h5" in line


@pytest.mark.parametrize("text", ["", "id,label\n", "1,2\n3,4\n", "\x00\x01"])
def test_a_file_that_is_no_sheet(folder: Path, text: str) -> None:
    (folder / "x.csv").write_text(text)
    assert "x.csv" in covcal("label", "adapted.h5", "x.csv", cwd=folder).error_line()


def test_a_file_without_a_target_has_nothing_to_label(folder: Path) -> None:
    with edited(folder / "features.h5") as file:
        del file["target"]
    for arguments in (("label", "features.h5", "first.csv"), ("pick", "features.h5")):
        assert "has no target rows" in covcal(*arguments, cwd=folder).error_line()


def test_inspect_shows_the_batches(folder: Path) -> None:
    covcal("label", "adapted.h5", "first.csv", "second.csv", cwd=folder).require_success()
    lines = [
        line.split(None, 1)[1]
        for line in covcal("inspect", "adapted.h5", cwd=folder).require_success().out.splitlines()
        if line.startswith("picked")
    ]
    assert [line.split(" by ")[0] for line in lines] == [
        f"{N} of 270 train and validation rows",
        "10 of 250 train and validation rows",
    ]
    assert [line.split("; ")[1] for line in lines] == [f"{N} have a label", "10 have a label"]


@pytest.mark.parametrize("name", ["features.h5", "adapted.h5"])
def test_labels_of_test_rows_are_for_evaluate(folder: Path, name: str) -> None:
    """Two draws of test rows, in either order, give evaluate their labels and calibrate nothing."""
    path, known = folder / name, truth(folder / name)
    covcal("label", path, folder / "first.csv").require_success()
    calibrate = ("calibrate", path, "--labels", "marked", "-o")
    covcal(*calibrate, folder / "before.json").require_success()
    with edited(path) as file:
        labels = file["target/labels"][...]
        file["target/labels"][...] = -1
    sheets = [folder / "test-1.csv", folder / "test-2.csv"]
    pick = ("pick", path, "--split", "test", "-n", 20, "-o")
    done = covcal(*pick, sheets[0]).require_success()
    assert "(worst case: 22)" in done.out  # 1.96 sqrt(1/4 / 20)
    assert "covcal evaluate will read these labels" in done.out
    covcal(*pick, sheets[1], "--after", sheets[0]).require_success()
    ids = [{line["id"] for line in lines_of(sheet)} for sheet in sheets]
    assert not ids[0] & ids[1]
    assert {line["inclusion"] for line in lines_of(sheets[0])} == {str(20 / 80)}
    for sheet in sheets:
        lines = [line | {"label": known[line["id"]]} for line in lines_of(sheet)]
        write_lines(sheet, lines)
    line = covcal("label", path, *sheets).error_line()
    assert "give each batch of test rows in a separate covcal label command" in line
    assert "separate" in covcal("label", path, sheets[0], folder / "second.csv").error_line()
    for sheet, calibration in zip(reversed(sheets), ("CALIBRATION", "cal.json"), strict=True):
        done = covcal("label", path, sheet, cwd=folder).require_success()
        assert "20 added" in done.out
        assert f"next: covcal evaluate {path} -c {calibration}\n" in done.err
        (folder / "cal.json").touch()
    with h5py.File(path) as file:
        added = np.flatnonzero(file["target/labels"][...] >= 0)
        assert (file["target/labels"][added] == labels[added]).all()
    assert printed_json("evaluate", path)["n"] == len(added) == 40
    covcal(*calibrate, folder / "after.json").require_success()
    before, after = (
        json.loads((folder / f"{when}.json").read_text()) for when in ("before", "after")
    )
    assert after["method"] == before["method"]
    assert after["estimates"] == before["estimates"]
    done = covcal("evaluate", path, "-c", folder / "after.json").require_success()
    assert " --split test draws rows to label" in done.err
    done = covcal("label", path, sheets[0]).require_success()
    assert "0 added; 20 of the 20" in done.out
    wrong = [line | {"label": known[next(iter(ids[1]))]} for line in lines_of(sheets[0])]
    write_lines(sheets[0], wrong)
    assert "disagree" in covcal("label", path, sheets[0]).error_line()
    dropped = folder / "dropped.h5"
    done = covcal("label", path, sheets[0], "--resolve", "drop", "-o", dropped).require_success()
    with h5py.File(dropped) as file:
        n = int((file["target/labels"][...] >= 0).sum())
    assert n < 40
    assert f"{n - 20} of the 20" in done.out
    assert "only 40 target test rows left" in covcal(*pick[:-2], 41, "-o", "x.csv").error_line()
    for_decision = covcal(*pick, folder / "x.csv", "--for", "decide.json").error_line()
    assert "labels of test rows cannot prove the promise of decide.json" in for_decision


def test_adapt_hands_the_labels_on(folder: Path) -> None:
    """Its file holds the same marks; that the features had some changes no network."""
    covcal("label", "features.h5", "first.csv", cwd=folder).require_success()
    with short_training(10):
        arguments = ("features.h5", "--members", 1, "-o", "new.h5", "-q")
        covcal("adapt", *arguments, cwd=folder).require_success()
    with FeatureFile(folder / "features.h5") as one, FeatureFile(folder / "new.h5") as two:
        assert two.attributes["features_sha256"] == one.sha256()
        assert "unmarked_sha256" not in two.attributes
    found = [labelled(folder / name) for name in ("features.h5", "new.h5")]
    assert found[0].labels.tolist() == found[1].labels.tolist()
    assert found[0].batches == found[1].batches


def test_a_run_goes_on_with_the_files_that_were_labelled(
    few_digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is extracted or adapted again, and no label is lost."""
    monkeypatch.setattr("covcal_cli.run.run.RESAMPLES", 10)
    shutil.copytree(few_digits, tmp_path, dirs_exist_ok=True)
    arguments = ("run", "digits.onnx", "source.npz", "target.npz", "-o", "out", "--adapt")
    with short_training(20, members=1):
        done = covcal(*arguments, cwd=tmp_path).require_success()
    assert "step 2 of 6: adapt" in done.err
    out = tmp_path / "out"
    covcal("pick", "adapted.h5", "-n", N, cwd=out).require_success()
    fill(out / "to-label.csv", out / "adapted.h5")
    for name in ("features.h5", "adapted.h5"):
        covcal("label", name, "to-label.csv", cwd=out).require_success()
    before = {name: (out / name).read_bytes() for name in ("features.h5", "adapted.h5")}
    done = covcal(*arguments, cwd=tmp_path).require_success()
    assert "features.h5 made" not in done.err
    assert "adapted.h5 made" not in done.err
    assert {name: (out / name).read_bytes() for name in before} == before
    assert not [line for line in done.err.splitlines() if "has changed" in line]


class TestTwoLabellers:
    """Two people who label the same rows, each in a sheet."""

    @pytest.fixture
    def two(self, folder: Path) -> Path:
        """A folder where bob.csv differs from ann.csv in the first two rows."""
        lines = lines_of(folder / "first.csv")
        write_lines(folder / "ann.csv", lines)
        other = {"class 0": "class 1", "class 1": "class 2", "class 2": "class 0"}
        differing = [line | {"label": other[line["label"]]} for line in lines[:2]]
        write_lines(folder / "bob.csv", [*differing, *lines[2:]])
        return folder

    def test_in_one_command_as_in_two(self, two: Path) -> None:
        """The rows in which they disagree are named, and nothing changes."""
        lines = lines_of(two / "ann.csv")
        before = (two / "adapted.h5").read_bytes()
        line = covcal("label", "adapted.h5", "ann.csv", "bob.csv", cwd=two).error_line()
        assert (two / "adapted.h5").read_bytes() == before
        covcal("label", "adapted.h5", "ann.csv", cwd=two).require_success()
        later = covcal("label", "adapted.h5", "bob.csv", cwd=two).error_line()
        for said in (line, later):
            assert "labellers disagree on 2 rows" in said
            assert "--resolve (first, last, drop or majority)" in said
            for drawn in lines[:2]:
                assert f"'{drawn['id']}' is '{drawn['label']}' in" in said
        assert f"of {N} (Cohen's kappa 0." in line
        assert "--force" in later
        assert "--force" not in line

    @pytest.mark.parametrize(
        ("rule", "steps"), [("first", 1), ("first", 2), ("last", 2), ("drop", 1)]
    )
    def test_a_rule_decides(self, two: Path, rule: str, steps: int) -> None:
        sheets = ["ann.csv", "bob.csv"]
        if steps == 2:
            covcal("label", "adapted.h5", "ann.csv", cwd=two).require_success()
            sheets = ["bob.csv"]
        arguments = ("label", "adapted.h5", *sheets, "--resolve", rule)
        done = covcal(*arguments, cwd=two).require_success()
        known = {"first": truth(two / "adapted.h5")}
        known["last"] = known["first"] | {
            line["id"]: line["label"] for line in lines_of(two / "bob.csv")
        }
        draw = labelled(two / "adapted.h5")
        with FeatureFile(two / "adapted.h5") as file:
            ids = file.require_target().ids(draw.rows)
            labels = [file.classes[index] for index in draw.labels]
        assert len(ids) == (N - 2 if rule == "drop" else N)
        assert labels == [known.get(rule, known["first"])[row_id] for row_id in ids]
        assert ("2 rows have no label yet" in done.err) is (rule == "drop")
        assert ("may seem too high" in done.err) is (rule == "drop")
        if steps == 1:
            assert f"on {N - 2} of {N} rows" in done.out

    def test_a_majority_needs_a_third(self, two: Path) -> None:
        arguments = ("label", "adapted.h5", "ann.csv", "bob.csv")
        line = covcal(*arguments, "--resolve", "majority", cwd=two).error_line()
        assert "has a majority" in line
        third = lines_of(two / "bob.csv")
        write_lines(two / "cat.csv", third)
        done = covcal(*arguments, "cat.csv", "--resolve", "majority", cwd=two).require_success()
        assert f"{N} added" in done.out
        with FeatureFile(two / "adapted.h5") as file:
            draw = labelled(two / "adapted.h5")
            by_id = dict(zip(file.require_target().ids(draw.rows), draw.labels, strict=True))
            assert file.classes[by_id[third[0]["id"]]] == third[0]["label"]

    def test_two_halves_are_a_whole(self, two: Path) -> None:
        """No label is lacking in both, so the batch is complete, in one command or in two."""
        lines = lines_of(two / "ann.csv")
        for name, part in (("ann.csv", range(12)), ("bob.csv", range(12, N))):
            half = [
                line | {"label": line["label"] if place in part else ""}
                for place, line in enumerate(lines)
            ]
            write_lines(two / name, half)
        shutil.copy(two / "adapted.h5", two / "other.h5")
        done = covcal("label", "adapted.h5", "ann.csv", "bob.csv", cwd=two).require_success()
        assert f"{N} added" in done.out
        assert "Agreement" not in done.out
        line = covcal("label", "other.h5", "ann.csv", cwd=two).error_line()
        assert f"8 of {N} labels are empty" in line
        covcal("label", "other.h5", "ann.csv", "--partial", cwd=two).require_success()
        covcal("label", "other.h5", "bob.csv", cwd=two).require_success()
        assert sha256_of(two / "other.h5") == sha256_of(two / "adapted.h5")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([(0, 0), (1, 1), (2, 2)], 1.0),
        ([(0, 0), (0, 0)], 1.0),
        ([(0, 1), (1, 0)], -1.0),
        ([(0, 0), (0, 1), (1, 0), (1, 1)], 0.0),
        ([(0, 0)] * 20 + [(0, 1)] * 5 + [(1, 0)] * 10 + [(1, 1)] * 15, 0.4),
    ],
)
def test_cohens_kappa(labels: list[tuple[int, int]], expected: float) -> None:
    """Agreement beyond chance; the last case is that of Cohen's own kind, worked by hand."""
    assert _cohens_kappa(labels) == pytest.approx(expected)


# The example of Fleiss' kind: 14 people put 10 rows into 5 classes; kappa is 0.210.
RATINGS = [
    *([0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1]),
    *([7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7]),
]


def test_fleiss_kappa() -> None:
    rows = [Counter(dict(enumerate(row))) for row in RATINGS]
    assert _fleiss_kappa(rows) == pytest.approx(0.210, abs=5e-4)
    # P = (1 + 1/3 + 1) / 3 = 7/9; shares 5/9 and 4/9 give P_e = 41/81, so kappa = 22/40.
    rows = [Counter({0: 3}), Counter({0: 2, 1: 1}), Counter({1: 3})]
    assert _fleiss_kappa(rows) == pytest.approx(0.55)
    assert _fleiss_kappa([Counter({2: 3}), Counter({2: 2})]) == 1


def test_without_arguments_it_reads_what_pick_wrote(folder: Path) -> None:
    """The file of the folder, and to-label.csv; a CSV may be named alone."""
    done = covcal("label", cwd=folder)
    assert done.code == 1
    assert "error: to-label.csv does not exist: give the CSV file that covcal pick" in done.err
    shutil.copy(folder / "first.csv", folder / "to-label.csv")
    done = covcal("label", cwd=folder).require_success()
    assert f"{N} added" in done.out
    assert "reading adapted.h5" in done.err
    assert len(labelled(folder / "adapted.h5")) == N
    done = covcal("label", "second.csv", cwd=folder).require_success()
    assert "10 added; 30 of the 30 picked rows in 2 batches" in done.out


def answered(folder: Path, header: str, words: tuple[str, str], *more: str) -> list[int] | str:
    """Answer a sheet by whether predictions are right; return the stored classes or the error."""
    rng = np.random.default_rng(0)
    scores = rng.uniform(0.5, 1, 60)
    for name in ("old", "new"):
        names = ("1", "0") if "correct" in header else ("fraud", "legit")
        rows = [f"{score:.3f},{names[int(rng.random() > score)]}" for score in scores]
        (folder / f"{name}.csv").write_text("\n".join([header, *rows]))
    for arguments in (("extract", "old.csv", "new.csv"), ("pick", "-n", 10, "--split", "all")):
        covcal(*arguments, *(more if arguments[0] == "pick" else ()), cwd=folder).require_success()
    lines = lines_of(folder / "to-label.csv")
    write_lines(
        folder / "to-label.csv",
        [line | {"label": words[int(line["id"]) % 2]} for line in lines],
    )
    done = covcal("label", "features.h5", "to-label.csv", cwd=folder)
    if done.code:
        return done.error_line()
    draw = labelled(folder / "features.h5")
    return [int(label) ^ int(row) % 2 for label, row in zip(draw.labels, draw.rows, strict=True)]


@pytest.mark.parametrize(
    "words", [("right", "wrong"), ("Correct", "incorrect"), ("yes", "no"), ("1.0", "0"), ("t", "f")]
)
def test_a_judgement_of_a_prediction_is_never_inverted(
    tmp_path: Path, words: tuple[str, str]
) -> None:
    """Class numbers would make 1 the class "wrong", or the class that was not meant."""
    (tmp_path / "events").mkdir()
    (tmp_path / "shown").mkdir()
    (tmp_path / "hidden").mkdir()
    events = answered(tmp_path / "events", "confidence,correct", words)
    if words[0] == "t":
        assert "use one of right, wrong. Leave" in str(events)
    else:
        assert events == [0] * 10
    shown = answered(tmp_path / "shown", "prob_fraud,label", words, "--predictions")
    if words[0] in ("right", "Correct"):  # every row is predicted as fraud
        assert shown == [0] * 10
    else:
        assert "use one of fraud, legit" in str(shown)
    hidden = answered(tmp_path / "hidden", "prob_fraud,label", words)
    assert "use one of fraud, legit" in str(hidden)
