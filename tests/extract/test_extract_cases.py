"""What people meet: every entry of the table of errors, and ten public cases, by command line.

An error is exit code 1 and one line; only options and arguments give 2.
"""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper
from PIL import Image

from tests.classifiers.onnx.onnx_graphs import (
    CONV_HIDDEN,
    D_IN,
    GEMM,
    HIDDEN,
    IMAGE,
    SIDE,
    WEIGHTS,
    Graph,
    K,
    grey_classifier,
    node,
)
from tests.classifiers.onnx.onnx_refused_cases import REFUSED
from tests.cli_runner import Outcome, covcal

SOFTMAX = Graph([*HIDDEN, GEMM, node("Softmax", "z", "y", axis=1)])


def rows(folder: Path, name: str, n: int = 60, shape: tuple[int, ...] = (D_IN,)) -> Path:
    """Save made rows with labels in turn."""
    x = np.random.default_rng(0).normal(size=(n, *shape)).astype(np.float32)
    np.savez(folder / name, x=x, y=np.arange(n) % K)
    return folder / name


def images(folder: Path, names: list[str], seed: int = 0) -> Path:
    """Save made grey images under these names."""
    rng = np.random.default_rng(seed)
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)).save(path)
    return folder


def extract(folder: Path, *options: str | int | Path, model: str = "model.onnx") -> Outcome:
    """Run ``covcal extract MODEL src tgt``, whatever form src and tgt have."""
    found = [next(iter(sorted(folder.glob(f"{name}*")))).name for name in ("src", "tgt")]
    return covcal("extract", model, *found, *options, cwd=folder)


def written(folder: Path) -> dict[str, NDArray[Any]]:
    """Read every dataset of features.h5 by its path."""
    found: dict[str, NDArray[Any]] = {}
    with h5py.File(folder / "features.h5") as file:
        file.visititems(
            lambda name, item: (
                found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
            )
        )
    return found


def write(content: bytes) -> Callable[[Path], None]:
    """Return a maker of a model file with this content."""

    def make(folder: Path) -> None:
        (folder / "model.onnx").write_bytes(content)

    return make


def save(name: str) -> Callable[[Path], None]:
    """Return a maker of one of the graphs that are refused, and rows for it."""

    def make(folder: Path) -> None:
        graph = REFUSED[name].graph
        graph.save(folder)
        shape = tuple(size for size in graph.shape[1:] if isinstance(size, int))
        for domain in ("src.npz", "tgt.npz"):
            rows(folder, domain, shape=shape)

    return make


def save_apart(path: Path, location: str) -> None:
    """Save a model whose weights lie in a file of their own."""
    onnx.save(
        SOFTMAX.model(), path, save_as_external_data=True, location=location, size_threshold=0
    )


def external(folder: Path) -> None:
    """Save a model whose weights are gone."""
    save_apart(folder / "model.onnx", "m.data")
    (folder / "m.data").unlink()


def newer(folder: Path) -> None:
    """Save a model of an operator set that does not exist yet."""
    model = SOFTMAX.model()
    model.opset_import[0].version = 99
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def custom(folder: Path) -> None:
    """Save a model with an operator of somebody's own."""
    model = SOFTMAX.model()
    model.graph.node[2].CopyFrom(helper.make_node("Foo", ["h2"], ["phi"], domain="my.custom"))
    model.opset_import.append(helper.make_opsetid("my.custom", 1))
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def bad_images(folder: Path) -> None:
    """Save a source of which two images in a hundred are damaged."""
    grey_classifier(folder)
    names = [f"{i % 3}/{i}.png" for i in range(100)]
    images(folder / "src", names)
    images(folder / "tgt", names[:9])
    (folder / "src" / "1" / "1.png").write_bytes(b"<html>")
    content = (folder / "src" / "2" / "2.png").read_bytes()
    (folder / "src" / "2" / "2.png").write_bytes(content[: len(content) // 2])


def other_classes(folder: Path) -> None:
    """Save a target with a class folder that the source lacks."""
    grey_classifier(folder)
    images(folder / "src", [f"{name}/{i}.png" for name in ("0", "90", "270") for i in range(3)])
    images(folder / "tgt", ["90/1.png", "180/1.png"])


def grey_images(folder: Path) -> None:
    """Save a grey classifier and images."""
    grey_classifier(folder)
    for domain in ("src", "tgt"):
        images(folder / domain, [f"{i % 3}/{i}.png" for i in range(9)])


def wrong_shape(folder: Path) -> None:
    """Save rows of another shape than the model's."""
    grey_classifier(folder)
    for domain in ("src.npz", "tgt.npz"):
        rows(folder, domain, shape=(3, SIDE, SIDE))


def unlabelled_images(folder: Path) -> None:
    """Save a source of images that lie in no class folder."""
    grey_classifier(folder)
    for domain in ("src", "tgt"):
        images(folder / domain, [f"{i}.png" for i in range(9)])


def unlabelled_rows(folder: Path) -> None:
    """Save a source array without y."""
    SOFTMAX.save(folder)
    x = np.load(rows(folder, "tgt.npz"))["x"]
    np.savez(folder / "src.npz", x=x + 1)


NO_LABELS = "has no labels, but a source needs labels: "
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
WHOLE = SOFTMAX.model().SerializeToString()

# situation -> (how it is made, options, message)
ERRORS: dict[str, tuple[Callable[[Path], None], tuple[str | int, ...], str]] = {
    "LFS pointer": (write(LFS), (), "is a Git LFS pointer, .*: run git lfs pull"),
    "empty": (write(b""), (), r"model\.onnx is empty \(0 bytes\)"),
    "truncated": (write(WHOLE[:200]), (), r"is cut short or is not an ONNX model \(200 bytes\)"),
    "not ONNX": (write(b"hello\n" * 50), (), r"is cut short or is not an ONNX model \(300 bytes\)"),
    "external data missing": (external, (), r"needs the file m\.data .*w1"),
    "new opset": (newer, (), "opset 99|operator set 99"),
    "custom op": (custom, (), r"my\.custom"),
    "several heads": (save("two heads"), (), "choose one with --model-output NAME"),
    "no head": (save("no layer"), (), r"choose the features with --phi input"),
    "not affine": (save("relu after the 1x1 convolution"), (), "--phi none"),
    "colour": (grey_images, ("--color", "RGB"), "--color RGB does not fit .*: change --color"),
    "size": (grey_images, ("--size", 7), "--size 7 does not fit .*: pass --size 4"),
    "shape": (wrong_shape, (), r"\[N, 3, 4, 4\].*\[N, 1, 4, 4\]"),
    "source images without labels": (
        unlabelled_images,
        (),
        NO_LABELS + "put its images in class folders",
    ),
    "source rows without labels": (
        unlabelled_rows,
        (),
        NO_LABELS + "save an array named 'y' of class numbers",
    ),
    "stateful": (save("a state"), (), "do not have one row per example: state"),
    "rank 3": (save("rank 3"), (), "rank 3"),
    "bad images": (
        bad_images,
        (),
        r"src: more than 1 % of 100 images cannot be read: 1/1\.png \(this is not.*2/2\.png \(",
    ),
    "class mismatch": (
        other_classes,
        (),
        r"tgt: folder '180' is not a class of the source \(0, 90, 270\)",
    ),
}


@pytest.mark.parametrize("situation", ERRORS)
def test_an_error_is_one_line_with_cause_and_remedy(situation: str, tmp_path: Path) -> None:
    """Exit code 1, nothing on stdout, nothing written."""
    make, options, message = ERRORS[situation]
    make(tmp_path)
    for domain in ("src", "tgt"):
        if not list(tmp_path.glob(f"{domain}*")):
            rows(tmp_path, f"{domain}.npz")
    before = sorted(path.name for path in tmp_path.iterdir())
    line = extract(tmp_path, *options).error_line()
    assert re.search(message, line), line
    assert re.search(r"[:.] (Pass|Export|[a-z])", line)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


class TestPublicCases:
    """Ten reports from public trackers, each in its smallest form (notes/extract.md, 9)."""

    def test_1_a_class_folder_missing_in_the_target(self, tmp_path: Path) -> None:
        """ultralytics/ultralytics#13936: the other labels keep their classes."""
        grey_classifier(tmp_path)
        images(tmp_path / "src", [f"{name}/{i}.png" for name in "abc" for i in range(6)])
        images(tmp_path / "tgt", [f"{name}/{i}.png" for name in "ac" for i in range(4)])
        done = extract(tmp_path).require_success()
        assert written(tmp_path)["target/labels"].tolist() == [0] * 4 + [2] * 4
        assert "note: tgt has no rows of these classes (1 of 3): b" in done.err

    def test_2_numbered_folders_in_the_order_of_their_text(self, tmp_path: Path) -> None:
        """pytorch/vision#714: folder 10 is class 10, not class 2."""
        grey_classifier(tmp_path, n_classes=12)
        for domain in ("src", "tgt"):
            images(tmp_path / domain, [f"{k}/{i}.png" for k in range(12) for i in range(3)])
        extract(tmp_path).require_success()
        found = written(tmp_path)
        names = [bytes(name).decode().partition("/")[0] for name in found["source/ids"]]
        assert found["source/labels"].tolist() == [int(name) for name in names]
        assert found["classes"].tolist() == [str(k).encode() for k in range(12)]

    def test_3_a_batch_fixed_at_one(self, tmp_path: Path) -> None:
        """onnx/models#255: the same rows as with a free batch."""
        for domain in ("src.npz", "tgt.npz"):
            rows(tmp_path, domain, n=20)
        found = []
        for batch in ("N", 1):
            Graph(
                [*HIDDEN, GEMM], outputs=("z",), shape=(batch, D_IN), shapes={"z": [batch, K]}
            ).save(tmp_path)
            extract(tmp_path, "-f").require_success()
            found.append(written(tmp_path))
        np.testing.assert_allclose(
            found[0]["target/logits"], found[1]["target/logits"], rtol=1e-5, atol=1e-6
        )

    def test_4_a_cache_of_links_with_weights_beside(self, tmp_path: Path) -> None:
        """microsoft/onnxruntime#27353: a Hugging Face snapshot links to files called by hash."""
        blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1a2b"
        blobs.mkdir()
        snapshot.mkdir(parents=True)
        save_apart(blobs / "model.onnx", "model.data")
        for name, blob in (("model.onnx", "77aa"), ("model.data", "88bb")):
            (blobs / name).rename(blobs / blob)
            (snapshot / name).symlink_to(os.path.relpath(blobs / blob, snapshot))
        for domain in ("src.npz", "tgt.npz"):
            rows(tmp_path, domain)
        extract(tmp_path, model="snapshots/1a2b/model.onnx").require_success()
        plain = tmp_path / "plain.h5"
        SOFTMAX.save(tmp_path)
        extract(tmp_path, "-o", plain).require_success()
        with h5py.File(plain) as file:
            np.testing.assert_array_equal(
                file["target/logits"][:], written(tmp_path)["target/logits"]
            )

    def test_5_logits_and_what_comes_before_them_in_one_pass(self, tmp_path: Path) -> None:
        """huggingface/pytorch-image-models#2186: features are not the logits themselves."""
        SOFTMAX.save(tmp_path)
        for domain in ("src.npz", "tgt.npz"):
            rows(tmp_path, domain)
        extract(tmp_path).require_success()
        found = written(tmp_path)
        x = np.load(tmp_path / "src.npz")["x"]
        phi = np.maximum(x @ WEIGHTS["w1"] + WEIGHTS["b1"], 0)
        np.testing.assert_allclose(found["source/features"], phi, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            found["source/logits"], phi @ WEIGHTS["w"].T + WEIGHTS["b"], rtol=1e-4, atol=1e-4
        )

    def test_6_features_of_a_scripted_model(self, tmp_path: Path) -> None:
        """pytorch/pytorch#86818: TorchScript takes no hooks, and its features are found anyway."""
        torch = pytest.importorskip("torch")
        torch.manual_seed(0)
        layers = (torch.nn.Linear(D_IN, 5), torch.nn.ReLU(), torch.nn.Linear(5, K))
        module = torch.nn.Sequential(*layers).eval()
        from tests.classifiers.torch.torch_modules import save as save_torch

        save_torch(module, "scripted", tmp_path / "model.pt", torch.zeros(2, D_IN))
        for domain in ("src.npz", "tgt.npz"):
            rows(tmp_path, domain)
        extract(tmp_path, "--trust-model", model="model.pt").require_success()
        x = torch.from_numpy(np.load(tmp_path / "tgt.npz")["x"])
        with torch.inference_mode():
            phi = module[:2](x).numpy()
        np.testing.assert_allclose(written(tmp_path)["target/features"], phi, atol=1e-6)

    def test_7_other_preprocessing_than_in_training(self, tmp_path: Path) -> None:
        """ultralytics/ultralytics#7069: a file beside the model is used, recorded, and said."""
        grey_images(tmp_path)
        extract(tmp_path).require_success()
        guessed = written(tmp_path)["source/features"]
        settings = {
            "image_processor_type": "ViTImageProcessor",
            "resample": 2,
            "do_resize": True,
            "size": {"height": SIDE, "width": SIDE},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [0.5],
            "image_std": [0.25],
        }
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
        done = extract(tmp_path, "-f").require_success()
        assert "mean 0.5" in done.out
        assert "std 0.25" in done.out
        assert "preprocessor_config.json" in done.err
        found = written(tmp_path)["source/features"]
        np.testing.assert_allclose(found, (guessed - 0.5) / 0.25, atol=1e-5)
        with h5py.File(tmp_path / "features.h5") as file:
            assert "0.25" in file.attrs["preprocessing"]

    def test_8_one_truncated_image_hangs_nothing(self, tmp_path: Path) -> None:
        """rom1504/clip-retrieval#257: it is skipped, and named with its reason."""
        grey_classifier(tmp_path)
        names = [f"{i % 3}/{i:03d}.png" for i in range(150)]
        images(tmp_path / "src", names)
        images(tmp_path / "tgt", names)
        path = tmp_path / "tgt" / names[70]
        path.write_bytes(path.read_bytes()[:45])
        done = extract(tmp_path, "--batch", 16).require_success()
        assert f": {names[70]} (" in done.err
        assert len(written(tmp_path)["target/logits"]) == 149

    def test_9_hidden_folders_are_no_classes(self, tmp_path: Path) -> None:
        """open-mmlab/mmpretrain#507: .ipynb_checkpoints does not become class 0."""
        grey_classifier(tmp_path)
        for domain in ("src", "tgt"):
            images(tmp_path / domain, [f"{name}/{i}.png" for name in "abc" for i in range(3)])
            images(tmp_path / domain, [".ipynb_checkpoints/x.png", "a/.ipynb_checkpoints/x.png"])
        extract(tmp_path).require_success()
        found = written(tmp_path)
        assert found["classes"].tolist() == [b"a", b"b", b"c"]
        assert found["target/labels"].tolist() == [0] * 3 + [1] * 3 + [2] * 3

    def test_10_features_of_a_convolutional_net_without_knowing_names(self, tmp_path: Path) -> None:
        """microsoft/onnxruntime#19954: float and int8, found by the structure alone."""
        constants = {"w5": WEIGHTS["w"], "axes": np.array([0], np.int64)}
        nodes = [
            *CONV_HIDDEN,
            node("GlobalAveragePool", "maps", "pooled"),
            node("Flatten", "pooled", "flat", axis=1),
            node("Gemm", "flat w5 b", "y", transB=1),
        ]
        Graph(nodes, constants=constants, shape=IMAGE).save(tmp_path)
        for domain in ("src.npz", "tgt.npz"):
            rows(tmp_path, domain, shape=IMAGE[1:])
        extract(tmp_path).require_success()
        exact = written(tmp_path)
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(
            tmp_path / "model.onnx", tmp_path / "int8.onnx", weight_type=QuantType.QInt8
        )
        done = extract(tmp_path, "-f", model="int8.onnx").require_success()
        assert "; 5 features" in done.out
        found = written(tmp_path)
        scale = np.abs(exact["target/logits"]).max()
        assert np.abs(found["target/logits"] - exact["target/logits"]).max() < 0.1 * scale
        session = ort.InferenceSession(tmp_path / "int8.onnx")
        x = np.load(tmp_path / "tgt.npz")["x"]
        alone = [session.run(None, {"x": row[None]})[0][0] for row in x]
        np.testing.assert_allclose(found["target/logits"], alone, atol=1e-5 * scale)
