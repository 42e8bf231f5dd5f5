"""``covcal demo``: the main steps on embedded data, as a newcomer would type them."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covcal_cli.cli.demo import STEPS
from covcal_cli.demo import write_demo
from tests.cli_runner import Outcome, covcal
from tests.readme_blocks import BLOCK, WORKED_EXAMPLE


@dataclass(frozen=True)
class Demo:
    """What one run of the demo left."""

    folder: Path
    embedded: Path  # the folder of the files that it wrote as images
    outcome: Outcome

    @property
    def commands(self) -> list[list[str]]:
        """The covcal commands that it printed."""
        lines = self.outcome.out.splitlines()
        return [shlex.split(line)[2:] for line in lines if line.startswith("$ covcal ")]


@pytest.fixture(scope="module")
def embedded(few_digits: Path) -> Iterator[Path]:
    """The embedded model with few digits, in the place of all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covcal_cli.demo.files", lambda _: few_digits)
        yield few_digits


@pytest.fixture(scope="module")
def demo(embedded: Path, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    parent = tmp_path_factory.mktemp("demo")
    done = covcal("demo", "-o", "here", cwd=parent)
    return Demo(parent / "here", embedded, done.require_success())


def test_its_commands_are_those_of_the_worked_example(demo: Demo) -> None:
    """What examples/README.md shows and test_readme.py runs holds for the demo."""
    lines = "".join(BLOCK.findall(WORKED_EXAMPLE.read_text(encoding="utf-8"))).splitlines()
    shown = [shlex.split(line)[2:] for line in lines if line.startswith("$ covcal ")]
    assert [command for command in shown if command in demo.commands] == demo.commands


def test_the_steps_in_order(demo: Demo) -> None:
    """Extract, calibrate and evaluate are shown as commands."""
    names = [command[0] for command in demo.commands]
    assert sorted(set(names), key=names.index) == ["extract", "calibrate", "evaluate"]


def test_each_step_left_its_file(demo: Demo) -> None:
    """The files of every step are kept, so that a reader can look at them."""
    present = {entry.name for entry in demo.folder.iterdir()}
    assert present >= {
        "digits.onnx",
        "source",
        "target",
        "features.h5",
        "cal.json",
        "reliability.png",
    }
    assert not [name for name in present if name.startswith(".")]


def test_the_printed_commands_are_real(demo: Demo) -> None:
    """Typed again in that folder, a printed command prints what the demo printed for it.

    All but the first, which takes longest: test_readme.py runs it. The diagram is not drawn again.
    """
    inside = demo.outcome.out
    for command in demo.commands[1:]:
        if "--diagram" in command:
            place = command.index("--diagram")
            command = command[:place] + command[place + 2 :]
        done = covcal(*command, "-f", cwd=demo.folder).require_success()
        assert done.out in inside


def test_the_commands_stand_before_their_output(demo: Demo) -> None:
    """The demo says where it is, and each command stands above what it printed."""
    out = demo.outcome.out
    assert "$ cd here\n" in out
    positions = [out.index(f"$ covcal {' '.join(command)}") for command in demo.commands]
    assert positions == sorted(positions)


def test_it_ends_with_before_and_after(demo: Demo) -> None:
    """The last table has none and the calibrations; what they gain is test_readme.py's matter."""
    out = demo.outcome.out
    table = out[out.rindex("$ covcal evaluate") :].split("\n\n")[1].splitlines()[2:]
    ece = {line.split()[0]: float(line.split()[5].rstrip("%")) for line in table}
    assert list(ece)[:2] == ["none", "temp"]
    assert len(ece) == 3
    assert "The reliability diagrams: here/reliability.png" in out.splitlines()
    assert "--force" in out.splitlines()[-1]


def test_the_diagram_is_a_picture(demo: Demo) -> None:
    """reliability.png is a picture with colours of both directions in it."""
    with Image.open(demo.folder / "reliability.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert min(pixels.shape[:2]) > 800
    for colour in ((0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2)):
        assert (pixels == colour).all(axis=2).any()


def test_the_images_are_the_embedded_ones(demo: Demo) -> None:
    """The folders hold every embedded digit once, by split and class."""
    for domain in ("source", "target"):
        pictures = list((demo.folder / domain).glob("*/*/*.png"))
        with np.load(demo.embedded / f"{domain}.npz") as arrays:
            expected = sorted(zip(arrays["y"].tolist(), arrays["id"].tolist(), strict=True))
        assert sorted((int(path.parent.name), path.stem) for path in pictures) == expected
        assert {path.parent.parent.name for path in pictures} == {"train", "validation", "test"}


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    """A folder that is not empty is left alone; the remedy is named."""
    (tmp_path / "mine").write_text("kept")
    done = covcal("demo", "-o", tmp_path)
    assert done.error_line() == (
        f"{tmp_path} exists already: remove it, or name another folder with -o"
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    """A file where the folder should be is left alone."""
    path = tmp_path / "file"
    path.write_text("kept")
    assert "exists already" in covcal("demo", "-o", path).error_line()
    assert path.read_text() == "kept"


def test_the_embedded_data_is_small(digits: Path) -> None:
    """What every installation carries for the demo is under 500 kB."""
    sizes = [path.stat().st_size for path in digits.iterdir() if path.is_file()]
    assert sum(sizes) < 500_000


def test_a_step_that_fails_ends_the_demo_as_it_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, the command's own exit code, and no word of diagrams that were never drawn."""
    monkeypatch.setattr("covcal_cli.cli.demo.STEPS", ("inspect nothing.h5", "adapt"))
    monkeypatch.setattr("covcal_cli.demo._fill", Path.mkdir)  # images are of no matter here
    done = covcal("demo", "-o", tmp_path / "here")
    assert (done.code, done.err) == (
        1,
        "error: nothing.h5 does not exist: name a file that covcal wrote\n",
    )
    assert "covcal adapt" not in done.out
    assert "diagrams" not in done.out


def test_what_a_killed_demo_left_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covcal_cli.demo._fill", Path.mkdir)
    left = tmp_path / ".demo.partial" / "source"
    left.mkdir(parents=True)
    write_demo(tmp_path / "demo")
    assert [entry.name for entry in tmp_path.iterdir()] == ["demo"]


@pytest.mark.usefixtures("embedded")
def test_one_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle or out of space, it is not in its own way; once ended, it is whole."""
    monkeypatch.setattr("covcal_cli.cli.demo.STEPS", STEPS[:2])
    write_demo(tmp_path / "here")
    (tmp_path / "here" / "features.h5").write_text("of another version")
    done = covcal("demo", "-o", "here", cwd=tmp_path).require_success()
    assert "$ covcal extract digits.onnx source target --force\n" in done.out
    assert not list((tmp_path / "here").glob(".*"))
    assert covcal("demo", "-o", "here", cwd=tmp_path).error_line().startswith("here exists already")
