"""A part of each campaign; run it with ``pytest -m campaign -n 0 tests/campaign``."""

import sys

import pytest

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork"),
]


def test_mutated_inputs() -> None:
    from tests.campaign.fuzz import fuzz

    assert not fuzz(300, seed=0)


def test_kills() -> None:
    from tests.campaign.kills import kills

    assert not kills(60, seed=0)
