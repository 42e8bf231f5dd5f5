"""ONNX files on the disk: external weights, links of a download cache, hashes, odd files."""

import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from covcal_cli.classifiers.onnx.file import provider_names
from covcal_cli.errors import CovcalError
from tests.classifiers.onnx.onnx_case import inputs_of
from tests.classifiers.onnx.onnx_graphs import GEMM, HIDDEN, Graph, node
from tests.classifiers.opening import open_classifier, open_onnx

SOFTMAX = Graph([*HIDDEN, GEMM, node("Softmax", "z", "y", axis=1)])


def with_external_weights(folder: Path, location: str = "model.data") -> Path:
    path = folder / "model.onnx"
    onnx.save(
        SOFTMAX.model(), path, save_as_external_data=True, location=location, size_threshold=0
    )
    return path


def cached(folder: Path) -> Path:
    """Lay the model out as a download cache does: links in a snapshot, contents in blobs."""
    (folder / "whole").mkdir()
    whole = with_external_weights(folder / "whole")
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "0a1b"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for name, blob in (("model.onnx", "9f86d081"), ("model.data", "60303ae2")):
        (blobs / blob).write_bytes((whole.parent / name).read_bytes())
        (snapshot / name).symlink_to(Path("..") / ".." / "blobs" / blob)
    return snapshot / "model.onnx"


def test_links_of_a_download_cache_are_followed(tmp_path: Path) -> None:
    path = cached(tmp_path)
    x = inputs_of(SOFTMAX)
    linked, plain = open_onnx(path), open_onnx(tmp_path / "whole" / "model.onnx")
    read = linked.prove(x)
    for found, expected in zip(read.run(x), plain.prove(x).run(x), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert linked.sha256 == plain.sha256
    assert linked.name == "model.onnx"
    assert read.exposure_error == 0.0


def test_external_weights_in_a_subfolder_are_found(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    opened = open_onnx(with_external_weights(tmp_path, "weights/model.data"))
    classifier = opened.prove(inputs_of(SOFTMAX))
    features, _ = classifier.run(inputs_of(SOFTMAX))
    assert features is not None


def test_a_model_in_a_linked_folder_is_opened(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    with_external_weights(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    opened = open_onnx(tmp_path / "link" / "model.onnx")
    classifier = opened.prove(inputs_of(SOFTMAX))
    assert classifier.tail == "softmax"


def test_the_hash_is_the_files_own_without_external_weights(tmp_path: Path) -> None:
    path = SOFTMAX.save(tmp_path)
    assert open_onnx(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_hash_covers_external_weights(tmp_path: Path) -> None:
    path = with_external_weights(tmp_path)
    data = tmp_path / "model.data"
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, data)]
    expected = hashlib.sha256("".join(digests).encode()).hexdigest()
    assert open_onnx(path).sha256 == expected
    changed = bytearray(data.read_bytes())
    changed[0] ^= 1
    data.write_bytes(changed)
    assert open_onnx(path).sha256 != expected


def test_cut_external_weights_are_named(tmp_path: Path) -> None:
    path = with_external_weights(tmp_path)
    data = tmp_path / "model.data"
    data.write_bytes(data.read_bytes()[:50])
    with pytest.raises(CovcalError, match=r"needs \d+ bytes of model\.data, but that file has 50"):
        open_onnx(path)


def test_external_weights_that_are_an_lfs_pointer_are_named(tmp_path: Path) -> None:
    path = with_external_weights(tmp_path)
    (tmp_path / "model.data").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CovcalError, match=r"model\.data is a Git LFS pointer.*git lfs pull"):
        open_onnx(path)


def test_missing_weights_of_a_constant_node_are_named(tmp_path: Path) -> None:
    model = SOFTMAX.model()
    tensor = TensorProto(name="inner", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="gone.data")
    model.graph.node.append(helper.make_node("Constant", [], ["unused"], value=tensor))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(
        CovcalError,
        match=r"needs the file gone\.data with weights such as 'inner'",
    ):
        open_onnx(path)


def test_a_custom_operator_is_named(tmp_path: Path) -> None:
    graph = Graph(
        [*HIDDEN, node("my.custom:Foo", "phi", "f"), node("Gemm", "f w b", "y", transB=1)]
    )
    with pytest.raises(
        CovcalError,
        match=r"node 'f' needs the custom operator my\.custom\.Foo.*: .*standard",
    ):
        open_onnx(graph.save(tmp_path))


def test_operators_that_the_model_defines_itself_are_fine(tmp_path: Path) -> None:
    model = SOFTMAX.model()
    model.functions.append(
        helper.make_function(
            "own.domain",
            "Twice",
            ["a"],
            ["c"],
            [helper.make_node("Add", ["a", "a"], ["c"])],
            [helper.make_opsetid("", 17)],
        )
    )
    model.opset_import.append(helper.make_opsetid("own.domain", 1))
    model.graph.node[2].input[0] = "twice"
    model.graph.node.insert(2, helper.make_node("Twice", ["h2"], ["twice"], domain="own.domain"))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    plain = open_onnx(SOFTMAX.save(tmp_path, "plain.onnx"))
    x = inputs_of(SOFTMAX)
    features, doubled = plain.prove(x).run(x)[0], open_onnx(path).prove(x).run(x)[0]
    assert features is not None
    assert doubled is not None
    np.testing.assert_allclose(doubled, 2 * features, rtol=1e-6)


def test_an_unavailable_provider_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(
        CovcalError, match=r"--providers rocket is not available .*: choose from .*CPU"
    ):
        open_classifier(SOFTMAX.save(tmp_path), providers=("rocket",))


@pytest.mark.parametrize("asked", [(), ("cpu",), ("CPU", "cpu"), ("CPUExecutionProvider",)])
def test_providers_go_by_short_names(asked: tuple[str, ...]) -> None:
    assert provider_names(asked) == ("CPUExecutionProvider",)


def test_weights_with_an_onnx_file_are_refused(tmp_path: Path) -> None:
    path = SOFTMAX.save(tmp_path)
    with pytest.raises(CovcalError, match="contains its weights: leave out --weights"):
        open_classifier(path, weights=path)
    with pytest.raises(CovcalError, match=r"nets does not exist: .* or module:function"):
        open_classifier(tmp_path / "nets", weights=path)


@pytest.mark.real
def test_weights_beyond_two_gigabytes_of_an_external_file_are_found(tmp_path: Path) -> None:
    """The file is sparse: no bytes on the disk, but offsets that need more than 31 bits."""
    if "COVCAL_LARGE_FILES" not in os.environ:
        pytest.skip("reads 2.2 GB: set COVCAL_LARGE_FILES to run it")
    path = with_external_weights(tmp_path)
    model = onnx.load(path, load_external_data=False)
    start, data = 2_200 << 20, tmp_path / "model.data"
    weights = data.read_bytes()
    with data.open("wb") as stream:
        stream.seek(start)
        stream.write(weights)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "offset":
                entry.value = str(start + int(entry.value))
    path.write_bytes(model.SerializeToString())
    x = inputs_of(SOFTMAX)
    found = open_onnx(path).prove(x).run(x)
    expected = open_onnx(SOFTMAX.save(tmp_path, "plain.onnx")).prove(x).run(x)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
