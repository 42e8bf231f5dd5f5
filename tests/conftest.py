"""Small files that many tests start from; made once for all workers, copied before a change."""

import fcntl
import gc
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from covcal_cli.demo import write_demo
from tests.browser import Browser, browser
from tests.cli_runner import covcal
from tests.forked import stop_server
from tests.made_files import made_domain, write_adapted, write_features
from tests.short_training import TRAINED_STEPS, short_training

SIZES = (120, 150, 80)
# Files that take longer than their size tells: they trace, train, install, or run whole jobs.
LONGEST = (
    *("test_adapt", "test_benchmark_driver", "test_benchmark_scripts", "test_deployment_examples"),
    *("test_export_torch", "test_install", "test_paper_driver", "test_readme", "test_renewal"),
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules load: it would take seconds, and modules stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the longest files, so that two workers end at about the same time."""
    items.sort(key=lambda item: (item.path.stem not in LONGEST, -item.path.stat().st_size))


def pytest_runtest_teardown() -> None:
    """Take back the threads that a test gave torch: two that wait for each other lose time."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def pytest_unconfigure() -> None:
    """End the process that covcal is forked from."""
    stop_server()


def shared_folder(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder that the first worker to ask for it fills, and that all workers use."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder, partial = root / name, root / f"{name}.partial"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            partial.mkdir()
            fill(partial)
            partial.rename(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def coarse_posterior() -> Iterator[None]:
    """Fit to labels on a grid of a ninth of its points; test_posterior.py takes the whole grid.

    Otherwise, a test that fits to labels would spend most of its time on the fit and its folds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covcal_cli.labels.posterior._TEMPERATURES", 33)
        patch.setattr("covcal_cli.labels.posterior._OFFSETS", 11)
        yield


@pytest.fixture(scope="session", autouse=True)
def few_regions() -> Iterator[None]:
    """Let ``decide`` compare a tenth of its thresholds; test_acceptance.py takes all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covcal_cli.maths.acceptance._GROWTH", 1.15)
        patch.setattr("covcal_cli.maths.acceptance._REGIONS", (0.1, 0.3, 0.6, 1.0))
        yield


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """Wait for no disk: no test pulls the plug, and thousands of files would take half a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def whole_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``covcal demo`` starts with: thousands of images; not to be changed."""

    def fill(folder: Path) -> None:
        write_demo(folder / "demo")

    return shared_folder(tmp_path_factory, "whole_demo", fill) / "demo"


@pytest.fixture(scope="session")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with features.h5, adapted.h5 and METHOD.json of adapted.h5; not to be changed."""
    return shared_folder(tmp_path_factory, "small", _write_small_files)


def _write_small_files(folder: Path) -> None:
    source = made_domain("source", sizes=SIZES)
    target = made_domain("target", sizes=SIZES, shift=0.7)
    write_features(folder / "features.h5", source=source, target=target)
    write_adapted(folder / "adapted.h5", source=source, target=target, shift=0.7)
    for method in ("auto", "none", "temp", "iw+temp", "fl+temp", "fl+iw+temp", "blend"):
        arguments = ("adapted.h5", "--method", method, "-o", f"{method}.json")
        covcal("calibrate", *arguments, cwd=folder).require_success()


@pytest.fixture
def features(small_files: Path, tmp_path: Path) -> Path:
    """A copy of the small features.h5 that a test may change."""
    return Path(shutil.copy(small_files / "features.h5", tmp_path))


@pytest.fixture
def adapted(small_files: Path, tmp_path: Path) -> Path:
    """A copy of the small adapted.h5 that a test may change."""
    return Path(shutil.copy(small_files / "adapted.h5", tmp_path))


@pytest.fixture(scope="session")
def trained(small_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adapted.h5 of a brief ``covcal adapt --members 1``; not to be changed."""

    def fill(folder: Path) -> None:
        shutil.copy(small_files / "features.h5", folder)
        with short_training(TRAINED_STEPS):
            covcal("adapt", "--members", 1, "-q", cwd=folder).require_success()

    return shared_folder(tmp_path_factory, "trained", fill) / "adapted.h5"


@pytest.fixture(scope="session")
def digits() -> Path:
    """The folder of the embedded digits.onnx, source.npz and target.npz; not to be changed."""
    return Path(str(files("covcal_cli.demo")))


@pytest.fixture(scope="session")
def few_digits(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of `digits` with every fifth row of either domain; not to be changed."""

    def fill(folder: Path) -> None:
        shutil.copy(digits / "digits.onnx", folder)
        for name in ("source.npz", "target.npz"):
            with np.load(digits / name) as arrays:
                np.savez(folder / name, **{key: values[::5] for key, values in arrays.items()})

    return shared_folder(tmp_path_factory, "few_digits", fill)


@pytest.fixture(scope="module")
def running_chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all pages of a module: a start takes seconds, and so do idle minutes."""
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    """The folder in which `chromium` puts what a page offers."""
    (tmp_path / "downloads").mkdir()
    return tmp_path / "downloads"


@pytest.fixture
def chromium(running_chromium: Browser, downloads: Path) -> Browser:
    """A browser that has forgotten all earlier pages."""
    running_chromium.start_anew(downloads)
    return running_chromium
