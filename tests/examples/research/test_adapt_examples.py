"""The example scripts about ``adapt`` run as their docstrings say, here on little data."""

import sys
from types import ModuleType

import benchmark_adapt
import choose_adapt_settings
import pytest

from tests.short_training import short_training


def output_of(
    script: ModuleType,
    *options: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """Run a script with `options` in this process, which has loaded torch already."""
    monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *options])
    script.main()
    return capsys.readouterr().out


def test_benchmark_prints_seconds_and_how_members_fared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--share", "0.02", "--members", "1")
    with short_training(60):
        text = output_of(benchmark_adapt, *options, monkeypatch=monkeypatch, capsys=capsys)
    assert "s processor, 1 thread(s)" in text
    assert "Network 0 was trained for" in text


@pytest.mark.campaign
def test_settings_table_ranks_recipes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--shifts", "contrast", "--members", "1", "--recipes", "plain")
    text = output_of(choose_adapt_settings, *options, monkeypatch=monkeypatch, capsys=capsys)
    assert "Shift corruptions contrast with the settings plain: the ECE is" in text
    assert text.splitlines()[-1].endswith("| plain")
