"""``covcal decide``: choose which target predictions to accept, or form prediction sets.

Predictions with a confidence above a threshold are accepted. Without labels, the expected error of
the accepted rows, plus a margin, is at most the limit. With labels from ``covcal pick --for``,
exact tests find the threshold (`maths.acceptance`). Labels to which the calibration was fitted are
not used, and the test split is not read.

With ``--promise-by``, each group of rows has its own threshold and its own tests. The allowed error
probability is divided equally among the groups (Bonferroni). So all promises hold at once with the
requested certainty.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Booleans, Float64s, Integers, Rows
from covcal_cli.decide import thresholds
from covcal_cli.decide.thresholds import Sample
from covcal_cli.errors import CovcalError, percent, require_shares
from covcal_cli.estimators.guards import errors_of_confident
from covcal_cli.estimators.inputs import ESTIMATED, Estimate
from covcal_cli.estimators.metrics import MetricEstimate, read_costs
from covcal_cli.files import sha256_of
from covcal_cli.forecast import ScaledLogits, networks_for
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.decision import Decision, GroupPoint, LabelUse, SetRule, beliefs_of
from covcal_cli.formats.features import Domain, FeatureFile
from covcal_cli.formats.groups import numbered_groups
from covcal_cli.labels.draws import Draw, frame_rows, inclusions_for_decision, rows_of_fit
from covcal_cli.labels.picked_labels import draw_with_labels
from covcal_cli.labels.score import region_of
from covcal_cli.maths import acceptance
from covcal_cli.maths.acceptance import MOST_GROUPS, NEAR, Ranking, Sampling, most_wrong
from covcal_cli.multilabel import current_label
from covcal_cli.progress import ProgressCallback, silent
from covcal_cli.records import Input

_MAX_ROWS, _MAX_VALUES = 20_000, 1 << 22
_OFFERS = (30, 50, 80, 100, 150, 200, 300, 500, 1000, 2000)
# A number of labels is suggested only if this share of the rows can then be accepted.
_LEAST_SHARE = 0.005
# Limits in `_Promise.offer` for the probability that the suggested labels are enough.
LIKELY, _NEARLY, _EVEN = 0.8, 0.9, 0.5
# Assumed error rates: 1 is the high end of the estimated range, 0 the estimate, -1 the low end.
_CONSIDERED = (1.0, 0.5, 0.0, -0.5, -1.0)
_BELIEFS = (*acceptance.BELIEFS, _CONSIDERED)
_CERTAINTY = 0.9
_UNSUPPORTED = 0.25
_LABEL_SOME = "draw rows with covcal pick --for, and label these rows"
# Number of labels, share of rows to accept, and probability that the labels are enough.
_Offer = tuple[int, float, float]
_NO_OFFER = 0, 0.0, 0.0
_NOTHING = acceptance.Candidate(math.inf, 0, 0, -1)  # Accepts no row.


@dataclass(frozen=True, kw_only=True)
class DecideSettings:
    """The settings of ``covcal decide``."""

    error: float | None = None  # Maximum error rate of the accepted rows.
    coverage: float | None = None  # Minimum coverage of the prediction sets.
    certainty: float | None = None  # Confidence level. For accepted rows, None means 0.9.
    # Whether the guarantee is only for the rows of this file.
    these_rows: bool = False
    # "marked" (labels from covcal label), "none", or "auto" ("marked" if possible)
    labels: str = "auto"
    # a column, or "predicted": show the expected error for each value
    by: str | None = None
    # a column, or "predicted": make a promise for each value
    promise_by: str | None = None
    costs: Path | None = None  # Path of a costs.json, which replaces `error`.

    def __post_init__(self) -> None:
        if self.costs is not None and (self.error is not None or self.labels == "marked"):
            raise CovcalError("--cost excludes --error and --labels marked: give only --cost")
        accepts = self.error is not None or self.costs is not None
        if self.by is not None and not accepts:
            raise CovcalError("--by shows the accepted rows of each group: give --error too")
        if self.promise_by is not None and (self.error is None or self.by is not None):
            raise CovcalError("--promise-by needs --error, not --by: add --error, leave out --by")
        if not accepts and self.coverage is None:
            raise CovcalError("give --error to accept rows, --set for prediction sets, or both")
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
    - `networks`: the adapted file with the networks, if this file was moved.

    Raises `CovcalError` if the calibration does not fit the file, there are no rows, or the
    requested labels cannot be used.
    """
    calibration = read_calibration(document)
    with FeatureFile(path) as file:
        if settings.coverage is not None:
            file.require_all_classes("--set")
        aligned = networks_for(calibration, file, networks)
        scaled = ScaledLogits(calibration.scaling, aligned)
        target = file.require_target()
        draw = draw_with_labels(file)
        splits = draw.batches[0].splits if draw.batches else ESTIMATED
        rows = frame_rows(target, splits)
        if not len(rows):
            raise CovcalError(
                f"{path} has no target {' or '.join(splits)} rows ({target.counts()}): give "
                "another file, or another --split"
            )
        by, is_joint = settings.promise_by or settings.by, settings.promise_by is None
        names, groups = numbered_groups(target, by, rows, file.classes)
        if not is_joint and len(names) > MOST_GROUPS:
            raise CovcalError(
                f"{path}: {by!r} has {len(names)} groups, but at most {MOST_GROUPS} are allowed: "
                "use another column for --promise-by"
            )
        promises = np.zeros_like(groups) if is_joint else groups
        scores = scaled.confidence(target, rows, progress)
        drawn = target.drawn(min(_MAX_ROWS, _MAX_VALUES // target.n_classes), 0, *splits)
        predicted = target.logits(drawn).argmax(axis=1)
        logits, temperature = scaled.prepared(target, drawn)
        accuracy = None if estimate is None else (estimate.low, estimate.accuracy, estimate.high)
        moved = predicted if scaled.scaling.can_move_the_top else None
        of_source = scaled.of_labelled(file.source, _MAX_ROWS)
        sample = Sample(logits.T, temperature, accuracy, moved, of_source)
        planned, of_sample = sample.curve(), np.searchsorted(rows, drawn)
        curve = sample.curve(count_source=True)
        labelled = _Labelled(target, draw, rows, scores, promises)
        why_not = labelled.unusable(calibration, document)
        if settings.labels == "marked" and why_not is not None:
            raise CovcalError(f"{path}: {why_not}")
        uses_labels = settings.labels != "none" and why_not is None
        notes = [why_not] if why_not and draw.batches and settings.labels == "auto" else []
        if uses_labels:
            labelled.inclusions = inclusions_for_decision(target, draw, rows, scores, promises)
            unlabelled = int((labelled.is_used & ~draw.labelled).sum())
            if unlabelled:
                notes.append(
                    f"{unlabelled} of the picked rows have no label and count as wrong: label "
                    "these rows, and run covcal label again"
                )
        if settings.costs is not None and draw.labelled.any():
            notes = []
            if calibration.labelled_rows is None and not draw.is_for_decision:
                notes.append(
                    "covcal decide --cost does not use the labels of this file. To measure the "
                    "accepted rows with labels, run covcal evaluate --decide"
                )
        sets = None
        if settings.coverage is not None:
            # A promise on the coverage of sets needs random draws from all rows.
            is_uniform = list(labelled.used.values()) == [-1] * len(draw.batches)
            usable = labelled if uses_labels and is_uniform else None
            sets = _sets(sample, settings, usable, scaled)
            if uses_labels and usable is None:
                notes.append(
                    "some labelled rows were not picked for prediction sets, so the "
                    "coverage of the prediction sets is only estimated. To get a promise, extract "
                    "the data to another file, and run covcal decide --set on that file"
                )
        above, cheapest, costs = np.full(len(names), math.inf), None, None
        uses: dict[int, LabelUse] = {}
        offers: dict[int, _Offer] = {}
        ascending = np.sort(scores)
        rankings = [Ranking(ascending, beliefs_of(planned, parts)) for parts in _BELIEFS]
        sizes = np.bincount(promises, minlength=len(names))
        used = [] if settings.error is None else np.flatnonzero(sizes).tolist()
        for group in used:
            parts = rankings
            if len(used) > 1:
                parts = [entry.part(scores[promises == group]) for entry in rankings]
            promise = _Promise(labelled, settings, parts, group)
            if uses_labels:
                above[group], uses[group] = promise.tested()
            else:
                inside = promises[of_sample] == group
                of_group = sample.curve(inside, count_source=True)
                share = thresholds.largest_share(of_group, settings.error or 0.0)
                above[group] = parts[0].threshold(int(share * len(parts[0])))
            offers[group] = promise.offer(1 + uses_labels * len(labelled.used))
        if settings.costs is not None:
            wrong, costs = read_costs(settings.costs, file.classes)
            cheapest = sample.cheapest(wrong, costs.review or 0.0, predicted, cost)
            above[0] = rankings[0].threshold(round(cheapest.share * len(rows)))
        accepted = np.bincount(groups[scores > above[promises]], minlength=len(names))
        share = float(accepted.sum() / len(rows))
        accepts, warnings = sample.confidence[0] > above[promises[of_sample]], []
        if not uses and share:
            if settings.error is not None and calibration.labelled_rows is None:
                notes.append(
                    "without labels, the error rate of the accepted rows was above the limit on "
                    f"{'39 to 47' if accuracy is None else '8 to 13'} % of 144 test shifts"
                )
            if doubt := errors_of_confident(*of_source, float(above.min())):
                warnings.append(f"{doubt}. The error may be higher than estimated: {_LABEL_SOME}")
            if (beyond := sample.share_beyond_source(accepts)) > _UNSUPPORTED:
                warnings.append(
                    f"{percent(beyond, 0)} of the accepted rows are more confident than every "
                    f"labelled source row, so the error of these rows is unknown: {_LABEL_SOME}"
                )
        if not is_joint:
            offers |= {group: _NO_OFFER for group in uses if above[group] < math.inf}
        labels, promised_share, chance = _joined(offers, sizes)
        sizes, points = np.bincount(groups, minlength=len(names)).tolist(), []
        for group, name in enumerate(names if by else []):
            n, inside = int(accepted[group]), accepts & (groups[of_sample] == group)
            inside = inside if inside.any() else accepts
            together = accepts if is_joint else inside
            expected = sample.expected(inside, together, n, sizes[group])
            threshold = float(above[group]) if n else None
            of_promise = threshold, uses.get(group), offers.get(group, _NO_OFFER)[0]
            more = () if is_joint else of_promise
            points.append(GroupPoint(name, sizes[group], expected, *more))
        return Decision(
            error=settings.error,
            certainty=settings.certainty or _CERTAINTY,
            covers="these rows" if settings.these_rows else "future rows",
            threshold=float(above[0]) if share and is_joint else None,
            share=share,
            rows=len(rows),
            splits=splits,
            is_promise=bool(uses) and share > 0,
            expected=thresholds.point_at(curve, share) if share and is_joint else None,
            labels=uses.get(0) if is_joint else None,
            labels_needed=labels,
            promised_share=promised_share,
            promised_chance=chance,
            curve=curve,
            planned=planned,
            sets=sets,
            notes=tuple(notes),
            warnings=tuple(warnings),
            inputs=(
                Input("adapted" if file.is_adapted else "features", path, file.sha256()),
                Input("calibration", document, sha256_of(document)),
            ),
            cost=cheapest,
            costs=costs,
            by=settings.by,
            promise_by=settings.promise_by,
            groups=tuple(points),
            scaling_sha256=calibration.scaling_sha256,
        )


class _Labelled:
    def __init__(
        self, target: Domain, draw: Draw, rows: Rows, scores: Float64s, groups: Integers
    ) -> None:
        self.draw, self.target = draw, target
        self.promises = int(np.count_nonzero(np.bincount(groups)))
        places = np.searchsorted(rows, draw.rows)
        self.scores, self.groups = scores[places], groups[places]
        regions = [region_of(batch.score) for batch in draw.batches]
        self.used = {i: region for i, region in enumerate(regions) if region is not None}
        self.is_used = np.isin(draw.batch, list(self.used))
        self.wrong: Booleans = target.logits(draw.rows).argmax(axis=1) != draw.labels
        self.inclusions: list[Float64s] = []

    def unusable(self, calibration: Calibration, document: Path) -> str | None:
        if not (self.is_used & self.draw.labelled).any():
            if self.draw.labelled.any():
                reason = "the labelled rows were picked to estimate the accuracy, not for a promise"
                return f"{reason}: pick rows with covcal pick --for decide.json"
            return "the file has no labels: run covcal pick --for decide.json and covcal label"
        # Leave out batches that were drawn before the decision.
        rows = self.draw.rows[self.draw.batch >= min(self.used)]
        fitted = calibration.labelled_rows
        if fitted is not None and rows_of_fit(self.target, rows, fitted).any():
            # The rows were picked before this fit, for a calibration without labels or with earlier
            # labels.
            remedy = "the calibration for which the rows were picked"
            if not min(self.used):
                remedy = "the calibration from covcal calibrate --labels none"
            return (
                f"{document} was fitted to the labels of this file, so these labels cannot prove a "
                f"promise: use {remedy}"
            )
        return None


class _Promise:
    def __init__(
        self, labelled: _Labelled, settings: DecideSettings, rankings: Sequence[Ranking], group: int
    ) -> None:
        self._labelled, self._settings, self._rankings = labelled, settings, rankings
        self._group, self._error = group, settings.error or 0.0
        self._certainty = settings.certainty or _CERTAINTY
        of_rows = labelled.scores, labelled.draw.batch, labelled.is_used, labelled.wrong
        self._scores, self._batch, self._is_used, self._wrong = (
            values[labelled.groups == group] for values in of_rows
        )

    def _level(self, look: int) -> float:
        return acceptance.level_of_look(self._certainty, look) / self._labelled.promises

    def tested(self) -> tuple[float, LabelUse]:
        """Return the lowest threshold that any test has passed, with the counts of labels."""
        looks = [self._look(number) for number in range(len(self._labelled.used), 0, -1)]
        return min(looks, key=lambda look: look[0])

    def _look(self, look: int) -> tuple[float, LabelUse]:
        level, numbers = self._level(look), list(self._labelled.used)[:look]
        ranking = self._rankings[look > 1]

        def limits(threshold: float) -> tuple[int, int]:
            rows = ranking.above(threshold)
            drawn = [self.sampling(i, threshold) for i in numbers]
            lost = int(((self._scores > threshold) & ~self._is_used).sum())
            these = self._settings.these_rows
            allowed = most_wrong(rows, drawn, self._error, level, these_rows=these, lost=lost)
            return round(sum(batch.inclusion for batch in drawn) * rows), allowed

        region = ranking.above(max(*(self._labelled.used[i] for i in numbers), 0.0))
        is_used = np.isin(self._batch, numbers)
        scores, wrong = self._scores[is_used], self._wrong[is_used]
        candidates = acceptance.plan(ranking, region, limits).candidates
        passed = acceptance.passed(candidates, scores, wrong)
        shown = (*candidates, _NOTHING)[max(passed - 1, 0)]
        above = scores > shown.threshold
        counts = int(above.sum()), int((above & wrong).sum())
        use = LabelUse(len(scores), *counts, shown.wrong, look)
        return shown.threshold if passed else math.inf, use

    def offer(self, look: int) -> _Offer:
        offers, ranking = [], self._rankings[look > 1]
        # If rows can have several labels, all rows are drawn with equal probabilities.
        regions = () if current_label() is None else (1.0,)
        used = self._is_used & (look > 1)
        scores, wrong = self._scores[used], self._wrong[used]
        for labels in _OFFERS:
            if labels > len(ranking) - len(self._scores):
                break
            best = acceptance.best_region(
                ranking, labels, self._error, self._level(look), scores, regions=regions
            )
            if best is None:
                continue
            first = best[1].candidates[0]
            # After a failed test, assume more errors than the labels show.
            share = first.rows / len(ranking) if look > 1 else best[1].share
            if share >= _LEAST_SHARE:
                beliefs = self._rankings[-1].beliefs
                of_first = acceptance.chance(ranking, first, beliefs, scores, wrong)
                offers.append((labels, share, of_first))
                if of_first >= LIKELY:
                    break
        most = max((offer[2] for offer in offers), default=0.0)
        least = LIKELY if most >= LIKELY else max(_NEARLY * most, _EVEN)
        return next((offer for offer in offers if offer[2] >= least), _NO_OFFER)

    def sampling(self, number: int, threshold: float) -> Sampling:
        pairs = self._labelled.inclusions[number]
        p, q = pairs[min(self._group, len(pairs) - 1)]
        region, drawn = self._labelled.used[number], self._labelled.draw.batches[number].drawn
        before = (self._batch < number) & (self._scores > threshold)
        rows = self._rankings[0].above(threshold) - int(before.sum())
        # The value -1 means that all rows have the same probability.
        if region == -1 or threshold < region - NEAR:
            return acceptance.sampling(p if region == -1 else min(p, q), rows, drawn)
        if self._labelled.promises == 1:
            return acceptance.sampling(p, rows)
        most = math.ceil(p * rows) + 1 if len(pairs) > 1 else drawn
        return acceptance.sampling(p, rows, most)


def _sets(
    sample: Sample, settings: DecideSettings, labelled: _Labelled | None, scaled: ScaledLogits
) -> SetRule:
    coverage, certainty, n_labels = settings.coverage or 0.0, None, 0
    if labelled is None:
        cut = sample.cut(coverage)
    else:
        draw, target = labelled.draw, labelled.target
        n_labels, blocks = int(draw.labelled.sum()), target.blocks(draw.rows, "logits")
        shares = [scaled.forecast(target, rows).probabilities.T for rows in blocks]
        excluded = thresholds.right_excluded(draw.rows, coverage)
        if (certainty := settings.certainty) is not None:
            excluded = most_wrong(
                draw.population,
                [Sampling(batch.drawn / batch.population, batch.drawn) for batch in draw.batches],
                1 - coverage,
                acceptance.level_of_look(certainty, len(labelled.used)),
                these_rows=settings.these_rows,
            )
        cut = thresholds.cut_by_labels(np.concatenate(shares), draw.labels, excluded)
    size = thresholds.mean_size(sample.probabilities, cut)
    return SetRule(coverage, cut, size, n_labels, certainty)


def _joined(offers: Mapping[int, _Offer], sizes: Integers) -> _Offer:
    """Return the suggested number of labels for all groups together."""
    most = max((labels for labels, *_ in offers.values()), default=0)
    share = sum(part * sizes[group] for group, (_, part, _) in offers.items()) / sizes.sum()
    chance = min((chance for labels, _, chance in offers.values() if labels), default=0.0)
    return int(np.minimum(sizes, most).sum()), float(share), chance
