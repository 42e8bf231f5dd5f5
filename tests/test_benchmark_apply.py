"""``examples/benchmark_apply.py`` runs as its docstring says, here on few rows."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_it_prints_ratios_and_the_same_ece_twice() -> None:
    """Every measurement has its line; covcal's ECE is that of the bare pass."""
    command = [sys.executable, str(EXAMPLES / "benchmark_apply.py"), "--rows", "20000"]
    command.append("--no-packages")
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    assert "20000 x 10 float32 logits" in done.stdout
    for name in ("bare NumPy pass", "apply, h5", "apply, npz", "apply, csv", "evaluate"):
        line = next(line for line in done.stdout.splitlines() if line.startswith(name))
        seconds, peak, ratio = map(float, line.removeprefix(name).split())
        assert seconds > 0
        assert 20 < peak < 400
        assert ratio > 0
    found = re.search(r"ECE (\S+) by evaluate, (\S+) by the bare pass", done.stdout)
    assert found is not None
    assert abs(float(found[1]) - float(found[2])) <= 2e-6
