"""Torch programs as graphs that can be traced anew: whatever extraction takes, as torch.export."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from inspect import Parameter, Signature
from io import StringIO
from typing import Any

import torch
from torch import Tensor, fx, nn

from covcal_cli.classifiers.torch.program import Program, cause, floating_type
from covcal_cli.errors import CovcalError

# Where a program comes from: machine paths, and different bytes on every machine.
_TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "torch_fn")


def example_rows(program: Program) -> tuple[Tensor, ...]:
    """Return the made rows of a program in the precision that it takes."""
    kind = floating_type(program.module)
    return tuple(row.to(kind) if row.is_floating_point() else row for row in program.rows)


def as_graph(program: Program, rows: Sequence[Tensor]) -> fx.GraphModule:
    """Return the program as one graph of operators."""
    module = program.module
    graph: Any
    if isinstance(module, fx.GraphModule):
        return module
    if isinstance(module, torch.jit.ScriptModule):
        from torch._export.converter import TS2EPConverter

        with _one_attempt(program.where):
            graph = TS2EPConverter(module, tuple(rows), {}).convert().module()
    else:
        graph = trace(program, module, rows).module()
    found: fx.GraphModule = graph
    return found


def trace(program: Program, module: nn.Module, rows: Sequence[Tensor]) -> Any:
    """Return a module, fed like `program`, as a ``torch.export.ExportedProgram``.

    Sizes that the program leaves free stay free; no trace of this machine is in it.
    """
    free = tuple(
        {
            axis: torch.export.Dim.AUTO
            for axis, size in enumerate(wanted.shape)
            if size is None and row.shape[axis] > 1
        }
        for wanted, row in zip(program.inputs, rows, strict=True)
    )
    with _one_attempt(program.where):
        exported = torch.export.export(module, tuple(rows), dynamic_shapes=free, strict=False)
    for graph in (part.graph for part in exported.graph_module.modules() if _has_graph(part)):
        for node in graph.nodes:
            for key in _TRACES:
                node.meta.pop(key, None)
    return exported


def signature_of(program: Program) -> Signature:
    """Return a signature with the program's own names of its inputs, so that they are kept."""
    names = [wanted.name for wanted in program.inputs]
    if len({*names}) < len(names) or not all(name.isidentifier() for name in names):
        names = [f"input_{number}" for number in range(len(names))]
    return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])


def _has_graph(module: nn.Module) -> bool:
    return isinstance(module, fx.GraphModule)


@contextmanager
def _one_attempt(where: str) -> Iterator[None]:
    """Keep torch's chatter off the terminal, and make one line of what it raises."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # torch.export raises many kinds
        raise CovcalError(
            f"{where}: torch.export cannot follow this model ({cause(error)}): export it to ONNX "
            "and calibrate that, or keep covcal apply"
        ) from error
    finally:
        logging.disable(disabled)
