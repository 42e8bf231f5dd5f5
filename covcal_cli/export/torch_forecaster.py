"""A classifier's program and the calibrated forecaster as one torch module, in float32.

The same mathematics as ``networks.py``, ``softmax.log_mean_softmax`` and
``forecasters.log_probabilities``.
"""

from inspect import Signature

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from covcal_cli.export.forecaster import Forecaster
from covcal_cli.export.torch_values import Found, ValueReader, read_found

Outputs = dict[str, Tensor]


class TorchForecaster(nn.Module):
    """psi, the head and the temperature."""

    def __init__(self, forecaster: Forecaster) -> None:
        super().__init__()
        self._temperature = forecaster.temperature
        self._networks: dict[str, str] | None = None
        if forecaster.networks is not None:
            self._output_relu = bool(forecaster.networks["psi/output_relu"][0])
            self._networks = {}
            for name, values in forecaster.networks.items():
                if name.startswith(("projection/", "psi/", "head/")) and "relu" not in name:
                    self._networks[name] = name.replace("/", "_")
                    self.register_buffer(self._networks[name], torch.from_numpy(values).float())

    def forward(self, features: Tensor | None, logits: Tensor) -> Tensor:
        """Return calibrated probabilities, float32 [n, K], of phi [n, d] and logits [n, K]."""
        scaled = logits.float()
        if self._networks is not None and features is not None:
            scaled = self._aligned_logits(features.float())
        shifted = scaled - scaled.amax(dim=1, keepdim=True)
        return torch.softmax(shifted / self._temperature, dim=1)

    def _aligned_logits(self, features: Tensor) -> Tensor:
        values = features - self._array("projection/mean")
        if self._networks is not None and "projection/components" in self._networks:
            values = values @ self._array("projection/components")
        values = values / self._array("projection/scale")
        values = self._perceptrons(values, "psi", output_relu=self._output_relu)
        values = self._perceptrons(values, "head", output_relu=False)
        logs = torch.log_softmax(values, dim=2)
        highest = logs.amax(dim=0)
        return highest + (logs - highest).exp().mean(dim=0).log()

    def _perceptrons(self, values: Tensor, name: str, *, output_relu: bool) -> Tensor:
        layers = sum(key.startswith(f"{name}/weight_") for key in self._networks or ())
        for layer in range(layers):
            values = values @ self._array(f"{name}/weight_{layer}")
            values = values + self._array(f"{name}/bias_{layer}")[:, None]
            if layer < layers - 1 or output_relu:
                values = torch.relu(values)
        return values

    def _array(self, name: str) -> Tensor:
        return self.get_buffer((self._networks or {})[name])


class CalibratedModule(nn.Module):
    """A classifier's graph, run with its phi and logits read, and the forecaster after it."""

    def __init__(
        self,
        classifier: fx.GraphModule,
        signature: Signature,  # of `forward`, so that the inputs keep their names
        kept: tuple[str, ...],  # names of the classifier's outputs
        *,
        features: tuple[Found, ...],  # phi; empty where only the logits are scaled
        logits: tuple[Found, ...],
        is_single: bool,  # whether `logits` is one number z per row, for the logits 0 and z
        forecaster: Forecaster,
        added: tuple[str, ...],  # names of probabilities, label and confidence
    ) -> None:
        super().__init__()
        self.classifier, self.forecaster = classifier, TorchForecaster(forecaster)
        self._kept, self._added = kept, added
        self._features, self._logits, self._is_single = features, logits, is_single

        def forward(*rows: Tensor) -> Outputs:
            return self._answer(*rows)

        forward.__dict__["__signature__"] = signature  # torch.export reads the names there
        self.forward = forward

    def _answer(self, *rows: Tensor) -> Outputs:
        wanted = {found.node for found in (*self._features, *self._logits)}
        reader = ValueReader(self.classifier, wanted)
        answer = tree_leaves(reader.run(*rows))
        tensors = (value for value in answer if isinstance(value, Tensor))
        outputs = dict(zip(self._kept, tensors, strict=True))
        logits = read_found(self._logits, reader.values)
        if self._is_single:
            logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
        features = read_found(self._features, reader.values) if self._features else None
        probabilities = self.forecaster(features, logits)
        label = logits.argmax(dim=1)
        confidence = probabilities.gather(1, label[:, None])[:, 0]
        return outputs | dict(zip(self._added, (probabilities, label, confidence), strict=True))
