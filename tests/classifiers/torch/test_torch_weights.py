"""``--weights``: loaded as tensors alone, every name and shape checked."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from covcal_cli.errors import CovcalError
from tests.classifiers.opening import open_torch
from tests.classifiers.torch import torch_modules
from tests.classifiers.torch.torch_modules import D_IN, rows, save

ZOO = torch_modules.__name__


def trained() -> dict[str, Tensor]:
    """Weights that differ from the weights that the function makes."""
    return {name: value + 1 for name, value in torch_modules.mlp().state_dict().items()}


def expected_logits(weights: dict[str, Tensor], x: Tensor) -> Any:
    phi = torch.relu(x @ weights["body.weight"].T + weights["body.bias"])
    return (phi @ weights["head.weight"].T + weights["head.bias"]).numpy()


@pytest.mark.parametrize(
    ("place", "prefix"),
    [
        ("", ""),
        ("state_dict", ""),
        ("model_state_dict", "module."),
        ("model", "_orig_mod."),
        ("state_dict", "model."),
    ],
)
def test_weights_are_found_in_checkpoints(place: str, prefix: str, tmp_path: Path) -> None:
    """A state_dict, a dict that contains one, and prefixes of wrappers, which a note names."""
    weights = trained()
    named = {prefix + name: value for name, value in weights.items()}
    path = tmp_path / "weights.pth"
    torch.save({place: named, "epoch": 3} if place else named, path)
    classifier = open_torch(f"{ZOO}:mlp", weights=path)
    x = rows((D_IN,))
    _, logits = classifier.prove({"x": x.numpy()}).run({"x": x.numpy()})
    np.testing.assert_allclose(logits, expected_logits(weights, x), rtol=1e-5, atol=1e-5)
    said = (
        f"{path}: covcal removed the prefix {prefix!r} from the name of every weight"
        in classifier.notes
    )
    assert said == bool(prefix)
    assert classifier.sha256 != open_torch(f"{ZOO}:mlp").sha256


def test_safetensors(tmp_path: Path) -> None:
    """The package safetensors reads them; if it is missing, the message names it."""
    safetensors = pytest.importorskip("safetensors.torch")
    weights, x = trained(), rows((D_IN,))
    path = tmp_path / "weights.safetensors"
    safetensors.save_file(weights, path)
    opened = open_torch(f"{ZOO}:mlp", weights=path)
    _, logits = opened.prove({"x": x.numpy()}).run({"x": x.numpy()})
    np.testing.assert_allclose(logits, expected_logits(weights, x), rtol=1e-5, atol=1e-5)
    path.write_bytes(b"nothing")
    with pytest.raises(CovcalError, match=r"is not a readable .safetensors file \(Safetensor"):
        open_torch(f"{ZOO}:mlp", weights=path)


def test_safetensors_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the message says what to install."""
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"anything")
    with pytest.raises(CovcalError) as error:
        open_torch(f"{ZOO}:mlp", weights=path)
    assert str(error.value) == (
        f"{path} needs the safetensors package: run pip install safetensors"
    )


def test_weights_of_another_module(tmp_path: Path) -> None:
    """Names and shapes that do not fit are counted and named in one line."""
    weights = trained()
    weights["head.weight"] = torch.ones(7, 5)
    weights["extra"] = weights.pop("body.bias")
    path = tmp_path / "weights.pth"
    torch.save(weights, path)
    with pytest.raises(CovcalError) as error:
        open_torch(f"{ZOO}:mlp", weights=path)
    assert str(error.value) == (
        f"the weights in {path} do not fit {ZOO}:mlp: the file lacks "
        "body.bias, and adds extra, and has head.weight [7, 5] instead of [3, 5]. Give weights "
        "that were trained with this module"
    )


class Evil:
    """An object that runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.mark,)


def test_pickled_objects_are_never_built(tmp_path: Path) -> None:
    """Neither as weights nor as the model: nothing in the file runs."""
    path, mark = tmp_path / "evil.pth", tmp_path / "ran"
    torch.save({"state_dict": trained(), "object": Evil(mark)}, path)
    with pytest.raises(CovcalError, match=r"holds Python objects, not only weights \(.*\): s"):
        open_torch(f"{ZOO}:mlp", weights=path)
    with pytest.raises(CovcalError, match="holds weights or a pickled object"):
        open_torch(path)
    torch.save(nn.Linear(2, 2), path)
    with pytest.raises(CovcalError) as error:
        open_torch(f"{ZOO}:mlp", weights=path)
    assert "(torch.nn.modules.linear.Linear): save the state_dict with" in str(error.value)
    assert not mark.exists()


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    """A missing or damaged file, a dict without tensors, weights beside a program."""
    path = tmp_path / "weights.pth"
    with pytest.raises(CovcalError, match="does not exist: give the file that holds the module's"):
        open_torch(f"{ZOO}:mlp", weights=path)
    path.write_bytes(b"hello")
    with pytest.raises(CovcalError, match="weights"):
        open_torch(f"{ZOO}:mlp", weights=path)
    for content, found in (({"epoch": 3}, "a dict of epoch"), ([1], "list")):
        torch.save(content, path)
        with pytest.raises(
            CovcalError, match=f"holds {found} instead of a state_dict: save it with"
        ):
            open_torch(f"{ZOO}:mlp", weights=path)
    program = save(torch_modules.mlp(), "traced", tmp_path / "model.pt", rows((D_IN,)))
    with pytest.raises(CovcalError, match=r"contains its weights: leave out --weights"):
        open_torch(program, weights=path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers(bad: float, tmp_path: Path) -> None:
    """Behind a ReLU, -inf would go unseen."""
    weights = trained()
    weights["body.bias"][1] = bad
    path = tmp_path / "weights.pth"
    torch.save(weights, path)
    with pytest.raises(CovcalError, match=r"weights.pth: body.bias holds NaN or infinity"):
        open_torch(f"{ZOO}:mlp", weights=path)
