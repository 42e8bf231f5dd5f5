"""Source and target mixed up by mistake: one data set twice, or the two in the wrong order."""

import re
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import typer
from scipy.special import softmax

from covcal_cli.cli.extract_options import Inputs
from tests.classifiers.onnx.onnx_graphs import Graph, node
from tests.cli_runner import Outcome, covcal

N = 300
TWICE = (
    "there is no shift between source and target. Unless this is only a test, give different data"
)
ORDER = "check that SOURCE comes before TARGET"


def model(folder: Path) -> str:
    """Save a classifier whose logits are its three inputs."""
    constants = {"wk": np.eye(3, dtype=np.float32), "bk": np.zeros(3, np.float32)}
    nodes = [node("Relu", "x", "phi"), node("Gemm", "phi wk bk", "y", transB=1)]
    return Graph(nodes, constants=constants, shape=("N", 3)).save(folder).name


def rows(scale: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows whose mean confidence grows with `scale`, and labels in turn."""
    rng = np.random.default_rng(seed)
    return (scale * rng.random((N, 3))).astype(np.float32), np.arange(N) % 3


def save(path: Path, scale: float, seed: int, **more: Any) -> Path:
    x, y = rows(scale, seed)
    arrays: dict[str, Any] = {"x": x, "y": y, **more}
    np.savez(path, **arrays)
    return path


def extract(folder: Path, *arguments: str | Path) -> Outcome:
    return covcal("extract", model(folder), *arguments, "-f", cwd=folder).require_success()


def warnings(done: Outcome) -> list[str]:
    """Return the warnings on stderr about how the domains were given."""
    lines = [line for line in done.err.splitlines() if TWICE in line or ORDER in line]
    assert all(line.startswith("warning: ") for line in lines)
    return lines


@pytest.mark.parametrize("target", ["s.npz", "./s.npz", "deep/../s.npz", "link.npz", "hard.npz"])
def test_one_file_given_twice_is_said_once(target: str, tmp_path: Path) -> None:
    """The file is extracted anyway: users may check the tools on a single data set."""
    save(tmp_path / "s.npz", 4, 0)
    (tmp_path / "deep").mkdir()
    (tmp_path / "link.npz").symlink_to("s.npz")
    (tmp_path / "hard.npz").hardlink_to(tmp_path / "s.npz")
    done = extract(tmp_path, "s.npz", target)
    (line,) = warnings(done)
    assert line.endswith(f"is both the source and the target, so {TWICE}")
    with h5py.File(tmp_path / "features.h5") as file:
        assert len(file["target/ids"]) == len(file["source/ids"]) == N
    assert warnings(covcal("extract", "model.onnx", "s.npz", target, "--dry-run", cwd=tmp_path))


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_what_both_domains_have_to_say_is_said_once(more: tuple[str, ...], tmp_path: Path) -> None:
    """One file with ids that repeat serves for both domains."""
    save(tmp_path / "s.npz", 4, 0, id=np.arange(N) // 2)
    lines = extract(tmp_path, "s.npz", "s.npz", *more).err.splitlines()
    assert sum("Joining results by id would repeat these rows" in line for line in lines) == 1


def test_a_copy_of_the_source_is_noticed(tmp_path: Path) -> None:
    """By equal ids and outputs, whether or not the copy is labelled."""
    save(tmp_path / "s.npz", 4, 0)
    shutil.copy(tmp_path / "s.npz", tmp_path / "copy.npz")
    np.savez(tmp_path / "unlabelled.npz", x=rows(4, 0)[0])
    for copy in ("copy.npz", "unlabelled.npz"):
        (line,) = warnings(extract(tmp_path, "s.npz", copy))
        assert f"{copy} has the same rows as s.npz" in line


def test_a_corrupted_copy_is_no_copy(tmp_path: Path) -> None:
    """Corruption benchmarks keep every name and label: only what is in the rows tells."""
    x, _ = rows(4, 0)
    save(tmp_path / "s.npz", 4, 0)
    save(tmp_path / "t.npz", 4, 0, x=x + np.float32(1e-3))
    assert warnings(extract(tmp_path, "s.npz", "t.npz")) == []


@pytest.mark.parametrize(("shared", "said"), [(N, "100 %"), (200, "67 %"), (40, "13 %"), (9, "")])
def test_source_rows_in_the_target_are_noticed(shared: int, said: str, tmp_path: Path) -> None:
    """By their outputs, whatever their ids and their order."""
    x, _ = rows(4, 0)
    mixed = np.concatenate([x[::-1][:shared], rows(4, 1)[0][shared:]])
    save(tmp_path / "s.npz", 4, 0)
    np.savez(tmp_path / "t.npz", x=mixed, id=[f"t{row}" for row in range(N)])
    err = extract(tmp_path, "s.npz", "t.npz").err
    expected = f"{said} of the rows of t.npz have the same outputs as rows of s.npz"
    assert (expected in err) if said else ("same outputs" not in err)


def test_outputs_that_are_often_equal_are_no_shared_rows(tmp_path: Path) -> None:
    """Outputs of few digits are equal by chance."""
    for name, seed in (("s.npz", 0), ("t.npz", 1)):
        save(tmp_path / name, 4, seed, x=rows(4, seed)[0].round())
    assert "same outputs" not in extract(tmp_path, "s.npz", "t.npz").err


def test_a_swapped_pair_is_doubted(tmp_path: Path) -> None:
    """The classifier is far more confident on the data called new: one line, with both means."""
    save(tmp_path / "known.npz", 9, 0)
    save(tmp_path / "new.npz", 2, 1)
    (line,) = warnings(extract(tmp_path, "new.npz", "known.npz"))
    means = [softmax(rows(*drawn)[0], axis=1).max(axis=1).mean() for drawn in ((9, 0), (2, 1))]
    assert f"the target known.npz ({100 * means[0]:.1f} %)" in line
    assert f"the source new.npz ({100 * means[1]:.1f} %)" in line
    assert warnings(extract(tmp_path, "known.npz", "new.npz")) == []


def test_no_label_of_the_target_is_behind_the_doubt(tmp_path: Path) -> None:
    """Without target labels, and with any, the very same is said."""
    save(tmp_path / "new.npz", 2, 1)
    said = []
    for labels in (np.full(N, -1), np.zeros(N, np.int64), rows(9, 0)[0].argmax(axis=1)):
        save(tmp_path / "known.npz", 9, 0, y=labels)
        said.append(warnings(extract(tmp_path, "new.npz", "known.npz")))
    assert len(said[0]) == 1
    assert said[0] == said[1] == said[2]


def test_a_target_with_a_little_more_confidence_is_left_in_peace(tmp_path: Path) -> None:
    """Under five points, or with so few rows that chance explains it."""
    save(tmp_path / "s.npz", 4, 0)
    save(tmp_path / "t.npz", 4.3, 1)
    assert warnings(extract(tmp_path, "s.npz", "t.npz")) == []
    for name, scale in (("s.npz", 2.0), ("t.npz", 9.0)):
        x, y = rows(scale, 3)
        np.savez(tmp_path / name, x=x[:40], y=y[:40])
    assert warnings(extract(tmp_path, "s.npz", "t.npz")) == []


def test_tables_of_outputs_are_doubted_too(tmp_path: Path) -> None:
    for name, scale in (("new.npz", 2.0), ("known.npz", 9.0)):
        x, y = rows(scale, 0)
        np.savez(tmp_path / name, logits=x, y=y)
    done = covcal("extract", "--logits", "new.npz", "known.npz", cwd=tmp_path).require_success()
    assert len(warnings(done)) == 1
    done = covcal("extract", "--logits", "new.npz", "./new.npz", "-f", cwd=tmp_path)
    assert "is both the source and the target" in warnings(done.require_success())[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("s.csv", "t.csv", "model.onnx"), "model.onnx is a model: give it first"),
        (("ids.xlsx", "t.csv"), "ids.xlsx is not a table that covcal reads: save it as .csv"),
        (("s.csv", "t.txt"), "t.txt is not a table that covcal reads: save it as .csv"),
        (("s.safetensors", "t.safetensors"), "s.safetensors is not a table that covcal reads"),
        (("model.onnx", "s.csv"), "give SOURCE and TARGET, or --target TARGET"),
    ],
)
def test_arguments_in_a_wrong_place_are_named(arguments: tuple[str, ...], message: str) -> None:
    model, *paths = arguments
    source, target = (*map(Path, paths), None)[:2]
    with pytest.raises(typer.BadParameter, match=re.escape(message)):
        Inputs.read(model, source, target, logits=False, probabilities=False, confidence=False)
