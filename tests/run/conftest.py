"""Intervals of few resamples, and brief pages: ``run`` is tested, not what it runs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from covcal_cli.evaluate import result
from covcal_cli.evaluate.evaluate import EvaluateSettings
from covcal_cli.files import sha256_of, write_text
from covcal_cli.report.report import report
from covcal_cli.run import renewal, run

RESAMPLES = 50


@pytest.fixture(scope="module", autouse=True)
def few_resamples() -> Iterator[None]:
    """Let the runs of this process resample less often."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (run, renewal, result):
            patch.setattr(module, "RESAMPLES", RESAMPLES)
        yield


def brief_report(
    path: Path, documents: Sequence[Path], output: Path, settings: EvaluateSettings, *, force: bool
) -> None:
    """Write what the page is made of, in place of a page."""
    hashes = [sha256_of(file) for file in (path, *documents)]
    write_text(output, f"{hashes} {settings}", force=force)


@pytest.fixture(scope="module", autouse=True)
def brief_pages() -> Iterator[None]:
    """Let the runs of this process write brief pages, which take a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "report", brief_report)
        yield


@pytest.fixture
def whole_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test have the pages that a user gets."""
    monkeypatch.setattr(run, "report", report)
