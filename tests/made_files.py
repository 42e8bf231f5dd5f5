"""Small features and adapted files of a made world, for every test that needs an .h5 file.

The world: rows x are normal around `shift` along the first axis, labels are drawn from softmax(2 H
x), and the classifier's logits are the true logits times an over-confidence that grows along the
first axis. So T_f is above 1, and larger on a shifted target. The exact importance weights are
known: log q/p = shift x_0 - shift^2 / 2.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from covcal_cli.files import atomic_output
from covcal_cli.formats.features import ADAPTED_SCHEMA, FEATURES_SCHEMA, FeatureFile
from covcal_cli.formats.writer import HDF5Writer, utf8
from covcal_cli.hdf5 import ATTRIBUTES_SHA256, CRC32
from covcal_cli.labels.draws import Draw, write_copy

# The datasets of one domain by name; change an entry to make a file that is odd in one way.
Arrays = dict[str, NDArray[Any]]

# The content of the files written so far: many tests write the same.
_WRITTEN: dict[str, bytes] = {}
_LARGE = 1 << 20  # bytes

SIZES = (300, 500, 200)
ATTRIBUTES: Mapping[str, str | int | float] = {
    "model_name": "made.onnx",
    "model_sha256": "5" * 64,
    "seed": 0,
}


def made_domain(
    name: str,
    *,
    sizes: tuple[int, int, int] = SIZES,
    shift: float = 0.0,
    classes: int = 3,
    width: int = 4,
    sharpness: float = 2.0,
    seed: int = 0,
) -> Arrays:
    """Draw a domain: features (n, width), logits (n, classes), labels, split and ids.

    `sizes` counts train, validation and test rows. Equal arguments give equal arrays; `name` is
    part of the seed, so a source and a target differ.
    """
    rng = np.random.default_rng([seed, *name.encode()])
    n = sum(sizes)
    features = rng.normal(size=(n, width)).astype(np.float32)
    features[:, 0] += np.float32(shift)
    head = np.random.default_rng(1).normal(size=(classes, width))
    truth = 2 * features.astype(np.float64) @ head.T
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    overconfidence = sharpness * (1 + 1 / (1 + np.exp(-2 * features[:, :1].astype(np.float64))))
    return {
        "features": features,
        "logits": (truth * overconfidence).astype(np.float32),
        "labels": labels.astype(np.int64),
        "split": np.repeat([0, 1, 2], sizes).astype(np.uint8),
        "ids": utf8([f"{name}/{row}.png" for row in range(n)]),
    }


def clusters_domain(
    name: str,
    *,
    sizes: tuple[int, int, int] = SIZES,
    moved: float = 0.0,
    prior: list[float] | None = None,
    seed: int = 0,
) -> Arrays:
    """Draw a domain of five noisy clusters, one per class, under an over-confident classifier.

    More of `moved` takes every row towards the first cluster, where the classifier then errs with
    confidence; `prior` draws some classes more often than others and moves nothing.
    """
    rng = np.random.default_rng([seed, *name.encode()])
    n, classes = sum(sizes), 5
    labels = rng.choice(classes, size=n, p=prior)
    centres = 1.2 * np.random.default_rng(99).normal(size=(classes, 6))
    features = centres[labels] + rng.normal(size=(n, 6)) + moved * centres[0]
    logits = 2 * (features @ centres.T - 0.5 * (centres**2).sum(axis=1))
    return {
        "features": features.astype(np.float32),
        "logits": logits.astype(np.float32),
        "labels": labels.astype(np.int64),
        "split": np.repeat([0, 1, 2], sizes).astype(np.uint8),
        "ids": utf8([f"{name}/{row}.png" for row in range(n)]),
    }


@contextmanager
def edited(path: Path | str) -> Iterator[Any]:
    """Open a file of covcal to change it, and delete its digests, which would refuse the change."""
    with h5py.File(path, "r+") as file:
        yield file
        names = list[str]()
        file.visit(names.append)
        file.attrs.pop(ATTRIBUTES_SHA256, None)
        for name in names:
            file[name].attrs.pop(CRC32, None)


def adapted_domain(domain: Arrays, *, shift: float, members: int = 2, seed: int = 0) -> Arrays:
    """Return `domain` with what adapt adds, and without features.

    The discriminator on phi knows the exact odds for `shift` but is three times too sure; the
    members' discriminators on psi see half the shift, twice too sure, each with noise of its own;
    the members' logits are half the classifier's, with noise.
    """
    rng = np.random.default_rng([seed, len(domain["labels"])])
    first = domain["features"][:, 0].astype(np.float64)
    logits = domain["logits"].astype(np.float64)
    noise = rng.normal(size=(members, *logits.shape))
    domain_noise = 0.2 * rng.normal(size=(members, len(first)))
    kept = {name: values for name, values in domain.items() if name != "features"}
    return kept | {
        "aligned_logits": (logits / 2 + noise).astype(np.float32),
        "domain_logits": (3 * log_odds(first, shift)).astype(np.float32),
        "aligned_domain_logits": (2 * log_odds(first, shift / 2) + domain_noise).astype(np.float32),
    }


def log_odds(first: NDArray[np.floating[Any]], shift: float) -> NDArray[np.float64]:
    """Return the exact log p/q of the made world at first coordinates, shape (n,)."""
    return shift**2 / 2 - shift * np.asarray(first, dtype=np.float64)


def write_features(
    path: Path,
    *,
    source: Arrays | None = None,
    target: Arrays | None = None,
    shift: float = 1.0,
    only_source: bool = False,
    class_names: list[str] | None = None,
    attributes: Mapping[str, str | int | float] | None = None,
) -> Path:
    """Write a features file and return `path`; missing domains are made."""
    source = made_domain("source") if source is None else source
    target = made_domain("target", shift=shift) if target is None else target
    domains = {"source": source} if only_source else {"source": source, "target": target}
    return _write(path, FEATURES_SCHEMA, domains, class_names, attributes)


def write_adapted(
    path: Path,
    *,
    source: Arrays | None = None,
    target: Arrays | None = None,
    shift: float = 1.0,
    members: int = 2,
    class_names: list[str] | None = None,
    attributes: Mapping[str, str | int | float] | None = None,
) -> Path:
    """Write an adapted file and return `path`; missing domains are made.

    A given domain without ``aligned_logits`` is passed through `adapted_domain`.
    """
    domains = {
        "source": made_domain("source") if source is None else source,
        "target": made_domain("target", shift=shift) if target is None else target,
    }
    for name, domain in domains.items():
        if "aligned_logits" not in domain:
            domains[name] = adapted_domain(domain, shift=shift, members=members)
    networks: Mapping[str, str | int | float] = {"networks_sha256": "7" * 64, "members": members}
    return _write(path, ADAPTED_SCHEMA, domains, class_names, {**networks, **(attributes or {})})


def put_in(path: Path, draw: Draw) -> None:
    """Put a draw with its labels into a features or adapted file."""
    with FeatureFile(path) as file, atomic_output(path, force=True) as partial:
        write_copy(partial, [(file, draw)])


def only_rows(domain: Arrays, keep: NDArray[Any]) -> Arrays:
    """Return `domain` with the rows that a mask or index chooses, in every dataset."""
    by_member = {"aligned_logits", "aligned_domain_logits"}
    return {
        name: values[:, keep] if name in by_member else values[keep]
        for name, values in domain.items()
    }


def rows_of(domain: Arrays, split: str) -> Arrays:
    """Return `domain` with the rows of one split alone."""
    return only_rows(domain, domain["split"] == ("train", "validation", "test").index(split))


def _write(
    path: Path,
    schema: str,
    domains: Mapping[str, Arrays],
    class_names: list[str] | None,
    attributes: Mapping[str, str | int | float] | None,
) -> Path:
    width = next(iter(domains.values()))["logits"].shape[1]
    names = class_names or [f"class {number}" for number in range(width)]
    everything = {**ATTRIBUTES, **(attributes or {})}
    datasets = {
        f"{domain}/{name}": values
        for domain, arrays in domains.items()
        for name, values in arrays.items()
    }
    made_from = sha256(repr((schema, names, everything)).encode())
    for name, values in datasets.items():
        made_from.update(f"{name} {values.dtype.str} {values.shape}".encode())
        made_from.update(values.tobytes())
    key = made_from.hexdigest()
    if key in _WRITTEN:
        path.write_bytes(_WRITTEN[key])
        return path
    with HDF5Writer(path, schema=schema, classes=names, attributes=everything) as writer:
        for name, values in datasets.items():
            writer.write(name, values)
        writer.complete()
    if path.stat().st_size < _LARGE:
        _WRITTEN[key] = path.read_bytes()
    return path
