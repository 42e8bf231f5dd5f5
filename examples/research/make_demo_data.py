"""Make the data of ``covcal demo``: a tiny ONNX classifier and two sets of digit images.

The digits are scikit-learn's ``load_digits``: 1 797 images of real handwriting with 8 x 8 pixels.
The source is a random half of the digits. The target is the other half, with turned and bolder
digits (`shifted`). The classifier is a small network, trained on 60 % of the source until it is
over-confident.

    python examples/research/make_demo_data.py OUTPUT_FOLDER

The script writes digits.onnx, source.npz and target.npz. These files are part of the package, in
covcal_cli/demo/.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

SEED = 0
HIDDEN = 32
Pixels = NDArray[np.uint8]


def shifted(images: Pixels, rng: np.random.Generator) -> Pixels:
    """Return turned and bolder images, shape (n, 8, 8).

    Each image is turned clockwise by a random angle (mean 10 degrees, standard deviation 6). A
    pixel becomes at least half as dark as its darkest neighbour.
    """
    turned = np.stack(
        [
            np.asarray(
                Image.fromarray(image).rotate(-angle, resample=Image.Resampling.BILINEAR),
                dtype=np.float64,
            )
            for image, angle in zip(images, rng.normal(10.0, 6.0, len(images)), strict=True)
        ]
    )
    padded = np.pad(turned, ((0, 0), (1, 1), (1, 1)))
    shifts = [padded[:, dy : dy + 8, dx : dx + 8] for dy in range(3) for dx in range(3)]
    bold: Pixels = np.rint(np.maximum(turned, 0.5 * np.max(shifts, axis=0))).astype(np.uint8)
    return bold


def splits(n: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a random split of n rows: 0 (train, 50 %), 1 (validation, 25 %) or 2 (test, 25 %)."""
    codes = np.repeat(np.arange(3, dtype=np.uint8), [n - 2 * (n // 4), n // 4, n // 4])
    return rng.permutation(codes)


def as_onnx(network: MLPClassifier) -> onnx.ModelProto:
    """Convert the network to ONNX: images (n, 1, 8, 8) in 0..1 to probabilities (n, 10)."""
    names = ("w1", "b1", "w2", "b2")
    arrays = (network.coefs_[0], network.intercepts_[0], network.coefs_[1], network.intercepts_[1])
    nodes = [
        helper.make_node("Flatten", ["image"], ["pixels"]),
        helper.make_node("Gemm", ["pixels", "w1", "b1"], ["sums"]),
        helper.make_node("Relu", ["sums"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "w2", "b2"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 10])],
        [
            numpy_helper.from_array(array.astype(np.float32), name)
            for name, array in zip(names, arrays, strict=True)
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.checker.check_model(model)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the data of covcal demo.")
    parser.add_argument("output", type=Path)
    output: Path = parser.parse_args().output
    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    rng = np.random.default_rng(SEED)
    order = rng.permutation(len(images))
    source, target = order[: len(order) // 2], order[len(order) // 2 :]
    source_split, target_split = splits(len(source), rng), splits(len(target), rng)

    train = source[source_split == 0]
    network = MLPClassifier((HIDDEN,), alpha=1e-6, max_iter=2000, random_state=SEED)
    network.fit(images[train].reshape(-1, 64) / 255, digits.target[train])

    output.mkdir(parents=True, exist_ok=True)
    onnx.save(as_onnx(network), output / "digits.onnx")
    for name, x, rows, split in (
        ("source", images[source], source, source_split),
        ("target", shifted(images[target], rng), target, target_split),
    ):
        np.savez_compressed(
            output / f"{name}.npz",
            x=x,
            y=digits.target[rows].astype(np.int64),
            split=split,
            id=np.array([f"{row:04d}" for row in rows]),
        )


if __name__ == "__main__":
    main()
