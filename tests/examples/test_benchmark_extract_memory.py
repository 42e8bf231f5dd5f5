"""``examples/benchmark_extract_memory.py`` runs as its docstring says, here on few rows."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import EXAMPLES

SCRIPT = EXAMPLES / "benchmark_extract_memory.py"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to read the peak")
def test_it_prints_a_line_for_every_size_and_format() -> None:
    command = [sys.executable, str(SCRIPT), "--rows", "300", "--features", "8"]
    command += ["--formats", "npy", "parquet"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines[2:]] == [
        ["bare", "256"],
        ["npy", "300"],
        ["parquet", "300"],
    ]
    for line in lines[2:]:
        peak, seconds = map(float, line[-2:])
        assert 20 < peak < 500
        assert seconds > 0
