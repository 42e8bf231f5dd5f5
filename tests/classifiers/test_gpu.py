"""Classifiers on a GPU: the same head, proved, and the CPU's numbers up to rounding."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from covcal_cli.classifiers.classifier import OpenedClassifier
from covcal_cli.errors import CovcalError
from tests.classifiers.onnx.onnx_case import inputs_of
from tests.classifiers.onnx.onnx_float_cases import FLOAT_CASES
from tests.classifiers.onnx.onnx_quantised_cases import QUANTISED_CASES
from tests.classifiers.onnx.onnx_wide_cases import WIDE_CASES
from tests.classifiers.opening import open_classifier
from tests.classifiers.torch import torch_modules
from tests.classifiers.torch.test_torch_programs import COARSE, FOUND, ZOO
from tests.classifiers.torch.torch_modules import rows, save

Array = NDArray[Any]
ONNX = FLOAT_CASES | WIDE_CASES
PIXELS = torch_modules.Images.row

with_cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]
with_cuda_onnx = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available()
        or "CUDAExecutionProvider" not in onnxruntime.get_available_providers(),
        reason="needs CUDA and onnxruntime-gpu",
    ),
]


def marked(marks: list[Any], names: Any) -> list[Any]:
    return [pytest.param(name, marks=marks) for name in names]


def require_same(
    one: OpenedClassifier, other: OpenedClassifier, batch: dict[str, Array], close: float
) -> None:
    """Require the same head, phi and logits of two classifiers."""
    assert one.sha256 == other.sha256
    found, expected = one.prove(batch), other.prove(batch)
    features, logits = found.run(batch)
    phi, z = expected.run(batch)
    assert (found.logits_tensor, found.tail) == (expected.logits_tensor, expected.tail)
    assert np.abs(logits - z).max() <= close * np.abs(z).max()
    assert (features is None) == (phi is None)
    if features is not None and phi is not None:
        assert np.abs(features - phi).max() <= close * np.abs(phi).max()
    if expected.weight is not None:
        assert found.proof.error <= close


@pytest.mark.parametrize("name", marked(with_cuda_onnx, ONNX))
def test_onnx_classifiers(name: str, tmp_path: Path) -> None:
    case = ONNX[name]
    path = case.save(tmp_path)
    half = "half" in name or "16" in name or case.graph.half
    require_same(
        open_classifier(path, providers=("cuda",), **case.options),
        open_classifier(path, **case.options),
        inputs_of(case.graph),
        close=5e-3 if half else 1e-5,
    )


@pytest.mark.parametrize("name", marked(with_cuda_onnx, QUANTISED_CASES))
def test_quantised_onnx_classifiers_keep_their_head(name: str, tmp_path: Path) -> None:
    """Roundings of a step may fall the other way, so the numbers are held to the proof alone."""
    case = QUANTISED_CASES[name]
    opened = open_classifier(case.save(tmp_path), providers=("cuda",))
    classifier = opened.prove(inputs_of(case.graph))
    assert classifier.describe().startswith(case.layer)
    assert classifier.tail == case.tail


@pytest.mark.parametrize("name", marked(with_cuda, FOUND))
def test_torch_modules(name: str) -> None:
    module = f"{ZOO}:{name}"
    found = open_classifier(module, providers=("cuda",))
    (only,) = found.inputs
    batch = {only.name: rows(FOUND[name][0]).numpy().astype(only.dtype)}
    require_same(found, open_classifier(module), batch, COARSE.get(name, 1e-5))


@pytest.mark.parametrize(
    "kind", marked(with_cuda, ["traced", "scripted", "frozen", "static", "dynamic"])
)
def test_torch_files(kind: str, tmp_path: Path) -> None:
    suffix = "pt2" if kind in ("static", "dynamic") else "pt"
    path = save(torch_modules.images(), kind, tmp_path / f"model.{suffix}", rows(PIXELS, 3))
    found = open_classifier(path, providers=("cuda",), trusted=True)
    batch = {found.inputs[0].name: rows(PIXELS, 7).numpy()}
    require_same(found, open_classifier(path, trusted=True), batch, close=1e-5)


@pytest.mark.parametrize("device", marked(with_cuda, ["cpu", "cuda"]))
def test_programs_exported_on_a_gpu(device: str, tmp_path: Path) -> None:
    """The device is built into such a file, and is changed to the one asked for."""
    path = tmp_path / "model.pt2"
    module = torch_modules.images().to("cuda")
    save(module, "dynamic", path, rows(PIXELS, 3).to("cuda"))
    found = open_classifier(path, providers=(device,), trusted=True)
    batch = {found.inputs[0].name: rows(PIXELS, 7).numpy()}
    features, logits = found.prove(batch).run(batch)
    with torch.no_grad():
        expected = torch_modules.images().eval()(rows(PIXELS, 7)).numpy()
    assert features is not None
    assert np.abs(logits - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("asked", ["tensorrt", "CoreML"])
def test_torch_models_run_on_torchs_devices(asked: str) -> None:
    with pytest.raises(CovcalError, match=f"--providers {asked} is only for ONNX models"):
        open_classifier(f"{ZOO}:mlp", providers=("cpu", asked))


@pytest.mark.parametrize("asked", [("cpu",), ("CPUExecutionProvider",), ("CPU", "cpu")])
def test_the_cpu_goes_by_the_same_names_as_for_onnx(asked: tuple[str, ...]) -> None:
    batch = {"x": rows(FOUND["mlp"][0]).numpy()}
    require_same(
        open_classifier(f"{ZOO}:mlp", providers=asked), open_classifier(f"{ZOO}:mlp"), batch, 1e-6
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_gpu_that_is_not_there_is_no_reason_to_run_elsewhere() -> None:
    with pytest.raises(CovcalError, match="finds no CUDA device: pass --providers cpu"):
        open_classifier(f"{ZOO}:mlp", providers=("cuda", "cpu"))
