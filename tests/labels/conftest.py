"""A browser for the tests of the pages of pick."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, browser


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    (tmp_path / "downloads").mkdir()
    return tmp_path / "downloads"


@pytest.fixture
def chromium(running: Browser, downloads: Path) -> Browser:
    running.start_anew(downloads)
    return running
