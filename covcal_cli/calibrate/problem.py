"""Compute and cache what methods and estimators need from a file.

No target label is read. ARCHITECTURE, section 3, says which rows are used for what.

For a features file, the source discriminator is a logistic regression on standardised features
(MATHEMATICS, section 1). The discriminator equals scikit-learn's ``LogisticRegression(C=1/ridge)``
with sample weights 1/(2 n_domain).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Floats, Labels, Rows
from covcal_cli.calibrate.methods import (
    AUTO,
    AUTO_LABELS,
    LABELS,
    MARKED_LABELS,
    METHODS,
    SOURCE_PRIOR,
    TAKE_PRIOR,
    Method,
)
from covcal_cli.errors import (
    CovcalError,
    TooFewRowsError,
    checked_settings,
    percent,
    require_at_least,
    require_one_of,
)
from covcal_cli.estimators.consensus import Estimates
from covcal_cli.estimators.inputs import (
    ESTIMATED,
    AlignedForecasters,
    Estimate,
    EstimatorInputs,
    read_inputs,
)
from covcal_cli.estimators.label_shift import target_prior
from covcal_cli.forecast import UNSCALED, ScaledLogits, enough_errors
from covcal_cli.formats.features import EVENTS, Domain, FeatureFile, SourceDomain
from covcal_cli.maths.softmax import ForecasterName, Scaling, blocks_of, class_major, prior_offsets
from covcal_cli.maths.source_accuracy import FEW_ROWS
from covcal_cli.maths.temperature import (
    MIN_ERRORS,
    MIN_ERRORS_OF_FLOOR,
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
    fit_logistic,
    importance_weights,
)
from covcal_cli.records import Guard, Input

NO_PRIOR = (
    "the class frequencies on the target: give --target-prior uniform, a JSON file with a "
    "share per class, or bbse to estimate them"
)

LIMITS: dict[Limit, str] = {
    "lower": "T is at its lower limit, because every rise of the confidence lowers the loss",
    "upper": "T is at its upper limit, because the logits do not predict the labels",
}


@checked_settings
@dataclass(frozen=True, kw_only=True)
class EstimateSettings:
    """The settings of ``covcal estimate``."""

    max_weight: float = DEFAULT_MAX_WEIGHT
    # "marked" uses labels from covcal label, and "none" uses no labels. "auto" uses marked labels
    # if there are any. A number (only for calibrate) uses known labels of this many random target
    # rows.
    labels: str | int = AUTO_LABELS
    # source, uniform, bbse, or a JSON file with a share per class
    target_prior: str = SOURCE_PRIOR
    # Class frequencies on the target. None means that `target_prior` describes the frequencies.
    prior_shares: tuple[float, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.max_weight <= 1e100:
            raise CovcalError(f"max_weight must be a number from 1 to 1e100, not {self.max_weight}")
        require_at_least("seed", self.seed, 0)
        if self.prior_shares is not None and self.target_prior == SOURCE_PRIOR:
            object.__setattr__(self, "target_prior", "given")
        if isinstance(self.labels, str):
            require_one_of("labels", self.labels, LABELS)
        else:
            require_at_least("labels", self.labels, 1)
        if self.fits_labels and self.target_prior != SOURCE_PRIOR:
            raise CovcalError("use either --labels or --target-prior, not both")

    @property
    def fits_labels(self) -> bool:
        """Whether the user wants a fit to target labels."""
        return self.labels == MARKED_LABELS or not isinstance(self.labels, str)

    @property
    def takes_labels(self) -> bool:
        """Whether labels from ``covcal label`` are used if there are any."""
        return self.labels == MARKED_LABELS or (
            self.labels == AUTO_LABELS and self.target_prior == SOURCE_PRIOR
        )


@checked_settings
@dataclass(frozen=True, kw_only=True)
class CalibrateSettings(EstimateSettings):
    """The settings of ``covcal calibrate``."""

    method: str = AUTO  # "auto" or the name of a method
    loss: Loss = "brier"
    allow_limit: bool = False  # whether T may be at the end of its range

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("method", self.method, (AUTO, *METHODS))
        require_one_of("loss", self.loss, ROW_LOSSES)
        if self.target_prior != SOURCE_PRIOR and self.method not in TAKE_PRIOR:
            raise CovcalError(
                f"method {self.method} does not use a target prior: leave out --target-prior, or "
                f"choose one of {', '.join(TAKE_PRIOR)}"
            )
        if self.fits_labels and self.method != AUTO:
            raise CovcalError(
                f"method {self.method} does not use labels: leave out --labels, or choose {AUTO}"
            )
        method = METHODS.get(self.method)
        if method is not None and method.needs_prior and self.target_prior == SOURCE_PRIOR:
            raise CovcalError(f"method {self.method} needs {NO_PRIOR}")


DEFAULTS = CalibrateSettings()


MAX_ROWS_PER_DOMAIN = 50_000


@dataclass(frozen=True)
class LogisticDiscriminator:
    """The model P(source | phi) = sigmoid((phi - mean) / scale @ coefficients + intercept)."""

    mean: Float64s  # (d,)
    scale: Float64s
    coefficients: Float64s
    intercept: float

    def logits(self, features: Float32s) -> Float64s:
        """Return the logits of the source domain, (m,), for features (m, d)."""
        standardised: Float64s = (features - self.mean) / self.scale
        logits: Float64s = standardised @ self.coefficients + self.intercept
        return logits


def fit_discriminator(source: Domain, target: Domain, *, seed: int = 0) -> LogisticDiscriminator:
    """Fit the discriminator to the training rows of both domains (at most 50 000 per domain).

    `seed` is the random seed for drawing these rows.
    """
    rows = []
    for domain in (source, target):
        domain.require_any("train")
        rows.append((domain, domain.drawn(MAX_ROWS_PER_DOMAIN, seed, "train")))
    mean, scale = _moments(rows)
    weights = fit_logistic(
        lambda: (
            ((values - mean) / scale, kind, weight)
            for values, kind, weight in _weighted_blocks(rows)
        ),
        len(mean),
    )
    if weights is None:
        raise CovcalError(
            f"{source.path}: the domain classifier did not converge: look for features with "
            "extreme values"
        )
    return LogisticDiscriminator(mean, scale, weights[:-1], float(weights[-1]))


def _weighted_blocks(rows: list[tuple[Domain, Rows]]) -> Iterator[tuple[Float32s, float, float]]:
    """Yield blocks of features, (m, d), with the domain (1: source) and the weight of each row."""
    for is_source, (domain, chosen) in zip((1.0, 0.0), rows, strict=True):
        for block in domain.blocks(chosen):
            yield domain.features(block), is_source, 0.5 / len(chosen)


def _moments(rows: list[tuple[Domain, Rows]]) -> tuple[Float64s, Float64s]:
    """Return mean and standard deviation of the features, with equal weights of both domains."""
    domain, chosen = rows[0]
    origin = domain.features(chosen[:1])[0].astype(np.float64)
    first, second = np.zeros_like(origin), np.zeros_like(origin)
    for features, _, weight in _weighted_blocks(rows):
        values = features - origin
        first += weight * values.sum(axis=0)
        second += weight * np.einsum("md,md->d", values, values)
    deviation = np.sqrt(np.maximum(second - first**2, 0.0))
    constant = deviation <= 1e-7 * np.abs(origin + first)
    return origin + first, np.where(constant, 1.0, deviation)


MAX_DISCRIMINATED = 500_000
# Covcal prints a note if the mean confidence is 15 points or more below the source accuracy.
_FAR_BELOW = 0.15
_CHI_SQUARE = 3.841  # 95 % quantile of chi-square with one degree of freedom.
_LOG_STEP = 1e-3  # Tolerance in log T.
_MIN_ROWS = 2
_NO_TARGET = "target rows: extract them together with the source"


@dataclass(frozen=True)
class MethodFit:
    """The fitted scaling of a method, with checks, notes and warnings."""

    scaling: Scaling
    # Mean losses on labelled source validation rows, at the fitted T and at T = 1.
    loss: float
    loss_at_one: float
    at_limit: Limit | None = None
    matched: float | None = None
    guards: tuple[Guard, ...] = ()
    weights: ImportanceWeights | None = None
    bound: BoundTerms | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Validation:
    """The labelled source validation rows of a file."""

    source: SourceDomain
    rows: Rows
    labels: Labels
    unlabelled: int

    def __len__(self) -> int:
        return len(self.rows)

    def row_losses(self, scaling: Scaling, loss: Loss) -> Float64s:
        """Return the loss of each row after scaling, shape (n,)."""
        scaled = ScaledLogits(scaling)
        losses = []
        for rows, labels in self._blocks():
            logits, temperature = scaled.prepared(self.source, rows)
            losses.append(ROW_LOSSES[loss](logits, labels, temperature, False)[0])
        return np.concatenate(losses)

    def errors(self, forecaster: ForecasterName) -> int:
        """Return how many rows a forecaster predicts wrongly."""
        return sum(
            int((self.source.forecaster_logits(rows, forecaster).argmax(axis=1) != labels).sum())
            for rows, labels in self._blocks()
        )

    def notes(self, classes: list[str], errors: int) -> list[str]:
        """Return remarks about unusual data. `errors` is the number of wrong predictions."""
        notes = []
        accuracy, confidence = 1 - errors / len(self), 1.0
        if len(self) >= FEW_ROWS and errors > 0 and accuracy >= _FAR_BELOW:
            confidence = ScaledLogits(UNSCALED).mean_confidence(self.source, "validation")
        # Low confidence is not a warning, because random forests are always under-confident.
        if accuracy - confidence >= _FAR_BELOW:
            notes.append(
                f"on the source, the mean confidence is {percent(confidence, 1)} but the "
                f"accuracy is {percent(accuracy, 1)}. If the classifier was trained on these "
                "rows, extract other source rows"
            )
        if self.unlabelled:
            notes.append(f"{self.unlabelled} source validation rows have no label and are left out")
        absent = np.setdiff1d(np.arange(len(classes)), self.labels)
        if len(absent) and tuple(classes) != EVENTS:
            names = ", ".join(classes[index] for index in absent[:5])
            more = ", ..." if len(absent) > 5 else ""
            notes.append(f"no source validation row has the class {names}{more}")
        return notes

    def _blocks(self) -> Iterator[tuple[Rows, Labels]]:
        start = 0
        for block in self.source.blocks(self.rows):
            yield block, self.labels[start : start + len(block)]
            start += len(block)


def _validation_of(file: FeatureFile) -> Validation:
    source = file.require_source()
    rows = source.require_rows("validation")
    labels = source.labels(rows)
    labelled = labels >= 0
    if not labelled.any():
        raise TooFewRowsError(
            f"{file.path}: none of the {len(rows)} source validation rows has a label: "
            "extract the source from class folders, or give y"
        )
    return Validation(source, rows[labelled], labels[labelled], int((~labelled).sum()))


class Problem:
    """The input of methods and estimators: an open file, settings and cached results."""

    def __init__(self, file: FeatureFile, settings: EstimateSettings, loss: Loss = "brier") -> None:
        self.file, self.settings, self.loss = file, settings, loss
        if settings.target_prior != SOURCE_PRIOR:
            file.require_all_classes("--target-prior")
        self.validation = _validation_of(file)
        self.errors = cache(self.validation.errors)
        self.weights = cache(self._weights)
        self._plain: dict[ForecasterName, TemperatureFit] = {}

    @property
    def fullest(self) -> ForecasterName:
        """The default forecaster, which is "aligned" for an adapted file, else "original"."""
        return "aligned" if self.file.is_adapted else "original"

    def missing_for(self, method: Method) -> str | None:
        """Return a phrase about the data that are missing for a method, or None."""
        if method.needs_adapt and not self.file.is_adapted:
            return "an adapted file: run covcal adapt first"
        if method.needs_prior and self.settings.target_prior == SOURCE_PRIOR:
            return NO_PRIOR
        if method.reads_all_classes and self.file.has_one_confidence:
            return "a file with the probabilities of all classes (this file has only confidences)"
        lacking = self.missing_for_estimate if "estimate" in method.needs else None
        if lacking is None and "importance weights" in method.needs:
            lacking = self.missing_for_weights
        return lacking

    @property
    def missing_for_estimate(self) -> str | None:
        """A phrase about the data that are missing for an estimate, or None."""
        target = self.file.target
        if target is None:
            return _NO_TARGET
        if target.count(*ESTIMATED) < _MIN_ROWS:
            return f"at least {_MIN_ROWS} target training or validation rows ({target.counts()})"
        if len(self.validation) < _MIN_ROWS:
            return (
                f"at least {_MIN_ROWS} labelled source validation rows, and there are only "
                f"{len(self.validation)}"
            )
        if len(self.file.classes) < 2:
            return "a classifier with at least 2 classes"
        return None

    @property
    def missing_for_weights(self) -> str | None:
        """A phrase about the data that are missing for importance weights, or None."""
        source, target = self.validation.source, self.file.target
        if target is None:
            return _NO_TARGET
        if target.count("validation") == 0:
            return f"target validation rows ({target.counts()})"
        if self.file.is_adapted:
            return None
        if source.n_features is None or target.n_features is None:
            return (
                "features of both domains: extract again without --phi none, or give tables "
                "with columns feature_0, feature_1, ..."
            )
        for domain in (source, target):
            if domain.count("train") == 0:
                return f"training rows of both domains ({domain.counts()})"
        return None

    def fit(self, forecaster: ForecasterName, weights: Float64s | None = None) -> TemperatureFit:
        """Fit T to labelled source validation rows, with optional row weights."""
        if weights is None and forecaster in self._plain:
            return self._plain[forecaster]
        fit = self._fit_to_validation(forecaster, weights, self.loss)
        if weights is None:
            self._plain[forecaster] = fit
        return fit

    def _fit_to_validation(
        self, forecaster: ForecasterName, weights: Float64s | None, loss: Loss
    ) -> TemperatureFit:
        source, rows = self.validation.source, self.validation.rows
        stored = "logits" if forecaster == "original" else "aligned_logits"
        return fit_temperature(
            lambda: (
                source.forecaster_logits(block, forecaster) for block in source.blocks(rows, stored)
            ),
            self.validation.labels,
            weights,
            loss=loss,
            allow_sharpening=self.errors(forecaster) >= MIN_ERRORS,
            seed=self.settings.seed,
        )

    def least_temperature(self, forecaster: ForecasterName) -> float:
        """Return the lowest T, at most 1, that is allowed without target labels.

        With at least 10 source errors, the lowest allowed T is the temperature of the method
        ``temp``. With fewer source errors, the lowest allowed T is the upper end of the likelihood
        interval of T. The lowest allowed T is 1 if the source is not under-confident and T = 1 has
        a significantly lower log loss. With few errors, the Brier score can give too low a T.
        """
        temperature = self.fit(forecaster).temperature
        if temperature >= 1:
            return 1.0
        errors, unscaled = self.errors(forecaster), Scaling(forecaster, 1.0)
        confidence = ScaledLogits(unscaled).mean_confidence(self.validation.source, "validation")
        if confidence >= 1 - errors / len(self.validation):
            at_fit = self.validation.row_losses(Scaling(forecaster, temperature), "nll")
            if 2 * (at_fit - self.validation.row_losses(unscaled, "nll")).sum() > _CHI_SQUARE:
                return 1.0
        if errors >= MIN_ERRORS_OF_FLOOR:
            return temperature
        return max(temperature, self._upper_end(forecaster))

    def _upper_end(self, forecaster: ForecasterName) -> float:
        """Return the upper end of the 95 % likelihood interval of T, but at most 1."""

        def is_likely(temperature: float) -> bool:
            losses = self.validation.row_losses(Scaling(forecaster, temperature), "nll")
            return bool(2 * (losses.mean() - fit.loss) * len(losses) < _CHI_SQUARE)

        fit = self._fit_to_validation(forecaster, None, "nll")
        if fit.temperature >= 1 or is_likely(1.0):
            return 1.0
        low, high = math.log(fit.temperature), 0.0
        while high - low > _LOG_STEP:
            middle = (low + high) / 2
            low, high = (middle, high) if is_likely(math.exp(middle)) else (low, middle)
        return math.exp(high)

    def loss_of(self, scaling: Scaling) -> float:
        """Return the mean loss on labelled source validation rows. Class offsets are ignored."""
        without = replace(scaling, offsets=None)
        return float(self.validation.row_losses(without, self.loss).mean())

    def _weights(self, forecaster: ForecasterName) -> ImportanceWeights:
        on_source, on_target = self._domain_logits(forecaster)
        return importance_weights(on_source, on_target, max_weight=self.settings.max_weight)

    def _domain_logits(self, forecaster: ForecasterName) -> tuple[Floats, Floats]:
        """Return discriminator logits of source rows, (M, n), and of target rows, (M, n_t).

        M, the number of discriminators, is 1 for the original classifier. At most
        `MAX_DISCRIMINATED` target rows are used.
        """
        source, target = self.validation.source, self.file.require_target()
        rows = self.validation.rows
        target_rows = target.drawn(MAX_DISCRIMINATED, self.settings.seed, "validation")
        if forecaster == "aligned":
            return source.aligned_domain_logits(rows), target.aligned_domain_logits(target_rows)
        if self.file.is_adapted:
            return source.domain_logits(rows)[None], target.domain_logits(target_rows)[None]
        logistic = fit_discriminator(source, target, seed=self.settings.seed)
        on_source, on_target = (
            np.concatenate([logistic.logits(domain.features(part)) for part in domain.blocks(of)])
            for domain, of in ((source, rows), (target, target_rows))
        )
        return on_source[None], on_target[None]

    @cached_property
    def inputs(self) -> EstimatorInputs:
        """The inputs of the estimators, without importance weights."""
        return self.inputs_with(None)

    def inputs_with(self, weights: Float64s | None) -> EstimatorInputs:
        """Return the inputs of the estimators. `weights` are weights of source rows, or None."""
        temperature, seed = self.fit("original").temperature, self.settings.seed
        return read_inputs(self.file, temperature, source_weights=weights, seed=seed)

    @property
    def aligned(self) -> AlignedForecasters:
        """The outputs of the aligned forecaster.

        Raises `CovcalError` if the file is not adapted.
        """
        if self.inputs.aligned is None:
            raise CovcalError(f"{self.file.path} is not an adapted file: run covcal adapt first")
        return self.inputs.aligned

    def target_logits(self, forecaster: ForecasterName) -> Floats:
        """Return the logits of a forecaster on target rows, shape (n_t, K)."""
        original = forecaster == "original"
        return self.inputs.target_logits if original else self.aligned.target_logits

    def target_confidence(self, scaling: Scaling) -> float:
        """Return the mean calibrated confidence on target rows."""
        labels, total, start = self.inputs.target_predictions, 0.0, 0
        blocks = [blocks_of(self.target_logits(name))() for name in scaling.temperatures]
        for logits in zip(*blocks, strict=True):
            stop = start + len(logits[0])
            values = scaling.confidence([class_major(z) for z in logits], labels[start:stop])
            total += float(values.sum())
            start = stop
        return total / len(labels)

    @cached_property
    def prior(self) -> Float64s | None:
        """Class frequencies on the target, (K,). None means the class frequencies of the source."""
        if self.settings.prior_shares is not None:
            shares, count = np.array(self.settings.prior_shares), len(self.file.classes)
            if len(shares) != count or not (shares >= 0).all() or abs(shares.sum() - 1) > 1e-3:
                raise CovcalError(
                    f"prior_shares must hold a share for each of {count} classes, with the sum 1"
                )
            return shares
        if self.settings.target_prior == SOURCE_PRIOR:
            return None
        return target_prior(self.settings.target_prior, self.inputs, self.file.classes)

    @cached_property
    def prior_offsets(self) -> Float64s:
        """The log ratio of target and source frequency of each class, (K,)."""
        if self.prior is None:
            raise CovcalError(f"{self.file.path}: an offset needs {NO_PRIOR}")
        return prior_offsets(self.prior, self.validation.labels)

    @cached_property
    def estimates(self) -> Estimates:
        """All estimates of the target accuracy except importance weighting."""
        return Estimates(self.inputs, self.prior)

    @property
    def cot(self) -> Estimate:
        """The target accuracy estimated by optimal transport (COT)."""
        return self.estimates["cot"]

    @property
    def accuracy(self) -> Estimate:
        """The combined estimate of the target accuracy."""
        return self.estimates.combined


def minimised(
    problem: Problem,
    forecaster: ForecasterName,
    row_weights: Float64s | None = None,
    guards: tuple[Guard, ...] = (),
    warnings: Iterable[str] = (),
) -> MethodFit:
    """Fit T by minimising the loss on source rows, with optional row weights."""
    fit = problem.fit(forecaster, row_weights)
    errors, rows = problem.errors(forecaster), len(problem.validation)
    of_rows = enough_errors(errors, rows)
    return MethodFit(
        Scaling(forecaster, fit.temperature),
        fit.loss,
        fit.loss_at_one,
        fit.at_limit,
        guards=(
            *guards,
            *(() if of_rows in guards else (of_rows,)),
            not_at_limit(fit.temperature, fit.at_limit),
        ),
        warnings=(*_warnings_on_temperature(fit, errors, rows, forecaster), *warnings),
    )


def _warnings_on_temperature(
    fit: TemperatureFit, errors: int, rows: int, forecaster: ForecasterName
) -> list[str]:
    warnings = []
    if fit.ruled_out:
        warnings.append(
            f"in {fit.ruled_out} of {rows} source validation rows, the class of the label has "
            "probability 0 (a masked logit): check the labels or the mask"
        )
    if fit.held_at_one and (errors or forecaster == "aligned"):
        warnings.append(
            f"{errors} errors among {rows} source validation rows are too few to raise "
            f"confidence (at least {MIN_ERRORS} needed), so T is {fit.temperature:.4g}"
        )
    if fit.at_limit:
        warnings.append(f"do not trust these confidences: {LIMITS[fit.at_limit]}")
    return warnings


def not_at_limit(temperature: float, at_limit: Limit | None) -> Guard:
    """Check that a fitted temperature is not at an end of its range."""
    where = "inside its interval" if at_limit is None else f"at its {at_limit} limit"
    text = f"the temperature {temperature:.4g} is {where}"
    text += "" if at_limit is None else "; do not trust this temperature"
    return Guard("temperature limit", float(at_limit is not None), 0.0, at_limit is None, text)


def input_of(file: FeatureFile) -> Input:
    """Return the name and hash of the file, for the inputs of a result."""
    return Input("adapted" if file.is_adapted else "features", file.path, file.sha256())
