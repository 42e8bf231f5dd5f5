"""Small torch classifiers; `phi` says what each one's head reads, without any search for it.

Every function makes the same weights each time, as ``module:function`` needs.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

D_IN, D, K = 6, 5, 3
CHANNELS, SIDE, TOKENS = 3, 8, 4


class Made(nn.Module):
    """phi -> Linear -> end; subclasses say what phi is."""

    row: tuple[int, ...] = (D_IN,)

    def __init__(self, end: Callable[[Tensor], Any] | None = None, classes: int = K) -> None:
        super().__init__()
        self.body: nn.Module = nn.Linear(D_IN, D)
        self.head: nn.Module = nn.Linear(D, classes)
        self.end = end

    def phi(self, x: Tensor) -> Tensor:
        features: Tensor = torch.relu(self.body(x))
        return features

    def forward(self, x: Tensor) -> Any:
        logits = self.head(self.phi(x))
        return logits if self.end is None else self.end(logits)


class Images(Made):
    """A convolution, a batch norm that is not the identity, a mean over the pixels."""

    row = (CHANNELS, SIDE, SIDE)

    def __init__(self, end: Callable[[Tensor], Any] | None = None) -> None:
        super().__init__(end)
        norm = nn.BatchNorm2d(D)
        norm.running_mean = torch.rand(D)
        norm.running_var = torch.rand(D) + 0.5
        self.body = nn.Sequential(nn.Conv2d(CHANNELS, D, 3, padding=1), norm, nn.ReLU(inplace=True))

    def phi(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x)
        return features.mean(dim=(2, 3))


class PooledThenConvolved(Images):
    """Mean over the pixels, then a 1x1 convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(D, K, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.phi(x)[:, :, None, None])
        return logits.flatten(1)


class ConvolvedThenPooled(PooledThenConvolved):
    """A 1x1 convolution, then the mean over the pixels."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits.mean(dim=(2, 3))


class ConvolvedOverAll(Images):
    """A convolution whose kernel is as large as its input."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(D, K, SIDE)
        self.input_shape = self.row

    def phi(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x)
        return features.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits[:, :, 0, 0]


class ConvolvedReluPooled(ConvolvedThenPooled):
    """As SqueezeNet: the change in place makes it look as if the relu were the layer's result."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.head(self.body(x)), inplace=True).mean(dim=(2, 3))


class Wide(Images):
    """A last convolution of 3x3 before the mean: not affine in a mean of its input."""

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.body(x)
        return maps[:, :K].mean(dim=(2, 3))


class Token(Made):
    """The first token alone is classified, as in a vision transformer."""

    row = (TOKENS, D_IN)

    def __init__(self, use: str = "first") -> None:
        super().__init__()
        self.use = use
        self.example_input_array = torch.ones(2, *self.row)
        self.mix = nn.TransformerEncoderLayer(D_IN, 2, 8, dropout=0.1, batch_first=True)

    def tokens(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(self.mix(x)))

    def phi(self, x: Tensor) -> Tensor:
        tokens = self.tokens(x)
        return tokens.mean(dim=1) if self.use == "mean" else tokens[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor
        if self.use == "first":
            logits = self.head(self.phi(x))
            return logits
        logits = self.head(self.tokens(x))
        return logits.mean(dim=1) if self.use == "mean" else logits[:, 0]


class TwoHeads(Made):
    """Two heads: summed with weights, or both given."""

    def __init__(self, combine: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.second = nn.Linear(D, K)
        self.combine = combine

    def phi(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        return torch.cat([torch.relu(hidden), torch.tanh(hidden)], dim=1)

    def forward(self, x: Tensor) -> Any:
        both = self.phi(x)
        return self.combine(self.head(both[:, :D]), self.second(both[:, D:]))


class ByHand(Made):
    """No layer, only parameters: x @ W + b, or the cosine to normalised weights."""

    def __init__(self, *, cosine: bool = False, einsum: bool = False) -> None:
        super().__init__()
        del self.head
        self.einsum = einsum
        self.weight = nn.Parameter(torch.randn(D, K))
        self.offset = nn.Parameter(torch.randn(K))
        self.cosine = cosine

    def phi(self, x: Tensor) -> Tensor:
        features = super().phi(x)
        return functional.normalize(features) if self.cosine else features

    def forward(self, x: Tensor) -> Tensor:
        if self.cosine:
            return 16 * functional.linear(self.phi(x), functional.normalize(self.weight.T))
        if self.einsum:
            return torch.einsum("nd,dk->nk", self.phi(x), self.weight) + self.offset
        return self.phi(x) @ self.weight + self.offset


class InPlace(Made):
    """Changes its input, its features and its logits in place."""

    def phi(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x.clone().div_(2)))

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x.div_(2)).relu_()
        logits: Tensor = self.head(features)
        features.zero_()
        return logits.mul_(2).add_(1)


class Prints(Made):
    """Speaks while it works."""

    def phi(self, x: Tensor) -> Tensor:
        print("thinking")
        return super().phi(x)


class Dice(Made):
    """Noise in evaluation mode, as a model exported in training mode has."""

    def phi(self, x: Tensor) -> Tensor:
        return functional.dropout(super().phi(x), p=0.5, training=True)


class Text(Made):
    """Tokens as integers, looked up and averaged."""

    row = (TOKENS,)

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Embedding(11, D)

    def phi(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.body(x)
        return torch.relu(tokens.mean(dim=1))


class TwoInputs(nn.Module):
    """Two inputs side by side."""

    def __init__(self, *, example: bool) -> None:
        super().__init__()
        self.inner = Made()
        if example:
            self.example_input_array = (torch.ones(2, 2), torch.ones(2, D_IN - 2))

    def forward(self, left: Tensor, right: Tensor) -> Any:
        return self.inner(torch.cat([left, right], dim=1))


@dataclass
class Holder:
    """An answer as transformers gives it."""

    logits: Tensor
    hidden: Tensor


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return make()

    return made


def softmax(z: Tensor) -> Tensor:
    return torch.softmax(z, dim=1)


def log_softmax(z: Tensor) -> Tensor:
    return torch.log_softmax(z, dim=1)


def _with_norm() -> nn.Module:
    norm = nn.BatchNorm1d(K)
    norm.running_mean = torch.rand(K)
    norm.running_var = torch.rand(K) + 0.5
    return Made(norm)


mlp = seeded(Made)
images = seeded(Images)
pooled_then_convolved = seeded(PooledThenConvolved)
convolved_then_pooled = seeded(ConvolvedThenPooled)
convolved_over_all = seeded(ConvolvedOverAll)
convolved_relu_pooled = seeded(ConvolvedReluPooled)
wide = seeded(Wide)
first_token = seeded(Token)
mean_of_tokens = seeded(lambda: Token("mean"))
one_of_tokens = seeded(lambda: Token("one"))
with_softmax = seeded(lambda: Made(softmax))
capped = seeded(lambda: Made(lambda z: z.clamp(-8, 8)))
capped_softmax = seeded(lambda: Made(lambda z: softmax(z.clamp(-8, 8))))
clipped_softmax = seeded(lambda: Made(lambda z: softmax(z).clamp(1e-4, 1 - 1e-4)))
with_log_softmax = seeded(lambda: Made(log_softmax))
with_sigmoid = seeded(lambda: Made(torch.sigmoid))
with_argmax = seeded(lambda: Made(lambda z: z.argmax(dim=1)))
with_argmax_column = seeded(lambda: Made(lambda z: z.argmax(dim=1, keepdim=True)))
with_temperature = seeded(lambda: Made(lambda z: softmax(z / 1.7)))
with_norm = seeded(_with_norm)
with_soft_cap = seeded(lambda: Made(lambda z: 1e4 * torch.tanh(z / 1e4)))
with_square = seeded(lambda: Made(torch.square))
as_dict = seeded(lambda: Made(lambda z: {"probabilities": softmax(z), "scores": z}))
as_tuple = seeded(lambda: Made(lambda z: (z.sum(), z)))
as_holder = seeded(lambda: Made(lambda z: Holder(z, z[:, :2])))
averaged = seeded(lambda: TwoHeads(lambda a, b: (a + b) / 2))
weighted_softmax = seeded(lambda: TwoHeads(lambda a, b: softmax(0.25 * a + 0.75 * b)))
multiplied = seeded(lambda: TwoHeads(lambda a, b: a * torch.sigmoid(b)))
two_answers = seeded(lambda: TwoHeads(lambda a, b: {"left": a, "right": b}))
by_hand = seeded(ByHand)
by_einsum = seeded(lambda: ByHand(einsum=True))
cosine = seeded(lambda: ByHand(cosine=True))
in_place = seeded(InPlace)
prints = seeded(Prints)
dice = seeded(Dice)
text = seeded(Text)
two_inputs = seeded(lambda: TwoInputs(example=True))
two_unknown_inputs = seeded(lambda: TwoInputs(example=False))
parallel = seeded(lambda: nn.DataParallel(Made()))
doubled = seeded(lambda: Made().double())
halved = seeded(lambda: Made().half())
brained = seeded(lambda: Made().bfloat16())
no_layer = seeded(lambda: nn.Flatten())
odd_sides = seeded(
    lambda: nn.Sequential(nn.Conv2d(CHANNELS, 1, 1), nn.Flatten(), nn.Linear(20 * 20, K))
)
one_by_two = seeded(
    lambda: Made(lambda z: torch.cat([torch.sigmoid(-z), torch.sigmoid(z)], dim=1), classes=1)
)
one_logit = seeded(lambda: Made(classes=1))
one_sigmoid = seeded(lambda: Made(torch.sigmoid, classes=1))
one_squeezed = seeded(lambda: Made(lambda z: torch.sigmoid(z)[:, 0], classes=1))
one_scaled = seeded(lambda: Made(lambda z: 2 * z[:, 0] + 1, classes=1))
one_label = seeded(lambda: Made(lambda z: (z[:, 0] > 0).long(), classes=1))
one_of_each = seeded(lambda: Made(lambda z: (z[:, 0] > 0, torch.sigmoid(z)[:, 0]), classes=1))
one_relu = seeded(lambda: Made(torch.relu, classes=1))
recurrent = seeded(lambda: nn.LSTM(D_IN, K, batch_first=True))
lazy = seeded(lambda: nn.Sequential(nn.LazyLinear(D), nn.ReLU(), nn.LazyLinear(K)))
meta = seeded(lambda: nn.Linear(D_IN, K, device="meta"))
not_a_function = 3


def declared_sides() -> nn.Module:
    module = odd_sides()
    module.example_input_array = torch.ones(1, CHANNELS, 20, 20)
    return module


def needs_arguments(classes: int, width: int = 3) -> nn.Module:
    return nn.Linear(width, classes)


def raises() -> nn.Module:
    raise ValueError("no weights\nin this folder")


def exits() -> nn.Module:
    raise SystemExit("bye")


def gives_a_dict() -> dict[str, Tensor]:
    return {}


@contextmanager
def deprecated() -> Iterator[None]:
    """TorchScript warns that it is deprecated wherever it is used."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
        yield


def rows(shape: tuple[int, ...], n: int = 7) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(3))


def save(module: nn.Module, kind: str, path: Path, example: Tensor) -> Path:
    """Save a module as ``traced``, ``scripted``, ``frozen``, ``static`` or ``dynamic``."""
    module.eval()
    if kind in ("static", "dynamic"):
        shapes = ({0: torch.export.Dim("n", max=65535)},) if kind == "dynamic" else None
        exporter: Any = torch.export
        exporter.save(exporter.export(module, (example,), dynamic_shapes=shapes), path)
        return path
    with deprecated():
        jit: Any = torch.jit
        program = jit.trace(module, example) if kind == "traced" else jit.script(module)
        jit.save(jit.freeze(program) if kind == "frozen" else program, path)
    return path


# Classes that are ruled out.

MASK = torch.tensor([False, True, False])


def masked_by_infinity() -> Made:
    return Made(lambda z: z + torch.where(MASK, -torch.inf, 0.0))


def masked_by_filling() -> Made:
    return Made(lambda z: z.masked_fill(MASK, torch.finfo(z.dtype).min))


def masked_before_softmax() -> Made:
    return Made(lambda z: torch.softmax(z.masked_fill(MASK, -torch.inf), dim=1))


def masked_by_a_billion() -> Made:
    return Made(lambda z: z - 1e9 * MASK)
