"""What a model's output is taken for is settled on all rows: the same at every --batch."""

from pathlib import Path

import h5py
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from scipy.special import expit, softmax

from covcal_cli.classifiers.classifier import Outputs
from tests.classifiers.onnx.onnx_chosen_cases import tree
from tests.classifiers.onnx.onnx_graphs import D_IN, Graph, node
from tests.cli_runner import covcal

Array = NDArray[np.float64]
N, K = 120, 4


def probabilities(k: int = K) -> Array:
    z = 3 * np.random.default_rng(k).normal(size=(N, k))
    return np.asarray(softmax(z, axis=1))


def forest() -> Array:
    p = probabilities()
    p[N // 2] = 1 + 4e-7, -4e-7, 0, 0
    return p


def clipped() -> Array:
    return probabilities().clip(0.02, 0.98)


def votes(trees: int) -> Array:
    rng = np.random.default_rng(trees)
    return np.array([rng.multinomial(trees, row) for row in probabilities()], dtype=np.float64)


def scores(most: int) -> Array:
    return np.rint(most * probabilities())


def shares(of: Array) -> Array:
    return np.asarray(of / of.sum(axis=1, keepdims=True))


# What the model prints, and the probabilities that it means; None for logits.
PRINTED: dict[str, tuple[Array, Array | None]] = {
    "probabilities": (probabilities(), probabilities()),
    "a forest's": (forest(), forest().clip(0, 1)),
    "percentages": (100 * probabilities(), probabilities()),
    "votes of 50": (votes(50), shares(votes(50))),
    "votes of 7": (votes(7), shares(votes(7))),
    "0 to 255": (scores(255), shares(scores(255))),
    "shares of 3.5": (3.5 * probabilities(), probabilities()),
    "clipped": (clipped(), clipped() / clipped().sum(axis=1, keepdims=True)),
    "logits": (np.log(probabilities()), None),
    "sigmoids": (expit(np.log(probabilities())), None),
}
WORDS = {
    "percentages": "every row sums to 100, as percentages do",
    "votes of 50": "every row sums to 50, as votes of 50 trees do, so each row is scaled",
    "votes of 7": "every row sums to 7, as votes of 7 trees do, so each row is scaled",
    "0 to 255": "every row sums to about 255, as quantised scores from 0 to 255 do",
    "shares of 3.5": "every row sums to about 3.5, like probabilities times 3.5",
    "clipped": "all outputs lie between 0.02 and 0.98, like clipped probabilities",
    "sigmoids": "all outputs of 240 rows lie between 0 and 1 and rows do not sum to 1",
}
SAME = "import torch\n\n\nclass Same(torch.nn.Linear):\n    def __init__(self):\n"
SAME += f"        super().__init__({K}, {K}, bias=False)\n"
SAME += f"        self.weight.data = torch.eye({K})\n"
FAR = f"""import numpy as np
import torch


class Far(torch.nn.Linear):
    def __init__(self):
        super().__init__({K}, {K}, dtype=torch.float64)
        with np.load("w.npz") as arrays:
            self.weight.data, self.bias.data = map(torch.from_numpy, (arrays["w"], arrays["b"]))
        self.example_input_array = torch.zeros(4, {K}, dtype=torch.float64)
"""


def same(folder: Path, kind: str) -> list[str]:
    """Save a model that gives its input as its output, and return how it is extracted."""
    if kind.startswith("torch"):
        (folder / "same_nets.py").write_text(SAME)
        return ["same_nets:Same", *(["--phi", "none"] if "alone" in kind else [])]
    layer = node("MatMul", "x eye", "y") if kind == "layer" else node("Neg", "n", "y")
    graph = Graph(
        [layer] if kind == "layer" else [node("Neg", "x", "n"), layer],
        constants={"eye": np.eye(K, dtype=np.float32)} if kind == "layer" else {},
        shape=("N", K),
        shapes={"y": ["N", K]},
    )
    return [graph.save(folder).name, *(["--phi", "none"] if kind == "alone" else [])]


def save(folder: Path, printed: Array, second: Array | None = None) -> list[str]:
    """Save what is printed of the source, and of the target in other order."""
    other = printed[::-1] if second is None else second
    for name, rows in (("s", printed), ("t", other)):
        x = rows.astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x, y=rows.argmax(axis=1) if rows.shape[1] > 1 else 0)
    return ["s.npz", "t.npz"]


# One kind of logits and one of probabilities, for models of every kind.
TWO = [
    next(name for name in PRINTED if (PRINTED[name][1] is None) == none) for none in (True, False)
]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "alone") for name in PRINTED),
        *((name, kind) for kind in ("layer", "torch alone") for name in TWO),
    ],
)
def test_all_rows_tell_at_every_batch(name: str, kind: str, tmp_path: Path) -> None:
    printed, meant = PRINTED[name]
    model, data = same(tmp_path, kind), save(tmp_path, printed)
    files = []
    # Those of other kinds take the same way.
    for batch in ("2", "120") if name in TWO else ("2",):
        output = ["-o", f"f{batch}.h5", "--batch", batch]
        done = covcal("extract", *model, *data, *output, cwd=tmp_path).require_success()
        assert (WORDS.get(name, "no word of doubt") in done.err) == (name in WORDS)
        files.append((tmp_path / f"f{batch}.h5").read_bytes())
    assert files[0] == files[-1]
    with h5py.File(tmp_path / "f2.h5") as file:
        found = file["source/logits"][:]
        assert file.attrs["tail"] == ("none" if meant is None else "softmax")
        assert ("features" in file["source"]) == ("alone" not in kind)
        assert ("head" in file) == ("alone" not in kind and meant is None)
    if meant is None:
        np.testing.assert_allclose(found, printed, rtol=1e-6)
    else:
        np.testing.assert_allclose(softmax(found, axis=1), meant, atol=2e-6)


@pytest.mark.parametrize("kind", ["alone", "torch"])
@pytest.mark.parametrize("bad", [0, N + 3])
def test_rows_that_are_none_among_probabilities_are_named(
    bad: int, kind: str, tmp_path: Path
) -> None:
    """Some classifiers fail on some rows, as naive Bayes does where its float32 vanish."""
    source, target = probabilities(), probabilities()
    (source if bad < N else target)[bad % N] = 0
    data = save(tmp_path, source, target)
    line = covcal("extract", *same(tmp_path, kind), *data, cwd=tmp_path).error_line()
    assert line.startswith("s.npz: " if bad < N else "t.npz: ")
    most = f"in {2 * N - 1} of {2 * N} rows"
    assert f"{most}, but row {bad % N} has the sum 0: remove such rows" in line


@pytest.mark.parametrize(
    ("scale", "offset", "kind"),
    [(1, -1, "alone"), (50, -50, "layer"), (-1, 0, "torch alone"), (-100, 0, "alone")],
)
def test_shifted_and_negated_probabilities_are_refused(
    scale: float, offset: float, kind: str, tmp_path: Path
) -> None:
    data = save(tmp_path, scale * probabilities() + offset)
    line = covcal("extract", *same(tmp_path, kind), *data, cwd=tmp_path).error_line()
    form, layer = ("negated", "last layer") if scale < 0 else ("shifted", "layer")
    assert f"as {form} probabilities do: add a {layer}" in line


def test_complements_of_probabilities_are_refused(tmp_path: Path) -> None:
    """Divided by their sum, they would make the least probable class the most probable."""
    data = save(tmp_path, 1 - probabilities())
    line = covcal("extract", *same(tmp_path, "alone"), *data, cwd=tmp_path).error_line()
    assert "each value may be 1 minus a probability" in line
    assert line.endswith("add a last layer to the model: subtract every value from 1")


@pytest.mark.parametrize("kind", ["onnx", "torch"])
@pytest.mark.parametrize("beyond", [False, True])
def test_one_number_that_no_layer_explains(beyond: bool, kind: str, tmp_path: Path) -> None:
    """If all numbers are in [0, 1], they are read as probabilities; other numbers are refused."""
    p = probabilities(2)[:, 1:]
    y = (p[:, 0] > 0.5).astype(int)
    x = p + (np.arange(N) == N - 1)[:, None] * float(beyond)
    for name in ("s", "t"):
        np.savez(tmp_path / f"{name}.npz", x=x.astype(np.float32), y=y)
    if kind == "onnx":
        graph = Graph([node("Abs", "x", "y")], shape=("N", 1), shapes={"y": ["N", 1]})
        model = graph.save(tmp_path).name
    else:
        (tmp_path / "one_number.py").write_text(
            "import torch\n\n\nclass Same(torch.nn.Module):\n    input_shape = (1,)\n\n"
            "    def forward(self, x):\n        return x.abs()\n"
        )
        model = "one_number:Same"
    done = covcal("extract", model, "s.npz", "t.npz", "--phi", "none", cwd=tmp_path)
    if beyond:
        assert "one number per row, from " in done.error_line()
        assert "with unknown meaning" in done.error_line()
        return
    assert "as the probability of the second class" in done.require_success().err
    with h5py.File(tmp_path / "features.h5") as file:
        found = softmax(file["target/logits"][:], axis=1)
    np.testing.assert_allclose(found, np.hstack([1 - p, p]), atol=1e-6)


def test_a_softmax_of_probabilities_is_remarked(tmp_path: Path) -> None:
    nodes = [node("Softmax", "x", "p", axis=1), node("Softmax", "p", "y", axis=1)]
    graph = Graph(nodes, shape=("N", K), shapes={"y": ["N", K]})
    data = save(tmp_path, np.log(probabilities()))
    arguments = ("extract", graph.save(tmp_path).name, *data, "--phi", "none")
    done = covcal(*arguments, cwd=tmp_path).require_success()
    assert "the model seems to apply softmax twice" in done.err


@pytest.mark.parametrize("phi", ["none", "input"])
def test_missing_values_go_into_trees_and_are_no_features(phi: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(N, D_IN)).astype(np.float32)
    y = np.arange(N) % 3
    np.savez(tmp_path / "s.npz", x=x, y=y)
    x[3, 2] = np.nan
    np.savez(tmp_path / "t.npz", x=x, y=y)
    arguments = ("extract", tree().save(tmp_path).name, "s.npz", "t.npz", "--phi", phi)
    done = covcal(*arguments, cwd=tmp_path)
    if phi == "input":
        assert "t.npz: the feature number 2 of 3 is missing (NaN)" in done.error_line()
        assert "pass --phi none" in done.error_line()
        return
    done.require_success()
    with h5py.File(tmp_path / "features.h5") as file:
        found = softmax(file["target/logits"][3], axis=0)
    np.testing.assert_allclose(found, [0, 0.2, 0.8], atol=1e-6)  # NaN <= 0 is false


def stump(width: int, declared: int) -> Graph:
    """One decision on the first column: a regressor of one number, or a classifier of two."""
    kind = "Classifier" if width == 2 else "Regressor"
    leaves = [0.9, 0.1, 0.2, 0.8] if width == 2 else [0.1, 0.8]
    ends = [1, 1, 2, 2] if width == 2 else [1, 2]
    prefix = "class" if width == 2 else "target"
    names = {"classlabels_int64s": [0, 1]} if width == 2 else {"n_targets": 1}
    stored = {
        f"{prefix}_treeids": [0] * len(ends),
        f"{prefix}_nodeids": ends,
        f"{prefix}_ids": [0, 1, 0, 1] if width == 2 else [0, 0],
        f"{prefix}_weights": leaves,
    }
    tree_node = node(
        f"ai.onnx.ml:TreeEnsemble{kind}",
        "x",
        "label y" if width == 2 else "y",
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_values=[0.5, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        **stored,
        **names,
    )
    return Graph([tree_node], shape=("N", 1), shapes={"y": ["N", declared]})


@pytest.mark.parametrize(
    ("width", "declared", "phi"), [(2, 1, "none"), (2, 1, "input"), (2, 2, "none"), (1, 1, "input")]
)
def test_boosting_of_two_classes_is_read_whatever_it_declares(
    width: int, declared: int, phi: str, tmp_path: Path
) -> None:
    """Some exporters declare one column and give two, and regressors give one probability."""
    x = np.arange(N)[:, None] % 2
    for name in ("s", "t"):
        np.savez(tmp_path / f"{name}.npz", x=x.astype(np.float32), y=x[:, 0])
    model = stump(width, declared).save(tmp_path).name
    covcal("extract", model, "s.npz", "t.npz", "--phi", phi, cwd=tmp_path).require_success()
    with h5py.File(tmp_path / "features.h5") as file:
        found = softmax(file["target/logits"][:], axis=1)
    np.testing.assert_allclose(found, np.where(x, [0.2, 0.8], [0.9, 0.1]), atol=1e-6)
    covcal("calibrate", "features.h5", "--method", "temp", cwd=tmp_path)
    covcal("export", model, "-c", "cal.json", "-o", "out.onnx", cwd=tmp_path).require_success()


@pytest.mark.parametrize(
    ("offset", "kind"),
    [(1e6, "onnx"), (1e8, "onnx"), (-5e7, "onnx alone"), (1e8, "torch")],
)
def test_a_common_offset_costs_no_digits(kind: str, offset: float, tmp_path: Path) -> None:
    """Softmax does not see a number added to all logits of a row; float32 loses theirs to it.

    The same model in float64 with and without it gives the same logits up to one number per row,
    and the stored layer gives them too.
    """
    weights = np.random.default_rng(1).normal(size=(K, K))
    x = 3 * np.random.default_rng(2).normal(size=(N, K))
    np.savez(tmp_path / "s.npz", x=x, y=(x @ weights.T).argmax(axis=1))
    np.savez(tmp_path / "t.npz", x=x[::-1])
    logits = {}
    for added in (0.0, offset):
        bias = np.arange(K) / 7 + added
        if kind == "torch":
            np.savez(tmp_path / "w.npz", w=weights, b=bias)
            (tmp_path / "far_nets.py").write_text(FAR)
            model = ["far_nets:Far"]
        else:
            graph = Graph(
                [node("Gemm", "x w b", "y", transB=1)],
                constants={"w": weights, "b": bias},
                shape=("N", K),
                shapes={"y": ["N", K]},
                types={"y": onnx.TensorProto.DOUBLE},
                input_type=onnx.TensorProto.DOUBLE,
            )
            alone = ["--phi", "none"] if "alone" in kind else []
            model = [graph.save(tmp_path).name, *alone]
        covcal("extract", *model, "s.npz", "t.npz", "-f", cwd=tmp_path).require_success()
        with h5py.File(tmp_path / "features.h5") as file:
            logits[added] = file["source/logits"][:].astype(np.float64)
            if "alone" not in kind:
                assert file.attrs["affine_error"] < 1e-5
    plain, far = (values - values.max(axis=1, keepdims=True) for values in logits.values())
    # Rows of the float64 model itself are rounded to 1e-8 of the offset.
    np.testing.assert_allclose(far, plain, atol=1e-5)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("tail", ["none", "softmax"])
def test_outputs_of_any_precision_become_float32(kind: type[np.floating], tail: str) -> None:
    """Values are kept in half precision too, whose range is smaller than that of shares."""
    values = np.array([[-6e4, 3.0, 0.5], [0.25, 0.5, 0.25], [0, 6e4, 1]], dtype=kind)
    outputs = Outputs("m.onnx", tail, is_single=False, has_layer=True)
    np.testing.assert_array_equal(outputs.to_float32(values), values.astype(np.float32))
