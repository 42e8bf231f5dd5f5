"""``covcal run --from``: the source half reused, and nothing replaced that is not kept."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covcal_cli.classifiers.onnx.classifier import OnnxClassifier
from covcal_cli.cli.extract_options import (
    ColorName,
    ExtractOptions,
    LayoutName,
    OnErrorName,
    ResampleName,
)
from covcal_cli.errors import percent
from covcal_cli.evaluate.claims import MeanGap
from covcal_cli.formats.features import FeatureFile
from covcal_cli.records import write_document
from covcal_cli.run import renewal
from covcal_cli.run.journal import finish_placing, place
from covcal_cli.watch.history import read_history
from tests.cli_runner import Outcome, covcal
from tests.short_training import short_training

USED = ("cal.json", "cal.reference.json", "calibrated.onnx", "features.h5")  # and report.html
KEPT = (
    *("cal.1.json", "cal.1.reference.json", "calibrated.1.onnx"),
    *("metrics.1.json", "report.1.html"),
)


def renewed(folder: Path, target: str = "noisy.npz", *options: str) -> Outcome:
    return covcal("run", "--from", "out", target, *options, cwd=folder)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def whole(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on half of the target, the other half unlabelled, as it is and noisy.

    Not to be changed.
    """
    folder = tmp_path_factory.mktemp("renewal")
    for name in ("digits.onnx", "source.npz"):
        shutil.copy(digits / name, folder)
    shutil.copy(digits / "target.npz", folder / "digits-target.npz")
    with np.load(digits / "target.npz") as found:
        old, new = ({name: found[name][start::2] for name in found} for start in (0, 1))
    new["y"] = np.full_like(new["y"], -1)
    noise = np.random.default_rng(0).normal(0, 90, new["x"].shape)
    noisy = new | {"x": np.clip(new["x"] + noise, 0, 255).astype(np.uint8)}
    for name, arrays in (("old", old), ("new", new), ("noisy", noisy)):
        np.savez(folder / f"{name}.npz", **arrays)
    for output, target in (("out", "old.npz"), ("fresh", "noisy.npz")):
        inputs = ("digits.onnx", "source.npz", target, "-o", output, "--method", "cot")
        covcal("run", *inputs, cwd=folder).require_success()
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.fixture(scope="module")
def made(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is made of new rows before it takes its place."""
    folder = Path(shutil.copytree(whole, tmp_path_factory.mktemp("made") / "copy"))
    renewed(folder).require_success()
    return folder / "out" / "next"


def test_it_makes_what_a_run_on_both_domains_makes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte, without the source's data, whose rows the classifier never sees."""
    (folder / "source.npz").unlink()
    seen: list[int] = []
    unchanged = OnnxClassifier.run

    def counted(classifier: OnnxClassifier, batch: Any) -> Any:
        seen.append(len(next(iter(batch.values()))))
        return unchanged(classifier, batch)

    monkeypatch.setattr(OnnxClassifier, "run", counted)
    before = contents(folder / "out")
    done = renewed(folder, "noisy.npz", "--force").require_success()
    with FeatureFile(folder / "out" / "features.h5") as file:
        n_source, n_target = file.require_source().n, file.require_target().n
    assert sum(seen) < n_source + n_target
    found, fresh = contents(folder / "out"), contents(folder / "fresh")
    assert {name: found[name] for name in USED} == {name: fresh[name] for name in USED}
    assert found["report.html"].replace(b"out/", b"fresh/") == fresh["report.html"]
    # What it replaced is kept, but for rows that can be extracted again.
    assert set(found) == {*USED, *KEPT, "report.html", "run.json"}
    for name in KEPT:
        assert found[name] == before[name.replace(".1", "")]
    assert "wrote out/cal.1.json" in done.err
    # The folder is one of a run on both domains.
    given = json.loads(found["run.json"])["given"]
    assert given == json.loads(fresh["run.json"])["given"]
    # A job that runs twice, or is restarted when all was done, changes nothing.
    done = renewed(folder).require_success()
    assert "out already holds the results of these rows" in done.err
    assert contents(folder / "out") == found


def judged_by(
    low: float, high: float, labels: int = 500, *, brier_is_worse: bool = False, gap: float = 0.0
) -> renewal.LabelledComparison:
    new, of_new = 0.1 + (low + high) / 2, MeanGap(gap, gap - 0.01, gap + 0.01)
    return renewal.LabelledComparison(labels, 0.1, new, low, high, brier_is_worse, of_new)


BETTER = judged_by(-0.08, -0.02)
WORSE = judged_by(0.02, 0.08, brier_is_worse=True)
UNDECIDED = judged_by(-0.08, 0.001)
# Far too high or far too low, on average; and perhaps off by less than 5 points.
OFF = [judged_by(-0.08, -0.02, gap=gap) for gap in (0.53, -0.061)]
NEARLY_OFF = judged_by(-0.08, -0.02, gap=0.059)
BY_LABELS, AS_ASKED = "the new calibration", "Put the new calibration in use, as you asked: "


@pytest.mark.parametrize(
    ("by_labels", "options", "is_alarm_raised", "is_replaced", "says"),
    [
        (
            BETTER,
            (),
            False,
            True,
            f"Put the new calibration in use: {BY_LABELS} is better (ECE 5.0 instead of 10.0 % on",
        ),
        (
            NEARLY_OFF,
            (),
            True,
            True,
            f"Put the new calibration in use: {BY_LABELS} is better (ECE 5.0 instead of 10.0 % on",
        ),
        (
            WORSE,
            ("--replace",),
            True,
            False,
            f"Kept the old calibration: {BY_LABELS} is worse (ECE 15.0 instead of 10.0 % on",
        ),
        (WORSE, ("--force",), True, True, f"{AS_ASKED}{BY_LABELS} is worse"),
        (
            UNDECIDED,
            (),
            False,
            False,
            "not significantly better (ECE 6.1 instead of 10.0 % on 500 labels, difference between",
        ),
        (judged_by(-0.08, -0.02, brier_is_worse=True), (), False, False, "is worse"),
        (
            OFF[0],
            (),
            False,
            False,
            "is better (ECE 5.0 instead of 10.0 % on 500 labels), but on these labels the new "
            "confidence is too high by 53 points (52 to 54)",
        ),
        (judged_by(0.0, 0.0), (), True, False, "gives the same confidence as the old one ("),
        (
            None,
            (),
            True,
            False,
            "Kept the old calibration: without labels of the new rows, only an estimate",
        ),
        (
            None,
            ("--replace",),
            True,
            True,
            f"{AS_ASKED}without labels of the new rows, only an estimate",
        ),
        (None, ("--force",), False, True, AS_ASKED.strip()),
    ],
)
def test_only_a_calibration_that_labels_prove_better_is_put_in_use(
    by_labels: renewal.LabelledComparison | None,
    options: tuple[str, ...],
    is_alarm_raised: bool,
    is_replaced: bool,
    says: str,
    made: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or one that the user asks for; the reference of a raised alarm moves only then."""
    is_same = by_labels is not None and by_labels.low == by_labels.high
    new = 0.95 if is_same else 0.72
    seen = renewal.Comparison(
        0.7, 0.6, 0.8, 0.95, new, "off", "changed", is_alarm_raised, by_labels
    )
    monkeypatch.setattr(renewal, "compare", lambda *_: seen)
    shutil.copytree(made, folder / "out" / "next")
    before = contents(folder / "out")
    done = renewed(folder, "noisy.npz", *options).require_success()
    found = contents(folder / "out")
    text = " ".join(done.out.split())
    assert says in text
    assert ("70 % estimated (60 % to 80 %)" in text) == (by_labels is None)
    if is_replaced:
        assert found["cal.1.json"] == before["cal.json"]
        assert found["cal.1.reference.json"] == before["cal.reference.json"]
        reference = json.loads(found["cal.reference.json"])
        is_kept = is_alarm_raised and not options
        assert reference["is_carried_over"] == is_kept
        old = json.loads(before["cal.reference.json"])
        assert (reference["coordinates"] == old["coordinates"]) == is_kept
        assert ("delete out/cal.reference.json" in text) == is_kept
    elif "--force" not in options:
        option = "--replace" if by_labels is None else "--force"
        use = "" if is_same else f"; add {option} to use these results"
        assert f"The new results are in out/next{use}." in text
        fit = "labels: covcal calibrate out/next/features.h5 --labels "
        assert (fit in text) == (by_labels is not None)
        assert found == before


def test_few_labels_prove_nothing() -> None:
    few = judged_by(-0.08, -0.02, 49)
    assert not few.is_better
    assert OFF[1].is_off


def test_the_reference_of_a_raised_alarm_stays_until_somebody_acts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows raise the alarm again, even after another run, until the file is deleted."""
    seen = renewal.Comparison(0.7, 0.6, 0.8, 0.95, 0.72, "off", "", True, BETTER)
    monkeypatch.setattr(renewal, "compare", lambda *_: seen)
    renewed(folder).require_success()

    def alarm() -> bool:
        arguments = ("out/features.h5", "-c", "out/cal.json", "-o", "-")
        done = covcal("watch", *arguments, cwd=folder).require_success()
        return bool(json.loads(done.out)["periods"][0]["alarm"]["raised"])

    assert alarm()
    renewed(folder).require_success()  # of these rows already
    assert alarm()
    (folder / "out" / "cal.reference.json").unlink()
    assert not alarm()


def test_labels_are_measured_on_all_new_rows(folder: Path) -> None:
    """Both calibrations are measured on the same rows, with the numbers of evaluate."""
    with np.load(folder / "noisy.npz") as found:
        arrays = dict(found)
    with np.load(folder / "digits-target.npz") as found:
        arrays["y"] = found["y"][1::2]
    np.savez(folder / "noisy.npz", **arrays)
    done = renewed(folder, "noisy.npz", "--force").require_success()
    files = ("-c", "old=out/cal.1.json", "-c", "new=out/cal.json", "--split", "all", "-o", "-")
    evaluated = covcal("evaluate", "out/features.h5", *files, cwd=folder).require_success()
    metrics = json.loads(evaluated.out)["metrics"]
    sides = f"ECE {100 * metrics['new']['ece']:.1f} instead of {100 * metrics['old']['ece']:.1f} %"
    text = " ".join(done.out.split())
    assert f"the new calibration is better ({sides} on {len(arrays['y'])} labels), but" in text
    verdict = next(line for line in done.out.splitlines() if line.startswith("Old one"))
    assert "off by about" in verdict
    assert "estimated range" not in text


def test_the_comparison_is_that_of_estimate_and_watch(folder: Path) -> None:
    """The verdict counts earlier periods, and the period is in the history."""
    quiet = ("watch", "early=fresh/features.h5", "-c", "out/cal.json", "--history", "w.jsonl")
    covcal(*quiet, cwd=folder).require_success()
    done = renewed(folder, "noisy.npz", "--history", "w.jsonl").require_success()
    early, one = read_history(folder / "w.jsonl").periods
    assert (early.measured.period, one.measured.period) == ("early", "noisy")
    assert one.alarm.log_evidence > early.alarm.log_evidence
    assert one.answer in " ".join(done.out.split())
    assert "without labels of the new rows" in done.out
    files = ("out/next/features.h5", "-c", "new=out/next/cal.json", "-c", "old=out/cal.json")
    content = json.loads(covcal("estimate", *files, "-o", "-", cwd=folder).require_success().out)
    text = " ".join(done.out.split())
    first = content["estimates"][0]
    accuracy, low, high = (percent(first[name], 0) for name in ("accuracy", "low", "high"))
    assert f"{accuracy} estimated ({low} to {high})" in text
    new, old = (entry["mean_confidence"] for entry in content["calibrations"])
    assert (
        f"Confidence {percent(old, 0)} by the old calibration, {percent(new, 0)} by the new" in text
    )


def test_the_next_period_takes_the_place_of_one_that_was_left(folder: Path) -> None:
    """What was made of rows that came to nothing is no hindrance, and each number is used once."""
    renewed(folder, "new.npz").require_success()
    assert not (folder / "out" / "cal.1.json").exists()
    renewed(folder, "noisy.npz", "--force").require_success()
    first = contents(folder / "out")
    renewed(folder, "new.npz", "--force").require_success()
    found = contents(folder / "out")
    assert [found[f"cal.{number}.json"] for number in (1, 2)] == [
        first["cal.1.json"],
        first["cal.json"],
    ]


def test_networks_stay_with_the_calibration_that_needs_them(folder: Path) -> None:
    """And so do labels that people put in."""
    inputs = ("digits.onnx", "source.npz", "old.npz", "-o", "out", "--method", "fl+temp")
    with short_training(20, members=1):
        covcal("run", *inputs, cwd=folder).require_success()
        before = contents(folder / "out")
        renewed(folder, "noisy.npz", "--force").require_success()
    found = contents(folder / "out")
    assert found["adapted.1.h5"] == before["adapted.h5"]
    arguments = ("-c", "out/cal.1.json", "--networks", "out/adapted.1.h5", "-o", "p.csv")
    covcal("apply", "out/features.h5", *arguments, cwd=folder).require_success()


def test_labels_that_people_put_in_are_kept(folder: Path) -> None:
    arguments = ("out/features.h5", "-n", "9", "-o", "p.csv", "--predictions")
    covcal("pick", *arguments, cwd=folder).require_success()
    header, *lines = (folder / "p.csv").read_text().splitlines()
    places = {name: place for place, name in enumerate(header.split(","))}
    rows = [line.split(",") for line in lines]
    for row in rows:
        row[places["label"]] = row[places["predicted"]]
    (folder / "p.csv").write_text("\n".join([header, *map(",".join, rows)]) + "\n")
    covcal("label", "out/features.h5", "p.csv", cwd=folder).require_success()
    before = contents(folder / "out")["features.h5"]
    renewed(folder, "noisy.npz", "--force").require_success()
    assert contents(folder / "out")["features.1.h5"] == before


# Interruptions.


def test_an_extraction_that_was_cut_off_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(folder / "out")
    asked: list[int] = []
    original = OnnxClassifier.run

    def cut_off(self: OnnxClassifier, batch: Any) -> Any:
        asked.append(len(next(iter(batch.values()))))
        if len(asked) == 20:
            raise KeyboardInterrupt
        return original(self, batch)

    monkeypatch.setattr(OnnxClassifier, "run", cut_off)
    done = renewed(folder, "noisy.npz", "--force", "--batch", "16")
    assert done.code == 130
    assert "run the same command to continue" in done.err
    in_place = {name: one for name, one in contents(folder / "out").items() if "next/" not in name}
    assert in_place == before
    renewed(folder, "noisy.npz", "--force", "--batch", "16").require_success()
    assert len(asked) < 20 + 449 // 16  # the rows that were done are not run again
    found, fresh = contents(folder / "out"), contents(folder / "fresh")
    assert {name: found[name] for name in USED} == {name: fresh[name] for name in USED}


class Killed(BaseException):
    """As by a signal that no handler sees."""


@pytest.mark.parametrize("moves", [0, 1, 2, 4, 7, 10, 13])
def test_results_take_their_places_all_or_go_on(
    moves: int, made: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after so many links and renames: nothing is lost, and whatever runs next goes on."""
    before = contents(folder / "out")
    shutil.copytree(made, folder / "out" / "next")
    undisturbed = Path(shutil.copytree(folder / "out", folder / "undisturbed"))
    place(undisturbed)

    with monkeypatch.context() as patch:
        left = [moves]

        def counted(original: Callable[..., Any]) -> Callable[..., Any]:
            def moved(*given: Any, **named: Any) -> Any:
                left[0] -= 1
                if left[0] == -1:
                    raise Killed
                return original(*given, **named)

            return moved

        patch.setattr(os, "link", counted(os.link))
        for name in ("replace", "unlink"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        with pytest.raises(Killed):
            place(folder / "out")
    found = contents(folder / "out")
    for name in ("cal", "calibrated", "metrics"):
        suffix = ".onnx" if name == "calibrated" else ".json"
        assert before[f"{name}{suffix}"] in (
            found.get(f"{name}{suffix}"),
            found.get(f"{name}.1{suffix}"),
        )
    if json.loads(found["run.json"]).get("kept") == {}:  # not begun, or all but done
        place(folder / "out")
    else:
        finish_placing(folder / "out")
    assert contents(folder / "out") == contents(undisturbed)


# What the earlier run decided.


@pytest.mark.parametrize(
    "options",
    [
        ExtractOptions(),
        ExtractOptions(
            size="32x48", resize="letterbox:114", resample=ResampleName("bicubic"), exif=True
        ),
        ExtractOptions(
            exif=False,
            crop="8",
            color=ColorName("L"),
            layout=LayoutName("NHWC"),
            scale=0.5,
            mean="-1,2,3",
        ),
        ExtractOptions(
            std="0.5", fractions="0.5,0.25,0.25", sample=7, seed=3, on_error=OnErrorName("fail")
        ),
        ExtractOptions(weights=Path("a b.pt"), classes=Path("names"), phi="input", limit=5),
        ExtractOptions(preprocess="nets:rows=1", model_output="x", trust_model=True),
    ],
)
def test_options_are_read_back_as_a_features_file_keeps_them(options: ExtractOptions) -> None:
    kept = options.settings().options()
    again = ExtractOptions.of(kept)
    assert again.settings() == options.settings()
    assert again.settings().options() == kept


def test_options_that_are_none_are_named() -> None:
    with pytest.raises(ValueError, match="there is no option new-one"):
        ExtractOptions.of(["--new-one=1"])


# What is refused.


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--mean", "0.5"), "--mean: the earlier run set this option: leave it out"),
        (("-o", "other"), "--output: the earlier run set this option: leave it out"),
        (("--logits",), "--logits: the earlier run set this option: leave it out"),
        (("new.npz",), "NEWTARGET: give NEWTARGET alone with --from"),
    ],
)
def test_what_the_earlier_run_decided_is_not_asked_again(
    option: tuple[str, ...], said: str, folder: Path
) -> None:
    assert said in renewed(folder, "noisy.npz", *option).usage_error()


def other_model(folder: Path) -> str:
    path = folder / "digits.onnx"
    path.write_bytes(path.read_bytes().replace(b"scores", b"points"))
    return "differ in their model"


def other_preprocessing(folder: Path) -> str:
    configuration = {"image_processor_type": "ViTImageProcessor", "size": 8, "do_normalize": False}
    configuration["do_rescale"] = False
    (folder / "preprocessor_config.json").write_text(json.dumps(configuration))
    return "differ in their preprocessing"


def other_folder(folder: Path) -> str:
    (folder / "out" / "run.json").unlink()
    return "out has no run.json, so covcal run did not make it"


def changed_calibration(folder: Path) -> str:
    with (folder / "out" / "cal.json").open("a") as file:
        file.write("\n")
    return "out/cal.json, which has changed since covcal run made it"


def gone_features(folder: Path) -> str:
    (folder / "out" / "features.h5").unlink()
    return "out/features.h5, which is not there"


def gone_model(folder: Path) -> str:
    (folder / "digits.onnx").unlink()
    return "out was made with the model ../digits.onnx, which is missing"


def named_code(folder: Path) -> str:
    content = json.loads((folder / "out" / "run.json").read_text())
    content["given"]["model"]["name"] = "os:getcwd"
    write_document(content, folder / "out" / "run.json", force=True)
    return "out uses os:getcwd, which can run any code: if you trust it, pass --trust-model"


def other_classes(folder: Path) -> str:
    with np.load(folder / "noisy.npz") as found:
        arrays = dict(found)
    np.savez(folder / "noisy.npz", **arrays | {"y": arrays["y"] + 99})
    return "noisy.npz"


@pytest.mark.parametrize(
    "change",
    [
        other_model,
        other_preprocessing,
        other_folder,
        changed_calibration,
        gone_features,
        gone_model,
        named_code,
        other_classes,
    ],
)
def test_what_does_not_go_on_is_refused_in_one_line(
    change: Callable[[Path], str], folder: Path
) -> None:
    """And the folder stays as it was."""
    said = change(folder)
    before = contents(folder / "out")
    assert said in renewed(folder).error_line()
    assert contents(folder / "out") == before
