"""``covcal decide``: choose target rows to accept, and sets of classes for all rows.

Rows are ranked by their calibrated confidence. Without labels, `decide` accepts as many rows as
possible while their expected error, plus a margin of about half of its range, is within the limit.
With labels of rows that ``covcal pick --for`` drew, it tests thresholds one after the other. The
bound of a test is exact, and the order of the tests does not depend on labels (`maths.acceptance`).

Labels to which the calibration was fitted cannot be used for a promise: the fit raised the
confidence of rows that these labels call right. Rows of the test split are not read, and a promise
is not about them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Booleans, Float64s, Integers, Rows
from covcal_cli.decide.thresholds import (
    Costs,
    confidence_range,
    cut_by_labels,
    cut_without_labels,
    errors_of_groups,
    expected_errors,
    largest_share,
    mean_size,
    read_costs,
    right_excluded,
    temperature_range,
    true_scores,
)
from covcal_cli.errors import CovcalError, require_one_of, require_shares
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.files import sha256_of
from covcal_cli.forecast import ScaledLogits, networks_for
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.decision import CostPoint, CurvePoint, Decision, LabelUse, SetRule
from covcal_cli.formats.features import Domain, FeatureFile
from covcal_cli.labels.draws import Draw, frame_rows
from covcal_cli.labels.picked_labels import draw_with_labels
from covcal_cli.labels.score import region_of
from covcal_cli.maths.acceptance import (
    Plan,
    Ranking,
    Sampling,
    best_region,
    inclusions,
    level_of_look,
    most_wrong,
    plan,
    sampling,
)
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.odds import probabilities as softmax
from covcal_cli.progress import Progress, ProgressCallback, silent
from covcal_cli.records import Input

SPLITS_READ = ("train", "validation")
LABELS = ("auto", "marked", "none")
# the most rows, and the most probabilities, from which the curve is computed
_MAX_ROWS, _MAX_VALUES = 20_000, 1 << 22
BY_PREDICTED, _MAX_GROUPS = "predicted", 100
# the numbers of labels that may be suggested
_OFFERS = (30, 50, 80, 100, 150, 200, 300, 500, 1000, 2000)
# labels are suggested only if a larger share of rows than this can probably be accepted
_LEAST_SHARE = 0.005
# Labels are suggested if they make a promise possible with the first of these probabilities. If no
# number of labels reaches it, the second probability is enough.
_LIKELY = (0.8, 0.5)
_NEAR = 1e-5  # rounding error of a threshold in 32 bits


@dataclass(frozen=True, kw_only=True)
class DecideSettings:
    """The settings of ``covcal decide``."""

    error: float | None = None  # the largest share of wrong rows among the accepted rows
    coverage: float | None = None  # the share of all rows whose set must contain the right class
    certainty: float = 0.9
    certain_sets: bool = False  # whether `certainty` is about the coverage of sets too
    # whether the promise is about the rows of this file only, not about later rows
    these_rows: bool = False
    # "marked" (from covcal label), "none", or "auto": marked if they can be used
    labels: str = "auto"
    by: str | None = None  # a column, or "predicted": also show the expected error of each group
    costs: Path | None = None  # costs.json, which is used instead of an error
    seed: int = 0

    def __post_init__(self) -> None:
        if self.costs is not None and (self.error is not None or self.labels == "marked"):
            raise CovcalError("--cost gives an estimate: leave out --error and --labels marked")
        accepts = self.error is not None or self.costs is not None
        if self.by is not None and not accepts:
            raise CovcalError("--by shows the accepted rows of each group: give --error too")
        if not accepts and self.coverage is None:
            raise CovcalError("give --error for rows to accept, --set for sets of classes, or both")
        require_shares(error=self.error, coverage=self.coverage, certainty=self.certainty)
        require_one_of("labels", self.labels, LABELS)


def decide(
    path: str | Path,
    document: str | Path,
    settings: DecideSettings,
    estimate: Estimate | None = None,
    *,
    networks: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> Decision:
    """Decide which target rows to accept. Labels can turn the estimate into a promise.

    Parameters
    ----------
    path : str or Path
        A features or adapted file.
    document : str or Path
        The cal.json.
    settings : DecideSettings
    estimate : Estimate, optional
        The target accuracy, estimated without labels. Without it, the calibrated confidence is
        assumed to be right.
    networks : str or Path, optional
        The adapted file with the networks, if it has moved.
    progress : callable, optional

    Raises
    ------
    CovcalError
        If the calibration does not fit the file, there are no rows, or the labels that the user
        asks for cannot be used for a promise.
    """
    path, document = Path(path), Path(document)
    calibration = read_calibration(document)
    with FeatureFile(path) as file:
        if settings.coverage is not None:
            file.require_all_classes("--set")
        networks_path = None if networks is None else Path(networks)
        aligned = networks_for(calibration, document, file, networks_path)
        target = file.require_target()
        draw = draw_with_labels(file)
        splits = draw.batches[0].splits if draw.batches else SPLITS_READ
        rows = frame_rows(target, splits)
        if not len(rows):
            raise CovcalError(
                f"{path} has no target {' or '.join(splits)} rows ({target.counts()}): give "
                "another file, or another --split"
            )
        scaled = ScaledLogits(calibration.scaling, aligned)
        scores = _scores(target, rows, scaled, progress or silent)
        sample = _Sample(target, scaled, splits, settings.seed)
        ranking = Ranking(scores, [])
        labelled = _Labelled(target, draw, rows, scores, ranking)
        why_not = _unusable(labelled, calibration, document)
        if settings.labels == "marked" and why_not is not None:
            raise CovcalError(f"{path}: {why_not}")
        uses_labels = settings.labels != "none" and why_not is None
        if uses_labels:
            labelled.require_design()
        confidence = sample.confidence(estimate)
        curve = expected_errors(*confidence)
        groups = None if settings.by is None else _groups(target, settings.by, sample, file.classes)
        notes = [why_not] if why_not and draw.batches and settings.labels == "auto" else []
        if uses_labels and labelled.unlabelled:
            notes.append(
                f"{labelled.unlabelled} of the picked rows have no label and count as wrong"
            )
        role = "adapted" if file.is_adapted else "features"
        decision = Decision(
            error=settings.error,
            certainty=settings.certainty,
            covers="these rows" if settings.these_rows else "future rows",
            score="confidence",
            threshold=None,
            share=0.0,
            rows=len(rows),
            splits=splits,
            is_promise=False,
            expected=None,
            labels=None,
            labels_needed=0,
            promised_share=0.0,
            curve=curve,
            sets=None,
            notes=tuple(notes),
            inputs=(
                Input(role, path, file.sha256()),
                Input("calibration", document, sha256_of(document)),
            ),
        )
        if settings.coverage is not None:
            usable = labelled if uses_labels and labelled.is_uniform else None
            rule = _sets(sample, settings, usable, estimate, target, scaled)
            decision = replace(decision, sets=rule)
            if uses_labels and usable is None:
                notes.append(
                    "some labelled rows were not picked for --set alone, so the sets are only an "
                    "estimate. To promise the sets, extract the data to another file. On that "
                    "file, run covcal decide with --set and without --error, and covcal pick "
                    "--for the new decision"
                )
                decision = replace(decision, notes=tuple(notes))
        ranking = Ranking(scores, decision.beliefs)
        looks = 1
        if settings.costs is not None:
            cost = sample.cheapest(read_costs(settings.costs, file.classes), estimate)
            rows_to_accept = round(cost.share * len(ranking))
            threshold = ranking.threshold(rows_to_accept) if rows_to_accept else math.inf
            decision = _accepting(replace(decision, cost=cost), ranking, threshold)
        elif settings.error is None:
            return decision
        elif uses_labels:
            looks += len(labelled.used)
            test = labelled.tested(ranking, settings)
            decision = replace(_accepting(decision, ranking, test.threshold), labels=test.use)
            decision = replace(decision, is_promise=decision.threshold is not None)
        else:
            rows_to_accept = int(largest_share(curve, settings.error) * len(ranking))
            threshold = ranking.threshold(rows_to_accept) if rows_to_accept else math.inf
            decision = _accepting(decision, ranking, threshold)
        if groups is not None:
            accepted = decision.accepts(confidence[0])
            points = errors_of_groups(*groups, accepted, *confidence)
            decision = replace(decision, by=settings.by, groups=points)
        if settings.error is None:
            return decision
        return _with_offer(decision, ranking, level_of_look(settings.certainty, looks))


def _groups(
    target: Domain, by: str, sample: "_Sample", classes: Sequence[str]
) -> tuple[Sequence[str], Integers]:
    """Return the names of the groups, and the group of each row of the sample."""
    if by == BY_PREDICTED:
        return classes, sample.labels
    if by not in target.columns:
        raise CovcalError(
            f"{target.path} has no target column {by!r} to group by: use "
            f"{', '.join([*target.columns, BY_PREDICTED])}"
        )
    values, numbers = np.unique(target.column(by, sample.rows), return_inverse=True)
    if len(values) > _MAX_GROUPS:
        raise CovcalError(
            f"{target.path}: column {by!r} has {len(values)} values, so its groups would be "
            f"small: group by a column with at most {_MAX_GROUPS} values"
        )
    texts = [
        value.decode() if isinstance(value, bytes) else str(value) for value in values.tolist()
    ]
    return texts, numbers.astype(np.int64)


def _scores(
    target: Domain, rows: Rows, scaled: ScaledLogits, progress: ProgressCallback
) -> Float64s:
    """Return the calibrated confidence of rows, shape (N,)."""
    scores, start = np.empty(len(rows)), 0
    for _, confidence in scaled.confidences(target, rows):
        scores[start : start + len(confidence)] = confidence
        start += len(confidence)
        progress(Progress("confidence", start, len(rows)))
    return scores


class _Sample:
    """Random rows that stand for all rows, with their calibrated probabilities."""

    def __init__(
        self, target: Domain, scaled: ScaledLogits, splits: Sequence[str], seed: int
    ) -> None:
        most = min(_MAX_ROWS, _MAX_VALUES // target.n_classes)
        self.rows = target.drawn(most, seed, *splits)
        self.labels = target.logits(self.rows).argmax(axis=1)
        logits, self._temperature = scaled.prepared(target, self.rows)
        self._logits = logits.T
        self._can_move = scaled.scaling.can_move_the_top

    def cut(self, coverage: float, estimate: Estimate | None) -> float:
        """Return the smallest probability that a class in a set may have, without labels."""
        labels = self.labels if self._can_move else None
        return cut_without_labels(self._logits, self.probabilities, coverage, estimate, labels)

    def confidence(self, estimate: Estimate | None) -> tuple[Float64s, Float64s, Float64s]:
        """Return the confidence of the rows with its range; see `confidence_range`."""
        accuracies = None if estimate is None else (estimate.low, estimate.high)
        return confidence_range(
            self._logits, self._temperature, self.labels, accuracies, can_move=self._can_move
        )

    def cheapest(self, costs: Costs, estimate: Estimate | None) -> CostPoint:
        """Return the share of rows whose acceptance costs least."""
        accuracies = None if estimate is None else (estimate.low, estimate.high)
        labels = self.labels if self._can_move else None
        own, lowest, highest = (
            costs.of_accepted(softmax(self._logits, temperature).T, self.labels)
            for temperature in temperature_range(
                self._logits, self._temperature, accuracies, labels
            )
        )
        scores = confidences(self._logits, self._temperature, self.labels)
        return costs.cheapest(scores, own, lowest, highest)

    @cached_property
    def probabilities(self) -> Float64s:
        """Calibrated probabilities, shape (m, K)."""
        return softmax(self._logits, self._temperature).T


class _Labelled:
    """The rows that covcal pick drew for a decision, with their labels."""

    def __init__(
        self, target: Domain, draw: Draw, rows: Rows, scores: Float64s, ranking: Ranking
    ) -> None:
        self.draw, self.target, self._ranking = draw, target, ranking
        self.scores = scores[np.searchsorted(rows, draw.rows)]
        regions = [region_of(batch.score) for batch in draw.batches]
        # For each batch that was drawn for a decision: the threshold of its region.
        self.used = {i: region for i, region in enumerate(regions) if region is not None}
        self.is_used = np.isin(draw.batch, list(self.used))

    @cached_property
    def wrong(self) -> Booleans:
        """Whether the classifier is wrong on each drawn row, or the row has no label."""
        return np.asarray(self.target.logits(self.draw.rows).argmax(axis=1) != self.draw.labels)

    @property
    def unlabelled(self) -> int:
        """The number of rows that were drawn for a decision but have no label."""
        return int((self.is_used & ~self.draw.labelled).sum())

    @property
    def is_uniform(self) -> bool:
        """Whether every batch drew all rows with the same probability."""
        return bool(self.used) and all(self.used.get(i) == -1 for i in range(self.batches))

    @property
    def batches(self) -> int:
        """The number of all batches, also of batches that were not drawn for a decision."""
        return len(self.draw.batches)

    def tested(self, ranking: Ranking, settings: DecideSettings) -> "_Test":
        """Test the thresholds that the draws allow. Return the test that accepts most rows.

        There is a test after every batch, and each may use its own part of the allowed error
        probability. So a promise stays valid when more batches follow.
        """
        looks = [self._look(number, ranking, settings) for number in range(1, len(self.used) + 1)]
        return max(reversed(looks), key=lambda test: test.rows)

    def _look(self, look: int, ranking: Ranking, settings: DecideSettings) -> "_Test":
        """Test the thresholds with the first `look` batches that were drawn for a decision."""
        level = level_of_look(settings.certainty, look)
        error, numbers = settings.error or 0.0, list(self.used)[:look]

        def batches(threshold: float) -> list[Sampling]:
            return [self.sampling(i, threshold) for i in numbers]

        def allowed(threshold: float, drawn: Sequence[Sampling]) -> int:
            rows = ranking.above(threshold)
            lost = int(((self.scores > threshold) & ~self.is_used).sum())
            return most_wrong(rows, drawn, error, level, these_rows=settings.these_rows, lost=lost)

        region = ranking.above(max(*(self.used[i] for i in numbers), 0.0))
        tested = plan(ranking, region, batches, allowed)
        return _Test(tested, self, np.isin(self.draw.batch, numbers), look)

    def _left(self, number: int, threshold: float) -> int:
        """Return the number of rows above a threshold that no batch before this one drew."""
        before = (self.draw.batch < number) & (self.scores > threshold)
        return self._ranking.above(threshold) - int(before.sum())

    def _inclusions(self, number: int) -> tuple[float, float]:
        batch, region = self.draw.batches[number], self.used[number]
        inside = self._left(number, region)
        return inclusions(batch.drawn, inside, batch.population - inside)

    def sampling(self, number: int, threshold: float) -> Sampling:
        """Return how a batch drew from the rows above a threshold."""
        p, q = self._inclusions(number)
        region, drawn = self.used[number], self.draw.batches[number].drawn
        rows = self._left(number, threshold)
        # rows outside the region count too, or all rows were drawn with the same probability
        if region == -1 or threshold < region - _NEAR:
            return sampling(p if region == -1 else min(p, q), rows, drawn)
        return sampling(p, rows)

    def require_design(self) -> None:
        """Refuse a draw whose probabilities do not fit its regions."""
        for number, region in self.used.items():
            self._require_region(number, region)

    def _require_region(self, number: int, region: float) -> None:
        p, q = self._inclusions(number)
        rows = self.draw.batch == number
        scores = self.scores[rows]
        stated = np.where(scores > region, p, q)
        sure = np.abs(scores - region) > _NEAR
        if not np.allclose(self.draw.inclusion[rows][sure], stated[sure], rtol=1e-6):
            raise CovcalError(
                f"{self.target.path}: its rows were picked for another calibration: give that "
                "calibration to decide, or pick again with covcal pick --for"
            )


class _Test:
    """The thresholds of a plan, tested with the labels."""

    def __init__(self, tested: Plan, labelled: _Labelled, is_used: Booleans, batches: int) -> None:
        drawn = int(is_used.sum())
        self.rows, self.threshold = 0, math.inf
        self.use = LabelUse(drawn, 0, 0, -1, batches)
        for candidate in tested.candidates:
            above = is_used & (labelled.scores > candidate.threshold)
            wrong = int((above & labelled.wrong).sum())
            passed = wrong <= candidate.wrong
            if passed or not self.rows:
                self.use = LabelUse(drawn, int(above.sum()), wrong, candidate.wrong, batches)
            if not passed:
                break
            self.rows, self.threshold = candidate.rows, candidate.threshold


def _unusable(labelled: _Labelled, calibration: Calibration, document: Path) -> str | None:
    """Return why the labels of a file cannot be used for a promise, or None."""
    draw = labelled.draw
    if not (labelled.is_used & draw.labelled).any():
        if draw.labelled.any():
            return (
                "its rows were picked to estimate the accuracy, so they cannot make a promise: "
                "pick rows with covcal pick --for decide.json"
            )
        return (
            "it has no labelled rows: run covcal pick --for decide.json, label the rows, and "
            "run covcal label"
        )
    fitted = calibration.labelled_rows
    if fitted is not None and not set(fitted.ids).isdisjoint(labelled.target.ids(draw.rows)):
        return (
            f"{document} was fitted to labelled rows of this file, so these rows cannot make a "
            "promise: run covcal calibrate --labels none, and decide with the result"
        )
    return None


def _sets(
    sample: _Sample,
    settings: DecideSettings,
    labelled: _Labelled | None,
    estimate: Estimate | None,
    target: Domain,
    scaled: ScaledLogits,
) -> SetRule:
    """Return the rule that makes sets of classes. `labelled` are rows drawn at random."""
    coverage = settings.coverage or 0.0
    if labelled is None:
        cut = sample.cut(coverage, estimate)
        return SetRule(coverage, cut, mean_size(sample.probabilities, cut), 0, None)
    draw, population = labelled.draw, labelled.draw.population
    blocks = [
        scaled.forecast(target, rows).probabilities.T for rows in target.blocks(draw.rows, "logits")
    ]
    scores = true_scores(np.concatenate(blocks), draw.labels)
    excluded = right_excluded(draw.rows, coverage)
    if settings.certain_sets:
        drawn = [labelled.sampling(i, -1.0) for i in labelled.used]
        level = level_of_look(settings.certainty, len(labelled.used))
        excluded = most_wrong(
            population, drawn, 1 - coverage, level, these_rows=settings.these_rows
        )
    cut = cut_by_labels(scores, excluded)
    size = mean_size(sample.probabilities, cut)
    certainty = settings.certainty if settings.certain_sets else None
    return SetRule(coverage, cut, size, int(draw.labelled.sum()), certainty)


def _point(decision: Decision, share: float) -> CurvePoint:
    """Return the expected error of the rows with the highest scores, a `share` of all rows."""
    shares = [point.share for point in decision.curve]
    error, low, high = (
        float(np.interp(share, shares, [getattr(point, name) for point in decision.curve]))
        for name in ("error", "low", "high")
    )
    return CurvePoint(share, error, low, high)


def _accepting(decision: Decision, ranking: Ranking, threshold: float) -> Decision:
    """Return the decision that accepts the rows above a threshold, if there are any."""
    above = ranking.above(threshold)
    if not above:
        return decision
    share = above / len(ranking)
    point = _point(decision, share)
    return replace(decision, threshold=threshold, share=share, expected=point)


def _with_offer(decision: Decision, ranking: Ranking, level: float) -> Decision:
    """Return the decision with the number of labels that would probably make a promise possible."""
    offers: list[tuple[int, float, float]] = []
    for labels in _OFFERS:
        if labels <= len(ranking):
            region = best_region(ranking, labels, decision.error or 0.0, level)
            if region is not None and region.plan.share >= _LEAST_SHARE:
                offers.append((labels, region.plan.chance, region.plan.share))
                if region.plan.chance >= _LIKELY[0]:
                    break
    for likely in _LIKELY:
        for labels, chance, share in offers:
            if chance >= likely:
                return replace(decision, labels_needed=labels, promised_share=share)
    return decision
