"""Find the shapes of a torch module's inputs by attributes, by the first layer, or by trials."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from covcal_cli.arrays import ModelInput, Shape, shape_text
from covcal_cli.classifiers.torch.program import cause, floating_type, numpy_type, run_module
from covcal_cli.classifiers.torch.trace import NAMES
from covcal_cli.errors import OUTPUTS_AS_TABLE, CovcalError

ROWS = 4
# Usual sizes of images, in the order of the trials.
_GREY_SIDES = (28, 32, 16, 64, 224)
_COLOUR_SIDES = (224, 32, 64, 28, 96, 128, 299, 256, 384)
_LENGTHS = (128, 1024, 16000, 16)  # Usual lengths of texts and signals.
# Names of attributes that may store the shape of the input or the size of an image.
_TIMM = ("pretrained_cfg", "default_cfg")
_SIDES = ("input_size", "image_size", "img_size")
_SET_EXAMPLE = (
    "set module.example_input_array to a tensor that the module accepts (or a tuple of "
    "tensors for several inputs)"
)
_EXPORT = f"save it with torch.export.save, or {OUTPUTS_AS_TABLE}"


@dataclass(frozen=True)
class _Guess:
    """Random rows of a shape that a module may accept."""

    rows: tuple[Tensor, ...]
    shapes: tuple[Shape, ...]
    source: str  # Where the shape comes from, as words for a note.
    certain: bool = False  # Whether the model declares the shape.


def find_inputs(
    module: nn.Module, where: str, *, holders: Sequence[object]
) -> tuple[tuple[ModelInput, ...], tuple[Tensor, ...], str]:
    """Return the inputs of a module, random rows (n, ...) on which the module runs, and a note.

    `holders` are objects with attributes that may declare the shape.
    """
    names, needed = _arguments(module, where)
    remedy = _EXPORT if isinstance(module, torch.jit.ScriptModule) else _SET_EXAMPLE
    failures: list[str] = []
    for guess in _guesses(module, holders):
        if len(guess.rows) < max(1, needed):
            continue
        text = " and ".join(shape_text(row.shape) for row in guess.rows)
        try:
            outputs = run_module(module, guess.rows)
        except Exception as error:  # For a wrong input, a module may raise any error.
            failures.append(f"{text}: {cause(error)}")
            if guess.certain:
                break
            continue
        n = len(guess.rows[0])
        # The rows are the first axis of a result, or the second axis if the first has length 1.
        shapes = [tuple(tensor.shape) for tensor in outputs.values()]
        if any(n in shape[:1] or shape[:2] == (1, n) for shape in shapes):
            inputs = _inputs(guess, names, module)
            described = " and ".join(f"{value.name} {value.describe()}" for value in inputs)
            return inputs, guess.rows, f"covcal reads the input as {described}, {guess.source}"
        results = ", ".join(
            f"{name} {shape_text(tensor.shape)}" for name, tensor in outputs.items()
        )
        failures.append(
            f"{text}, because it returns {results or 'no tensor'} instead of one result per row"
        )
    if failures:
        more = f" (or of {len(failures) - 1} other shapes)" if len(failures) > 1 else ""
        raise CovcalError(f"{where} does not run on inputs of {failures[0]}{more}: {remedy}")
    reason = "the first layer does not show the shape of the input"
    if needed > 1:
        reason = f"forward takes {needed} inputs ({', '.join(names[:needed])})"
    raise CovcalError(f"{where}: {reason}: {remedy}")


def _inputs(guess: _Guess, names: Sequence[str], module: nn.Module) -> tuple[ModelInput, ...]:
    return tuple(
        ModelInput(
            names[index] if index < len(names) else f"input{index}",
            shape,
            numpy_type(floating_type(module) if row.is_floating_point() else row.dtype),
        )
        for index, (row, shape) in enumerate(zip(guess.rows, guess.shapes, strict=True))
    )


def _arguments(module: nn.Module, where: str) -> tuple[list[str], int]:
    """Return the names of forward's positional arguments, and the number of required arguments."""
    if isinstance(module, torch.jit.ScriptModule):
        forward: Any = module.forward
        arguments = forward.schema.arguments[1:]
        optional = [argument.has_default_value() for argument in arguments]
    else:
        try:
            signature = inspect.signature(module.forward)
        except (TypeError, ValueError) as error:
            raise CovcalError(
                f"{where} has no forward method to call ({cause(error)}): define forward"
            ) from error
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        arguments = [value for value in signature.parameters.values() if value.kind in kinds]
        optional = [value.default is not value.empty for value in arguments]
    return [argument.name for argument in arguments], optional.count(False)


def _guesses(module: nn.Module, holders: Sequence[object]) -> Iterator[_Guess]:
    for holder in holders:
        yield from _declared(holder)
    kind, width = _first_layer(module)
    layer = f"because the first layer is {kind}"
    if kind == "Linear":
        yield _random((width,), (None, width), layer)
    elif kind == "Conv2d":
        for holder in holders:
            for sides in _declared_sides(holder):
                row = (width, *sides)
                yield _random(row, (None, *row), f"{layer}, with its declared size")
        for side in _GREY_SIDES if width == 1 else _COLOUR_SIDES:
            source = f"{layer}, and the module runs on images of {side}x{side}"
            yield _random((width, side, side), (None, width, None, None), source)
    elif kind in ("Conv1d", "Embedding"):
        for length in _LENGTHS:
            source = f"{layer}, and the module runs on inputs of length {length}"
            if kind == "Conv1d":
                yield _random((width, length), (None, width, None), source)
            else:
                words = torch.randint(0, width, (ROWS, length), generator=_seeded())
                yield _Guess((words,), ((None, None),), source)


def _declared(holder: object) -> Iterator[_Guess]:
    example = getattr(holder, "example_input_array", None)
    if isinstance(example, Tensor | Mapping):
        example = (example,) if isinstance(example, Tensor) else tuple(example.values())
    if isinstance(example, list | tuple) and all(isinstance(item, Tensor) for item in example):
        shapes = tuple((None, *item.shape[1:]) for item in example)
        yield _Guess(tuple(map(_several, example)), shapes, "as example_input_array says", True)
    shape = _sizes_in(getattr(holder, "input_shape", None))
    if shape:
        yield _random(shape, (None, *shape), "as input_shape says", certain=True)
    for name in _TIMM:
        config = getattr(holder, name, None)
        size = config.get("input_size") if isinstance(config, Mapping) else None
        sizes = _sizes_in(size or getattr(config, "input_size", None))
        if sizes:
            yield _random(sizes, (None, *sizes), f"as {name} says")


def _declared_sides(holder: object) -> Iterator[tuple[int, ...]]:
    for place in (holder, getattr(holder, "config", None)):
        for name in _SIDES:
            value = getattr(place, name, None)
            if isinstance(value, int):
                yield value, value
            elif len(sizes := _sizes_in(value)) == 2:
                yield sizes


def _sizes_in(value: Any) -> tuple[int, ...]:
    if isinstance(value, list | tuple) and all(isinstance(n, int) and n > 0 for n in value):
        return tuple(value)
    return ()


def _random(row: tuple[int, ...], shape: Shape, source: str, *, certain: bool = False) -> _Guess:
    return _Guess((torch.randn(ROWS, *row, generator=_seeded()),), (shape,), source, certain)


def _several(rows: Tensor) -> Tensor:
    """Repeat rows to get `ROWS` rows, and add noise to floats.

    With a single row, the row axis could be mistaken for another axis of length 1.
    """
    copies = -(-ROWS // len(rows))
    rows = torch.cat([rows] * copies)[:ROWS] if len(rows) else rows
    if not rows.is_floating_point():
        return rows
    noise = torch.randn(rows.shape, generator=_seeded(), dtype=torch.float32).to(rows.dtype)
    return rows + noise * (rows.std() if rows.std() > 0 else 1)


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _first_layer(module: nn.Module) -> tuple[str, int]:
    """Return the type of the first layer with weights, and the width of this layer."""
    for layer in module.modules():
        name = getattr(layer, "original_name", "")
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, Tensor):
            continue
        for kind, axes in (("Conv2d", 4), ("Conv1d", 3), ("Linear", 2), ("Embedding", 2)):
            if (isinstance(layer, getattr(nn, kind)) or name == kind) and weight.ndim == axes:
                width = 0 if kind == "Embedding" else 1
                return kind, int(getattr(layer, "in_channels", weight.shape[width]))
    return _first_constant(module)


def _first_constant(module: nn.Module) -> tuple[str, int]:
    """Return the result of `_first_layer` for a frozen program, which has no modules."""
    if not isinstance(module, torch.jit.ScriptModule):
        return "", 0
    graph: Any = module.inlined_graph
    for node in graph.nodes():
        if node.kind().removeprefix("aten::") in NAMES:
            weight = list(node.inputs())[1].toIValue()
            kinds = {4: "Conv2d", 3: "Conv1d", 2: "Linear"}
            if isinstance(weight, Tensor) and weight.ndim in kinds:
                return kinds[weight.ndim], int(weight.shape[1])
    return "", 0
