"""Finding phi and the logits among the values of a traced program, by their numbers.

A program may be written in any way; what extraction read on made rows is known. The node whose
values are those holds them, whatever it is called.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

_CLOSE = 1e-5


@dataclass(frozen=True)
class Found:
    """A node, and what makes rows of vectors of its value."""

    node: str  # name in the graph
    view: str  # key of `VIEWS`

    def read(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the vectors, shape (n, width), of a run's values."""
        return VIEWS[self.view](values[self.node])


VIEWS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda value: value.flatten(1),
    "mean over the last axes": lambda value: value.flatten(2).float().mean(2),
    "mean over the middle axes": lambda value: value.flatten(1, -2).float().mean(1),
    "first token": lambda value: value[:, 0].flatten(1),
    "last token": lambda value: value[:, -1].flatten(1),
}


class ValueReader(fx.Interpreter):
    """Runs a graph and keeps the values of the nodes called `wanted`; of all, where it is None."""

    def __init__(self, module: fx.GraphModule, wanted: set[str] | None = None) -> None:
        super().__init__(module, garbage_collect_values=wanted is not None)
        self._wanted = wanted
        self.values: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node; a value that is kept is copied, as what follows may change it in place."""
        result = super().run_node(n)
        is_wanted = n.op != "get_attr" if self._wanted is None else n.name in self._wanted
        if is_wanted and isinstance(result, Tensor):
            self.values[n.name] = result.clone()
        return result


def find_values(values: Mapping[str, Tensor], expected: Tensor) -> tuple[Found, ...]:
    """Return the nodes that hold `expected`, shape (n, width), side by side; none if some is not.

    One node where there is one; a model of several heads has a node for the phi of each.
    """
    found: list[Found] = []
    start, width = 0, expected.shape[1]
    while start < width:
        best = _first_part(values, expected[:, start:].float())
        if best is None:
            return ()
        part, columns = best
        found.append(part)
        start += columns
    return tuple(found)


def read_found(found: Sequence[Found], values: Mapping[str, Tensor]) -> Tensor:
    """Return what `found` holds in a run, shape (n, width)."""
    parts = [part.read(values) for part in found]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _first_part(values: Mapping[str, Tensor], expected: Tensor) -> tuple[Found, int] | None:
    """Return the node that holds the first columns of `expected`, and how many: the widest.

    Of those the first that is equal to the bit, else the nearest that rounding explains.
    """
    ranks: list[tuple[int, float, Found]] = []
    for name, value in values.items():
        for view, vectors in _views(value, *expected.shape):
            columns = vectors.shape[1]
            part = expected[:, :columns]
            difference = float((vectors.float() - part).abs().max())
            if difference <= _CLOSE * max(float(part.abs().max()), 1e-30):
                ranks.append((-columns, difference, Found(name, view)))
    if not ranks:
        return None
    columns, _, found = min(ranks, key=lambda rank: rank[:2])
    return found, -columns


def _views(value: Tensor, rows: int, width: int) -> Iterator[tuple[str, Tensor]]:
    """Yield whatever of `VIEWS` gives a vector of at most `width` numbers per row."""
    if value.ndim < 2 or len(value) != rows or not value.is_floating_point() or not value.numel():
        return
    if value[0].numel() <= width:
        yield "as it is", VIEWS["as it is"](value)
        return
    if value.ndim < 3:
        return
    for view, make in VIEWS.items():
        vectors = make(value)
        if vectors.shape[1] <= width:
            yield view, vectors
