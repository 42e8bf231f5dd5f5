"""Bad input of every kind: one line that names the file and the remedy, exit 1, nothing touched."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

from covcal_cli.files import sha256_of
from covcal_cli.records import write_document
from tests.cli_runner import Argument, Outcome, covcal
from tests.made_files import edited, made_domain, write_features

LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9942\n"
)


def contents(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder, hidden ones included."""
    return {
        str(path.relative_to(folder)): sha256_of(path)
        for path in folder.rglob("*")
        if path.is_file()
    }


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Require that no file below a folder appears, changes or goes."""
    before = contents(folder)
    yield
    assert contents(folder) == before


def refusal(folder: Path, *arguments: Argument) -> str:
    """Run a command that must fail without touching a file; return its error line."""
    with untouched(folder):
        return covcal(*arguments, cwd=folder).error_line()


@pytest.fixture
def work(small_files: Path, digits: Path, tmp_path: Path) -> Path:
    """A folder with good files of every kind, to which a test adds a bad file."""
    for name in ("features.h5", "adapted.h5", "temp.json", "fl+temp.json"):
        shutil.copy(small_files / name, tmp_path)
    for name in ("digits.onnx", "source.npz", "target.npz"):
        shutil.copy(digits / name, tmp_path)
    Image.new("L", (8, 8), 100).save(tmp_path / "picture.png")
    return tmp_path


EXTRACT = ("extract", "digits.onnx", "source.npz", "target.npz", "-o", "new.h5")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("extract", "no.onnx", "source.npz", "target.npz", "-o", "new.h5"),
            "no.onnx does not exist: the first argument must be the classifier: an .onnx, .pt "
            "or .pt2 file, or "
            "module:function",
        ),
        (
            ("extract", "digits.onnx", "no", "target.npz", "-o", "new.h5"),
            "no does not exist: give a folder of images, a .tar file, or a table or array file "
            "(.npz, .npy, .h5, .csv, .jsonl, .parquet)",
        ),
        (
            ("extract", "digits.onnx", "source.npz", "no.npz", "-o", "new.h5"),
            "no.npz does not exist: give a folder of images, a .tar file, or a table or array "
            "file (.npz, .npy, .h5, .csv, .jsonl, .parquet)",
        ),
        (("adapt", "no.h5", "-f"), "no.h5 does not exist: make it with covcal extract"),
        (("calibrate", "no.h5"), "no.h5 does not exist: make it with covcal extract"),
        (("evaluate", "no.h5"), "no.h5 does not exist: make it with covcal extract"),
        (
            ("evaluate", "features.h5", "-c", "no.json"),
            "no.json does not exist: make it with covcal calibrate",
        ),
        (("inspect", "no.json"), "no.json does not exist: name a file that covcal wrote"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_a_missing_file(work: Path, arguments: tuple[str, ...], line: str) -> None:
    """A file that is not there is named, with the step that makes it."""
    assert refusal(work, *arguments) == line


@pytest.mark.parametrize("command", ["adapt", "calibrate", "evaluate", "inspect"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.99])
def test_a_truncated_file(work: Path, command: str, share: float) -> None:
    """However much of an HDF5 file is left, every command says that it is cut off."""
    path = work / "features.h5"
    left = int(path.stat().st_size * share)
    path.write_bytes(path.read_bytes()[:left])
    more = ("-f",) if command == "adapt" else ()
    assert refusal(work, command, "features.h5", *more) == (
        f"features.h5 is cut short ({left} bytes are left): copy it again or make it again"
    )


# A file that is something else: the good file's name, what takes its place, and the words.
Case = tuple[tuple[str, ...], str]
SOMETHING_ELSE: dict[str, Case] = {
    "cal.json as h5": (("evaluate", "temp.json"), "temp.json is not a readable HDF5 file"),
    "cal.json to calibrate": (("calibrate", "temp.json"), "temp.json is not a readable HDF5 file"),
    "cal.json to adapt": (("adapt", "temp.json", "-f"), "temp.json is not a readable HDF5 file"),
    "h5 as cal.json": (("evaluate", "features.h5", "-c", "adapted.h5"), "adapted.h5 is not JSON"),
    "model as h5": (("calibrate", "digits.onnx"), "digits.onnx is not a readable HDF5 file"),
    "npz as h5": (("adapt", "source.npz", "-f"), "run covcal extract source.npz -o source.h5"),
    "picture as h5": (("inspect", "picture.png"), "picture.png is a picture: open it"),
    "h5 as a model": (("extract", "features.h5", "source.npz", "target.npz"), "an HDF5 file"),
    "picture as a model": (("extract", "picture.png", "source.npz", "target.npz"), "a PNG image"),
    "text as a model": (("extract", "temp.json", "source.npz", "target.npz"), "not an ONNX model"),
    "model as data": (
        ("extract", "digits.onnx", "digits.onnx", "target.npz"),
        "is not a kind of file",
    ),
    "h5 as data": (
        ("extract", "digits.onnx", "features.h5", "target.npz"),
        "not data for covcal extract",
    ),
    "one picture as data": (
        ("extract", "digits.onnx", "picture.png", "target.npz"),
        "is not a kind of file",
    ),
    "adapted twice": (("adapt", "adapted.h5", "-f"), "is adapted already"),
    "folder as h5": (("evaluate", "."), "is a folder, not a file"),
    "folder as model": (("extract", ".", "source.npz", "target.npz"), "is a folder, not a file"),
}


@pytest.mark.parametrize("case", SOMETHING_ELSE)
def test_a_file_of_another_kind(work: Path, case: str) -> None:
    """A file where another kind belongs is named, with what it is or is not."""
    arguments, words = SOMETHING_ELSE[case]
    more = ("-o", "new.h5") if arguments[0] == "extract" else ()
    line = refusal(work, *arguments, *more)
    assert words in line
    assert re.search("[:.] ", line)  # the remedy


@pytest.mark.parametrize(
    "command",
    [
        ("calibrate", "new.csv"),
        ("estimate", "new.csv"),
        ("decide", "new.csv", "--error", "0.1"),
        ("evaluate", "new.csv", "-c", "temp.json"),
        ("apply", "new.csv", "-c", "temp.json", "-o", "probs.csv"),
        ("report", "new.csv", "-c", "temp.json"),
        ("merge", "new.csv", "features.h5", "-o", "both.h5"),
        ("pick", "new.csv", "-n", "5"),
        ("watch", "new.csv", "-c", "temp.json"),
        ("adapt", "new.csv"),
        ("compare", "new.csv"),
    ],
    ids=lambda command: command[0],
)
def test_a_table_in_place_of_features(work: Path, command: tuple[str, ...]) -> None:
    """Every command names the table and the command that makes features from it.

    `label` reads a table as a sheet.
    """
    (work / "new.csv").write_text("a,b\n1,2\n")
    line = refusal(work, *command)
    assert line.startswith("new.csv is a table, not a features file: run covcal extract new.csv -o")


class TestModel:
    def extract(self, work: Path) -> str:
        return refusal(work, *EXTRACT)

    def test_a_picture_renamed(self, work: Path) -> None:
        """A PNG under a model's name is called a PNG image."""
        shutil.copy(work / "picture.png", work / "digits.onnx")
        line = self.extract(work)
        assert line.startswith("digits.onnx is a PNG image, not an ONNX model: ")

    def test_a_git_lfs_pointer(self, work: Path) -> None:
        """A Git LFS pointer is called by its name, with the command that fetches the file."""
        (work / "digits.onnx").write_bytes(LFS_POINTER)
        line = self.extract(work)
        assert line == "digits.onnx is a Git LFS pointer, not an ONNX model: run git lfs pull"

    @pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
    def test_cut_off(self, work: Path, share: float) -> None:
        """A model that was only partly copied is refused."""
        path = work / "digits.onnx"
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
        assert self.extract(work).startswith("digits.onnx is ")

    def test_a_model_that_answers_nan(self, work: Path) -> None:
        """A classifier whose logits are NaN is refused at the first row, which is named."""
        model = onnx.load(work / "digits.onnx")
        bias = next(entry for entry in model.graph.initializer if entry.dims == [10])
        spoilt = np.array(numpy_helper.to_array(bias))
        spoilt[3] = np.nan
        bias.CopyFrom(numpy_helper.from_array(spoilt, bias.name))
        onnx.save(model, work / "digits.onnx")
        assert "NaN" in self.extract(work)


def save_folder(digits: Path, folder: Path, count: int) -> Path:
    """Save the first `count` embedded source digits as class folders of PNG files."""
    with np.load(digits / "source.npz") as arrays:
        rows = zip(arrays["x"][:count], arrays["y"][:count], strict=True)
        for number, (pixels, label) in enumerate(rows):
            place = folder / str(label)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place / f"{number:04d}.png")
    return folder


class TestImages:
    @pytest.mark.parametrize("role", ["source", "target"])
    def test_an_empty_folder(self, work: Path, role: str) -> None:
        """A folder without images says so, and what it should hold."""
        (work / "empty").mkdir()
        arguments = [name.replace(f"{role}.npz", "empty") for name in EXTRACT]
        assert refusal(work, *arguments).startswith("empty holds no images: give a folder of ")

    def test_a_corrupt_image_is_skipped(self, work: Path) -> None:
        """One bad image in two hundred is named, skipped and counted; the rest is extracted."""
        folder = save_folder(work, work / "images", 200)
        bad = sorted(folder.rglob("*.png"))[17]
        bad.write_bytes(bad.read_bytes()[:40])
        arguments = ("extract", "digits.onnx", "images", "target.npz", "-o", "new.h5")
        done = covcal(*arguments, cwd=work).require_success()
        name = f"{bad.parent.name}/{bad.name}"
        (warning,) = [line for line in done.err.splitlines() if name in line]
        assert warning.startswith("warning: ")
        assert "199 rows" in done.out
        assert "1 file" in done.out
        assert "skipped" in done.out
        with h5py.File(work / "new.h5") as file:
            assert len(file["source/logits"]) == len(file["source/ids"]) == 199
            assert name.encode() not in file["source/ids"][:]

    def test_more_than_one_percent_stops(self, work: Path) -> None:
        """Three bad images in two hundred stop the extraction, and nothing is written."""
        folder = save_folder(work, work / "images", 200)
        for bad in sorted(folder.rglob("*.png"))[5:8]:
            bad.write_bytes(b"no image")
        line = refusal(work, "extract", "digits.onnx", "images", "target.npz", "-o", "new.h5")
        assert "images" in line
        assert "3" in line

    def test_one_class_in_the_source(self, work: Path) -> None:
        """A source of one class shows nothing about confidence."""
        with np.load(work / "source.npz") as arrays:
            np.savez(work / "source.npz", x=arrays["x"], y=np.full(len(arrays["y"]), 4))
        assert refusal(work, *EXTRACT) == (
            "all labelled rows of source.npz have one class (4): give a source with several classes"
        )

    def test_no_labels_in_the_source(self, work: Path) -> None:
        """The source needs labels; the two ways to give them are named."""
        with np.load(work / "source.npz") as arrays:
            np.savez(work / "source.npz", x=arrays["x"])
        line = refusal(work, *EXTRACT)
        assert line.startswith("source.npz has no labels, but a source needs labels: ")

    def test_a_label_that_is_no_class(self, work: Path) -> None:
        """A label beyond the model's classes is named with its row."""
        with np.load(work / "target.npz") as arrays:
            labels = arrays["y"].copy()
            labels[5] = 10
            np.savez(work / "target.npz", x=arrays["x"], y=labels)
        assert refusal(work, *EXTRACT).startswith("target.npz: y[5] is 10, but the model has 10")

    def test_a_damaged_npz(self, work: Path) -> None:
        """An .npz that lost its end is no readable .npz file."""
        path = work / "target.npz"
        path.write_bytes(path.read_bytes()[:5000])
        assert refusal(work, *EXTRACT).startswith("target.npz is not a readable .npz file")


Change = Callable[[Path], Any]


def set_values(dataset: str, value: float, row: int | None = None) -> Change:
    def change(path: Path) -> None:
        with edited(path) as file:
            file[dataset][... if row is None else row] = value

    return change


class TestValues:
    @pytest.mark.parametrize(
        ("dataset", "row", "arguments"),
        [
            ("target/logits", 300, ("evaluate", "features.h5")),
            ("source/logits", 130, ("calibrate", "features.h5", "--method", "temp")),
            ("target/logits", 130, ("calibrate", "features.h5", "--method", "temp")),
            ("source/features", 3, ("calibrate", "features.h5", "--method", "iw+temp")),
            ("target/features", 3, ("adapt", "features.h5", "-f")),
            ("target/logits", 300, ("adapt", "features.h5", "-f")),
        ],
    )
    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_no_number(
        self, work: Path, dataset: str, row: int, arguments: tuple[str, ...], value: float
    ) -> None:
        """NaN or infinity is never computed with: file, dataset, row and id are named."""
        if arguments[0] == "adapt" and dataset.endswith("logits"):
            row = 130  # a validation row, which adapt compares its labels on
        set_values(dataset, value, row)(work / "features.h5")
        name = dataset.partition("/")[0]
        assert refusal(work, *arguments) == (
            f"features.h5: /{dataset} row {row} ({name}/{row}.png) holds {value}: every value "
            "must be a finite number"
        )

    def test_no_label_at_evaluate(self, work: Path) -> None:
        """Without target labels evaluate names the command that needs none."""
        set_values("target/labels", -1)(work / "features.h5")
        line = refusal(work, "evaluate", "features.h5", "-o", "m.json")
        assert "to estimate the accuracy without labels, run covcal estimate features.h5" in line

    def test_no_label_at_calibrate(self, work: Path) -> None:
        """Without source labels there is no temperature."""
        set_values("source/labels", -1)(work / "features.h5")
        assert refusal(work, "calibrate", "features.h5") == (
            "features.h5: none of the 150 source validation rows has a label: extract the source "
            "from class folders, or give y"
        )

    @pytest.mark.parametrize("label", [1, -1])
    def test_one_class_or_none_at_adapt(self, work: Path, label: int) -> None:
        """adapt needs labelled training rows of two classes."""
        set_values("source/labels", label)(work / "features.h5")
        found = "only class class 1" if label == 1 else "no label"
        line = refusal(work, "adapt", "features.h5", "-f")
        assert line.startswith(f"features.h5 has {found} among the source's train rows: ")

    def test_another_number_of_classes(self, work: Path) -> None:
        """A calibration of three classes is refused on a file of four, with both numbers."""
        source, target = (made_domain(name, classes=4) for name in ("source", "target"))
        write_features(work / "four.h5", source=source, target=target)
        assert refusal(work, "evaluate", "four.h5", "-c", "temp.json") == (
            "four.h5 has 4 classes, but temp.json has 3: fit another calibration on this file"
        )


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (EXTRACT, "new.h5"),
        (("adapt", "features.h5", "-o", "new.h5"), "new.h5"),
        (("calibrate", "features.h5", "-o", "new.json"), "new.json"),
        (("evaluate", "features.h5", "-o", "new.json"), "new.json"),
        (("evaluate", "features.h5", "--diagram", "new.png"), "new.png"),
        (("estimate", "features.h5", "-o", "new.json"), "new.json"),
        (("report", "adapted.h5", "-c", "temp.json", "-o", "new.html"), "new.html"),
        (("compare", "features.h5", "-o", "new.md"), "new.md"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
class TestOutputs:
    def test_it_exists(self, work: Path, arguments: tuple[str, ...], output: str) -> None:
        """An output that exists is refused before the work starts."""
        (work / output).write_text("old")
        assert refusal(work, *arguments).startswith(f"{output} exists already: pass --force")

    def test_its_folder_does_not(self, work: Path, arguments: tuple[str, ...], output: str) -> None:
        """An output in a folder that does not exist is refused before the work starts."""
        moved = [f"no/{output}" if part == output else part for part in arguments]
        line = refusal(work, *moved)
        another = "another --diagram" if output == "new.png" else "another -o"
        assert line == f"the folder no does not exist: create it, or pass {another}"


Edit = Callable[[dict[str, Any]], Any]


def put(name: str, value: Any) -> Edit:
    return lambda content: content.update({name: value})


# What test_calibrate.py and test_records.py find odd, in a field each of its own kind.
DAMAGE: dict[str, Edit] = {
    "no method": lambda content: content.pop("method_used"),
    "temperature not a number": put("temperatures", {"forecaster": np.nan, "discriminator": []}),
    "inputs empty": put("inputs", []),
    "model without a hash": put("model", {}),
    "later schema": put("schema", "covcal.calibration/2"),
    "metrics instead": put("schema", "covcal.metrics/1"),
}


def damaged(work: Path, edit: Edit) -> list[Outcome]:
    """Damage temp.json; run what reads it: inspect, evaluate with a file, evaluate alone."""
    path = work / "temp.json"
    content = json.loads(path.read_text())
    edit(content)
    try:
        write_document(content, path, force=True)
    except ValueError:  # covcal never writes NaN or infinity
        path.write_text(json.dumps(content))
    with untouched(work):
        return [
            covcal(*arguments, cwd=work)
            for arguments in (
                ("inspect", "temp.json"),
                ("evaluate", "adapted.h5", "-c", "temp.json"),
                ("evaluate", "-c", "temp.json"),
            )
        ]


class TestDamagedCalibration:
    @pytest.mark.parametrize("kind", DAMAGE)
    def test_every_reader_refuses_it(self, work: Path, kind: str) -> None:
        """Whatever is odd in a cal.json, evaluate refuses it by name, in one line."""
        inspected, *evaluations = damaged(work, DAMAGE[kind])
        for done in evaluations:
            assert done.error_line().startswith("temp.json ")
        if kind not in ("later schema", "metrics instead"):  # which inspect describes
            assert inspected.error_line().startswith("temp.json ")

    @pytest.mark.parametrize("content", ["", "{", "null", "{}", "\0", "\ufeff{}"])
    def test_no_calibration_at_all(self, work: Path, content: str) -> None:
        """A file that is no JSON, or other JSON, is no calibration."""
        (work / "temp.json").write_text(content)
        line = refusal(work, "evaluate", "features.h5", "-c", "temp.json")
        assert line.startswith("temp.json ")
        assert line.endswith(": make it with covcal calibrate")


class TestForeignJson:
    """JSON that a user names: what no reader can read is one line, and never our bug."""

    TEXTS = ("[" * 100_000, '{"a": ' * 50_000, '{"a": ' + "9" * 5000 + "}", "{", "[1, 2", "\x00")

    @pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
    @pytest.mark.parametrize("option", ["--classes", "--preprocess"])
    def test_extract_refuses_it(self, option: str, text: str, digits: Path, tmp_path: Path) -> None:
        (tmp_path / "file.json").write_text(text)
        sets = [digits / name for name in ("digits.onnx", "source.npz", "target.npz")]
        done = covcal("extract", *sets, option, "file.json", "-o", "f.h5", cwd=tmp_path)
        line = done.error_line()
        assert line.startswith("file.json ")
        assert not (tmp_path / "f.h5").exists()

    @pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
    def test_calibrate_refuses_it_as_a_prior(
        self, text: str, features: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "file.json").write_text(text)
        arguments = (features, "--target-prior", "file.json", "-o", "c.json")
        assert covcal("calibrate", *arguments, cwd=tmp_path).error_line().startswith("file.json ")

    def test_a_share_without_end_is_no_share(self, features: Path, tmp_path: Path) -> None:
        """A number that no float can hold is refused like infinity."""
        names = ("class 0", "class 1", "class 2")
        shares = ", ".join(f'"{name}": {10**400}' for name in names)
        (tmp_path / "prior.json").write_text(f"{{{shares}}}")
        done = covcal("calibrate", features, "--target-prior", "prior.json", cwd=tmp_path)
        assert "a number has 401 digits" in done.error_line()


NOBODY = 65534
RUN = ("run", "digits.onnx", "source.npz", "target.npz", "--method", "temp")  # without training


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("features.h5", ("inspect", "features.h5")),
        ("features.h5", ("calibrate", "features.h5", "-o", "new.json")),
        ("features.h5", ("merge", "features.h5", "adapted.h5", "-o", "new.h5")),
        ("temp.json", ("evaluate", "adapted.h5", "-c", "temp.json")),
        ("temp.json", ("apply", "adapted.h5", "-c", "temp.json", "-o", "new.csv")),
        ("digits.onnx", EXTRACT),
        ("source.npz", EXTRACT),
        ("classes.txt", (*EXTRACT, "--classes", "classes.txt")),
    ],
)
def test_a_file_that_may_not_be_read_is_no_bad_usage(
    name: str, command: tuple[str, ...], work: Path
) -> None:
    """The file is a bad input like any other: one line, exit code 1."""
    (work / "classes.txt").write_text("0\n")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shutil.copytree(work, folder, dirs_exist_ok=True)
        (folder / name).chmod(0)
        folder.chmod(0o777)
        covcal(*command, cwd=work)  # imports what nobody might not read
        before, user = sorted(folder.iterdir()), os.geteuid()
        if user == 0:  # whom no mode binds
            os.seteuid(NOBODY)
        try:
            done = covcal(*command, cwd=folder)
        finally:
            os.seteuid(user)
        assert sorted(folder.iterdir()) == before
    line = done.error_line()
    assert line.startswith(name)
    assert "permission" in line
