"""The writer of covcal.adapted/1: copied data, new logits, networks and the training record."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from covcal_cli.adapt.settings import Settings
from covcal_cli.adapt.training import TrainedNetworks, training_record
from covcal_cli.adapt.training_rows import Projection
from covcal_cli.arrays import Rows
from covcal_cli.files import relative_to_folder_of
from covcal_cli.formats.features import (
    ADAPTED_SCHEMA,
    CONTENT,
    DOMAINS,
    FEATURES_CONTENT,
    FEATURES_FILE,
    FEATURES_SHA256,
    UNMARKED_SHA256,
    Domain,
    FeatureFile,
)
from covcal_cli.formats.writer import HDF5Writer
from covcal_cli.labels.draws import MARKED
from covcal_cli.maths.networks import networks_sha256
from covcal_cli.progress import Progress, ProgressCallback

_CARRIED = ("logits", "labels", "split", "ids", "columns")


def write_adapted(
    partial: Path,
    output: Path,
    file: FeatureFile,
    trained: TrainedNetworks,
    projection: Projection,
    settings: Settings,
    *,
    seed: int,
    threads: int,
    device: torch.device,
    progress: ProgressCallback,
) -> str:
    """Write the adapted file to `partial`, which will become `output`; return networks_sha256."""
    networks = trained.arrays() | {
        f"projection/{name}": values for name, values in projection.arrays().items()
    }
    digest = networks_sha256(networks)
    # Leave out the seed of the extraction, which is not the seed of the training, and the content
    # hash of the features file, which is not this file's.
    renamed = {"seed": "extract_seed", CONTENT: FEATURES_CONTENT}
    carried = {
        renamed.get(name, name): value
        for name, value in file.attributes.items()
        if name not in ("schema", "complete", UNMARKED_SHA256)
    }
    attributes: dict[str, Any] = {
        "preset": settings.preset,
        "seed": seed,
        "members": settings.members,
        "device": device.type,
        "threads": threads,
        **({"weight_decay": settings.schedule.weight_decay} if settings.preset == "paper" else {}),
        "torch_version": str(torch.__version__),
        FEATURES_FILE: relative_to_folder_of(file.path, output),
        FEATURES_SHA256: file.sha256(),
    }
    with HDF5Writer(
        partial, schema=ADAPTED_SCHEMA, classes=file.classes, attributes=carried | attributes
    ) as writer:
        for place, dataset in file.handle.datasets.items():
            part, _, name = place.partition("/")
            if part in ("head", MARKED) or (part in DOMAINS and name.partition("/")[0] in _CARRIED):
                writer.copy(place, dataset)
        for name in sorted(networks):
            writer.write(f"networks/{name}", networks[name])
        domains = (file.require_source(), file.require_target())
        total, done = sum(domain.n for domain in domains), 0
        for domain in domains:
            for block in _written_blocks(writer, domain, trained, projection.to(device)):
                done += len(block)
                progress(Progress("apply", done, total))
        record = json.dumps(training_record(trained), sort_keys=True)
        writer.complete(training=record, networks_sha256=digest)
    return digest


def _written_blocks(
    writer: HDF5Writer, domain: Domain, trained: TrainedNetworks, projection: Projection
) -> Iterator[Rows]:
    """Write one domain, yielding the rows of each block when they are done."""
    members = len(trained.psi.weights[0])
    aligned_logits, aligned_domain_logits, domain_logits = (
        f"{domain.name}/{name}"
        for name in ("aligned_logits", "aligned_domain_logits", "domain_logits")
    )
    writer.allocate(aligned_logits, (members, domain.n, domain.n_classes), axis=1)
    writer.allocate(aligned_domain_logits, (members, domain.n), axis=1)
    writer.allocate(domain_logits, (domain.n,))
    device = projection.mean.device
    for block in domain.blocks(np.arange(domain.n, dtype=np.int64)):
        inputs = projection(torch.from_numpy(domain.features(block)).to(device))
        start = int(block[0])
        with torch.no_grad():
            aligned = trained.psi(inputs[None])
            writer.fill(aligned_logits, start, trained.head(aligned).cpu().numpy(), axis=1)
            from_aligned = trained.aligned_discriminator(aligned)[:, :, 0]
            writer.fill(aligned_domain_logits, start, from_aligned.cpu().numpy(), axis=1)
            from_features = trained.discriminator(inputs[None])[0, :, 0]
            writer.fill(domain_logits, start, from_features.cpu().numpy())
        yield block
