"""A file as the methods and the estimates see it: what they share, computed when first asked for.

ARCHITECTURE, section 3, says who reads which rows; no target label is read. Below the `Problem`
stands what documents say of a file and of a fit, and the warnings that go with them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels, Rows
from covcal_cli.calibrate.discriminator import fit_discriminator
from covcal_cli.calibrate.methods import (
    AUTO_LABELS,
    LABELS,
    MARKED_LABELS,
    SOURCE_PRIOR,
    Method,
)
from covcal_cli.errors import CovcalError, TooFewRowsError
from covcal_cli.estimators.consensus import combined, panel
from covcal_cli.estimators.cot import cot
from covcal_cli.estimators.guards import MIN_ESS_SHARE
from covcal_cli.estimators.inputs import ESTIMATED, Aligned, Estimate, EstimatorInputs, read_inputs
from covcal_cli.estimators.label_shift import target_prior
from covcal_cli.forecast.forecaster import UNSCALED, ScaledLogits
from covcal_cli.forecast.source_accuracy import source_accuracy
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import Domain, FeatureFile, SourceDomain
from covcal_cli.maths.scaling import ForecasterName, Scaling
from covcal_cli.maths.softmax import blocks_of, class_major
from covcal_cli.maths.source_accuracy import SourceAccuracy
from covcal_cli.maths.temperature import (
    MIN_ERRORS,
    ROW_LOSSES,
    Limit,
    Loss,
    TemperatureFit,
    fit_temperature,
)
from covcal_cli.maths.weights import (
    DEFAULT_MAX_WEIGHT,
    BoundTerms,
    ImportanceWeights,
    importance_weights,
)
from covcal_cli.records import Guard, Input, require_at_least, require_one_of

MIN_ESS_FIT = 100.0  # effective rows that a weighted T_f should rest on
MAX_MEAN_WEIGHT_GAP = 0.2
MAX_CLIPPED_SHARE = 0.01
_SOFTEST = 10.0  # T above which outputs are seldom the logits that a model was trained by
# Target validation rows that discriminators are held to; more change no digit that is shown.
MAX_DISCRIMINATED = 500_000
_MIN_ROWS = 2  # an estimate reads at least this many rows of each domain
_LEAST_SHARE = 1e-6  # of a class on the target
NO_PRIOR = (
    "the class frequencies on the target: give --target-prior uniform, or a JSON file with a share "
    "per class (bbse estimates them)"
)
_NO_TARGET = "a target domain: extract it together with the source"


@dataclass(frozen=True, kw_only=True)
class EstimateSettings:
    """What ``covcal estimate`` can be told, and every method too."""

    max_weight: float = DEFAULT_MAX_WEIGHT  # U, the limit of importance weights
    # Labels for calibration: "marked" by covcal label, "none", or "auto": marked ones if any are.
    labels: str = AUTO_LABELS
    # Class frequencies on the target: source, uniform, bbse, or a JSON file with a share per class.
    target_prior: str = SOURCE_PRIOR
    # The shares that it stands for, where they are known: those that a calibration was made with.
    prior_shares: tuple[float, ...] | None = None
    seed: int = 0  # chooses rows where there are more than the fits use

    def __post_init__(self) -> None:
        if not 1 <= self.max_weight <= 1e100:
            raise CovcalError(f"max_weight must be a number from 1 to 1e100, not {self.max_weight}")
        require_at_least("seed", self.seed, 0)
        require_one_of("labels", self.labels, LABELS)
        if self.labels == MARKED_LABELS and self.target_prior != SOURCE_PRIOR:
            raise CovcalError("labels tell what a target prior does: give one of the two")

    @property
    def takes_labels(self) -> bool:
        """Whether marked labels are used where there are some: not against a given prior."""
        return self.labels == MARKED_LABELS or (
            self.labels == AUTO_LABELS and self.target_prior == SOURCE_PRIOR
        )


@dataclass(frozen=True)
class MethodFit:
    """What a method does to logits on one file, and what it rests on."""

    scaling: Scaling
    # Mean over the labelled source validation rows, weighted as in the fit, as scaled and at T = 1;
    # without the offsets, which are for the target.
    loss: float
    loss_at_one: float
    at_limit: Limit | None = None
    matched: float | None = None  # the mean target confidence that T was chosen to have
    guards: tuple[Guard, ...] = ()
    weights: ImportanceWeights | None = None  # those that entered
    bound: BoundTerms | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Validation:
    """Labelled source validation rows, and how many have no label."""

    source: SourceDomain
    rows: Rows
    labels: Labels
    unlabelled: int

    def __len__(self) -> int:
        return len(self.rows)

    def row_losses(self, scaling: Scaling, loss: Loss) -> Float64s:
        """Return the loss of the scaled logits of every row, shape (n,)."""
        scaled = ScaledLogits(scaling)
        found = []
        for rows, labels in self._blocks():
            logits, temperature = scaled.prepared(self.source, rows)
            found.append(ROW_LOSSES[loss](logits, labels, temperature, False)[0])
        return np.concatenate(found)

    def errors(self, forecaster: ForecasterName) -> int:
        """Return how many rows the forecaster's own label is wrong on."""
        return sum(
            int((self.source.forecaster_logits(rows, forecaster).argmax(axis=1) != labels).sum())
            for rows, labels in self._blocks()
        )

    def notes(self, classes: list[str]) -> list[str]:
        """Return notes on rows without a label, and on classes without a row."""
        notes = []
        if self.unlabelled:
            notes.append(f"{self.unlabelled} source validation rows without a label are left out")
        absent = np.setdiff1d(np.arange(len(classes)), self.labels)
        if len(absent):
            names = ", ".join(classes[index] for index in absent[:5])
            more = ", ..." if len(absent) > 5 else ""
            notes.append(f"classes without a source validation row: {names}{more}")
        return notes

    def _blocks(self) -> Iterator[tuple[Rows, Labels]]:
        start = 0
        for block in self.source.blocks(self.rows):
            yield block, self.labels[start : start + len(block)]
            start += len(block)


def _validation_of(file: FeatureFile) -> Validation:
    """Return the labelled source validation rows of a file; `TooFewRowsError` where it has none."""
    source = file.require_source()
    rows = source.require_rows("validation")
    labels = source.labels(rows)
    known = labels >= 0
    if not known.any():
        raise TooFewRowsError(
            f"{file.path}: none of the {len(rows)} source validation rows has a label: "
            "extract the source from class folders, or give y"
        )
    return Validation(source, rows[known], labels[known], int((~known).sum()))


class Problem:
    """One open file with the settings of a run; fitted temperatures minimise `loss`."""

    def __init__(self, file: FeatureFile, settings: EstimateSettings, loss: Loss = "brier") -> None:
        self.file, self.settings, self.loss = file, settings, loss
        self.validation = _validation_of(file)
        # Of a forecaster: its errors on the labelled source validation rows; their weights.
        self.errors = cache(self.validation.errors)
        self.weights = cache(self._weights)
        self._plain: dict[ForecasterName, TemperatureFit] = {}

    @property
    def fullest(self) -> ForecasterName:
        """The aligned forecaster where the file holds one, else the original."""
        return "aligned" if self.file.is_adapted else "original"

    def missing_for(self, method: Method) -> str | None:
        """Return what the file lacks for a method with the remedy, or None."""
        if method.needs_adapt and not self.file.is_adapted:
            return "an adapted file: run covcal adapt first"
        if method.needs_prior and self.settings.target_prior == SOURCE_PRIOR:
            return NO_PRIOR
        lacking = self.missing_for_estimate if "estimate" in method.needs else None
        if lacking is None and "importance weights" in method.needs:
            lacking = self.missing_for_weights
        return lacking

    @property
    def missing_for_estimate(self) -> str | None:
        """What the file lacks for an estimate of the target accuracy, or None."""
        target = self.file.target
        if target is None:
            return _NO_TARGET
        if target.count(*ESTIMATED) < _MIN_ROWS:
            return f"{_MIN_ROWS} target training or validation rows ({target.counts()})"
        if len(self.validation) < _MIN_ROWS:
            return f"{_MIN_ROWS} labelled source validation rows, not {len(self.validation)}"
        if len(self.file.classes) < 2:
            return "a classifier with at least 2 classes"
        return None

    @property
    def missing_for_weights(self) -> str | None:
        """What the file lacks for importance weights, or None."""
        source, target = self.validation.source, self.file.target
        if target is None:
            return _NO_TARGET
        if target.count("validation") == 0:
            return f"target validation rows ({target.counts()})"
        if self.file.is_adapted:  # which holds the logits of trained discriminators
            return None
        if source.n_features is None or target.n_features is None:
            return "features of both domains: extract them again with features"
        for domain in (source, target):
            if domain.count("train") == 0:
                return f"training rows of both domains ({domain.counts()})"
        return None

    def fit(self, forecaster: ForecasterName, weights: Float64s | None = None) -> TemperatureFit:
        """Fit T to the labelled source validation rows."""
        if weights is None and forecaster in self._plain:
            return self._plain[forecaster]
        source, rows = self.validation.source, self.validation.rows
        stored = "logits" if forecaster == "original" else "aligned_logits"
        found = fit_temperature(
            lambda: (
                source.forecaster_logits(block, forecaster) for block in source.blocks(rows, stored)
            ),
            self.validation.labels,
            weights,
            loss=self.loss,
            allow_sharpening=self.errors(forecaster) >= MIN_ERRORS,
            seed=self.settings.seed,
        )
        if weights is None:
            self._plain[forecaster] = found
        return found

    def loss_of(self, scaling: Scaling) -> float:
        """Return the mean loss of the labelled source validation rows; without the offsets."""
        alone = replace(scaling, offsets=None)
        return float(self.validation.row_losses(alone, self.loss).mean())

    def _weights(self, forecaster: ForecasterName) -> ImportanceWeights:
        on_source, on_target = self._domain_logits(forecaster)
        return importance_weights(on_source, on_target, max_weight=self.settings.max_weight)

    def _domain_logits(self, forecaster: ForecasterName) -> tuple[Floats, Floats]:
        """Return the discriminators' logits of both domains' rows, shapes (M, n) and (M, n_t).

        Of more than `MAX_DISCRIMINATED` target rows the seed chooses as many, as they are only
        counted: T_g, the AUC and the error of g are means over them.

        Those on psi(phi) for the aligned forecaster, else that on phi: the network of an adapted
        file, or a logistic one fitted here.
        """
        source, target = self.validation.source, self.file.require_target()
        rows = self.validation.rows
        target_rows = target.drawn(MAX_DISCRIMINATED, self.settings.seed, "validation")
        if forecaster == "aligned":
            return source.aligned_domain_logits(rows), target.aligned_domain_logits(target_rows)
        if self.file.is_adapted:
            return source.domain_logits(rows)[None], target.domain_logits(target_rows)[None]
        logistic = fit_discriminator(source, target, seed=self.settings.seed)
        return (
            logistic.domain_logits(source, rows)[None],
            logistic.domain_logits(target, target_rows)[None],
        )

    @cached_property
    def inputs(self) -> EstimatorInputs:
        """What estimates may know, without importance weights."""
        return self.inputs_with(None)

    def inputs_with(self, weights: Float64s | None) -> EstimatorInputs:
        """Return what estimates may know, with importance weights of the validation rows."""
        temperature, seed = self.fit("original").temperature, self.settings.seed
        return read_inputs(self.file, temperature, source_weights=weights, seed=seed)

    @property
    def aligned(self) -> Aligned:
        """The aligned forecaster on the estimators' rows; `CovcalError` where there is none."""
        if self.inputs.aligned is None:
            raise CovcalError(f"{self.file.path} is no adapted file: run covcal adapt first")
        return self.inputs.aligned

    def target_logits(self, forecaster: ForecasterName) -> Floats:
        """Return a forecaster's logits of the estimators' target rows, shape (n_t, K)."""
        original = forecaster == "original"
        return self.inputs.target_logits if original else self.aligned.target_logits

    def target_confidence(self, scaling: Scaling) -> float:
        """Return the mean probability of the classifier's labels on the estimators' target rows."""
        labels, total, start = self.inputs.target_predictions, 0.0, 0
        read = [blocks_of(self.target_logits(one))() for one in scaling.temperatures]
        for blocks in zip(*read, strict=True):
            probabilities = scaling.forecast([class_major(one) for one in blocks]).probabilities
            every = np.arange(probabilities.shape[1])
            total += float(probabilities[labels[start + every], every].sum())
            start += len(every)
        return total / len(labels)

    @cached_property
    def prior(self) -> Float64s | None:
        """Class frequencies on the target, shape (K,), where they are not the source's."""
        if self.settings.prior_shares is not None:
            return np.array(self.settings.prior_shares)
        return target_prior(self.settings.target_prior, self.inputs, self.file.classes)

    @cached_property
    def prior_offsets(self) -> Float64s:
        """The log of target over source frequency of every class, shape (K,).

        The source has half a row more of every class, and a class that never occurs on the target
        one row in a million, for a probability of exactly 0 would have no logarithm.
        """
        if self.prior is None:
            raise CovcalError(f"{self.file.path}: an offset needs {NO_PRIOR}")
        counts = np.bincount(self.validation.labels, minlength=len(self.file.classes)) + 0.5
        return np.asarray(np.log(np.maximum(self.prior, _LEAST_SHARE) / (counts / counts.sum())))

    @cached_property
    def cot(self) -> Estimate:
        """The target accuracy by optimal transport."""
        return cot(self.inputs, self.prior)

    @cached_property
    def accuracy(self) -> Estimate:
        """The target accuracy to act on."""
        return combined(self.inputs, panel(self.inputs, self.cot))


# What documents say of a file, and of a temperature fitted on it.


def mean_confidence(domain: Domain, splits: Sequence[str], scaled: ScaledLogits) -> float:
    """Return the mean calibrated probability of the classifier's own labels on rows of `splits`."""
    total = 0.0
    for rows in domain.split_blocks(*splits):
        for block in domain.blocks(rows, "logits", *scaled.reads):
            labels, columns = domain.logits(block).argmax(axis=1), np.arange(len(block))
            probabilities = scaled.forecast(domain, block).probabilities
            total += float(probabilities[labels, columns].sum())
    return total / domain.count(*splits)


def _target_confidence(file: FeatureFile, scaling: Scaling) -> dict[str, float | int | None]:
    """Return the mean confidence on target validation rows, before and after, for cal.json."""
    target = file.target
    if target is None or target.count("validation") == 0:
        return {"rows": 0, "target_confidence_before": None, "target_confidence": None}

    before, after = (
        mean_confidence(target, ("validation",), ScaledLogits(one)) for one in (UNSCALED, scaling)
    )
    return {
        "rows": target.count("validation"),
        "target_confidence_before": before,
        "target_confidence": after,
    }


def input_of(file: FeatureFile) -> Input:
    """Return a file as an entry of what a result was computed from."""
    return Input("adapted" if file.is_adapted else "features", file.path, file.sha256())


def fitted_fields(
    file: FeatureFile, scaling: Scaling, fit: MethodFit, rows: int, errors: int
) -> dict[str, Any]:
    """Return the fields of a `Calibration` that say what was fitted, and on what."""
    return {
        "forecaster": scaling.forecaster,
        "forecaster_temperature": scaling.temperature,
        "aligned_temperature": scaling.aligned_temperature,
        "fit": {
            "rows": rows,
            "errors": errors,
            "loss": fit.loss,
            "loss_before": fit.loss_at_one,
            "at_limit": fit.at_limit,
        },
        "class_offsets": () if scaling.offsets is None else tuple(scaling.offsets.tolist()),
        "confidence_offset": scaling.of_label,
        "estimates": _target_confidence(file, scaling),
        "classes": tuple(file.classes),
        "model": file.model,
        "networks_sha256": file.attributes.get("networks_sha256"),
        "feature_columns": file.feature_columns,
        "source_accuracy": source_accuracy(file),
        "reading": file.reading,
        "inputs": (input_of(file),),
    }


# Findings in words: notes inform, warnings warn.


def warnings_on_temperature(
    fit: TemperatureFit, errors: int, rows: int, *, of: str = "source validation rows"
) -> list[str]:
    """Return warnings on a T that was held at 1, stands at a limit or cannot help some rows."""
    warnings = []
    if fit.ruled_out:
        warnings.append(
            f"{fit.ruled_out} of {rows} {of} have a label whose class the classifier rules out (a "
            "masked logit): its probability is 0 at every T"
        )
    if fit.held_at_one:
        warnings.append(
            f"{errors} errors among {rows} {of} are too few to justify "
            f"sharpening (at least {MIN_ERRORS}): T is kept at {fit.temperature:.4g}"
        )
    if fit.at_limit:
        warnings.append(f"do not trust these confidences: {_LIMITS[fit.at_limit]}")
    return warnings


_LIMITS: dict[Limit, str] = {
    "lower": (
        "T is at its lower limit, as the rows it was fitted to call for ever sharper "
        "probabilities, which no data can justify"
    ),
    "upper": (
        "T is at its upper limit, as on the rows it was fitted to the logits say nothing about the "
        "labels, or the opposite"
    ),
}
_REMEDIES: dict[Limit, str] = {
    "lower": "give more labelled rows, or take another method",
    "upper": "check the labels and the order of the classes",
}


def require_inside(path: Path, found: Calibration, *, allow_limit: bool) -> Calibration:
    """Return a calibration; refuse a T at a limit of its interval that is not asked for."""
    limit: Limit | None = found.fit["at_limit"]
    if limit is not None and not allow_limit:
        raise CovcalError(
            f"{path}: method {found.method_used}: {_LIMITS[limit]} "
            f"(T = {found.forecaster_temperature:.3g}): {_REMEDIES[limit]}, or keep it by "
            "--force (allow_limit=True in Python)"
        )
    return found


def warnings_on_reading(accuracy: SourceAccuracy | None, scaling: Scaling) -> list[str]:
    """Return warnings where a model seems to be read wrongly: near chance, or far too sure."""
    doubt = None if accuracy is None else accuracy.doubt
    warnings = [] if doubt is None else [doubt]
    temperature = min(scaling.temperatures.values())
    if temperature > _SOFTEST:
        right = "" if accuracy is None else f" (it gets {accuracy} right)"
        warnings.append(
            f"T = {temperature:.4g} is above {_SOFTEST:.0f}, as the classifier's outputs are far "
            f"surer than right: is the model read as it was trained{right}? check the "
            "preprocessing, and that the output that is read holds logits"
        )
    return warnings


def notes_on_weights(weights: ImportanceWeights) -> list[str]:
    """Return a note when the discriminators cannot tell the domains apart."""
    if all(fit.at_limit == "upper" for fit in weights.temperatures):
        return [
            "the discriminator finds no shift between the domains: importance weights are about 1"
        ]
    return []


def warnings_on_weights(weights: ImportanceWeights) -> list[str]:
    """Return warnings on weights that a fit must not rest on."""
    health, warnings = weights.health, []
    few = []
    if health.ess_share < MIN_ESS_SHARE:
        few.append(f"fewer than the {MIN_ESS_SHARE * health.n:.1f} needed")
    if health.ess_fit < MIN_ESS_FIT:
        few.append(
            f"{health.ess_fit:.1f} in the fit, fewer than the {MIN_ESS_FIT:.0f} needed there"
        )
    if few:
        warnings.append(
            f"the importance weights are worth {health.ess:.1f} of {health.n} rows, "
            f"{', and '.join(few)}: prefer the method without iw"
        )
    if abs(health.mean_weight - 1) > MAX_MEAN_WEIGHT_GAP:
        warnings.append(
            f"the mean importance weight is {health.mean_weight:.2f} and should be 1: the source "
            "discriminator is off"
        )
    if health.clipped_share > MAX_CLIPPED_SHARE:
        warnings.append(
            f"{health.clipped_share:.1%} of the weights are cut at the limit U: the target "
            "reaches where the source has almost no rows"
        )
    return warnings
