"""``examples/benchmark_apply.py`` runs as its docstring says, here on few rows."""

import re
import subprocess
import sys

import pytest

from tests.examples import EXAMPLES


def test_it_prints_ratios_and_the_same_ece_twice() -> None:
    """Every measurement has its line; covcal's ECE is that of the bare pass."""
    command = [sys.executable, str(EXAMPLES / "benchmark_apply.py"), "--rows", "20000"]
    command.append("--no-packages")
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    assert "20000 x 10 float32 logits" in done.stdout
    bare = ("bare pass, 1 softmax", "bare pass, 2 softmaxes")
    applied = ("apply, h5", "apply, npz", "apply, csv")
    found_seconds = {}
    for name in (*bare, *applied, "evaluate, 1 judged", "evaluate -c, 2 judged"):
        line = next(line for line in done.stdout.splitlines() if line.startswith(name))
        seconds, peak, ratio, like = map(float, line.removeprefix(name).split())
        found_seconds[name] = seconds
        assert seconds > 0
        assert 20 < peak < 400
        assert ratio == pytest.approx(seconds / found_seconds[bare[0]], rel=0.05)
        same = bare[name in (bare[1], "evaluate -c, 2 judged")]
        assert like == pytest.approx(seconds / found_seconds[same], rel=0.05)
    found = re.search(r"ECE (\S+) by evaluate, (\S+) by the bare pass", done.stdout)
    assert found is not None
    assert abs(float(found[1]) - float(found[2])) <= 2e-6
