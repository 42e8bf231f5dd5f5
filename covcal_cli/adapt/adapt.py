"""Make adapted.h5 from features.h5."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from covcal_cli.adapt.settings import AdaptSettings
from covcal_cli.errors import CovcalError
from covcal_cli.files import atomic_output, check_output, require_hdf5_name
from covcal_cli.formats.features import FeatureFile, labels_in
from covcal_cli.progress import ProgressCallback, silent

if TYPE_CHECKING:
    import torch

    from covcal_cli.adapt.training import MemberReport

_FEW_ROWS = 200
_MOST_THREADS = 256  # OpenMP crashes with a very large number of threads.
_SEPARATED_ESS = 0.05  # Minimum effective sample size of aligned domains, as a share of all rows.
DEFAULTS = AdaptSettings()


@dataclass(frozen=True)
class AdaptReport:
    """The result of ``covcal adapt``, for the user."""

    preset: str
    device: str
    seed: int
    threads: int
    n_features: int
    n_inputs: int  # Number of inputs of the feature network psi.
    counts: Mapping[str, int]
    members: "tuple[MemberReport, ...]"
    # Validation error (mean squared error) of the domain discriminator on the original features.
    domain_error: float
    networks_sha256: str
    warnings: tuple[str, ...]


def adapt(
    features_path: str | Path,
    output: str | Path,
    settings: AdaptSettings = DEFAULTS,
    *,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> AdaptReport:
    """Learn features on which source and target look alike, and write an adapted file.

    Networks are trained on training rows, and chosen on validation rows. No target label is read.
    On one machine, the same input and settings give the same bytes. A failed run writes no file. An
    existing file is replaced only with `force`.

    Raises
    ------
    CovcalError
        If the input cannot be adapted, or the output cannot be written.
    """
    tell, output = progress or silent, Path(output)
    if labels := labels_in(Path(features_path)):
        raise CovcalError(
            f"{features_path} holds {len(labels)} labels, but adapt works for one label per "
            "row: use covcal calibrate, which needs no adapted file"
        )
    with FeatureFile(Path(features_path)) as file:
        n_features = _require_adaptable(file)
        require_hdf5_name(output)
        check_output(output, force=force, inputs=[file.path])
        numbers, seed = settings.training(n_features), settings.seed
        with _torch_threads(settings.threads):
            from covcal_cli.adapt.training import train, write_adapted
            from covcal_cli.adapt.training_rows import moved, read_rows

            device = _chosen_device(settings.device)
            rows, projection, predictions = read_rows(file, numbers, seed=seed, progress=tell)
            trained = train(
                moved(rows, device), predictions, numbers, seed=seed, device=device, progress=tell
            )
            with atomic_output(output, force=force) as partial:
                digest = write_adapted(
                    partial,
                    output,
                    file,
                    trained,
                    projection,
                    numbers,
                    seed=seed,
                    threads=settings.threads,
                    device=device,
                    progress=tell,
                )
    counts = rows.counts()
    return AdaptReport(
        preset=settings.preset,
        device=device.type,
        seed=seed,
        threads=settings.threads,
        n_features=n_features,
        n_inputs=rows.width,
        counts=counts,
        members=trained.members,
        domain_error=trained.domain_error,
        networks_sha256=digest,
        warnings=_warnings(trained.members, counts),
    )


def _require_adaptable(file: FeatureFile) -> int:
    if file.is_adapted:
        raise CovcalError(
            f"{file.path} is adapted already: give the features file from which it was made"
        )
    source, target = file.require_source(), file.require_target()
    for domain in (source, target):
        if domain.n_features is None:
            raise CovcalError(
                f"{file.path}: /{domain.name}/features is missing, but adapt needs it: extract "
                "again without --phi none, or from a table with feature_0, feature_1, ..."
            )
        for split in ("train", "validation"):
            domain.require_rows(split)
    labels = source.labels(source.rows("train"))
    present = np.unique(labels[labels >= 0])
    if len(present) < 2:
        which = f"only class {file.classes[present[0]]}" if len(present) else "no label"
        raise CovcalError(
            f"{file.path} has {which} among the source's train rows: extract a source with "
            "labels of two classes or more"
        )
    return source.n_features or 0


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    if threads > 1 and "torch" not in sys.modules:
        # Idle OpenMP threads must sleep, because spinning threads slow the other threads.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(min(threads, _MOST_THREADS))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _chosen_device(device: str) -> "torch.device":
    import torch

    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise CovcalError(
            "device cuda was asked for, but torch finds no CUDA device: pass --device cpu"
        )
    return torch.device("cuda" if available and device != "cpu" else "cpu")


def _warnings(members: "tuple[MemberReport, ...]", counts: Mapping[str, int]) -> tuple[str, ...]:
    warnings = []
    ended = sum(member.stop_reason == "schedule ended" for member in members)
    apart = members_apart(members)
    if apart:
        warnings.append(
            f"source and target still differ for {apart} of {len(members)} networks: the effective "
            f"sample size is below {100 * _SEPARATED_ESS:.0f} % of the rows. Do not use the method "
            "fl+iw+temp"
        )
    elif ended:
        warnings.append(
            f"training ended too early for {ended} of {len(members)} networks: look at the "
            "effective sample size before you use the method fl+iw+temp"
        )
    few = [name for name, count in counts.items() if count < _FEW_ROWS]
    if few:
        sizes = ", ".join(f"{name} {counts[name]}" for name in few)
        warnings.append(
            f"few rows ({sizes}) make the result depend on chance: compare several values of --seed"
        )
    return tuple(warnings)


def members_apart(members: "tuple[MemberReport, ...]") -> int:
    """Return the number of ensemble members with poorly aligned domains."""
    return sum(member.ess_share < _SEPARATED_ESS for member in members)
