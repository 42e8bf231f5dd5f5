"""``extract`` from data in every format: the same features file, whatever the data lay in."""

from pathlib import Path

import h5py
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from covcal_cli.extract.extract import extract
from covcal_cli.extract.settings import ExtractSettings
from tests.made_rows import made_rows, png, write_rows, write_tar

SOURCE, TARGET = made_rows(60), made_rows(30)
DATASETS = ("features", "logits", "labels", "split", "ids", "columns/site")


def classifier(folder: Path) -> Path:
    """Write a classifier of four features and three classes: Gemm, Relu, Gemm."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.normal(size=(4, 5)),
        "b1": rng.normal(size=5),
        "w2": rng.normal(size=(5, 3)),
        "b2": rng.normal(size=3),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
            helper.make_node("Relu", ["h"], ["phi"]),
            helper.make_node("Gemm", ["phi", "w2", "b2"], ["logits"]),
        ],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in weights.items()],
    )
    path = folder / "model.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def written(kind: str, folder: Path, *, words: bool) -> dict[str, np.ndarray]:
    """Extract both domains from one format and return what was written."""
    (folder / "src").mkdir(parents=True)
    (folder / "tgt").mkdir()
    source = write_rows(kind, folder / "src", SOURCE, words=words)
    target = write_rows(kind, folder / "tgt", TARGET, words=words)
    extract(classifier(folder), source, target, folder / "f.h5", ExtractSettings(threads=1))
    with h5py.File(folder / "f.h5") as file:
        arrays = {
            f"{domain}/{name}": np.array(file[domain][name])
            for domain in ("source", "target")
            for name in DATASETS
        }
        return arrays | {"classes": np.array(file["classes"])}


@pytest.mark.parametrize(
    ("kind", "words"), [("h5", False), ("csv", True), ("csv", False), ("parquet", True)]
)
def test_the_format_of_the_data_does_not_matter(kind: str, words: bool, tmp_path: Path) -> None:
    expected = written("npz", tmp_path / "npz", words=words)
    found = written(kind, tmp_path / kind, words=words)
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    np.testing.assert_array_equal(expected["source/labels"], SOURCE.y)


def test_images_in_shards_and_in_folders_are_the_same(tmp_path: Path) -> None:
    """The ids differ, and so the split; features, logits and labels are equal."""
    from tests.classifiers.onnx.onnx_graphs import grey_classifier

    model = grey_classifier(tmp_path, n_classes=3)
    members: dict[str, bytes | str] = {}
    for number in range(30):
        name = ("ant", "bee", "cat")[number % 3]
        members |= {f"{name}-{number:02d}.png": png(8 * number), f"{name}-{number:02d}.cls": name}
        path = tmp_path / "folder" / name / f"{name}-{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(8 * number))
    shard = write_tar(tmp_path / "shard.tar", dict(sorted(members.items())))
    for name, data in (("a", tmp_path / "folder"), ("b", shard)):
        extract(model, data, None, tmp_path / f"{name}.h5", ExtractSettings(threads=1))
    with h5py.File(tmp_path / "a.h5") as one, h5py.File(tmp_path / "b.h5") as other:
        assert other["source/ids"][0] == b"shard/ant-00"
        for name in ("source/features", "source/logits", "source/labels", "classes"):
            np.testing.assert_array_equal(one[name][:], other[name][:], err_msg=name)
