"""Train the networks of several seeds in one run of ``covcal adapt``, and write a file per seed.

``covcal adapt --members M`` trains M networks independently, each with its own random numbers. So
one run repeats the paper's experiment M times, in little more time than one repetition. All
networks share one discriminator on the features phi, so the method iw+temp has the same result for
every network.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from covcal_cli.adapt.adapt import adapt
from covcal_cli.adapt.settings import AdaptSettings
from covcal_cli.files import sha256_of
from covcal_cli.formats.features import ADAPTED_SCHEMA, FEATURES_SHA256, FeatureFile
from covcal_cli.formats.writer import HDF5Writer
from covcal_cli.maths.networks import networks_sha256, read_networks

_SHARED = ("projection/", "discriminator/", "psi/output_relu")
_PER_MEMBER = ("aligned_logits", "aligned_domain_logits")


def adapt_in_one_batch(
    features: Path, outputs: Sequence[Path], settings: AdaptSettings
) -> float | None:
    """Train one network for each output file, and write the files.

    Return the seconds that the training took, or None if all files existed already.
    """
    sha256 = sha256_of(features)
    if all(output.is_file() and _made_of(output) == sha256 for output in outputs):
        return None
    start = time.perf_counter()
    together = outputs[0].with_suffix(".all.h5")
    adapt(features, together, replace(settings, members=len(outputs)), force=True)
    with FeatureFile(together) as file:
        for member, output in enumerate(outputs):
            _write_member(file, member, output)
    together.unlink()
    return time.perf_counter() - start


def _made_of(output: Path) -> object:
    with FeatureFile(output) as file:
        return file.attributes.get(FEATURES_SHA256)


def _write_member(file: FeatureFile, member: int, output: Path) -> None:
    networks = {
        name: values if name.startswith(_SHARED) else values[[member]]
        for name, values in read_networks(file.handle["networks"]).items()
    }
    attributes = {
        name: value for name, value in file.attributes.items() if name not in ("schema", "complete")
    }
    attributes |= {"members": 1, "seed": member, "networks_sha256": networks_sha256(networks)}
    with HDF5Writer(
        output, schema=ADAPTED_SCHEMA, classes=file.classes, attributes=attributes
    ) as writer:
        for domain in ("source", "target"):
            for name, dataset in file.handle[domain].items():
                if name in _PER_MEMBER:
                    writer.write(f"{domain}/{name}", dataset[[member]])
                else:
                    writer.write(f"{domain}/{name}", dataset[()])
        for name, values in networks.items():
            writer.write(f"networks/{name}", values)
        writer.complete()
