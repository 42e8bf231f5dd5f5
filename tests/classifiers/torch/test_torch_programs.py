"""The head of a torch classifier is found, whatever form it has, and equals what torch computes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from covcal_cli.classifiers.classifier import OpenedClassifier
from covcal_cli.classifiers.torch.classifier import TorchClassifier
from covcal_cli.errors import CovcalError
from tests.classifiers.opening import open_classifier, open_torch
from tests.classifiers.settled import settled
from tests.classifiers.torch import torch_modules
from tests.classifiers.torch.torch_modules import CHANNELS, D_IN, SIDE, TOKENS, D, K, rows, save

ZOO = torch_modules.__name__
TENSOR, PIXELS, WORDS = (D_IN,), (CHANNELS, SIDE, SIDE), (TOKENS, D_IN)

# name -> (shape of a row, layer, tail)
FOUND = {
    "mlp": (TENSOR, "linear head", "none"),
    "images": (PIXELS, "linear head", "none"),
    "pooled_then_convolved": (PIXELS, "conv2d head", "none"),
    "convolved_then_pooled": (PIXELS, "conv2d head", "none"),
    "convolved_over_all": (PIXELS, "conv2d head", "none"),
    "first_token": (WORDS, "linear head", "none"),
    "mean_of_tokens": (WORDS, "linear head", "none"),
    "one_of_tokens": (WORDS, "linear head", "none"),
    "with_softmax": (TENSOR, "linear head", "softmax"),
    "with_log_softmax": (TENSOR, "linear head", "log_softmax"),
    "with_sigmoid": (TENSOR, "linear head", "sigmoid"),
    "with_argmax": (TENSOR, "linear head", "argmax"),
    "with_temperature": (TENSOR, "linear head", "softmax"),
    "with_norm": (TENSOR, "linear head", "none"),
    "averaged": (TENSOR, "linear head + linear second", "none"),
    "weighted_softmax": (TENSOR, "linear head + linear second", "softmax"),
    "by_hand": (TENSOR, "matmul weight", "none"),
    "by_einsum": (TENSOR, "bmm weight", "none"),
    "cosine": (TENSOR, "linear", "none"),
    "in_place": (TENSOR, "linear head", "none"),
    "prints": (TENSOR, "linear head", "none"),
    "doubled": (TENSOR, "linear head", "none"),
    "halved": (TENSOR, "linear head", "none"),
    "brained": (TENSOR, "linear head", "none"),
}
TAILS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda z: z,
    "softmax": lambda z: torch.softmax(z, dim=1),
    "log_softmax": lambda z: torch.log_softmax(z, dim=1),
    "sigmoid": torch.sigmoid,
    "argmax": lambda z: z.argmax(dim=1),
}
Array = NDArray[Any]
COARSE = {"halved": 5e-3, "brained": 4e-2}


def run(opened: OpenedClassifier, x: torch.Tensor) -> tuple[TorchClassifier, Array, Array]:
    """Prove a classifier on rows that it takes as its only input; return phi and the logits too."""
    (only,) = opened.inputs
    batch = {only.name: x.numpy().astype(only.dtype)}
    classifier = opened.prove(batch)
    assert isinstance(classifier, TorchClassifier)
    features, logits = classifier.run(batch)
    assert features is not None
    return classifier, features, logits


def relative(found: Array, expected: Array) -> float:
    difference = np.abs(np.asarray(found, dtype=float) - np.asarray(expected, dtype=float))
    return float(difference.max() / np.abs(expected).max())


@pytest.mark.parametrize("name", FOUND)
def test_heads_of_modules(name: str) -> None:
    """phi is what the module's author would say, W and b give the logits, the tail the output."""
    shape, layer, tail = FOUND[name]
    close = COARSE.get(name, 1e-5)
    module: Any = getattr(torch_modules, name)().eval()
    x = rows(shape)
    classifier, features, logits = run(open_torch(f"{ZOO}:{name}"), x)
    assert isinstance(module, torch_modules.Made)
    with torch.no_grad():
        kind = next(module.parameters()).dtype
        expected = module(x.to(kind).clone()).double().numpy()
        phi = module.phi(x.to(kind).clone()).double().numpy()
    assert classifier.logits_tensor == layer
    assert classifier.tail == tail
    assert classifier.weight is not None
    assert classifier.bias is not None
    assert (classifier.n_classes, classifier.n_features) == (K, phi.shape[1])
    assert relative(features, phi) <= close
    assert relative(features @ classifier.weight.T + classifier.bias, logits) <= close
    assert relative(TAILS[tail](torch.from_numpy(logits)).numpy(), expected) <= close
    assert classifier.proof.error <= close
    assert classifier.exposure_error == 0


# name -> (tail, factor and offset between the layer's result and the logit z)
SINGLE = {
    "one_logit": ("none", 1, 0),
    "one_sigmoid": ("sigmoid", 1, 0),
    "one_squeezed": ("sigmoid", 1, 0),
    "one_scaled": ("none", 2, 1),
    "one_label": ("argmax", 1, 0),
    "one_of_each": ("sigmoid", 1, 0),
    "one_by_two": ("softmax", 1, 0),
}


@pytest.mark.parametrize("name", SINGLE)
def test_one_number_per_row_stands_for_two_classes(name: str) -> None:
    """As of ONNX models: the logits are 0 and z, so their softmax is the sigmoid of z."""
    tail, factor, offset = SINGLE[name]
    module: Any = getattr(torch_modules, name)().eval()
    x = rows(TENSOR)
    classifier, features, logits = run(open_torch(f"{ZOO}:{name}"), x)
    with torch.no_grad():
        z = factor * module.head(module.phi(x)).double().numpy()[:, 0] + offset
    assert (classifier.n_classes, classifier.n_features, classifier.tail) == (2, D, tail)
    np.testing.assert_array_equal(logits[:, 0], 0)
    np.testing.assert_allclose(logits[:, 1], z, rtol=1e-5, atol=1e-6)
    assert classifier.weight is not None
    assert classifier.bias is not None
    assert classifier.weight.shape == (2, D)
    assert relative(features @ classifier.weight.T + classifier.bias, logits) <= 1e-5
    assert any("one number per row. covcal uses this number" in note for note in classifier.notes)
    assert not any("one sigmoid per class" in note for note in classifier.notes)


def test_one_number_without_a_layer_is_refused() -> None:
    """Beyond [0, 1] it is no probability, and whose logit it is cannot be told."""
    x = {"x": 100 * rows(TENSOR).numpy()}
    classifier = open_torch(f"{ZOO}:one_relu", phi="none").prove(x)
    with pytest.raises(CovcalError, match="with unknown meaning: return one"):
        settled(classifier, x)


@pytest.mark.parametrize(
    ("name", "words"), [("with_sigmoid", "one sigmoid per class"), ("with_argmax", "only a label")]
)
def test_what_the_output_does_not_say_is_noted(name: str, words: str) -> None:
    """Confidences are the softmax of the logits, which such a model does not print."""
    assert any(words in note for note in open_torch(f"{ZOO}:{name}").notes)


def test_labels_may_stand_in_a_column() -> None:
    """Shape [N, 1] of integers says the same as [N]."""
    x = rows(TENSOR)
    classifier, _, logits = run(open_torch(f"{ZOO}:with_argmax_column"), x)
    assert classifier.tail == "argmax"
    assert relative(logits, torch_modules.mlp()(x).detach().numpy()) < 1e-6


@pytest.mark.parametrize("kind", ["traced", "frozen", "static", "dynamic"])
def test_files_give_what_the_module_gives(kind: str, tmp_path: Path) -> None:
    """TorchScript and exported programs: the same phi, logits, W and b, for any number of rows."""
    made = torch_modules.images()
    assert isinstance(made, torch_modules.Made)
    pooled = nn.Sequential(made.body, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    module = nn.Sequential(pooled, made.head, nn.Softmax(dim=1)).eval()
    suffix = "pt2" if kind in ("static", "dynamic") else "pt"
    path = save(module, kind, tmp_path / f"model.{suffix}", rows(PIXELS, 3))
    opened = open_classifier(path, trusted=True)
    assert opened.fixed_batch == (3 if kind == "static" else None)
    with torch.no_grad():
        for n in (7, 1, 3):
            x = rows(PIXELS, n)
            classifier, features, logits = run(opened, x)
            assert relative(features, pooled(x).numpy()) < 1e-5
            assert relative(logits, made.head(pooled(x)).numpy()) < 1e-5
    assert classifier.weight is not None
    assert relative(classifier.weight, made.state_dict()["head.weight"].numpy()) < 1e-6
    assert (classifier.tail, classifier.n_features, classifier.n_classes) == ("softmax", D, K)
    assert opened.inputs[0].shape[1] == CHANNELS
    assert len(opened.sha256) == 64


def test_exported_shapes_are_declared(tmp_path: Path) -> None:
    """An exported program says what it is fed; a module and TorchScript get a note."""
    module = torch_modules.images()
    path = save(module, "dynamic", tmp_path / "model.pt2", rows(PIXELS, 3))
    exported = open_torch(path, trusted=True)
    assert exported.inputs[0].shape == (None, *PIXELS)
    assert exported.notes == ()
    assumed = open_torch(f"{ZOO}:images")
    assert assumed.inputs[0].shape == (None, CHANNELS, None, None)
    assert assumed.notes == (
        "covcal reads the input as x float32 [N, 3, ?, ?], because the first layer is Conv2d, "
        "and the module runs on images of 224x224",
        f"covcal uses the weights that {ZOO}:images sets. If this function loads no weights, "
        "pass --weights",
    )


@pytest.mark.parametrize(
    ("name", "output"), [("as_dict", "scores"), ("as_tuple", "1"), ("as_holder", "logits")]
)
def test_answers_of_several_parts(name: str, output: str) -> None:
    """The logits are found in a dict, a tuple and a dataclass; logits come before probabilities."""
    x = rows(TENSOR)
    classifier, _, logits = run(open_torch(f"{ZOO}:{name}"), x)
    plain = torch_modules.mlp()(x).detach().numpy()
    assert classifier.output_name == output
    assert relative(logits, plain) < 1e-6


def test_an_output_is_chosen_by_name() -> None:
    """Two heads are refused until one is named."""
    with pytest.raises(CovcalError) as error:
        open_torch(f"{ZOO}:two_answers")
    assert str(error.value).startswith(
        f"{ZOO}:two_answers has 2 outputs that could hold the classes (left (from linear head),"
    )
    classifier = open_torch(f"{ZOO}:two_answers", output="right")
    assert classifier.logits_tensor == "linear second"
    with pytest.raises(CovcalError, match=r"no output 'top': choose one of left \[4, 3\], right"):
        open_torch(f"{ZOO}:two_answers", output="top")
    probabilities, _, _ = run(open_torch(f"{ZOO}:as_dict", output="probabilities"), rows(TENSOR))
    assert probabilities.tail == "softmax"


def test_phi_none_keeps_the_logits_before_the_softmax() -> None:
    """Without features, the logits are still the results of the last layer."""
    x = rows(TENSOR)
    classifier = open_torch(f"{ZOO}:with_softmax", phi="none").prove({"x": x.numpy()})
    features, logits = classifier.run({"x": x.numpy()})
    assert features is None
    assert classifier.n_features is None
    assert classifier.weight is None
    assert relative(logits, torch_modules.mlp()(x).detach().numpy()) < 1e-6
    assert classifier.describe() == "linear head: 3 classes, output = softmax(logits)"


@pytest.mark.parametrize("phi", ["body", "body.output", "head.input", "head", "input"])
def test_phi_by_name(phi: str) -> None:
    """A module's output or input; W and b stay where the logits are affine in it as they were."""
    module = torch_modules.mlp()
    assert isinstance(module, torch_modules.Made)
    x = rows(TENSOR)
    classifier, features, _ = run(open_torch(f"{ZOO}:mlp", phi=phi), x)
    expected = {
        "body": module.body(x),
        "body.output": module.body(x),
        "head.input": module.phi(x),
        "head": module.head(module.phi(x)),
        "input": x,
    }[phi]
    assert relative(features, expected.detach().numpy()) < 1e-6
    assert (classifier.weight is not None) == (phi == "head.input")


def test_phi_by_name_in_files(tmp_path: Path) -> None:
    """A file's linear layers can be named; maps of pixels are averaged, and that is said."""
    module = torch_modules.images()
    assert isinstance(module, torch_modules.Images)
    path = save(module, "traced", tmp_path / "model.pt", rows(PIXELS, 3))
    x = rows(PIXELS)
    classifier, features, _ = run(open_torch(path, phi="body.0", trusted=True), x)
    expected = module.body.get_submodule("0")(x).mean(dim=(2, 3)).detach().numpy()
    assert relative(features, expected) < 1e-5
    assert "the features are body.0.output, averaged over 224 x 224 positions" in classifier.notes
    with pytest.raises(CovcalError, match=r"no linear layer body.2 for --phi: choose input, none"):
        open_torch(path, phi="body.2", trusted=True)


def test_a_head_that_is_not_affine_still_gives_logits() -> None:
    """SqueezeNet's kind: refused with the reason, usable with --phi."""
    with pytest.raises(
        CovcalError, match=r"from the logits of conv2d head.*relu_, mean follow.*--phi none"
    ):
        open_torch(f"{ZOO}:convolved_relu_pooled")
    x = rows(PIXELS)
    expected = torch_modules.convolved_relu_pooled().eval()(x).detach().numpy()
    for phi, d in (("none", None), ("body", D)):
        opened = open_torch(f"{ZOO}:convolved_relu_pooled", phi=phi)
        classifier = opened.prove({"x": x.numpy()})
        features, logits = classifier.run({"x": x.numpy()})
        assert relative(logits, expected) < 1e-6
        assert classifier.n_features == d
        assert (features is None) == (d is None)
        assert classifier.weight is None
        assert classifier.tail == "none"


def test_phi_of_a_free_size_is_as_wide_as_the_first_batch_says() -> None:
    """Not as wide as the made rows; rows of yet another size are refused."""
    x = rows(PIXELS)
    classifier, features, _ = run(open_torch(f"{ZOO}:convolved_relu_pooled", phi="input"), x)
    assert classifier.n_features == CHANNELS * SIDE * SIDE
    np.testing.assert_array_equal(features, x.flatten(1).numpy())
    with pytest.raises(CovcalError, match="gives 300 features per row on this batch, but 192"):
        classifier.run({"x": rows((CHANNELS, 10, 10)).numpy()})


def test_a_soft_cap_is_noticed_on_the_data() -> None:
    """Small made rows cannot tell a cap from plain logits; the rows of the data can."""
    classifier = open_torch(f"{ZOO}:with_soft_cap")
    with pytest.raises(
        CovcalError, match="as logits from the logits of linear head, but some rows differ"
    ):
        run(classifier, 1000 * rows(TENSOR))


def test_integers_and_several_inputs() -> None:
    """Token numbers stay integers; several inputs need an example."""
    words = open_torch(f"{ZOO}:text")
    assert words.inputs[0].dtype == np.dtype(np.int64)
    x = torch.arange(8).reshape(2, TOKENS)
    _, features, _ = run(words, x)
    module = torch_modules.text()
    assert isinstance(module, torch_modules.Made)
    assert relative(features, module.phi(x).detach().numpy()) < 1e-6

    both = open_torch(f"{ZOO}:two_inputs")
    assert [value.name for value in both.inputs] == ["left", "right"]
    x = rows(TENSOR)
    batch = {"left": x[:, :2].numpy(), "right": x[:, 2:].numpy()}
    _, logits = both.prove(batch).run(batch)
    inner = torch_modules.two_inputs().get_submodule("inner")
    assert relative(logits, inner(x).detach().numpy()) < 1e-6


def test_the_affine_error_is_that_of_all_batches() -> None:
    """The largest difference and the largest logit are kept apart, so shards can be merged."""
    x = rows(TENSOR, 12)
    classifier = open_torch(f"{ZOO}:mlp").prove({"x": x[:1].numpy()})
    largest, differences = 0.0, []
    for part in (x[:5], 10 * x[5:6], x[6:]):
        _, logits = classifier.run({"x": part.numpy()})
        largest = max(largest, float(np.abs(logits).max()))
        differences.append(classifier.proof.largest_difference)
    assert classifier.proof.largest_logit == pytest.approx(largest, rel=1e-12)
    assert differences == sorted(differences)
    assert classifier.proof.error == classifier.proof.largest_difference / largest


def test_the_data_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A module may change its input in place and print: neither reaches the caller."""
    x = rows(TENSOR)
    kept = x.clone()
    run(open_torch(f"{ZOO}:in_place"), x)
    frozen = x.numpy()
    frozen.flags.writeable = False
    run(open_torch(f"{ZOO}:prints"), x)
    assert torch.equal(x, kept)
    assert capsys.readouterr() == ("", "")


def test_the_same_module_has_the_same_sha256() -> None:
    """It follows the weights."""
    first, second = (open_torch(f"{ZOO}:mlp").sha256 for _ in range(2))
    assert first == second
    assert open_torch(f"{ZOO}:by_hand").sha256 != first
    assert len(first) == 64


def test_data_parallel_and_threads() -> None:
    """The wrapper for several GPUs is taken off; the number of threads is the process's own."""
    classifier = open_torch(f"{ZOO}:parallel", threads=1)
    assert classifier.logits_tensor == "linear head"
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("name", ["capped", "capped_softmax"])
def test_a_cap_that_made_rows_do_not_show_leaves_the_output_as_it_is(name: str) -> None:
    """The error names the choice, and the choice works."""
    large = {"x": 30 * rows(TENSOR).numpy()}
    with pytest.raises(CovcalError, match=": pass --phi none to use the output"):
        open_torch(f"{ZOO}:{name}").prove(large)
    classifier = open_torch(f"{ZOO}:{name}", phi="none").prove(large)
    features, logits = settled(classifier, large)
    assert features is None
    with torch.no_grad():
        expected = getattr(torch_modules, name)()(torch.from_numpy(large["x"]))
    z = torch.from_numpy(logits)
    found = torch.softmax(z, dim=1) if name == "capped_softmax" else z
    assert relative(found.numpy(), expected.numpy()) < 1e-5


@pytest.mark.parametrize("phi", ["none", "input"])
def test_a_clip_that_the_first_rows_do_not_show_is_no_softmax(phi: str) -> None:
    """Whoever asks for the output has it, whatever the first batch holds."""
    x = rows(TENSOR).numpy()
    classifier = open_torch(f"{ZOO}:clipped_softmax", phi=phi).prove({"x": x[:1] / 10})
    _, made = classifier.run({"x": 30 * x})
    with torch.no_grad():
        expected = torch_modules.clipped_softmax()(torch.from_numpy(30 * x)).numpy()
    assert expected.min() == pytest.approx(1e-4)
    np.testing.assert_array_equal(made, expected)


MASKED = {
    "masked_by_infinity": ("none", -np.inf),
    "masked_by_filling": ("none", float(np.finfo(np.float32).min)),
    "masked_before_softmax": ("softmax", -np.inf),
    "masked_by_a_billion": ("none", -1e9),
}


@pytest.mark.parametrize("name", MASKED)
def test_a_masked_class_is_an_offset(name: str) -> None:
    """The other classes are affine in phi, proved to rounding, and the mask stays a mask."""
    tail, value = MASKED[name]
    x = rows((D_IN,))
    classifier, features, logits = run(open_torch(f"{ZOO}:{name}"), x)
    assert classifier.tail == tail
    assert logits[:, 1] == pytest.approx(value, rel=1e-6)
    assert classifier.weight is not None
    assert classifier.bias is not None
    others = [0, 2]
    made = features @ classifier.weight[others].T + classifier.bias[others]
    assert relative(made, logits[:, others]) <= 1e-5
    # Not empty: relative to the other logits, and never above what rounding explains.
    assert 0 < classifier.proof.error <= 1e-5
    assert classifier.proof.largest_logit < 100
