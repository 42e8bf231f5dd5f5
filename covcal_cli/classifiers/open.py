"""The one way to open a classifier, of whatever kind."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from covcal_cli.classifiers.classifier import OpenedClassifier
from covcal_cli.classifiers.kinds import TORCH, kind_of


def open_classifier(
    model: str | Path,
    *,
    weights: Path | None = None,
    output: str | None = None,
    phi: str | None = None,
    threads: int = 1,
    providers: Sequence[str] = (),
    trusted: bool = False,
) -> OpenedClassifier:
    """Open a classifier by the kind of its file.

    Parameters
    ----------
    model : str or Path
        Path of an ONNX file or a torch file, or ``module:function`` that returns a torch module.
    weights : Path, optional
        Weights to load into the module that ``module:function`` returns.
    output : str, optional
        Name of the output that holds the classes, where the model has several.
    phi : str, optional
        ``"input"``, ``"none"`` or the name of a tensor, instead of the layer that is found.
    threads : int
        Threads within one operation.
    providers : sequence of str
        Where to compute, in order of preference: execution providers of ONNX Runtime, for a torch
        model ``cpu`` or ``cuda``; the CPU when empty.
    trusted : bool
        Open a file that is a program and may run code of its own, as torch files can.

    Raises
    ------
    CovcalError
        If the file is not a model that covcal can use, with the reason.
    """
    open_model: Callable[..., OpenedClassifier]
    if kind_of(model) is TORCH:  # only the package that is needed is loaded
        from covcal_cli.classifiers.torch.classifier import open_torch

        open_model = partial(open_torch, trusted=trusted)
    else:
        from covcal_cli.classifiers.onnx.classifier import open_onnx

        open_model = open_onnx
    return open_model(
        model,
        weights=weights,
        output=output,
        phi=phi,
        threads=threads,
        providers=providers,
    )
