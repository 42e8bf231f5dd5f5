"""``covcal run``: the whole way in one folder, each result reused while what it rests on stands."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from covcal_cli.classifiers.onnx.classifier import OnnxClassifier
from covcal_cli.errors import CovcalError, percent
from covcal_cli.run.run import results_folder
from tests.cli_runner import Outcome, covcal, covcal_process
from tests.run.conftest import RESAMPLES
from tests.short_training import short_training

RESULTS = (
    "features.h5",
    "cal.json",
    "cal.reference.json",
    "metrics.json",
    "calibrated.onnx",
    "report.html",
)


def run(folder: Path, *arguments: str) -> Outcome:
    inputs = ("digits.onnx", "source.npz", "target.npz")
    return covcal("run", *inputs, "-o", "out", *arguments, cwd=folder)


def state(done: Outcome) -> dict[str, bool]:
    """Which results were made, and which stood, by name."""
    lines = [line.removeprefix("out/") for line in done.err.splitlines() if line.startswith("out/")]
    return {line.split()[0]: line.endswith(" made") for line in lines}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "out").iterdir())}


def results(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(folder).items() if name in RESULTS}


def edit(path: Path, **arrays: NDArray[Any]) -> None:
    with np.load(path) as found:
        np.savez(path, **{**dict(found), **arrays})


@pytest.fixture(scope="module")
def whole(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A folder after one run on half of the digits; not to be changed."""
    folder = tmp_path_factory.mktemp("run")
    shutil.copy(digits / "digits.onnx", folder)
    for name in ("source.npz", "target.npz"):
        with np.load(digits / name) as found:
            np.savez(folder / name, **{key: found[key][::2] for key in found})
    return folder, run(folder).require_success()


@pytest.fixture
def folder(whole: tuple[Path, Outcome], tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(whole[0], tmp_path / "copy"))


def test_it_makes_every_result_and_prints_the_evaluation(whole: tuple[Path, Outcome]) -> None:
    folder, done = whole
    assert state(done) == dict.fromkeys(RESULTS, True)
    assert sorted(path.name for path in (folder / "out").iterdir()) == sorted(
        [*RESULTS, "run.json"]
    )
    metrics = json.loads((folder / "out" / "metrics.json").read_text())["metrics"]
    method = json.loads((folder / "out" / "cal.json").read_text())["method_used"]
    ece = metrics[method]["ece"]
    assert (
        f"ECE {percent(metrics['none']['ece'], 1)} before and {percent(ece, 1)} after" in done.out
    )
    assert done.out.count("Verdict  ") == 1
    assert done.err.splitlines()[-2:] == [
        "wrote out/calibrated.onnx",
        "wrote out/report.html",
    ]


def test_the_exported_model_is_as_honest_as_evaluate_says(whole: tuple[Path, Outcome]) -> None:
    """Bare ONNX Runtime on the target's test rows: the same ECE, the original's labels."""
    folder, _ = whole
    with np.load(folder / "target.npz") as arrays:
        test = arrays["split"] == 2
        x, y = arrays["x"][test].astype(np.float32)[:, None] / 255, arrays["y"][test]
    session = onnxruntime.InferenceSession(folder / "out" / "calibrated.onnx")
    (name,) = [entry.name for entry in session.get_inputs()]
    label, confidence = session.run(["label", "confidence"], {name: x})
    original = onnxruntime.InferenceSession(folder / "digits.onnx").run(None, {name: x})[0]
    np.testing.assert_array_equal(label, original.argmax(axis=1))
    ece = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            ece += abs(confidence[inside].sum() - (label == y)[inside].sum()) / len(y)
    found = json.loads((folder / "out" / "metrics.json").read_text())["metrics"]
    (method,) = set(found) - {"none"}
    assert ece == pytest.approx(found[method]["ece"], abs=1e-4)


def test_a_second_run_says_that_nothing_was_made(folder: Path) -> None:
    done = run(folder).require_success()
    assert "wrote" not in done.err
    assert done.err.endswith("note: every result in out is up to date\n")


def test_the_steps_are_those_of_the_commands(folder: Path) -> None:
    """Each file is to the byte what its own command makes."""
    covcal("extract", "digits.onnx", "source.npz", "target.npz", cwd=folder).require_success()
    assert (folder / "features.h5").read_bytes() == (folder / "out" / "features.h5").read_bytes()
    covcal("calibrate", "out/features.h5", "-o", "out/own.json", cwd=folder).require_success()
    assert (folder / "out/own.json").read_bytes() == (folder / "out/cal.json").read_bytes()
    arguments = (
        "out/features.h5",
        "-c",
        "out/cal.json",
        "--bootstrap",
        str(RESAMPLES),
        "-o",
        "out/own2.json",
    )
    covcal("evaluate", *arguments, cwd=folder).require_success()
    assert (folder / "out/own2.json").read_bytes() == (folder / "out/metrics.json").read_bytes()


def test_a_second_run_makes_nothing_anew(folder: Path) -> None:
    """Nor one with another number of threads, which cannot change a result."""
    before = contents(folder)
    done = run(folder, "--threads", "1").require_success()
    assert state(done) == dict.fromkeys(RESULTS, False)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("lost", "how"),
    [("report.html", "deleted"), ("calibrated.onnx", "edited"), ("cal.json", "deleted")],
)
def test_only_what_is_missing_or_edited_is_made(lost: str, how: str, folder: Path) -> None:
    """A calibration that comes out the same leaves everything after it as it was."""
    before = contents(folder)
    path = folder / "out" / lost
    path.unlink() if how == "deleted" else path.write_bytes(path.read_bytes() + b"\n")
    found = state(run(folder).require_success())
    assert {name for name, fresh in found.items() if fresh} == {lost}
    assert contents(folder) == before


def test_another_method_leaves_the_features(folder: Path) -> None:
    found = state(run(folder, "--method", "temp").require_success())
    assert found == {
        "features.h5": False,
        "cal.json": True,
        "cal.reference.json": True,
        "metrics.json": True,
        "calibrated.onnx": True,
        "report.html": True,
    }
    assert json.loads((folder / "out" / "cal.json").read_text())["method_used"] == "temp"


def test_all_is_made_anew_by_force(folder: Path) -> None:
    before = contents(folder)
    assert all(state(run(folder, "--force").require_success()).values())
    assert contents(folder) == before


def test_changed_data_is_noticed(folder: Path) -> None:
    with np.load(folder / "target.npz") as arrays:
        x = arrays["x"]
    edit(folder / "target.npz", x=x[:, ::-1])
    found = state(run(folder, "--method", "temp").require_success())
    assert found["features.h5"]
    assert found["cal.json"]


CONFIGURATION = {"image_processor_type": "ViTImageProcessor", "size": 8, "do_normalize": False}
FUNCTION = """
import numpy as np

def row(image):
    return np.asarray(image.convert("L"), dtype="f4")[None] / 255
"""


@pytest.mark.parametrize(
    ("model", "options", "edited"),
    [
        ("digits.onnx", ["--preprocess", "rows_of_run:row"], "rows_of_run.py"),
        ("m/onnx/model.onnx", ["--color", "L"], "m/preprocessor_config.json"),
    ],
    ids=["function", "above onnx"],
)
def test_changed_preprocessing_is_noticed(
    model: str, options: list[str], edited: str, folder: Path
) -> None:
    """Features of the old preprocessing are never used with the new preprocessing."""
    for name in (model, edited):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    if model != "digits.onnx":
        shutil.copy(folder / "digits.onnx", folder / model)
    file = folder / edited
    file.write_text(FUNCTION if file.suffix == ".py" else json.dumps(CONFIGURATION))
    few = ("--method", "temp", "--sample", "90")
    inputs = (model, "source.npz", "target.npz", "-o", "new", *few, *options)

    def makes_features() -> bool:
        done = covcal("run", *inputs, cwd=folder).require_success()
        return "new/features.h5 made" in done.err.splitlines()

    assert makes_features()
    assert not makes_features()
    text = file.read_text()
    file.write_text(text.replace("/ 255", "/ 250").replace("false}", 'false, "do_rescale": false}'))
    assert makes_features()


def test_preprocessing_that_nothing_reads_need_not_be_usable(folder: Path) -> None:
    """Beside a model whose rows are no images."""
    (folder / "preprocessor_config.json").write_text("{")
    for name in ("source.npz", "target.npz"):
        with np.load(folder / name) as arrays:
            x = arrays["x"]
        edit(folder / name, x=x[:, None].astype(np.float32) / 255)
    assert state(run(folder, "--method", "temp").require_success())["features.h5"]


@pytest.mark.usefixtures("whole_pages")
def test_without_target_labels_there_are_no_metrics(folder: Path) -> None:
    """Metrics of labels that have gone are deleted, or a reader would think they were measured."""
    with np.load(folder / "target.npz") as arrays:
        unknown = np.full_like(arrays["y"], -1, dtype=np.int64)
    edit(folder / "target.npz", y=unknown)
    done = run(folder, "--method", "cot").require_success()
    assert not (folder / "out" / "metrics.json").exists()
    assert "nothing here is measured" in (folder / "out" / "report.html").read_text()
    assert "ECE" not in done.out
    assert "Measured          no target test row has a label, so nothing was measured" in done.out
    assert done.out.count("Verdict  ") == 1


def test_a_step_that_fails_leaves_what_was_made(folder: Path) -> None:
    before = results(folder)
    shutil.copy(folder / "source.npz", folder / "target.npz")
    (folder / "target.npz").write_bytes(b"not an archive")
    assert "target.npz" in run(folder).error_line()
    assert results(folder) == before


def test_an_extraction_that_was_cut_off_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished rows are not run again, and the bytes are the same as after a single run."""
    before = (folder / "out" / "features.h5").read_bytes()
    shutil.rmtree(folder / "out")
    asked: list[int] = []
    original = OnnxClassifier.run

    def cut_off(self: OnnxClassifier, batch: dict[str, Any]) -> Any:
        asked.append(len(next(iter(batch.values()))))
        if len(asked) == 6:
            raise KeyboardInterrupt
        return original(self, batch)

    monkeypatch.setattr(OnnxClassifier, "run", cut_off)
    done = run(folder)
    assert done.code == 130
    assert "the results in out are kept: run the same command to continue" in done.err
    first = len(asked)
    run(folder, "--method", "temp").require_success()
    assert (folder / "out" / "features.h5").read_bytes() == before
    whole = len(asked) - first
    asked.clear()
    asked += [0] * 10
    run(folder, "--method", "temp", "--force").require_success()
    assert whole < len(asked) - 10


def test_a_folder_of_other_things_is_left_alone(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("mine")
    done = covcal("run", "digits.onnx", "source.npz", "target.npz", "-o", "mine", cwd=folder)
    assert (
        done.error_line()
        == "mine exists, but covcal run did not make it: move this folder, or name another folder "
        "with -o"
    )
    assert [path.name for path in (folder / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("mkdir", errno.EACCES, "no permission to write the folder {}: "),
        ("mkdir", errno.EROFS, "no permission to write the folder {}: "),
        ("mkdir", errno.ENOSPC, "the folder {} cannot be written (no space left on device): "),
        ("iterdir", errno.EACCES, "no permission to write the folder {}: "),
    ],
)
def test_a_closed_folder_is_named_with_the_remedy(
    call: str, code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    if call == "iterdir":
        folder.mkdir()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), "out")

    monkeypatch.setattr(Path, call, refuse)
    with pytest.raises(CovcalError) as caught, results_folder(folder):
        pass
    assert str(caught.value) == f"{words.format(folder)}name another folder with -o"


def test_the_rows_per_run_of_the_model_can_be_chosen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some models need: the error that says so names --batch."""
    sizes: list[int] = []
    unchanged = OnnxClassifier.run

    def counted(classifier: OnnxClassifier, batch: Any) -> Any:
        sizes.extend(len(rows) for rows in batch.values())
        return unchanged(classifier, batch)

    monkeypatch.setattr(OnnxClassifier, "run", counted)
    run(folder, "--method", "temp", "--sample", "90", "--batch", "8").require_success()
    assert sizes.count(8) >= 2 * (90 // 8)  # in one run of 90 rows a domain without --batch


@pytest.mark.parametrize("option", [("--shard", "1/2"), ("--limit", "5"), ("--on-error", "fail")])
def test_options_of_extract_that_make_no_run_are_not_taken(
    option: tuple[str, str], folder: Path
) -> None:
    """run has the options of extract, except the options for a part of the rows."""
    arguments = ("digits.onnx", "source.npz", "target.npz", "-o", "new", *option)
    assert option[0] in covcal("run", *arguments, cwd=folder).usage_error()
    assert not (folder / "new").exists()


@pytest.mark.usefixtures("whole_pages")
def test_without_target_test_rows_all_labelled_rows_are_measured(folder: Path) -> None:
    with np.load(folder / "target.npz") as arrays:
        split = np.minimum(arrays["split"], 1)
    edit(folder / "target.npz", split=split)
    run(folder, "--method", "temp", "--force").require_success()
    content = json.loads((folder / "out" / "metrics.json").read_text())
    assert (content["split"], content["n"]) == ("all", len(split))
    page = (folder / "out" / "report.html").read_text()
    assert f"Measured on {len(split)} labelled target rows" in page


# What a run tells of the model, and of whom a folder is.


def test_it_shows_what_extract_shows_and_every_note(
    whole: tuple[Path, Outcome], folder: Path
) -> None:
    """The notes of every step, whether made or reused; with -v the block of ``covcal extract``."""
    inputs = ("digits.onnx", "source.npz", "target.npz", "-o", "alone.h5")
    alone = covcal("extract", *inputs, cwd=folder).require_success()
    assert "labelled source rows (validation and test)" in alone.out
    notes = [line for line in alone.err.splitlines() if line.startswith("note: ")]
    assert notes
    assert run(folder, "-v").require_success().out.startswith(alone.out)
    for done in (whole[1], run(folder).require_success()):
        assert [line for line in notes if line not in done.err] == []
        cal = json.loads((folder / "out" / "cal.json").read_text())
        assert all(f"note: {text}\n" in done.err for text in cal["notes"])
        assert "step 2 of 5: calibrate" in done.err.splitlines()


def test_less_accuracy_than_expected_stops_before_the_export(folder: Path) -> None:
    done = run(folder, "-o", "new", "--expect-accuracy", "0.999")
    assert done.code == 3
    assert "accuracy" in done.out
    assert done.err.splitlines()[-1].startswith("FAILED: the classifier gets 9")
    assert sorted(path.name for path in (folder / "new").iterdir()) == ["features.h5", "run.json"]
    run(folder, "--expect-accuracy", "0.97").require_success()


def test_results_of_a_run_that_expected_less_are_named(folder: Path) -> None:
    """Earlier results of the same features stay, and a line names the earlier run."""
    done = run(folder, "--expect-accuracy", "0.999")
    assert done.code == 3
    (line,) = done.err.splitlines()[-1:]
    assert "calibrated.onnx" in line
    assert "report.html" in line
    assert "An earlier run used the same features: do not use " in line
    assert line.endswith(" in out")
    assert (folder / "out" / "calibrated.onnx").is_file()


def test_features_of_another_reading_leave_no_model_of_the_last(folder: Path) -> None:
    """A model that was exported from earlier features is deleted if new features are refused."""
    done = run(folder, "--mean", "0.9", "--expect-accuracy", "0.96")
    assert done.code == 3
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["features.h5", "run.json"]


@pytest.mark.parametrize("role", ["model", "target"])
def test_another_projects_folder_is_refused(role: str, folder: Path) -> None:
    """By name and content; --force replaces all of it, and leaves nothing of the other."""
    names = {"model": "digits.onnx", "source": "source.npz", "target": "target.npz"}
    other = f"other{Path(names[role]).suffix}"
    shutil.copy(folder / names[role], folder / other)
    inputs = list((names | {role: other}).values())
    covcal("run", *inputs, "-o", "out", cwd=folder).require_success()  # a copy is no other
    if role == "model":
        content = (folder / other).read_bytes()
        (folder / other).write_bytes(content.replace(b"scores", b"points"))
    else:
        with np.load(folder / other) as found:
            rows = {name: array[:-1] for name, array in found.items() if len(array) > 20}
            np.savez(folder / other, **{**dict(found), **rows})
    run(folder).require_success()
    before = contents(folder)
    done = covcal("run", *inputs, "-o", "out", "--method", "temp", cwd=folder)
    line = done.error_line()
    assert f"holds results of another {role} (../{names[role]}, not ../{other})" in line
    assert "-o" in line
    assert "--force" in line
    assert contents(folder) == before
    arguments = (*inputs, "-o", "out", "--method", "temp", "--force")
    covcal("run", *arguments, cwd=folder).require_success()


@pytest.mark.parametrize(
    "inputs",
    [
        ("missing.onnx", "source.npz", "target.npz"),
        ("digits.onnx", "missing", "target.npz"),
        ("digits.onnx", "source.npz", "broken.npz"),
    ],
)
def test_a_run_that_fails_leaves_no_empty_folder(inputs: tuple[str, ...], folder: Path) -> None:
    (folder / "broken.npz").write_bytes(b"no archive")
    covcal("run", *inputs, "-o", "deep/new", cwd=folder).error_line()
    assert not (folder / "deep").exists()


@pytest.mark.parametrize(("kind", "labelled"), [("logits", True), ("probabilities", False)])
def test_tables_of_outputs_go_all_the_way(kind: str, labelled: bool, tmp_path: Path) -> None:
    """There is no model to export: the calibrated probabilities are the result."""
    rng = np.random.default_rng(0)
    for name in ("source", "target"):
        logits = rng.normal(size=(400, 3)) * 2
        y = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
        outputs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        values = outputs if kind == "probabilities" else logits
        columns = [f"{'prob' if kind == 'probabilities' else 'logit'}_{k}" for k in "abc"]
        lines = [",".join([*columns, "label"])]
        for row, label in zip(values, y, strict=True):
            shown = "abc"[label] if labelled or name == "source" else ""
            lines.append(",".join([*(f"{value:.17g}" for value in row), shown]))
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    arguments = (f"--{kind}", "source.csv", "target.csv", "-o", "out")
    covcal("run", *arguments, cwd=tmp_path).require_success()
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert made == {
        "features.h5",
        "cal.json",
        "cal.reference.json",
        "probs.csv",
        "report.html",
        "run.json",
        *(["metrics.json"] if labelled else []),
    }
    assert len((tmp_path / "out/probs.csv").read_text().splitlines()) == 401
    done = covcal("run", *arguments, cwd=tmp_path).require_success()
    assert not any(state(done).values())


def test_a_run_killed_as_it_wrote_its_first_journal_is_taken_up(folder: Path) -> None:
    """Then the folder contains nothing of the run except the unfinished journal."""
    (folder / "cut").mkdir()
    (folder / "cut" / ".run.json.partial").write_text("{")
    run(folder, "--method", "temp", "-o", "cut").require_success()
    assert not (folder / "cut" / ".run.json.partial").exists()


# Adapting.


def test_nothing_is_adapted_unless_needed(folder: Path) -> None:
    """Methods on the classifier's own logits need no adapted file, and fl+temp does.

    test_label.py asks for it with --adapt.
    """
    assert not (folder / "out" / "adapted.h5").exists()  # by auto
    run(folder, "-o", "weighted", "--method", "iw+temp").require_success()
    assert not (folder / "weighted" / "adapted.h5").exists()
    with short_training(20, members=1):
        done = run(folder, "-o", "needed", "--method", "fl+temp").require_success()
    assert "step 2 of 6: adapt" in done.err
    inputs = json.loads((folder / "needed" / "cal.json").read_text())["inputs"]
    assert inputs[0]["role"] == "adapted"


def test_a_run_of_an_onnx_model_needs_no_torch(folder: Path) -> None:
    inputs = ("digits.onnx", "source.npz", "target.npz", "-o", "new", "--method", "temp")
    hidden = "import sys; sys.modules['torch'] = None"
    covcal_process("run", *inputs, cwd=folder, before=hidden).require_success()
    assert (folder / "new" / "calibrated.onnx").exists()


def test_a_source_of_validation_rows_alone(folder: Path) -> None:
    """What a small source wants: no rows to train on, as nothing is trained."""
    for name in ("source.npz", "target.npz"):
        with np.load(folder / name) as found:
            arrays = {key: array for key, array in found.items() if key != "split"}
        np.savez(folder / name, **arrays)
    done = run(folder, "-o", "new", "--fractions", "0,1,0").require_success()
    assert "wrote new/calibrated.onnx" in done.err
    content = json.loads((folder / "new" / "metrics.json").read_text())
    assert content["split"] == "all"
