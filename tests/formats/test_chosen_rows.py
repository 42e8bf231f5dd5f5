"""Rows of very large files: the same as if all were in memory, in memory that does not grow."""

import gc
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest

from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.estimate import expect
from covcal_cli.calibrate.problem import CalibrateSettings
from covcal_cli.forecast import UNSCALED, ScaledLogits
from covcal_cli.formats import features
from covcal_cli.formats.features import FeatureFile, thinned
from covcal_cli.labels.target_labels import random_labels
from covcal_cli.watch.sketches import reference_of
from tests.made_files import Arrays, made_domain, write_features


def shuffled(domain: Arrays) -> Arrays:
    """Return a domain whose splits are mixed, as they are in files."""
    order = np.random.default_rng(3).permutation(len(domain["split"]))
    return domain | {"split": domain["split"][order]}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = shuffled(made_domain("target", shift=0.7))
    return write_features(tmp_path_factory.mktemp("chosen") / "f.h5", target=target)


@pytest.mark.parametrize("block", [7, 333, 1 << 18])
@pytest.mark.parametrize("splits", [("train",), ("train", "validation"), ("test", "train")])
def test_drawn_rows_are_those_of_all_rows(
    path: Path, block: int, splits: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "_SPLIT_ROWS", block)
    with FeatureFile(path) as file:
        target = file.require_target()
        everything = np.sort(np.concatenate([target.rows(name) for name in splits]))
        for most in (0, 1, 40, 300, 799, 5000):
            expected = thinned(everything, most, 5)
            np.testing.assert_array_equal(target.drawn(most, 5, *splits), expected)
        np.testing.assert_array_equal(
            np.concatenate(list(target.split_blocks(*splits))), everything
        )
        assert target.count(*splits) == len(everything)


@pytest.mark.parametrize("block", [200, 1 << 20])
def test_rows_in_any_order_are_read_in_that_order(
    path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`estimate --metrics --by` reads the labelled rows after all other rows."""
    monkeypatch.setattr(features, "_BLOCK_BYTES", block)
    with FeatureFile(path) as file, h5py.File(path) as plain:
        logits = plain["target/logits"][:]
        for rows in ([900, 3, 3, 500], [3, 3, 5], [0, 999, 1], [7, 7]):
            np.testing.assert_array_equal(
                file.require_target().logits(np.array(rows)), logits[rows]
            )


@pytest.mark.parametrize("step", [1, 3, 50, 333])
def test_rows_far_apart_are_read_as_they_are(
    path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever lies between them, they come out, and in spans that are bounded."""
    monkeypatch.setattr(features, "_BLOCK_BYTES", 200)
    with FeatureFile(path) as file:
        target, rows = file.require_target(), np.arange(5, 1000, step)
        with h5py.File(path) as plain:
            whole = plain["target/logits"][:]
            ids = plain["target/ids"][:]
        np.testing.assert_array_equal(target.logits(rows), whole[rows])
        np.testing.assert_array_equal(target.id_bytes(rows), ids[rows])


def tiled(path: Path, times: int) -> Path:
    """Write a file whose target is a made one many times over, mixed."""
    target = made_domain("target", sizes=(300, 100, 100), shift=0.7)
    many = {
        name: np.concatenate([values] * times) for name, values in target.items() if name != "ids"
    }
    many["ids"] = np.arange(len(many["split"])).astype("S7")
    return write_features(path, target=shuffled(many))


def sketch(path: Path) -> None:
    """Make the reference data of watch."""
    with FeatureFile(path) as file:
        assert reference_of(file, ScaledLogits(UNSCALED), 0, "0" * 64) is not None


def read_in_every_way(path: Path) -> None:
    for read in (
        lambda: calibrate(path, CalibrateSettings(method="iw+temp")),
        lambda: calibrate(path, labels=random_labels(path, 50)),
        lambda: expect(path),
        lambda: sketch(path),
    ):
        gc.collect()  # what is left of the one before is no part of the next
        read()


def peak(path: Path) -> int:
    """Return the bytes that are in use at most while all that reads a target does so."""
    tracemalloc.start()
    try:
        read_in_every_way(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte a row, the split, is all that is kept."""
    monkeypatch.setattr(features, "_BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(features, "_SPLIT_ROWS", 1 << 11)
    monkeypatch.setattr("covcal_cli.hdf5._BLOCK_BYTES", 1 << 14)  # of the checksums
    for name in (
        "estimators.inputs.MAX_ROWS",
        "watch.sketches.MAX_ROWS",
        "calibrate.problem.MAX_DISCRIMINATED",
        "labels.target_labels.MAX_FRAME",
    ):
        monkeypatch.setattr(f"covcal_cli.{name}", 1000)
    monkeypatch.setattr("covcal_cli.calibrate.problem.MAX_ROWS_PER_DOMAIN", 1000)
    read_in_every_way(tiled(tmp_path / "500.h5", 1))  # what it imports stays
    sizes = [6_000, 16_000]
    peaks = [peak(tiled(tmp_path / f"{size}.h5", size // 500)) for size in sizes]
    assert (peaks[1] - peaks[0]) / (sizes[1] - sizes[0]) < 3
