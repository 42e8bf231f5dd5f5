"""The example scripts about ``adapt`` run as their docstrings say, here on little data."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def output_of(script: str, *options: str) -> str:
    command = [sys.executable, str(EXAMPLES / script), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_benchmark_prints_seconds_and_how_members_fared() -> None:
    text = output_of("benchmark_adapt.py", "--share", "0.02", "--members", "1")
    assert "s processor, 1 thread(s)" in text
    assert "member 0:" in text


def test_settings_table_ranks_recipes() -> None:
    options = ("--shifts", "contrast", "--members", "1", "--recipes", "plain")
    text = output_of("choose_adapt_settings.py", *options)
    assert "corruptions contrast, plain: none" in text
    assert text.splitlines()[-1].endswith("| plain")
