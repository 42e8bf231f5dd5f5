"""A disk that fills up while features are written: one line, and nothing left behind."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from covcal_cli.formats.writer import HDF5Writer
from tests.classifiers.onnx.onnx_graphs import grey_classifier
from tests.cli_runner import covcal_process

LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))"


@pytest.mark.parametrize("limit", [100_000, 1_400_000])
def test_a_full_disk_is_one_line_and_leaves_nothing(limit: int, tmp_path: Path) -> None:
    """The first fills while batches are kept, the second while features.h5 is written."""
    grey_classifier(tmp_path)
    x = np.random.default_rng(0).random((20_000, 1, 4, 4), dtype=np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    arguments = ("extract", "model.onnx", "--target", "x.npz", "-o", "f.h5", "-q")
    done = covcal_process(
        *arguments, cwd=tmp_path, before=LIMIT.format(limit), modules=["onnx", "onnxruntime"]
    )
    line = done.error_line()
    assert line.startswith(f"no space left to write {tmp_path / 'f.h5'}: free some space")
    assert not list(tmp_path.glob("*f.h5*"))


def test_a_file_that_cannot_be_begun_is_closed(tmp_path: Path) -> None:
    """Python would crash at its end if the HDF5 file were still open."""

    def opened() -> int:
        return int(h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE))

    before = opened()
    with pytest.raises(TypeError):
        HDF5Writer(tmp_path / "x.h5", schema="s", classes=["a"], attributes={"a": object()})  # type: ignore[dict-item]
    assert opened() == before
