"""``covcal decide``: choose target rows to accept, and sets of classes.

Rows are ranked by their calibrated confidence. Without labels, rows are accepted while the expected
error plus a margin is below the limit. With labels of ``covcal pick --for``, exact tests of
thresholds in a fixed order choose the rows (`maths.acceptance`). Labels to which the calibration
was fitted are not used, and the test split is not read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, Booleans, Float64s, Rows
from covcal_cli.decide import thresholds
from covcal_cli.decide.thresholds import Sample
from covcal_cli.errors import CovcalError, require_shares
from covcal_cli.estimators.guards import errors_of_confident
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.estimators.metrics import MetricEstimate, read_costs
from covcal_cli.files import sha256_of
from covcal_cli.forecast import ScaledLogits, networks_for
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.decision import CurvePoint, Decision, LabelUse, SetRule, beliefs_of
from covcal_cli.formats.features import Domain, FeatureFile, SourceDomain
from covcal_cli.formats.groups import column_groups
from covcal_cli.labels.draws import Draw, frame_rows, rows_of_fit
from covcal_cli.labels.picked_labels import draw_with_labels
from covcal_cli.labels.score import region_of
from covcal_cli.maths import acceptance
from covcal_cli.maths.acceptance import Ranking, Sampling
from covcal_cli.multilabel import current_label
from covcal_cli.progress import ProgressCallback, silent
from covcal_cli.records import Input

SPLITS_READ = ("train", "validation")
_MAX_ROWS, _MAX_VALUES = 20_000, 1 << 22
BY_PREDICTED = "predicted"
_OFFERS = (30, 50, 80, 100, 150, 200, 300, 500, 1000, 2000)
# minimum share of accepted rows for a suggestion
_LEAST_SHARE = 0.005
# Limits for the probability that the suggested labels are enough.
LIKELY, _NEARLY, _EVEN = 0.8, 0.9, 0.5
# Assumed errors: 1 is the high end of the range, 0 the estimate, and -1 the low end.
_CONSIDERED = (1.0, 0.5, 0.0, -0.5, -1.0)
_NEAR = 1e-5
_CERTAINTY = 0.9


@dataclass(frozen=True, kw_only=True)
class DecideSettings:
    """The settings of ``covcal decide``."""

    error: float | None = None  # Maximum error rate of the accepted rows.
    coverage: float | None = None  # Minimum share of rows whose set contains the right class.
    certainty: float | None = None  # Default: 0.9 for accepted rows, none for sets.
    # Whether the guarantee is only for the rows of this file.
    these_rows: bool = False
    # "marked" (labels from covcal label), "none", or "auto" ("marked" if possible)
    labels: str = "auto"
    # a column, or "predicted": show the expected error for each value
    by: str | None = None
    costs: Path | None = None  # costs.json, instead of an error

    def __post_init__(self) -> None:
        if self.costs is not None and (self.error is not None or self.labels == "marked"):
            raise CovcalError(
                "--cost cannot be used with --error or with --labels marked: leave them out"
            )
        accepts = self.error is not None or self.costs is not None
        if self.by is not None and not accepts:
            raise CovcalError("--by shows the accepted rows of each group: give --error too")
        if not accepts and self.coverage is None:
            raise CovcalError("give --error for rows to accept, --set for sets of classes, or both")
        require_shares(error=self.error, coverage=self.coverage, certainty=self.certainty)


def decide(
    path: Path,
    document: Path,
    settings: DecideSettings,
    estimate: Estimate | None = None,
    *,
    cost: MetricEstimate | None = None,
    networks: Path | None = None,
    progress: ProgressCallback = silent,
) -> Decision:
    """Decide which target rows of a features or adapted file to accept.

    - `document`: the cal.json.
    - `estimate`: the estimated target accuracy. By default, the calibrated confidence is assumed to
      be right.
    - `cost`: the mean cost of a row if every row is accepted.
    - `networks`: the adapted file with the networks, if it has moved.

    Raises `CovcalError` if the calibration does not fit the file, there are no rows, or the
    requested labels cannot be used.
    """
    calibration = read_calibration(document)
    with FeatureFile(path) as file:
        if settings.coverage is not None:
            file.require_all_classes("--set")
        aligned = networks_for(calibration, file, networks)
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
        scores = scaled.confidence(target, rows, progress)
        drawn = target.drawn(min(_MAX_ROWS, _MAX_VALUES // target.n_classes), 0, *splits)
        predicted = target.logits(drawn).argmax(axis=1)
        logits, temperature = scaled.prepared(target, drawn)
        accuracy = None if estimate is None else (estimate.low, estimate.accuracy, estimate.high)
        moved = predicted if scaled.scaling.can_move_the_top else None
        sample = Sample(logits.T, temperature, accuracy, moved)
        curve = sample.curve()
        rankings = [Ranking(scores, beliefs_of(curve, parts)) for parts in acceptance.BELIEFS]
        labelled, ranking = _Labelled(target, draw, rows, scores, rankings), rankings[0]
        why_not = labelled.unusable(calibration, document)
        if settings.labels == "marked" and why_not is not None:
            raise CovcalError(f"{path}: {why_not}")
        uses_labels = settings.labels != "none" and why_not is None
        notes = [why_not] if why_not and draw.batches and settings.labels == "auto" else []
        if uses_labels:
            labelled.require_design()
            unlabelled = int((labelled.is_used & ~draw.labelled).sum())
            if unlabelled:
                notes.append(
                    f"{unlabelled} of the picked rows have no label and count as wrong: label "
                    "them too, and run covcal label again"
                )
        if settings.costs is not None and draw.labelled.any():
            notes = []
            if calibration.labelled_rows is None and not draw.is_for_decision:
                notes.append(
                    "--cost does not use labelled rows, but covcal estimate --cost does, so both "
                    "costs differ. To measure the accepted rows, run covcal evaluate --decide"
                )
        sets = None
        if settings.coverage is not None:
            usable = labelled if uses_labels and labelled.is_uniform else None
            sets = _sets(sample, settings, usable, scaled)
            if uses_labels and usable is None:
                notes.append(
                    "some labelled rows were not picked for a decision with --set alone, so the "
                    "sets are only an estimate. To promise the coverage of the sets, extract the "
                    "data to another file. Run covcal decide --set on that file, then covcal "
                    "pick --for"
                )
        threshold, cheapest, use, looks = math.inf, None, None, 1
        if settings.costs is not None:
            costs = read_costs(settings.costs, file.classes)
            cheapest = sample.cheapest(*costs, predicted, cost)
            threshold = ranking.threshold(round(cheapest.share * len(ranking)))
        elif settings.error is not None and uses_labels:
            looks += len(labelled.used)
            threshold, use = labelled.tested(settings)
        elif settings.error is not None:
            share = thresholds.largest_share(curve, settings.error)
            threshold = ranking.threshold(int(share * len(ranking)))
        above = ranking.above(threshold)
        share = above / len(ranking)
        warnings = []
        if use is None and above:
            if settings.error is not None and calibration.labelled_rows is None:
                notes.append(
                    f"on {'38 to 44' if accuracy is None else '10 to 16'} % of 144 test shifts, "
                    "such an estimate accepted more wrong rows than --error allows"
                )
            if doubt := _doubt(file.source, scaled, threshold):
                warnings.append(
                    f"{doubt}. So more of the accepted rows may be wrong than estimated: label "
                    "some rows that covcal pick --for draws"
                )
        names, numbers = file.classes, predicted
        if settings.by is not None and settings.by != BY_PREDICTED:
            values = column_groups(target, settings.by, drawn, [BY_PREDICTED])
            names, numbers = values.names, values.numbers(drawn)
        accepted = sample.confidence[0] > threshold
        groups = sample.groups(names, numbers, accepted) if settings.by is not None else ()
        offer = 0, 0.0, 0.0
        if settings.error is not None:
            level = acceptance.level_of_look(settings.certainty or _CERTAINTY, looks)
            offer = labelled.offer(curve, settings.error, level, looks)
        return Decision(
            error=settings.error,
            certainty=settings.certainty or _CERTAINTY,
            covers="these rows" if settings.these_rows else "future rows",
            score="confidence",
            threshold=threshold if above else None,
            share=share,
            rows=len(rows),
            splits=splits,
            is_promise=use is not None and above > 0,
            expected=_point(curve, share) if above else None,
            labels=use,
            labels_needed=offer[0],
            promised_share=offer[1],
            promised_chance=offer[2],
            curve=curve,
            sets=sets,
            notes=tuple(notes),
            warnings=tuple(warnings),
            inputs=(
                Input("adapted" if file.is_adapted else "features", path, file.sha256()),
                Input("calibration", document, sha256_of(document)),
            ),
            cost=cheapest,
            by=settings.by,
            groups=groups,
            scaling_sha256=calibration.scaling_sha256,
        )


class _Labelled:
    def __init__(
        self, target: Domain, draw: Draw, rows: Rows, scores: Float64s, rankings: Sequence[Ranking]
    ) -> None:
        # One ranking for the first batch, one for later batches.
        self.draw, self.target, self._rankings = draw, target, rankings
        self.scores = scores[np.searchsorted(rows, draw.rows)]
        regions = [region_of(batch.score) for batch in draw.batches]
        # threshold of each batch that was drawn for a decision
        self.used = {i: region for i, region in enumerate(regions) if region is not None}
        self.is_used = np.isin(draw.batch, list(self.used))

    @cached_property
    def wrong(self) -> Booleans:
        """Whether each drawn row is wrong or has no label."""
        return np.asarray(self.target.logits(self.draw.rows).argmax(axis=1) != self.draw.labels)

    @property
    def is_uniform(self) -> bool:
        """Whether every batch drew all rows with the same probability."""
        return list(self.used.values()) == [-1] * len(self.draw.batches)

    def unusable(self, calibration: Calibration, document: Path) -> str | None:
        """Return why the labels cannot be used, or None."""
        if not (self.is_used & self.draw.labelled).any():
            if self.draw.labelled.any():
                reason = "the labelled rows were picked for the accuracy, not for a promise"
                if current_label() is not None:
                    return f"{reason}. With several labels, no rows can be picked for a promise"
                return f"{reason}: pick rows with covcal pick --for decide.json"
            return "the file has no labels: run covcal pick --for decide.json and covcal label"
        # Earlier batches were removed before the first draw for a decision.
        rows = self.draw.rows[self.draw.batch >= min(self.used)]
        fitted = calibration.labelled_rows
        if fitted is not None and rows_of_fit(self.target, rows, fitted).any():
            return (
                f"{document} was fitted to labelled rows of this file, so these rows cannot make a "
                "promise: run covcal calibrate --labels none, and decide with the result"
            )
        return None

    def tested(self, settings: DecideSettings) -> tuple[float, LabelUse]:
        """Test thresholds after each batch, and return the best threshold.

        The batches share the error probability.
        """
        looks = [self._look(number, settings) for number in range(len(self.used), 0, -1)]
        return min(looks, key=lambda look: look[0])

    def _look(self, look: int, settings: DecideSettings) -> tuple[float, LabelUse]:
        """Test thresholds with the labels of the first `look` batches.

        Return the lowest threshold that passes, or infinity, with the counts of its test.
        """
        level = acceptance.level_of_look(settings.certainty or _CERTAINTY, look)
        error, numbers = settings.error or 0.0, list(self.used)[:look]
        ranking = self._rankings[look > 1]

        def limits(threshold: float) -> tuple[int, int]:
            rows = ranking.above(threshold)
            drawn = [self.sampling(i, threshold) for i in numbers]
            lost = int(((self.scores > threshold) & ~self.is_used).sum())
            these = settings.these_rows
            allowed = acceptance.most_wrong(rows, drawn, error, level, these_rows=these, lost=lost)
            return round(sum(batch.inclusion for batch in drawn) * rows), allowed

        region = ranking.above(max(*(self.used[i] for i in numbers), 0.0))
        is_used = np.isin(self.draw.batch, numbers)
        drawn, lowest = int(is_used.sum()), math.inf
        use = LabelUse(drawn, 0, 0, -1, look)
        for candidate in acceptance.plan(ranking, region, limits).candidates:
            above = is_used & (self.scores > candidate.threshold)
            wrong = int((above & self.wrong).sum())
            passed = wrong <= candidate.wrong
            if passed or lowest == math.inf:
                use = LabelUse(drawn, int(above.sum()), wrong, candidate.wrong, look)
            if not passed:
                break
            lowest = candidate.threshold
        return lowest, use

    def offer(
        self, curve: Sequence[CurvePoint], error: float, level: float, look: int
    ) -> tuple[int, float, float]:
        """Suggest a number of labels for batch `look`.

        Return this number, the share of rows that can be accepted, and the probability that the
        labels are enough. Return zeros if no number is enough.
        """
        beliefs, offers, ranking = beliefs_of(curve, _CONSIDERED), [], self._rankings[look > 1]
        used = self.is_used & (look > 1)
        scores, wrong = self.scores[used], self.wrong[used]
        for labels in _OFFERS:
            if labels > len(ranking) - len(self.scores):
                break
            best = acceptance.best_region(ranking, labels, error, level, scores)
            if best is None:
                continue
            first = best[1].candidates[0]
            # After a failed promise, the plan assumes more errors than the labels show.
            share = first.rows / len(ranking) if look > 1 else best[1].share
            if share >= _LEAST_SHARE:
                of_first = acceptance.chance(ranking, first, beliefs, scores, wrong)
                offers.append((labels, share, of_first))
                if of_first >= LIKELY:
                    break
        most = max((offer[2] for offer in offers), default=0.0)
        least = LIKELY if most >= LIKELY else max(_NEARLY * most, _EVEN)
        return next((offer for offer in offers if offer[2] >= least), (0, 0.0, 0.0))

    def _left(self, number: int, threshold: float) -> int:
        before = (self.draw.batch < number) & (self.scores > threshold)
        return self._rankings[0].above(threshold) - int(before.sum())

    def _inclusions(self, number: int) -> tuple[float, float]:
        batch, region = self.draw.batches[number], self.used[number]
        inside = self._left(number, region)
        return acceptance.inclusions(batch.drawn, inside, batch.population - inside)

    def sampling(self, number: int, threshold: float) -> Sampling:
        """Return the `Sampling` of a batch, for the rows above a threshold."""
        p, q = self._inclusions(number)
        region, drawn = self.used[number], self.draw.batches[number].drawn
        rows = self._left(number, threshold)
        # The region -1 stands for a draw with equal probabilities.
        if region == -1 or threshold < region - _NEAR:
            return acceptance.sampling(p if region == -1 else min(p, q), rows, drawn)
        return acceptance.sampling(p, rows)

    def require_design(self) -> None:
        """Refuse rows that were picked for another calibration."""
        for number, region in self.used.items():
            p, q = self._inclusions(number)
            rows = self.draw.batch == number
            stated = np.where(self.scores[rows] > region, p, q)
            sure = np.abs(self.scores[rows] - region) > _NEAR
            if not np.allclose(self.draw.inclusion[rows][sure], stated[sure], rtol=1e-6):
                raise CovcalError(
                    f"{self.target.path}: the rows were picked for another calibration: pass "
                    "that calibration with -c, or pick again with covcal pick --for"
                )


def _sets(
    sample: Sample, settings: DecideSettings, labelled: _Labelled | None, scaled: ScaledLogits
) -> SetRule:
    """Return the rule for sets of classes. `labelled` is a random sample of rows."""
    coverage, certainty, n_labels = settings.coverage or 0.0, None, 0
    if labelled is None:
        cut = sample.cut(coverage)
    else:
        draw, target = labelled.draw, labelled.target
        n_labels, blocks = int(draw.labelled.sum()), target.blocks(draw.rows, "logits")
        shares = [scaled.forecast(target, rows).probabilities.T for rows in blocks]
        excluded = thresholds.right_excluded(draw.rows, coverage)
        if (certainty := settings.certainty) is not None:
            excluded = acceptance.most_wrong(
                draw.population,
                [labelled.sampling(i, -1.0) for i in labelled.used],
                1 - coverage,
                acceptance.level_of_look(certainty, len(labelled.used)),
                these_rows=settings.these_rows,
            )
        cut = thresholds.cut_by_labels(np.concatenate(shares), draw.labels, excluded)
    size = thresholds.mean_size(sample.probabilities, cut)
    return SetRule(coverage, cut, size, n_labels, certainty)


def _doubt(source: SourceDomain | None, scaled: ScaledLogits, above: float) -> str | None:
    """Return why the confidence of source rows above a threshold seems too high, or None."""
    if source is None:
        return None
    drawn = source.drawn(_MAX_ROWS, 0, "validation")
    drawn = drawn[source.labels(drawn) != UNKNOWN_LABEL]
    blocks = [(np.empty(0, dtype=np.int64), np.empty(0)), *scaled.confidences(source, drawn)]
    predicted, confidence = map(np.concatenate, zip(*blocks, strict=True))
    return errors_of_confident(confidence, predicted != source.labels(drawn), above)


def _point(curve: Sequence[CurvePoint], share: float) -> CurvePoint:
    values = np.array([(point.share, point.error, point.low, point.high) for point in curve]).T
    return CurvePoint(share, *(float(np.interp(share, values[0], errors)) for errors in values[1:]))
