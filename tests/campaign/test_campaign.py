"""A part of each campaign; run it with ``pytest -m campaign -n 0 tests/campaign``."""

import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(sys.platform != "linux", reason="needs fork and pidfd_open"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # beside threads
]


def test_mutated_inputs() -> None:
    from tests.campaign.fuzz import fuzz

    assert not fuzz(300, seed=0)


def test_kills_while_a_history_grows(tmp_path: Path) -> None:
    """No period that was said to be there is lost."""
    from tests.watch.test_history import killed_appends

    assert killed_appends(tmp_path / "watch.jsonl", 500, seed=0) > 500


def test_kills() -> None:
    from tests.campaign.kills import kills

    assert not kills(60, seed=0)


def test_odd_arguments() -> None:
    from tests.campaign.calls import calls

    assert not calls(100, seed=0)
