"""Train all networks of ``covcal adapt``, report on every member, and write adapted.h5.

The feature network psi and the head are trained first. Then two source discriminators are trained:
one on the features phi, and one on psi(phi) (Section 6 of the paper).
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from covcal_cli.adapt.alignment import (
    EVALUATION_BLOCK,
    Aligner,
    Alignment,
    MemberTrace,
    diverged,
    probe_overlap,
)
from covcal_cli.adapt.perceptrons import (
    Dropout,
    Perceptrons,
    ScheduledOptimiser,
    domain_loss,
    member_generators,
)
from covcal_cli.adapt.settings import DiscriminatorSettings, Settings
from covcal_cli.adapt.training_rows import Projection, RowStream, TrainingRows, moved, spread_rows
from covcal_cli.arrays import AnyArray, Float32s, Float64s, Labels, Rows
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
from covcal_cli.maths.softmax import class_major, log_softmax
from covcal_cli.maths.weights import importance_weights
from covcal_cli.progress import Progress, ProgressCallback

MAX_ROWS = 50_000  # Largest number of training rows per domain for a discriminator.
_ON_FEATURES, _ON_ALIGNED = 2, 3  # Arguments of `member_generators`.
_REPORT_PRECISION = 6
_BLOCK_VALUES = 1 << 22  # Maximum number of logits in a block, for each ensemble member.
_CARRIED = ("logits", "labels", "split", "ids", "columns")


@dataclass(frozen=True)
class MemberReport:
    """A report on one ensemble member."""

    steps: int  # The training step at which the networks were stored.
    stop_reason: str  # "overlap", "discriminator won" and "schedule ended" end the training.
    forecaster_loss: float  # Mean loss since the previous check.
    discriminator_loss: float  # Mean loss since the previous check.
    probe_accuracy: float  # Balanced accuracy of a linear probe; 0.5 is chance.
    ess_share: float  # Effective sample size of source validation rows, as a share of the rows.
    mean_weight: float  # Mean importance weight of source validation rows.
    # Validation error (mean squared error) of the discriminator on psi; 0.25 is chance.
    domain_error: float
    weighted_brier: float  # Importance-weighted Brier score on labelled validation rows.
    weighted_brier_control: float  # The weighted Brier score with a control variate.
    target_agreement: float  # Share of target rows on which forecaster and classifier agree.


@dataclass(frozen=True)
class TrainedNetworks:
    """The networks of all ensemble members, and a report on each member."""

    psi: Perceptrons  # M networks.
    head: Perceptrons  # M networks.
    aligned_discriminator: Perceptrons
    discriminator: Perceptrons  # The source discriminator on the original features phi.
    members: tuple[MemberReport, ...]
    traces: list[MemberTrace]
    domain_error: float  # Validation error (mean squared error) of `discriminator`.

    def arrays(self) -> dict[str, AnyArray]:
        """Return all weights by their names in ``/networks`` (see `maths.networks`)."""
        parts = {
            "psi": self.psi,
            "head": self.head,
            "aligned_discriminator": self.aligned_discriminator,
            "discriminator": self.discriminator,
        }
        named: dict[str, AnyArray] = {
            f"{part}/{name}": values
            for part, network in parts.items()
            for name, values in network.arrays().items()
        }
        named["psi/output_relu"] = np.array([self.psi.output_relu], dtype=np.uint8)
        return named


def train(
    rows: TrainingRows,
    predictions: Tensor,
    settings: Settings,
    *,
    seed: int,
    device: torch.device,
    progress: ProgressCallback,
) -> TrainedNetworks:
    """Train psi and the head, and then the source discriminators."""
    aligned = Aligner(rows, settings, seed, device).run(progress)
    _require_finite(aligned.psi, aligned.head)
    of_one = member_generators(seed, 1, _ON_FEATURES)
    of_each = member_generators(seed, settings.members, _ON_ALIGNED)
    fitted = partial(
        train_discriminators, settings=settings.discriminator, device=device, progress=progress
    )
    on_features, error = fitted(rows, None, of_one)
    on_aligned, aligned_errors = fitted(rows, aligned.psi, of_each)
    _require_finite(on_features, on_aligned)
    reports = _reports(rows, predictions, aligned, on_aligned, aligned_errors)
    return TrainedNetworks(
        aligned.psi, aligned.head, on_aligned, on_features, reports, aligned.traces, float(error[0])
    )


def _require_finite(*networks: Perceptrons) -> None:
    if not all(bool(t.isfinite().all()) for network in networks for t in network.parameters()):
        raise diverged()


def train_discriminators(
    rows: TrainingRows,
    psi: Perceptrons | None,
    generators: list[Generator],
    *,
    settings: DiscriminatorSettings,
    device: torch.device,
    progress: ProgressCallback,
) -> tuple[Perceptrons, Tensor]:
    """Train a source discriminator for each ensemble member.

    Returns the best networks and their validation errors, shape (M,). The validation error is the
    mean of both domains' squared errors; guessing gives 0.25.
    """
    members = len(generators)

    @torch.no_grad()
    def mapped(inputs: Tensor) -> Tensor:
        return inputs.expand(members, -1, -1) if psi is None else psi(inputs)

    domains = (rows.source, rows.target)
    fitted = [mapped(spread_rows(domain.train, MAX_ROWS)[None]) for domain in domains]
    widths = (fitted[0].shape[2], settings.hidden, 1)
    network = Perceptrons.create(widths, generators, device, xavier=True)
    best, least = network.copy(), torch.full((members,), torch.inf)
    stale = torch.zeros(members, dtype=torch.int64)
    dropout = Dropout(settings.dropout, generators)
    schedule = settings.schedule
    larger = max(inputs.shape[1] for inputs in fitted)
    optimiser = ScheduledOptimiser([(network.parameters(), 1.0)], schedule, larger)
    streams = [RowStream(inputs.shape[1], generators) for inputs in fitted]
    total, interval = schedule.total_steps(larger), schedule.check_interval(larger)
    every = torch.arange(members, device=device)[:, None]
    for start in range(0, total, interval):
        steps = min(interval, total - start)
        source, target = (stream.take(steps, schedule.batch).to(device) for stream in streams)
        for step in range(steps):
            inputs = [fitted[0][every, source[step]], fitted[1][every, target[step]]]
            logits = network(torch.cat(inputs, dim=1), dropout).squeeze(2)
            loss = domain_loss(logits[:, : schedule.batch], logits[:, schedule.batch :], "squared")
            optimiser.step(loss.sum(), start + step)
        with torch.no_grad():
            scores = [
                torch.cat(
                    [
                        network(mapped(block[None])).squeeze(2)
                        for block in torch.split(domain.validation, EVALUATION_BLOCK)
                    ],
                    dim=1,
                )
                for domain in domains
            ]
            error = domain_loss(scores[0], scores[1], "squared").cpu()
        # Finished members keep their best weights.
        better = (error < least) & (stale < settings.patience)
        best.take_members(network, better.nonzero().flatten().tolist())
        least = torch.where(better, error, least)
        stale = torch.where(better, 0, stale + 1)
        numbers = {"error": f"{float(error.mean()):.3f} (chance: 0.25)"}
        progress(Progress("discriminators", start + steps, total, numbers))
        if bool((stale >= settings.patience).all()):
            break
    return best, least


@torch.no_grad()
def _reports(
    rows: TrainingRows,
    predictions: Tensor,
    aligned: Alignment,
    discriminator: Perceptrons,
    domain_errors: Tensor,
) -> tuple[MemberReport, ...]:
    probe = probe_overlap(aligned.psi, rows)
    labels = rows.validation_labels.cpu().numpy()
    on_source: list[Float32s] = []
    errors: list[Float64s] = []
    size = max(1, _BLOCK_VALUES // rows.n_classes)
    for start in range(0, len(labels), size):
        psi = aligned.psi(rows.source.validation[None, start : start + size])
        on_source.append(discriminator(psi).squeeze(2).cpu().numpy())
        logits = aligned.head(psi).cpu().numpy()
        part_labels = labels[start : start + size]
        errors.append(np.stack([brier_errors(member, part_labels) for member in logits]))
    on_target: list[Float32s] = []
    agrees: list[Tensor] = []
    for start in range(0, len(predictions), size):
        psi = aligned.psi(rows.target.validation[None, start : start + size])
        on_target.append(discriminator(psi).squeeze(2).cpu().numpy())
        own = aligned.head(psi).argmax(dim=2).cpu()
        agrees.append(own == predictions[start : start + size].cpu())
    source_domain, target_domain = (np.concatenate(x, axis=1) for x in (on_source, on_target))
    source_errors = np.concatenate(errors, axis=1)
    agreement = torch.cat(agrees, dim=1).double().mean(dim=1)
    reports = []
    for member, trace in enumerate(aligned.traces):
        importance = importance_weights(source_domain[[member]], target_domain[[member]])
        plain, controlled = weighted_brier(source_errors[member], importance.weights)
        last = trace.losses[-1]
        reports.append(
            MemberReport(
                steps=trace.steps,
                stop_reason=trace.stop_reason,
                forecaster_loss=_rounded(last["forecaster"]),
                discriminator_loss=_rounded(last["discriminator"]),
                probe_accuracy=_rounded(float(probe["probe_accuracy"][member])),
                ess_share=_rounded(importance.health.ess_share),
                mean_weight=_rounded(importance.health.mean_weight),
                domain_error=_rounded(float(domain_errors[member])),
                weighted_brier=_rounded(plain),
                weighted_brier_control=_rounded(controlled),
                target_agreement=_rounded(float(agreement[member])),
            )
        )
    return tuple(reports)


def brier_errors(logits: Float32s, labels: Labels) -> Float64s:
    """Return the Brier score of each row, (n,); NaN for a row without a label."""
    probabilities = np.exp(log_softmax(class_major(logits), 1.0))
    truth = np.eye(logits.shape[1])[labels].T
    return np.where(labels >= 0, ((probabilities - truth) ** 2).sum(axis=0), np.nan)


def weighted_brier(errors: Float64s, weights: Float64s) -> tuple[float, float]:
    """Return the importance-weighted Brier score, without and with a control variate.

    The control variate is the noise of the mean weight (Sugiyama et al. 2007). Rows whose error is
    NaN are left out. Without labelled rows, both results are NaN.
    """
    is_labelled = np.isfinite(errors)
    if not is_labelled.any():
        return math.nan, math.nan
    weights = weights[is_labelled]
    products = weights * errors[is_labelled]
    plain, variance = float(products.mean()), float(weights.var())
    if variance == 0.0:
        return plain, plain
    covariance = float(np.mean((products - plain) * (weights - weights.mean())))
    return plain, plain - covariance / variance * (float(weights.mean()) - 1.0)


def training_record(trained: TrainedNetworks) -> Mapping[str, Any]:
    """Return the training record of the adapted file."""
    return {
        "domain_error": _rounded(trained.domain_error),
        "members": [
            _without_nan(vars(report)) | {"losses": [_without_nan(check) for check in trace.losses]}
            for report, trace in zip(trained.members, trained.traces, strict=True)
        ],
    }


def _without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Round floats, and replace NaN by None, because JSON has no NaN."""
    return {
        name: (None if math.isnan(value) else _rounded(value))
        if isinstance(value, float)
        else value
        for name, value in values.items()
    }


def _rounded(value: float) -> float:
    return round(value, _REPORT_PRECISION)


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
    """Write the adapted file to `partial`, which later becomes `output`. Return networks_sha256."""
    networks = trained.arrays() | {
        f"projection/{name}": values for name, values in projection.arrays().items()
    }
    digest = networks_sha256(networks)
    # In the adapted file, `seed` is the training seed, and `extract_seed` the seed of extract.
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
            for block in _written_blocks(writer, domain, trained, moved(projection, device)):
                done += len(block)
                progress(Progress("apply", done, total))
        record = json.dumps(training_record(trained), sort_keys=True)
        writer.complete(training=record, networks_sha256=digest)
    return digest


def _written_blocks(
    writer: HDF5Writer, domain: Domain, trained: TrainedNetworks, projection: Projection
) -> Iterator[Rows]:
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
        with torch.no_grad():
            aligned = trained.psi(inputs[None])
            writer.fill(aligned_logits, trained.head(aligned).cpu().numpy())
            from_aligned = trained.aligned_discriminator(aligned)[:, :, 0]
            writer.fill(aligned_domain_logits, from_aligned.cpu().numpy())
            from_features = trained.discriminator(inputs[None])[0, :, 0]
            writer.fill(domain_logits, from_features.cpu().numpy())
        yield block
