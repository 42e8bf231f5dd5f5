"""Shards whose rows were picked and labelled, merged: labels go where their rows go."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from covcal_cli.extract.extract import extract
from covcal_cli.extract.settings import ExtractSettings, Selection, Shard
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.draws import Draw
from covcal_cli.labels.picked_labels import labelled_draw
from tests.classifiers.onnx.onnx_graphs import SIDE, grey_classifier
from tests.cli_runner import covcal
from tests.labels.labelling import fill, lines_of, truth

PICKED = {1: (7, 4), 2: (5, 3), 3: (6, 2)}  # rows of two batches, by shard


def extract_shard(folder: Path, index: int, path: Path) -> None:
    inputs = (folder / "model.onnx", folder / "source.npz", folder / "target.npz")
    settings = ExtractSettings(selection=Selection(shard=Shard(index, 3)), threads=1)
    extract(*inputs, path, settings, force=True)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three shards, two batches of each picked and labelled."""
    folder = tmp_path_factory.mktemp("shards")
    grey_classifier(folder)
    rng = np.random.default_rng(0)
    for domain, count in (("source", 40), ("target", 100)):
        x = rng.integers(0, 256, (count, SIDE, SIDE), dtype=np.uint8)
        np.savez(folder / f"{domain}.npz", x=x, y=np.arange(count) % 3)
    for index, sizes in PICKED.items():
        path = folder / f"part-{index}.h5"
        extract_shard(folder, index, path)
        for batch, n in enumerate(sizes):
            sheet = folder / f"{index}-{batch}.csv"
            covcal("pick", path, "-n", n, "-o", sheet).require_success()
            fill(sheet, path)
            covcal("label", path, sheet).require_success()
    return folder


def labelled(path: Path) -> Draw:
    with FeatureFile(path) as file:
        draw = labelled_draw(file)
    assert draw is not None
    return draw


def test_marks_go_with_their_rows(shards: Path, tmp_path: Path) -> None:
    parts = [shards / f"part-{index}.h5" for index in (3, 1, 2)]
    output = tmp_path / "merged.h5"
    covcal("merge", *parts, "-o", output).require_success()
    found, known = labelled(output), truth(output)
    with FeatureFile(output) as file:
        target = file.require_target()
        ids = target.ids(found.rows)
        assert [file.classes[label] for label in found.labels] == [known[one] for one in ids]
        population = target.count("train", "validation")
    assert [batch.population for batch in found.batches] == [population, population - 18]
    for batch in (0, 1):
        lines = [line for index in PICKED for line in lines_of(shards / f"{index}-{batch}.csv")]
        inclusion = {line["id"]: float(line["inclusion"]) for line in lines}
        held = found.batch == batch
        drawn = dict(zip(np.array(ids)[held].tolist(), found.inclusion[held].tolist(), strict=True))
        assert drawn == inclusion
        assert sorted(found.stratum[held].tolist()) == list(range(len(lines)))
    # What is merged can be picked from and labelled further.
    covcal("pick", output, "-n", 9, "-o", tmp_path / "x.csv").require_success()
    fill(tmp_path / "x.csv", output)
    covcal("label", output, tmp_path / "x.csv").require_success()
    assert len(labelled(output).rows) == 18 + 9 + 9


def test_shards_of_which_one_was_not_picked_from_are_refused(shards: Path, tmp_path: Path) -> None:
    """Its rows could not have been drawn, so that no estimate of all rows would be unbiased."""
    for index in PICKED:
        shutil.copy(shards / f"part-{index}.h5", tmp_path)
    extract_shard(shards, 2, tmp_path / "part-2.h5")
    parts = [f"part-{index}.h5" for index in PICKED]
    line = covcal("merge", *parts, "-o", "merged.h5", cwd=tmp_path).error_line()
    assert line.startswith(
        "part-2.h5 has 0 batches of picked rows, but part-1.h5 has 2: in each file, pick"
    )
    assert not (tmp_path / "merged.h5").exists()
