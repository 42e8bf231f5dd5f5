"""Compute the networks of an adapted file with NumPy, from features to logits.

``/networks`` holds ``projection`` (mean, scale and perhaps components). It also holds the networks
``psi``, ``head``, ``aligned_discriminator`` and ``discriminator``. Each network has M members, but
``discriminator`` has only one member. Layers are ``weight_0``, (M, inputs, outputs), ``bias_0``,
(M, outputs), ``weight_1`` and so on, with a ReLU between layers. If ``psi/output_relu`` is 1, a
ReLU follows the last layer of psi.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from covcal_cli.arrays import AnyArray, Float32s

Networks = Mapping[str, AnyArray]
_NONE = np.empty(0)


def networks_sha256(networks: Networks) -> str:
    """Return the SHA-256 of the names and values of all arrays."""
    digest = hashlib.sha256()
    for name in sorted(networks):
        digest.update(name.encode("utf-8"))
        digest.update(np.ascontiguousarray(networks[name]).tobytes())
    return digest.hexdigest()


def read_networks(group: Any) -> dict[str, AnyArray]:
    """Return all arrays of the HDF5 group ``/networks``."""
    return {f"{part}/{name}": group[part][name][()] for part in group for name in group[part]}


def unfit(networks: Networks) -> str | None:
    """Return the name of the first array that is missing, not finite or of a wrong shape."""
    for name, values in networks.items():
        if values.dtype.kind not in "fiu" or not np.isfinite(values).all():
            return name
    mean = networks.get("projection/mean", _NONE)
    if mean.ndim != 1 or len(mean) == 0:
        return "projection/mean"
    width = len(mean)
    components = networks.get("projection/components")
    if components is not None:
        if components.ndim != 2 or len(components) != width:
            return "projection/components"
        width = components.shape[1]
    scale = networks.get("projection/scale", _NONE)
    if scale.shape not in ((1,), (width,)) or not (scale > 0).all():
        return "projection/scale"
    if networks.get("psi/output_relu", _NONE).shape != (1,):
        return "psi/output_relu"
    members = networks.get("psi/weight_0", _NONE).shape[:1]
    for name in ("psi", "head"):
        parts = ("weight", "bias")
        counts = [sum(key.startswith(f"{name}/{part}_") for key in networks) for part in parts]
        for layer in range(max(1, *counts)):
            weight = networks.get(f"{name}/weight_{layer}", _NONE)
            if weight.ndim != 3 or weight.shape[:2] != (*members, width):
                return f"{name}/weight_{layer}"
            width = weight.shape[2]
            if networks.get(f"{name}/bias_{layer}", _NONE).shape != (*members, width):
                return f"{name}/bias_{layer}"
    return None


def aligned_features(networks: Networks, features: Float32s) -> Float32s:
    """Return the aligned features of each member, (M, n, p), for `features`, (n, d)."""
    relu = bool(networks["psi/output_relu"][0])
    return perceptron(networks, "psi", projected(networks, features)[None], output_relu=relu)


def aligned_logits(networks: Networks, features: Float32s) -> Float32s:
    """Return the logits of each member, (M, n, K), for `features`, (n, d)."""
    return perceptron(networks, "head", aligned_features(networks, features))


def aligned_domain_logits(networks: Networks, features: Float32s) -> Float32s:
    """Return the logits of each member's discriminator on aligned features, (M, n)."""
    aligned = aligned_features(networks, features)
    return perceptron(networks, "aligned_discriminator", aligned)[:, :, 0]


def projected(networks: Networks, features: Float32s) -> Float32s:
    """Return the centred, projected and scaled features, (n, k)."""
    values = features.astype(np.float32) - networks["projection/mean"]
    if "projection/components" in networks:
        values = values @ networks["projection/components"]
    return np.asarray(values / networks["projection/scale"], dtype=np.float32)


def perceptron(
    networks: Networks, name: str, inputs: Float32s, *, output_relu: bool = False
) -> Float32s:
    """Return the outputs of a network, (M, n, o), for inputs of shape (M or 1, n, k)."""
    layers = sum(key.startswith(f"{name}/weight_") for key in networks)
    values = inputs
    for layer in range(layers):
        values = values @ networks[f"{name}/weight_{layer}"]
        values = values + networks[f"{name}/bias_{layer}"][:, None]
        if layer < layers - 1 or output_relu:
            values = np.maximum(values, 0)
    return np.asarray(values, dtype=np.float32)
