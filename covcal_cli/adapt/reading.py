"""The rows that training holds in memory, read from an open features file."""

import torch
from torch import Tensor

from covcal_cli.adapt.projection import Projection, identity, principal_components
from covcal_cli.adapt.rows import DomainRows, TrainingRows
from covcal_cli.adapt.settings import Settings
from covcal_cli.formats.features import FeatureFile, thinned
from covcal_cli.progress import Progress, ProgressCallback

MAX_ROWS = 200_000
"""Rows of one split of one domain held in memory at most; of a larger one a seeded sample."""


def read_rows(
    file: FeatureFile, settings: Settings, *, seed: int, progress: ProgressCallback
) -> tuple[TrainingRows, Projection, Tensor]:
    """Read what training may see, and fit the projection on the training rows.

    Return the rows projected, on the CPU; the projection; and the classifier's labels (not the true
    ones) of the target's validation rows, shape (m,) int64.
    """
    source, target = file.require_source(), file.require_target()
    chosen = {
        (domain.name, split): thinned(domain.require_rows(split), MAX_ROWS, seed)
        for domain in (source, target)
        for split in ("train", "validation")
    }
    total, done = sum(map(len, chosen.values())), 0
    tensors: dict[tuple[str, str], Tensor] = {}
    for (name, split), numbers in chosen.items():
        domain = source if name == "source" else target
        tensors[name, split] = torch.from_numpy(domain.features(numbers))
        done += len(numbers)
        progress(Progress("read", done, total))
    if settings.components is None:
        projection = identity(tensors["source", "train"].shape[1])
    else:
        projection = principal_components(
            tensors["source", "train"], tensors["target", "train"], settings.components
        )
    domains = [
        DomainRows(*(projection(tensors.pop((name, split))) for split in ("train", "validation")))
        for name in ("source", "target")
    ]
    rows = TrainingRows(
        domains[0],
        domains[1],
        torch.from_numpy(source.labels(chosen["source", "train"])),
        torch.from_numpy(source.labels(chosen["source", "validation"])),
        source.n_classes,
    )
    predictions = target.logits(chosen["target", "validation"]).argmax(axis=1)
    return rows, projection, torch.from_numpy(predictions)
