"""Where a torch program computes: ``--providers`` by the same names as for ONNX Runtime."""

from collections.abc import Sequence

import torch

from covcal_cli.errors import CovcalError

CPU = torch.device("cpu")
_KINDS = ("cpu", "cuda")
_SUFFIX = "executionprovider"


def device_of(providers: Sequence[str]) -> torch.device:
    """Return the device that the first of `providers` names; the CPU when there is none.

    Parameters
    ----------
    providers : sequence of str
        ``cpu`` or ``cuda`` in any case, in order of preference. One that is asked for and not
        there is an error, as with ONNX Runtime: nothing is computed elsewhere than asked.

    Raises
    ------
    CovcalError
        If torch has no such device, or this machine has none.
    """
    names = [name.strip().lower().removesuffix(_SUFFIX) for name in providers]
    for asked, name in zip(providers, names, strict=True):
        if name not in _KINDS:
            raise CovcalError(
                f"--providers {asked} is for ONNX models: a torch model runs on cpu or cuda, or "
                "export it to ONNX"
            )
    if "cuda" in names and not torch.cuda.is_available():
        raise CovcalError(
            f"--providers cuda: torch {torch.__version__} finds no CUDA device: pass --providers "
            "cpu, or install a torch with CUDA on a machine that has one"
        )
    return torch.device(names[0]) if names else CPU


def without_tensor_cores() -> None:
    """Keep float32 convolutions in float32 on a GPU, as products already are.

    Tensor cores round to ten bits, and features would differ from the CPU's in the third digit.
    """
    torch.backends.cudnn.allow_tf32 = False
