"""The installed wheel: light steps in a bare environment, and a plain word where it is too bare."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from covcal_cli import __version__
from tests import REPOSITORY
from tests.cli_runner import Outcome

pytestmark = pytest.mark.install

LIGHT = ("typer", "rich", "numpy", "h5py")
HEAVY = ("torch", "onnx", "onnxruntime", "PIL", "matplotlib")


@dataclass(frozen=True)
class Bare:
    """A fresh environment with covcal and the four light packages."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, *command: str | Path, cwd: Path) -> Outcome:
        """Run a program of this environment, blind to the one that the tests run in."""
        unwanted = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")  # compiled once, not in every run
        env = {name: value for name, value in os.environ.items() if name not in unwanted}
        done = subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]],
            capture_output=True,
            text=True,
            cwd=cwd,
            env=env,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def run_all(self, *commands: Sequence[str], cwd: Path) -> list[Outcome]:
        """Run commands of covcal one after another in one Python of this environment."""
        done = self.run("python", "-I", "-c", ONE_AFTER_ANOTHER, json.dumps(commands), cwd=cwd)
        return [Outcome(*found) for found in json.loads(done.require_success().out)]


# A process of its own for every command would be spent on imports.
ONE_AFTER_ANOTHER = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from covcal_cli.cli.app import run

ended = []
for arguments in json.loads(sys.argv[1]):
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = run(arguments)
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    ended.append((code, *texts))
print(json.dumps(ended))
"""


def link_packages(names: tuple[str, ...], site: Path) -> None:
    """Link into `site` what pip would install for `names`: the packages and all they require."""
    waiting, linked = list(names), set()
    while waiting:
        name = waiting.pop()
        if name in linked:
            continue
        linked.add(name)
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(package.locate_file(top))).resolve())
        needed = [Requirement(line) for line in package.requires or ()]
        waiting += [
            one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})
        ]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """Install as README tells a job that only evaluates: --no-deps, beside the light packages.

    Those are linked from the environment of the tests: to make pip find and unpack them again
    takes ten seconds of processor time and says nothing about covcal.
    """
    folder = tmp_path_factory.mktemp("bare")
    # Built from a copy, so that nothing of the build stays in the working tree.
    source = folder / "source"
    shutil.copytree(
        REPOSITORY,
        source,
        ignore=shutil.ignore_patterns(".git", ".*_cache", "__pycache__", "tests"),
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    made = Bare(folder / "venv")
    pip = (sys.executable, "-m", "pip", "--python", made.python)
    options = ("install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile")
    subprocess.run([*pip, *options, source], check=True, cwd=folder)
    paths = sysconfig.get_paths("venv", vars={"base": str(made.folder), "platbase": made.folder})
    link_packages(LIGHT, Path(paths["purelib"]))
    return made


def test_the_light_steps_work(bare: Bare, features: Path) -> None:
    """estimate, calibrate, evaluate with a limit, pick and inspect do all they should."""
    folder = features.parent
    commands = (
        ("estimate",),
        ("calibrate", "--method", "temp"),
        ("evaluate", "-o", "metrics.json", "--fail-above", "ece=1", "--bootstrap", "50"),
        ("pick", "--page", "label.html"),
        ("inspect", "features.h5"),
        ("inspect", "cal.json"),
        ("adapt", "--help"),
    )
    done = [outcome.require_success() for outcome in bare.run_all(*commands, cwd=folder)]
    assert "After temp " in done[2].out
    assert json.loads((folder / "metrics.json").read_text())["schema"] == "covcal.metrics/1"
    assert "<script" in (folder / "label.html").read_text()


HEAVY_STEPS: dict[tuple[str, ...], set[str]] = {
    ("adapt",): {"torch"},
    ("extract", "digits.onnx", "source.npz", "target.npz", "-o", "new.h5"): {
        *("onnx", "onnxruntime", "pillow"),
    },
    ("evaluate", "features.h5", "--diagram", "r.png", "-q"): {"matplotlib"},
    ("demo",): {"pillow"},
}


def test_a_heavy_step_says_what_to_install(bare: Bare, features: Path, digits: Path) -> None:
    """A step that needs more is one line that names the packages to install; nothing is left."""
    folder = features.parent
    for name in ("digits.onnx", "source.npz", "target.npz"):
        shutil.copy(digits / name, folder)
    before = sorted(path.name for path in folder.iterdir())
    done = bare.run_all(*HEAVY_STEPS, cwd=folder)
    for outcome, packages in zip(done, HEAVY_STEPS.values(), strict=True):
        line = outcome.error_line()
        assert "pip install" in line
        assert packages <= set(line.split("pip install")[1].split())
    assert sorted(path.name for path in folder.iterdir()) == before


def test_the_wheel_holds_the_package_and_nothing_else(bare: Bare, tmp_path: Path) -> None:
    """The console script starts; the wheel has types and the demo's data, but no tests.

    No heavy package can be imported there, or the tests above would prove nothing.
    """
    assert bare.run("covcal", "--version", cwd=tmp_path).out == f"covcal {__version__}\n"
    script = (
        "import covcal_cli, importlib.util as u, json, pathlib, sys\n"
        "heavy = [name for name in sys.argv[1:] if u.find_spec(name)]\n"
        "print(json.dumps([str(pathlib.Path(covcal_cli.__file__).parent), heavy]))"
    )
    found = bare.run("python", "-c", script, *HEAVY, cwd=tmp_path).require_success().out
    place, heavy = json.loads(found)
    assert heavy == []
    package = Path(place)
    assert package.is_relative_to(bare.folder)
    assert (package / "py.typed").is_file()
    assert {path.name for path in (package / "demo").iterdir()} >= {
        "digits.onnx",
        "source.npz",
        "target.npz",
    }
    beside = {path.name for path in package.parent.iterdir()}
    assert not beside & {"tests", "examples", "covcal"}
