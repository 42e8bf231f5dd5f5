"""Linear layers as torch's operators see them, whatever program calls them.

Eager modules, TorchScript and exported programs all end in the same operators, so a call of a
linear layer is read from the operator's own arguments: its input, its weights, its result.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

_PRODUCTS = {"linear", "addmm", "mm", "matmul", "bmm"}
_CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "convolution", "_convolution"}
DECOMPOSED = {"einsum"}  # operators that are products underneath
NAMES = _PRODUCTS | _CONVOLUTIONS


@dataclass(frozen=True)
class LayerCall:
    """One call of a linear layer.

    Attributes
    ----------
    op : str
        The operator.
    name : str
        Path of the layer in the module, or the operator where its weights are no parameter.
    key : tuple
        The same for every call of the same layer.
    features, result : Tensor
        What it read and gave, as it was then: what follows may change them in place.
    weight : Tensor, shape (K, d)
    bias : Tensor, shape (K,), or None
    plain : bool
        Whether every result is affine in one vector of features: false for larger kernels.
    """

    op: str
    name: str
    key: tuple[object, ...]
    features: Tensor
    weight: Tensor
    bias: Tensor | None
    result: Tensor
    plain: bool

    @property
    def is_convolution(self) -> bool:
        """Whether its positions are pixels; tokens otherwise."""
        return self.op in _CONVOLUTIONS

    def rows(self, n: int) -> tuple[Tensor, Tensor] | None:
        """Return features, shape (n, P, d), and results, shape (n, P, K), by row and position.

        P counts the positions (pixels or tokens) that one row holds; None where the call does not
        treat the n rows apart.
        """
        x, z = self.features, self.result
        k, d = self.weight.shape
        if self.is_convolution:
            if x.shape[0] != n:
                return None
            z = z.flatten(2).transpose(1, 2)
            if z.shape[1] == 1:  # a kernel as large as the map: all of it is the feature vector
                return x.reshape(n, 1, d), z
            return x.flatten(2).transpose(1, 2), z
        if x.ndim == 3 and x.shape[0] != n and x.shape[1] == n:  # tokens first
            x, z = x.transpose(0, 1), z.transpose(0, 1)
        if x.numel() % (n * d):
            return None
        return x.reshape(n, -1, d), z.reshape(n, -1, k)


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of an operator's arguments or result."""
    if isinstance(value, Tensor):
        if value.layout == torch.strided:
            yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))


def address(tensor: Tensor) -> int:
    """Return what tells one memory block from another; views share it."""
    return tensor.untyped_storage().data_ptr()


def parameter_names(module: torch.nn.Module) -> dict[int, str]:
    """Return the path of each layer by the address of its weights."""
    named = [*module.named_buffers(), *module.named_parameters()]
    return {address(value): name.removesuffix(".weight") for name, value in named if value.numel()}


def read_call(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, names: dict[int, str]
) -> LayerCall | None:
    """Return the call of a linear layer that an operator's call is, or None.

    Parameters
    ----------
    func : torch.ops.OpOverload
    args, kwargs
        Its arguments.
    result
        What it returned.
    names : mapping of int to str
        See `parameter_names`.
    """
    op = func.overloadpacket.__name__
    if op not in NAMES or not isinstance(result, Tensor):
        return None
    given = _bound(func, args, kwargs)
    plain = True
    if op == "linear":
        x, source, bias = given["input"], given["weight"], given["bias"]
        weight = source
    elif op in _CONVOLUTIONS:
        x, source, bias = given["input"], given["weight"], given["bias"]
        plain = _is_affine(given, result)
        weight = source.flatten(1)
    else:
        x, bias = given["mat1" if op == "addmm" else "self"], None
        source = given["other" if op == "matmul" else "mat2"]
        if op == "addmm":
            bias = given["self"]
            plain = given["beta"] == 1 and given["alpha"] == 1
        # One matrix alone in a batch is what einsum makes of a plain product.
        matrix = source[0] if source.ndim == 3 and len(source) == 1 else source
        weight = matrix.T if matrix.ndim == 2 else matrix
    if weight.ndim != 2 or x.ndim < 2 or (bias is not None and bias.numel() != len(weight)):
        return None
    name = names.get(address(source))
    key = (op, tuple(weight.shape), name or "")
    return LayerCall(op, name or op, key, x, weight, bias, result, plain)


def detached(call: LayerCall) -> LayerCall:
    """Return the call with copies of what later operators may change in place."""
    return replace(call, features=call.features.clone(), result=call.result.clone())


def without_values(call: LayerCall) -> LayerCall:
    """Return the call without what it read and gave, so that the memory can be used again."""
    nothing = call.weight.new_empty(0)
    return replace(call, features=nothing, result=nothing)


def _bound(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return an operator's arguments by name, defaults included."""
    given = {}
    for index, argument in enumerate(func._schema.arguments):
        if index < len(args):
            given[argument.name] = args[index]
        else:
            given[argument.name] = kwargs.get(argument.name, argument.default_value)
    return given


def _is_affine(given: dict[str, Any], result: Tensor) -> bool:
    """Return whether a convolution sees one pixel, or the whole map at once."""
    kernel = tuple(given["weight"].shape[2:])
    padding = given["padding"]
    unpadded = padding == "valid" or (isinstance(padding, list) and not any(padding))
    if given["groups"] != 1 or given.get("transposed"):
        return False
    if padding == "same":
        unpadded = set(kernel) == {1}
    whole = kernel == tuple(given["input"].shape[2:]) and set(result.shape[2:]) == {1}
    single = set(kernel) == {1} and set(given["stride"]) == {1}
    return unpadded and (whole or single)
