"""``examples/extract_with_ray.py``: what workers return in any order makes the direct run's bytes.

Without Ray a stand-in runs the same `Extractor` over the same pieces and returns them shuffled.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import extract_with_ray as example
import h5py
import numpy as np
import pytest
from extract_with_ray import BATCHES_PER_PIECE, Columns, Extractor, Piece, extract_with_ray

from covcal_cli.classifiers.open import open_classifier
from covcal_cli.errors import CovcalError, OutputExistsError
from covcal_cli.extract import plan
from covcal_cli.extract.extract import extract
from covcal_cli.extract.parts import DomainSpool, was_stopped
from covcal_cli.extract.settings import ExtractSettings, Selection
from covcal_cli.files import sha256_of
from tests.classifiers.onnx.onnx_graphs import SIDE
from tests.extract.made_images import write_model_and_domains

Engine = Callable[..., Iterator[Columns]]
BATCH = 2
SETTINGS = ExtractSettings(threads=1, batch=BATCH)
LENGTH = BATCH * BATCHES_PER_PIECE
CORRUPT = "1/0049.png"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, 110 source images of which one is corrupt, and 41 target rows."""
    return write_model_and_domains(tmp_path_factory.mktemp("data"), 110, CORRUPT)


def columns(pieces: list[Piece]) -> Columns:
    """Return pieces as an engine hands them to a worker."""
    return {
        "domain": np.array([piece["domain"] for piece in pieces], dtype=object),
        "first": np.array([piece["first"] for piece in pieces]),
        "last": np.array([piece["last"] for piece in pieces]),
    }


def shuffled(
    pieces: list[Piece], actors: int, threads: int, job: tuple[Any, ...]
) -> Iterator[Columns]:
    """Stand in for Ray: run pieces in a random order, two at a time, and cut the results anew."""
    assert threads == job[-1].threads
    workers = [Extractor(*job) for _ in range(actors)]
    order = np.random.default_rng(1).permutation(len(pieces))
    for turn, start in enumerate(range(0, len(order), 2)):
        chosen = columns([pieces[index] for index in order[start : start + 2]])
        block = workers[turn % actors](chosen)
        middle = len(block["id"]) // 3
        yield {name: values[middle:] for name, values in block.items()}
        yield {name: values[:middle] for name, values in block.items()}


def run(data: Path, output: Path, engine: Engine, **settings: Any) -> Path:
    """Run the example with `engine` in the place of Ray."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example, "run_on_ray", engine)
        inputs = (data / "model.onnx", data / "src", data / "tgt.npz")
        how = {name: settings.pop(name) for name in ("resume",) if name in settings}
        extract_with_ray(
            *inputs, output, ExtractSettings(threads=1, batch=BATCH, **settings), actors=2, **how
        )
    return output


def direct(data: Path, output: Path, **settings: Any) -> Path:
    """Run ``covcal extract`` itself."""
    inputs = (data / "model.onnx", data / "src", data / "tgt.npz")
    extract(*inputs, output, ExtractSettings(threads=1, **settings))
    return output


@pytest.mark.parametrize("selection", [Selection(), Selection(sample=105)])
def test_pieces_in_any_order_give_the_bytes_of_the_direct_run(
    selection: Selection, data: Path, tmp_path: Path
) -> None:
    found = run(data, tmp_path / "ray.h5", shuffled, selection=selection)
    expected = direct(data, tmp_path / "direct.h5", selection=selection)
    with h5py.File(expected) as file:
        assert file["source/skipped"][:].tolist() == [CORRUPT.encode()]
    assert sha256_of(found) == sha256_of(expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["direct.h5", "ray.h5"]


def test_every_row_is_run_by_the_workers(data: Path, tmp_path: Path) -> None:
    """Were the join to drop results, ``extract`` would run the rows itself, and hide it."""
    asked: list[Piece] = []

    def noting(pieces: list[Piece], *rest: Any) -> Iterator[Columns]:
        asked.extend(pieces)
        yield from shuffled(pieces, *rest)

    def no_rows(*_: Any) -> None:
        pytest.fail("extract ran rows that the workers had run")

    def finish(*arguments: Any, **settings: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DomainSpool, "append", no_rows)
            extract(*arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example, "extract", finish)
        run(data, tmp_path / "ray.h5", noting)
    rows = [(piece["domain"], i) for piece in asked for i in range(piece["first"], piece["last"])]
    assert rows == [*(("source", i) for i in range(110)), *(("target", i) for i in range(41))]
    assert max(piece["last"] - piece["first"] for piece in asked) == LENGTH


def test_a_worker_opens_the_model_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def counted(*arguments: Any, **settings: Any) -> Any:
        opened.append(arguments)
        return open_classifier(*arguments, **settings)

    monkeypatch.setattr(plan, "open_classifier", counted)
    worker = Extractor(data / "model.onnx", data / "src", None, SETTINGS)
    for first in (40, 0, 20):
        found = worker(columns([{"domain": "source", "first": first, "last": first + 20}]))
        assert found["position"].tolist() == list(range(first, first + 20))
        assert found["logits"].shape == (20, 3)
    assert len(opened) == 1


def test_a_row_that_cannot_be_read_comes_back_with_its_reason(data: Path) -> None:
    worker = Extractor(data / "model.onnx", data / "src", None, SETTINGS)
    found = worker(columns([{"domain": "source", "first": 0, "last": 110}]))
    (bad,) = np.flatnonzero(found["reason"] != "")
    assert found["id"][bad] == CORRUPT
    assert found["reason"][bad] == "this is not an image, or its format is unknown"
    assert np.isnan(found["logits"]).all(axis=1).nonzero()[0].tolist() == [bad]


def test_after_lost_pieces_resume_runs_only_what_is_missing(data: Path, tmp_path: Path) -> None:
    def losing(pieces: list[Piece], *rest: Any) -> Iterator[Columns]:
        yield from shuffled([*pieces[:2], *pieces[3:]], *rest)

    output = tmp_path / "ray.h5"
    with pytest.raises(CovcalError, match=r"78 rows of the source did not come back .* --resume"):
        run(data, output, losing)
    assert not output.exists()
    assert was_stopped(output)
    asked: list[Piece] = []

    def noting(pieces: list[Piece], *rest: Any) -> Iterator[Columns]:
        asked.extend(pieces)
        yield from shuffled(pieces, *rest)

    run(data, output, noting, resume=True)
    assert {piece["domain"] for piece in asked} == {"source"}
    assert min(piece["first"] for piece in asked) == 2 * LENGTH
    assert sha256_of(output) == sha256_of(direct(data, tmp_path / "direct.h5"))


def test_a_worker_with_other_data_is_an_error(data: Path, tmp_path: Path) -> None:
    def elsewhere(*arguments: Any) -> Iterator[Columns]:
        for block in shuffled(*arguments):
            ids = np.array([f"{known}x" for known in block["id"]], dtype=object)
            yield {**block, "id": ids}

    with pytest.raises(
        CovcalError, match=r"png on this machine, but .*pngx on a worker: give every node"
    ):
        run(data, tmp_path / "ray.h5", elsewhere)
    assert not (tmp_path / "ray.h5").exists()


def test_logits_that_are_no_numbers_are_named_as_by_the_direct_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).normal(size=(60, 1, SIDE, SIDE)).astype(np.float32)
    x[37] = 3e38  # a number, and its sums are none
    np.savez(tmp_path / "large.npz", x=x)
    given = (data / "model.onnx", None, tmp_path / "large.npz")
    with pytest.raises(CovcalError) as expected:
        extract(*given, tmp_path / "direct.h5", SETTINGS)
    monkeypatch.setattr(example, "run_on_ray", shuffled)
    with pytest.raises(CovcalError) as found:
        extract_with_ray(*given, tmp_path / "ray.h5", SETTINGS, actors=1)
    assert "NaN or infinite" in str(expected.value)
    assert str(found.value) == str(expected.value)


def test_a_worker_s_error_is_told_without_its_traceback() -> None:
    lines = ["worker 3", "  File x.py", "package.CovcalError: a.npz: row 3", "", "direct cause:"]
    quoted = "\n".join([*lines, "engine.UserCodeException: it failed", "To retry, ask."])
    assert example.first_error(RuntimeError(quoted)) == "package.CovcalError: a.npz: row 3"
    assert example.first_error(RuntimeError("lost a node")) == "lost a node"
    assert example.first_error(RuntimeError()) == "RuntimeError"


def test_an_existing_output_is_refused_before_any_worker_starts(data: Path, tmp_path: Path) -> None:
    def never(*_: Any) -> Iterator[Columns]:
        pytest.fail("workers were started")

    output = tmp_path / "ray.h5"
    output.write_bytes(b"kept")
    with pytest.raises(OutputExistsError, match="exists already"):
        run(data, output, never)
    assert output.read_bytes() == b"kept"


@pytest.mark.real
@pytest.mark.skipif(find_spec("ray") is None, reason='Ray is missing: pip install "ray[data]"')
def test_a_run_on_local_ray_gives_the_bytes_of_the_direct_run(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, example.__file__, "model.onnx", "src"]
    options = ["tgt.npz", "-o", str(tmp_path / "ray.h5"), "--threads", "1"]
    done = subprocess.run(command + options, check=True, capture_output=True, text=True, cwd=data)
    assert done.stdout.splitlines()[:2] == ["source    109 rows", "target    41 rows"]
    assert sha256_of(tmp_path / "ray.h5") == sha256_of(direct(data, tmp_path / "direct.h5"))
