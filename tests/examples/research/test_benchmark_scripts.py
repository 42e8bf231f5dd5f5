"""The scripts that measure extract, apply and evaluate run as they say, on little data."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import benchmark_apply
import benchmark_extract
import benchmark_extract_memory
import benchmark_temperature
import pytest

from tests.examples import EXAMPLES


@pytest.fixture
def printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """A function that runs a script with options in this process and returns its lines."""

    def lines(script: ModuleType, *options: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *options])
        script.main()
        written = capsys.readouterr()
        assert written.err == ""
        return written.out.splitlines()

    return lines


@pytest.mark.campaign
def test_apply_beside_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every measurement has its line and its two ratios, and covcal's ECE is that of NumPy.

    All measurements are real except the seconds, which the test gives; the ratios follow from them.
    """
    pytest.importorskip("pyarrow")
    spent = {
        "NumPy, 1 softmax": 2.0,
        "NumPy, 2 softmaxes": 4.0,
        "apply, h5": 3.0,
        "apply, npz": 5.0,
        "apply, parquet": 6.0,
        "apply, csv": 9.0,
        "evaluate": 1.0,
        "evaluate -c": 7.0,
    }
    seconds = iter(spent.values())
    measured = benchmark_apply.measured

    def timed(*arguments: str | Path | float) -> tuple[str, float, float]:
        text, _, peak = measured(*arguments)
        return text, next(seconds), peak

    monkeypatch.setattr(benchmark_apply, "measured", timed)
    benchmark_apply.compare_passes(tmp_path, 20_000, 10)
    first, *_, last = lines = capsys.readouterr().out.splitlines()
    assert first.startswith("20000 x 10 float32 logits, ")
    assert len(lines) == 4 + len(spent) + 1
    for line, (name, took) in zip(lines[4:-1], spent.items(), strict=True):
        assert line.startswith(name)
        found, peak, ratio, like = map(float, line.removeprefix(name).split())
        assert found == took
        assert 20 < peak < 400
        assert ratio == took / 2
        assert like == took / (4 if "2" in name or "-c" in name else 2)
    ece = re.fullmatch(r"The ECE is (\S+) by covcal evaluate, and (\S+) by plain NumPy", last)
    assert ece is not None
    assert abs(float(ece[1]) - float(ece[2])) <= 2e-6


def test_it_measures_processes_of_its_own() -> None:
    """The seconds and the peak belong to the process that is run."""
    text, seconds, peak = benchmark_apply.measured("-c", "print(len(b'x' * (200 << 20)))")
    assert text == f"{200 << 20}\n"
    assert seconds > 0
    assert 200 < peak < 300


def test_extract_beside_its_bare_stages(printed: Callable[..., list[str]]) -> None:
    options = ("--images", "24", "--rounds", "1", "--threads", "2", "--tables", "300x4")
    lines = printed(benchmark_extract, *options)
    assert lines[0] == "Processor seconds for 24 images with 2 thread(s)"
    for line, name in zip(lines[2:4], ("digits", "photos"), strict=True):
        assert re.fullmatch(rf"{name}( +\d+\.\d+){{4}}", line)
    for line, name in zip(lines[5:], ("parquet", "csv"), strict=True):
        assert re.fullmatch(rf"{name} 2 x 300 x 4( +\d+\.\d+){{3}}", line)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to read the peak")
def test_the_memory_of_extract_by_size_and_format(printed: Callable[..., list[str]]) -> None:
    options = ("--rows", "300", "--features", "8", "--formats", "npy")
    lines = [line.split() for line in printed(benchmark_extract_memory, *options)]
    expected = [["bare", "256"], ["npy", "300"]]
    assert [line[:2] for line in lines[2:]] == expected
    for *_, peak, seconds in lines[2:]:
        assert 20 < float(peak) < 500
        assert float(seconds) >= 0


def test_a_broken_peer_is_a_dash_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Callable[..., list[str]]
) -> None:
    """scikit-learn and torchmetrics that cannot be used cost their lines, and nothing else."""
    # The real torch takes seconds to load, and torchmetrics is the one at fault.
    for package, fault in (("sklearn", "1 / 0"), ("torchmetrics", "estimator = 1"), ("torch", "")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(fault)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(EXAMPLES.parent)]))
    rows = printed(benchmark_temperature, "--rows", "500")[2:]
    lines = {line[:24].strip(): line[24:].split() for line in rows}
    assert float(lines["T, covcal, brier"][0]) > 0
    assert float(lines["ECE, covcal"][0]) > 0
    for name in ("T, scikit-learn, nll", "ECE, torchmetrics"):
        assert lines[name][:3] == ["-", "-", "-"]
        assert "Error" in lines[name][3]
