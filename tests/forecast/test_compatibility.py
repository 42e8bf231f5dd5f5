"""What a calibration was fitted to holds where it is used: the reading of the model, the prior."""

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from covcal_cli.records import write_document
from tests.calibrate.test_estimate_calibrations import estimated
from tests.classifiers.onnx.onnx_graphs import SIDE, grey_classifier
from tests.cli_runner import Argument, Outcome, covcal
from tests.made_files import clusters_domain, edited, write_features

COMMANDS: dict[str, tuple[Argument, ...]] = {
    "apply": ("-o", "new.csv"),
    "evaluate": ("-o", "new.json"),
    "report": ("-o", "new.html"),
    "estimate": ("-o", "new.json"),
}
ALLOW = "--allow-other-preprocessing"
# Files of the same images by other options, and what is said of them.
OTHERS: dict[str, tuple[tuple[Argument, ...], str]] = {
    "scale.h5": (("--scale", "1"), "scale 1.0, not 0.00392"),
    "mean.h5": (("--mean", "0.5"), "mean [0.5], not [0.0]"),
    "crop.h5": (("--resize", "short:9", "--crop", SIDE), "crop_rule round, not never"),
}


def write_images(folder: Path, names: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without class names, images in folders of names, and a calibration of them."""
    folder = tmp_path_factory.mktemp("reading")
    grey_classifier(folder)
    write_images(folder / "src", [f"{'abc'[i % 3]}/{i:03d}.png" for i in range(90)], 0)
    write_images(folder / "tgt", [f"{'abc'[i % 3]}/{i:03d}.png" for i in range(60)], 1)
    write_images(folder / "new", [f"{i:03d}.png" for i in range(20)], 2)
    covcal("extract", "model.onnx", "src", "tgt", cwd=folder).require_success()
    # The images say nothing of the labels, so that T is at its limit.
    covcal("calibrate", "--method", "temp", "--force", cwd=folder).require_success()
    same = ("--size", SIDE, "--scale", 1 / 255, "--mean", "0", "--std", "1")
    for name, (options, _) in {**OTHERS, "same.h5": (same, "")}.items():
        arguments = ("extract", "model.onnx", "src", "tgt", *options, "-o", name)
        covcal(*arguments, cwd=folder).require_success()
    # Rows that went in as they are may have been prepared alike, which the user must say.
    x = np.random.default_rng(0).random((60, 1, SIDE, SIDE), dtype=np.float32)
    np.savez(folder / "a.npz", x=x, y=np.arange(60) % 3)
    arguments = ("model.onnx", "a.npz", "a.npz", "--classes", "cal.json", "-o", "arrays.h5")
    covcal("extract", *arguments, cwd=folder).require_success()
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """The made files, copied, and its folders of images, which a test may not change."""
    work = tmp_path / "work"
    work.mkdir()
    for path in made.iterdir():
        if path.is_dir():
            (work / path.name).symlink_to(path)
        else:
            shutil.copy(path, work)
    return work


def use(command: str, folder: Path, *options: Argument, file: str = "other.h5") -> Outcome:
    return covcal(command, file, "-c", "cal.json", *COMMANDS[command], *options, cwd=folder)


class TestPreprocessing:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_another_is_refused_or_allowed(self, folder: Path, command: str) -> None:
        for name, (_, words) in OTHERS.items():
            line = use(command, folder, file=name).error_line()
            assert line.startswith(f"{name} and cal.json have different preprocessing")
            assert words in line
            assert ALLOW in line
        use(command, folder, ALLOW, file="scale.h5").require_success()

    @pytest.mark.parametrize("command", COMMANDS)
    def test_arrays_in_the_place_of_images(self, folder: Path, command: str) -> None:
        line = use(command, folder, file="arrays.h5").error_line()
        assert "(none, not that of images)" in line
        if command == "apply":
            use(command, folder, ALLOW, file="arrays.h5").require_success()

    @pytest.mark.parametrize("command", ["apply", "estimate"])
    def test_the_same_in_other_words(self, folder: Path, command: str) -> None:
        """What was done counts, not how it was asked for."""
        use(command, folder, file="same.h5").require_success()

    @pytest.mark.parametrize("old", ["file", "calibration"])
    def test_what_is_not_known_is_not_held_against_a_file(self, folder: Path, old: str) -> None:
        if old == "file":
            with edited(folder / "scale.h5") as file:
                del file.attrs["preprocessing"]
        else:
            content = json.loads((folder / "cal.json").read_text())
            del content["reading"]
            write_document(content, folder / "cal.json", force=True)
        use("apply", folder, file="scale.h5").require_success()

    def test_a_setting_that_is_not_given(self, folder: Path) -> None:
        """A missing setting differs from a setting that is null."""
        document = json.loads((folder / "cal.json").read_text())
        settings = document["reading"]["preprocessing"]
        nulls = [name for name, value in settings["resize"].items() if value is None]
        del settings["resize"][nulls[0]]
        write_document(document, folder / "cal.json", force=True)
        line = use("apply", folder, file="features.h5").error_line()
        assert f"(resize: {nulls[0]} None, not not given)" in line


class TestTail:
    @pytest.mark.parametrize(
        ("command", "attribute", "value", "words"),
        [
            *((command, "tail", "softmax", "with softmax as the model's output, but cal.json was")
              for command in COMMANDS),
            ("apply", "logits_tensor", "aux", "with aux as the model's logits, but cal.json was"),
        ],
    )  # fmt: skip
    def test_another_output_is_refused(
        self, folder: Path, command: str, attribute: str, value: str, words: str
    ) -> None:
        """No option allows it: T of probabilities says nothing of logits."""
        shutil.copy(folder / "features.h5", folder / "other.h5")
        with edited(folder / "other.h5") as file:
            file.attrs[attribute] = value
        line = use(command, folder, ALLOW).error_line()
        assert words in line
        assert "extract it again" in line

    def test_the_model_is_exported_as_it_was_read(self, folder: Path) -> None:
        content = json.loads((folder / "cal.json").read_text())
        content["reading"]["tail"] = "softmax"
        write_document(content, folder / "cal.json", force=True)
        line = covcal("export", "model.onnx", "-c", "cal.json", cwd=folder).error_line()
        assert (
            "was fitted to outputs of model.onnx of the kind 'softmax', but the outputs are" in line
        )

    def test_without_features_the_name_of_the_logits_says_nothing(self, folder: Path) -> None:
        """With --phi none the output stands for what it was made of."""
        shutil.copy(folder / "features.h5", folder / "other.h5")
        with edited(folder / "other.h5") as file:
            file.attrs["logits_tensor"], file.attrs["features_tensor"] = "output", ""
        use("apply", folder).require_success()


class TestClasses:
    def test_new_images_of_a_model_without_names(self, folder: Path) -> None:
        """Alone, a flat folder gives the outputs no names; the error names the way out."""
        arguments = ("model.onnx", "--target", "new", "-o", "other.h5")
        covcal("extract", *arguments, cwd=folder).require_success()
        line = use("apply", folder).error_line()
        assert "different class names (class 0 is 0, not a)" in line
        assert "extract it again with --classes cal.json" in line
        covcal("extract", *arguments, "--classes", "cal.json", "-f", cwd=folder).require_success()
        use("apply", folder).require_success()

    def test_new_images_in_folders_of_other_classes(self, folder: Path) -> None:
        """Folders of some of the classes are no folders of the model's: extract says the same."""
        write_images(folder / "some", ["b/1.png", "c/2.png"], 3)
        arguments = ("model.onnx", "--target", "some", "-o", "other.h5")
        assert "--classes FILE" in covcal("extract", *arguments, cwd=folder).error_line()
        covcal("extract", *arguments, "--classes", "cal.json", cwd=folder).require_success()
        with h5py.File(folder / "other.h5") as file:
            assert file["target/labels"][:].tolist() == [1, 2]


PRIOR = {"class 0": 0.6, "class 1": 0.1, "class 2": 0.1, "class 3": 0.1, "class 4": 0.1}


class TestPrior:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        target = clusters_domain("target", moved=0.6, prior=list(PRIOR.values()))
        target["labels"][:] = -1
        write_features(tmp_path / "features.h5", source=clusters_domain("source"), target=target)
        (tmp_path / "prior.json").write_text(json.dumps(PRIOR))
        return tmp_path

    @pytest.mark.parametrize("prior", ["prior.json", "uniform", "bbse"])
    def test_report_and_estimate_have_that_of_the_calibration(
        self, folder: Path, prior: str
    ) -> None:
        """The page states the accuracy that the calibration met, also where the file is gone."""
        given = ("--target-prior", prior)
        covcal("calibrate", "--method", "cot", *given, cwd=folder).require_success()
        expected = estimated(*given, cwd=folder)
        assert expected["estimates"][1] != estimated(cwd=folder)["estimates"][1]
        (folder / "prior.json").unlink()
        found = estimated("-c", "cal.json", cwd=folder)
        for key in ("estimates", "target_prior"):
            assert found[key] == expected[key]
        page = covcal("report", "features.h5", "-c", "cal.json", cwd=folder).require_success()
        accuracy = f"{100 * expected['estimates'][0]['accuracy']:.0f} %"
        assert f"Estimated accuracy on the target: {accuracy}" in page.out

    @pytest.mark.parametrize("prior", ["prior.json", "uniform"])
    def test_the_shares_are_kept_where_no_estimate_was_made(self, folder: Path, prior: str) -> None:
        only_source = write_features(
            folder / "s.h5", source=clusters_domain("source"), only_source=True
        )
        arguments = (only_source, "--target-prior", prior, "-o", "auto.json")
        covcal("calibrate", *arguments, cwd=folder).require_success()
        (folder / "prior.json").unlink()
        found = estimated("features.h5", "-c", "auto.json", cwd=folder)
        wanted = [*PRIOR.values()] if prior == "prior.json" else [0.2] * 5
        assert found["target_prior"]["shares"] == pytest.approx(wanted)

    def test_calibrations_of_several_priors(self, folder: Path) -> None:
        """The estimate has the first prior that mattered, and says where another one was."""
        made: dict[str, tuple[Argument, ...]] = {
            "temp": ("--method", "temp"),
            "given": ("--method", "cot", "--target-prior", "prior.json"),
            "plain": ("--method", "consensus"),
        }
        for name, options in made.items():
            covcal("calibrate", *options, "-o", f"{name}.json", cwd=folder).require_success()
        both = ("estimate", "-c", "temp.json", "-c", "given.json")
        assert "target prior" not in covcal(*both, cwd=folder).require_success().err
        found = covcal(*both, "-c", "plain.json", cwd=folder).require_success()
        assert "have different target priors" in found.err
        given = estimated("-c", "temp.json", "-c", "given.json", cwd=folder)
        assert given["target_prior"]["name"] == "prior.json"

    @pytest.mark.parametrize(
        "shares",
        [[0.5, 0.5], [1.0, 1.0, 1.0, 1.0, 1.0], [2.0, -1.0, 0.0, 0.0, 0.0], "none", [None]],
    )
    def test_shares_that_are_none(self, folder: Path, shares: Any) -> None:
        covcal("calibrate", "--method", "temp", "--force", cwd=folder).require_success()
        content = json.loads((folder / "cal.json").read_text())
        content["target_prior"]["shares"] = shares
        write_document(content, folder / "cal.json", force=True)
        line = covcal("report", "features.h5", "-c", "cal.json", cwd=folder).error_line()
        assert "target_prior.shares" in line
