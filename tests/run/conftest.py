"""Intervals of few resamples: what ``run`` does with them is tested, not how precise they are."""

from collections.abc import Iterator

import pytest

from covcal_cli.run import renewal, run

RESAMPLES = 50


@pytest.fixture(scope="module", autouse=True)
def few_resamples() -> Iterator[None]:
    """Let the runs of this process resample less often."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (run, renewal):
            patch.setattr(module, "RESAMPLES", RESAMPLES)
        yield
