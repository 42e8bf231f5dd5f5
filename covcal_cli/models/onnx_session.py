"""Starting ONNX Runtime on a model: where it runs, and what to say where it cannot."""

import os
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from covcal_cli.errors import CovcalError, one_line

CPU = ("CPUExecutionProvider",)
_SUFFIX = "ExecutionProvider"
_GPU = ("CUDAExecutionProvider", "TensorrtExecutionProvider")
# Tensor cores round float32 products to ten bits by default, which would drown the proof.
_PROVIDER_OPTIONS = {"CUDAExecutionProvider": {"use_tf32": "0"}}
_NO_TENSOR_CORES = "NVIDIA_TF32_OVERRIDE"  # the only way to tell TensorRT
_LOG_FATAL_ONLY = 4  # what goes wrong arrives as an exception; the log would print it twice
_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")
_RUNTIME_DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc")


def provider_names(asked: Sequence[str]) -> tuple[str, ...]:
    """Return the execution providers of ONNX Runtime that `asked` names.

    Parameters
    ----------
    asked : sequence of str
        Short names in any case (``cpu``, ``cuda``, ``tensorrt``) or full ones; the CPU when empty.

    Raises
    ------
    CovcalError
        If one is not available in this installation, with those that are.
    """
    available = {name.lower(): name for name in onnxruntime.get_available_providers()}
    found = []
    for name in asked:
        wanted = name.strip().lower()
        full = available.get(wanted, available.get(wanted + _SUFFIX.lower()))
        if full is None:
            choices = ", ".join(value.removesuffix(_SUFFIX) for value in available.values())
            raise CovcalError(
                f"--providers {name} is not available in onnxruntime {onnxruntime.__version__}: "
                f"choose from {choices}, or install the onnxruntime package that has it "
                "(onnxruntime-gpu for CUDA and TensorRT)"
            )
        found.append(full)
    return tuple(dict.fromkeys(found)) or CPU


def start_session(
    data: bytes,
    *,
    path: Path,
    folder: Path,
    opset: int,
    threads: int = 1,
    providers: Sequence[str] = CPU,
    fuse: bool = True,
) -> Any:
    """Start ONNX Runtime on a serialised model.

    Parameters
    ----------
    data : bytes
        The model.
    path : Path
        The file it comes from, for errors.
    folder : Path
        Where its external weights lie.
    opset : int
        Version of the standard operators it uses, for errors.
    threads : int
        Threads within one operation.
    providers : sequence of str
        Full names, in order of preference.
    fuse : bool
        Whether operators may be fused into others that round differently.

    Raises
    ------
    CovcalError
        If this ONNX Runtime cannot load the model, with its own words, or would silently run it
        elsewhere than asked.
    """
    _prepare_gpu(providers)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _LOG_FATAL_ONLY
    if not fuse:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    # A spinning thread takes a core from the image decoder and gains nothing here.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(folder)
    )
    try:
        session = onnxruntime.InferenceSession(
            data,
            sess_options=options,
            providers=list(providers),
            provider_options=[_PROVIDER_OPTIONS.get(name, {}) for name in providers],
            enable_fallback=0,  # it would go on elsewhere, and say so on stdout
        )
    except Exception as error:  # ONNX Runtime's exceptions share no other base class
        if set(providers) - set(CPU):
            raise _no_start(providers, one_line(error, 200)) from error
        raise CovcalError(
            f"{path}: onnxruntime {onnxruntime.__version__} cannot load the model, which uses "
            f"opset {opset} ({one_line(error, 200)}): export it again with an older opset and "
            "standard operators, or update onnxruntime"
        ) from error
    missing = set(providers) - set(session.get_providers())
    if missing:
        raise _no_start(sorted(missing), "a driver or library that it needs is missing")
    return session


def _no_start(providers: Sequence[str], reason: str) -> CovcalError:
    names = ", ".join(name.removesuffix(_SUFFIX) for name in providers)
    return CovcalError(
        f"onnxruntime {onnxruntime.__version__} cannot compute on {names} ({reason}): install what "
        "it needs (pip install 'onnxruntime-gpu[cuda,cudnn]' for CUDA), or pass --providers cpu"
    )


def _prepare_gpu(providers: Sequence[str]) -> None:
    """Load the CUDA libraries that pip installed, which ONNX Runtime does not look for itself."""
    if not set(providers) & set(_GPU):
        return
    os.environ.setdefault(_NO_TENSOR_CORES, "0")
    onnxruntime.set_default_logger_severity(_LOG_FATAL_ONLY)
    with redirect_stdout(StringIO()):  # it prints what it does not find; stdout carries results
        onnxruntime.preload_dlls()


def require_standard_operators(path: Path, model: onnx.ModelProto) -> None:
    """Refuse operators that ONNX Runtime does not have.

    Raises
    ------
    CovcalError
        With the first node that needs one.
    """
    own = {function.domain for function in model.functions}
    for node in model.graph.node:
        if node.domain not in {*_KNOWN_DOMAINS, *_RUNTIME_DOMAINS, *own}:
            raise CovcalError(
                f"{path}: node {node.name or node.output[0]!r} needs the custom operator "
                f"{node.domain}.{node.op_type}, which onnxruntime does not have: export the model "
                "with standard operators"
            )
