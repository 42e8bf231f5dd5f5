"""``covcal export`` of torch models: written as .pt2, right, and the original's label kept."""

import json
import os
import signal
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from covcal_cli.export.torch import TorchForecaster
from tests import REPOSITORY
from tests.classifiers.opening import open_torch
from tests.classifiers.torch import torch_modules
from tests.classifiers.torch.torch_modules import CHANNELS, D_IN, SIDE, D, K, rows, save
from tests.cli_runner import Outcome, covcal
from tests.export.export_cases import (
    Array,
    Case,
    calibrated,
    decided,
    expected_probabilities,
    made_networks,
    require_counted,
)

ZOO = torch_modules.__name__
TENSOR, PIXELS = (D_IN,), (CHANNELS, SIDE, SIDE)


def prepared(
    model: str | Path,
    folder: Path,
    *,
    fl: bool,
    weights: Path | None = None,
    classes: int = K,
    offsets: tuple[float, ...] = (),
    of_label: float = 0.0,
    method: str | None = None,
) -> Case:
    """Calibrate a torch model on made rows, as extract would have named it."""
    classifier = open_torch(model, weights=weights, trusted=True)
    marker = folder / "made.onnx"
    marker.write_bytes(b"not read")
    return calibrated(
        marker,
        method=method or ("fl+temp" if fl else "temp"),
        phi=str(classifier.features_tensor),
        logits=classifier.logits_tensor,
        width=D,
        classes=classes,
        networks=made_networks(D, classes) if fl else None,
        temperature=1.7,
        offsets=offsets,
        of_label=of_label,
        attributes={"model_sha256": classifier.sha256, "model_name": classifier.name},
    )


def exported(model: str | Path, case: Case, *more: Any) -> Outcome:
    output = case.model.parent / "out.pt2"
    return covcal("export", model, "-c", case.document, "-o", output, *more)


@cache
def loaded(path: Path, _: int) -> Any:
    """Load a file by bare torch, once for each time that it was written."""
    return torch.export.load(str(path)).module()


def answer(folder: Path, x: torch.Tensor) -> dict[str, Array]:
    """Run the exported file by bare torch."""
    path = folder / "out.pt2"
    with torch.inference_mode():
        found = loaded(path, path.stat().st_mtime_ns)(x.clone())
    return {name: value.numpy() for name, value in found.items()}


def require_right(module: Any, case: Case, x: torch.Tensor) -> dict[str, Array]:
    """Compare the exported file with the module itself and SciPy, on as many rows as `x` has."""
    after = answer(case.model.parent, x)
    with torch.inference_mode():
        output = module(x.clone())
        phi = module.phi(x.clone()).numpy()
        logits = output.numpy() if module.end is None else module.head(module.phi(x)).numpy()
    expected = expected_probabilities(
        logits, 1.7, case.networks, phi, case.moves(logits), case.aligned
    )
    np.testing.assert_array_equal(after["output"], output.numpy())
    np.testing.assert_allclose(after["probabilities"], expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(after["label"], logits.argmax(axis=1))
    assert after["label"].dtype == np.int64
    assert after["probabilities"].dtype == np.float32
    chosen = after["probabilities"][np.arange(len(x)), after["label"]]
    np.testing.assert_array_equal(after["confidence"], chosen)
    return after


def test_a_function_and_a_blend(tmp_path: Path) -> None:
    """The module that a function returns becomes a program with psi and the new head inside."""
    module: Any = torch_modules.convolved_then_pooled().eval()
    model = f"{ZOO}:convolved_then_pooled"
    case = prepared(model, tmp_path, fl=True, method="blend")
    assert case.aligned is not None
    exported(model, case).require_success()
    for n in (1, 7):
        require_right(module, case, rows(PIXELS, n))


def test_offsets_and_a_decision(tmp_path: Path) -> None:
    """Offsets of the classes and of the classifier's label, and which rows are accepted."""
    module: Any = torch_modules.in_place().eval()
    offsets = (-13.8, *np.linspace(-1, 2, K - 1).tolist())
    case = prepared(f"{ZOO}:in_place", tmp_path, fl=False, offsets=offsets, of_label=-0.7)
    done = exported(f"{ZOO}:in_place", case, "--decide", decided(case, 0.34)).require_success()
    require_counted(case, done)
    after = require_right(module, case, rows(TENSOR, 30))
    assert (after["probabilities"].argmax(axis=1) != after["label"]).any()
    np.testing.assert_array_equal(after["accept"], after["confidence"] > 0.34)
    assert 0 < after["accept"].mean() < 1


def test_a_masked_class(tmp_path: Path) -> None:
    """A masked class has probability 0, and its logit is not the scale of the comparison."""
    model = f"{ZOO}:masked_by_a_billion"
    module: Any = torch_modules.masked_by_a_billion().eval()
    weights = tmp_path / "w.pt"
    torch.save(module.state_dict(), weights)
    case = prepared(model, tmp_path, fl=False, weights=weights)
    exported(model, case, "--weights", weights).require_success()
    x = rows(TENSOR, 7)
    after = answer(tmp_path, x)
    with torch.inference_mode():
        z = module.head(module.phi(x)).double().numpy()
        np.testing.assert_array_equal(after["output"], module(x).numpy())
    z[:, 1] = -np.inf
    expected = np.exp(z / 1.7) / np.exp(z / 1.7).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(after["probabilities"], expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(after["label"], z.argmax(axis=1))


def test_one_number_per_row(tmp_path: Path) -> None:
    """Calibrated probabilities of both classes beside the original's single number."""
    module: Any = torch_modules.one_squeezed().eval()
    case = prepared(f"{ZOO}:one_squeezed", tmp_path, fl=False, classes=2)
    exported(f"{ZOO}:one_squeezed", case).require_success()
    x = rows(TENSOR, 7)
    after = answer(tmp_path, x)
    with torch.inference_mode():
        z = module.head(module.phi(x)).numpy()[:, 0]
        np.testing.assert_array_equal(after["output"], module(x).numpy())
    second = 1 / (1 + np.exp(-z.astype(np.float64) / 1.7))
    expected = np.stack([1 - second, second], axis=1)
    np.testing.assert_allclose(after["probabilities"], expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(after["label"], z > 0)


class Plain(nn.Module):
    """A classifier that can be scripted."""

    def __init__(self) -> None:
        super().__init__()
        made: Any = torch_modules.with_softmax()
        self.body: nn.Module = made.body
        self.head: nn.Module = made.head
        self.end = nn.Softmax(dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return probabilities."""
        probabilities: torch.Tensor = self.end(self.head(torch.relu(self.body(x))))
        return probabilities

    @torch.jit.unused
    def phi(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the head reads."""
        return torch.relu(self.body(x))


@pytest.mark.parametrize("kind", ["scripted", "static"])
def test_files(kind: str, tmp_path: Path) -> None:
    """TorchScript and torch.export files; a program for three rows stays one for three."""
    made = Plain().eval()
    path = save(made, kind, tmp_path / f"m.{'pt' if 'ed' in kind else 'pt2'}", rows(TENSOR, 3))
    # With learnt features too, a correction for a prior is in the program.
    offsets = tuple(np.linspace(-1, 2, K)) if kind == "static" else ()
    case = prepared(path, tmp_path, fl=True, offsets=offsets)
    done = exported(path, case, "--trust-model").require_success()
    assert "Outputs      output (unchanged), probabilities, label, confidence" in done.out
    require_right(made, case, rows(TENSOR, 3))
    if kind != "static":
        require_right(made, case, rows(TENSOR, 5))


def test_weights_for_a_function(tmp_path: Path) -> None:
    """Those of extraction are asked for; test_a_masked_class passes them."""
    other: Any = nn.Module.eval(torch_modules.Made())
    torch.save(other.state_dict(), tmp_path / "w.pt")
    case = prepared(f"{ZOO}:mlp", tmp_path, fl=False, weights=tmp_path / "w.pt")
    line = exported(f"{ZOO}:mlp", case).error_line()
    assert "(its sha256 differs)" in line
    assert "pass the same --weights as to covcal extract" in line


def test_the_file(tmp_path: Path) -> None:
    """Inputs keep their names, metadata is inside, no machine's paths are, bytes are the same."""
    made: Any = torch_modules.mlp().eval()
    path = save(made, "dynamic", tmp_path / "m.pt2", rows(TENSOR, 3))
    case = prepared(path, tmp_path, fl=False)
    exported(path, case, "--trust-model").require_success()
    require_right(made, case, rows(TENSOR, 5))
    first = (tmp_path / "out.pt2").read_bytes()
    exported(path, case, "--trust-model", "--force").require_success()
    assert (tmp_path / "out.pt2").read_bytes() == first
    extra = {"covcal.json": ""}
    program = torch.export.load(str(tmp_path / "out.pt2"), extra_files=extra)
    original = torch.export.load(str(path))
    assert program.graph_signature.user_inputs == original.graph_signature.user_inputs
    metadata = json.loads(extra["covcal.json"])
    assert metadata["covcal.method_used"] == "temp"
    assert float(metadata["covcal.temperature"]) == 1.7
    for folder in (Path(torch.__file__).parents[1], REPOSITORY):
        assert str(folder).encode() not in first


def test_a_wrong_result_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof is made on the saved file, and can fail."""
    real = TorchForecaster.forward

    def wrong(self: Any, features: Any, logits: torch.Tensor) -> torch.Tensor:
        return real(self, features, logits * 1.001)

    case = prepared(f"{ZOO}:mlp", tmp_path, fl=False)
    monkeypatch.setattr(TorchForecaster, "forward", wrong)
    before = sorted(tmp_path.iterdir())
    line = exported(f"{ZOO}:mlp", case).error_line()
    assert "the probabilities of the new model differ from" in line
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("size", [1000, pytest.param(4000, marks=pytest.mark.campaign)])
def test_a_full_disk_leaves_one_line_and_the_old_file(size: int, tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk; torch itself would end the process."""
    import resource

    case = prepared(f"{ZOO}:mlp", tmp_path, fl=False)
    old = tmp_path / "out.pt2"
    old.write_text("old")
    found = tmp_path / "found.json"
    with found.open("w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child needs only this thread
        child = os.fork()
        if child == 0:
            signal.alarm(100)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            try:
                done = exported(f"{ZOO}:mlp", case, "--force")
                json.dump([done.code, done.out, done.err], file)
                file.flush()
            finally:
                os._exit(0)
    os.waitpid(child, 0)
    line = Outcome(*json.loads(found.read_text())).error_line()
    assert line.startswith("no space left to write ")
    assert line.endswith("out.pt2: free some space, or choose another folder")
    assert old.read_text() == "old"
    assert not list(tmp_path.glob(".out*"))


def test_the_wrong_ending(tmp_path: Path) -> None:
    """A torch model is written as .pt2."""
    case = prepared(f"{ZOO}:mlp", tmp_path, fl=False)
    done = covcal("export", f"{ZOO}:mlp", "-c", case.document, "-o", tmp_path / "out.onnx")
    assert "a torch model is exported as .pt2: give -o a name" in done.error_line()
