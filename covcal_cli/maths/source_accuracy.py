"""Check the classifier's accuracy on source validation and test rows.

A low accuracy is a sign of wrong preprocessing, a wrong order of classes, or a wrong output.
Training rows do not count, because the classifier may have been trained on them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, Floats, Labels, Rows
from covcal_cli.maths.odds import interval_of_counts

FEW_ROWS = 50
# Slight agreement by Cohen's kappa (Landis and Koch 1977).
_SLIGHT = 0.2
# Significance level of the test for a low accuracy.
_NOISE = 0.01
# Minimum AUROC of a useful classifier. The keys are minimum shares of the most frequent class.
_SKILL = {0.7: 0.6, 0.55: 0.75}
# If the most frequent class has a share of 0.9, an AUROC needs 10 rows of other classes.
_RARE, _FEWEST_RANKED = 0.9, 10
# A smaller gain over always answering the most frequent class does not count.
_SMALL_GAIN = 0.02
RIGHT, WRONG = "right", "wrong"
_AUROC_ROWS, _AUROC_CLASSES = 20_000, 20
# Another class order must raise the accuracy by 0.2 and by 4 standard deviations, on 20 rows.
_BETTER, _BETTER_DEVIATIONS, _FEWEST_MOVED = 0.2, 4, 20
_SHOWN_EXCHANGES = 3
_SLIGHTLY = 0.05
METRICS_COMMAND = "covcal estimate --metrics recall,precision"
CHECKS = "Check the preprocessing, the order of the classes and the chosen output"

Scores = Callable[[Rows], Floats]


@dataclass(frozen=True)
class SourceAccuracy:
    """The accuracy on labelled source rows (validation and test)."""

    rows: int  # at least 1
    right: int
    chance: float
    majority: float | None = None
    majority_class: str = ""
    auroc: float | None = None  # mean over classes
    permuted: float | None = None
    exchanged: str = ""
    # The accuracy of the class with the lowest output, if the outputs look negated.
    negated: float | None = None

    def __post_init__(self) -> None:
        shares = (self.chance, self.majority, self.auroc, self.permuted, self.negated)
        in_range = all(share is None or 0 <= share <= 1 for share in shares)
        if not (self.rows >= 1 and 0 <= self.right <= self.rows and in_range):
            raise ValueError(
                f"{self.right} right rows of {self.rows} rows, or a share outside 0 to 1, are not "
                "possible"
            )

    @classmethod
    def of(
        cls,
        labels: Labels,
        predictions: Labels,
        classes: Sequence[str],
        scores: Scores | None = None,
    ) -> "SourceAccuracy | None":
        """Compute the accuracy from labels and predictions, (n,). Returns None without labels.

        `scores` maps row numbers, (m,), to logits, (m, K).
        """
        labelled = np.flatnonzero(labels != UNKNOWN_LABEL)
        labels, predictions = labels[labelled], predictions[labelled]
        if not len(labels):
            return None
        counts = [np.bincount(values, minlength=len(classes)) for values in (labels, predictions)]
        n, right = len(labels), int((labels == predictions).sum())
        accuracy = cls(
            rows=n,
            right=right,
            chance=float(counts[0] @ counts[1]) / n**2,
            majority=float(counts[0].max()) / n,
            majority_class=classes[int(counts[0].argmax())],
        )
        order = better_order(labels, predictions, len(classes)) if n >= FEW_ROWS else None
        step = -(-n // _AUROC_ROWS)
        # With two classes, negated outputs look like exchanged classes.
        is_low = order is not None or accuracy._is_near_chance
        if scores is not None and is_low and len(classes) > 2:
            least = scores(labelled[::step]).argmin(axis=1)
            negated = float((least == labels[::step]).mean())
            if negated > max(accuracy.share + _BETTER, order[0] if order else 0.0):
                return cls(**{**vars(accuracy), "negated": negated})
        if order is not None:
            permuted, permutation = order
            exchanged = _exchanges(permutation, counts[0], classes)
            return cls(**{**vars(accuracy), "permuted": permuted, "exchanged": exchanged})
        if scores is None or not accuracy._is_near_chance:
            return accuracy
        auroc = mean_auroc(labels[::step], scores(labelled[::step]))
        return cls(**{**vars(accuracy), "auroc": auroc})

    @property
    def share(self) -> float:
        """The accuracy, from 0 to 1."""
        return self.right / self.rows

    def __str__(self) -> str:
        """Return the accuracy and its 95 % interval, in words."""
        low, high = interval_of_counts(self.right, self.rows, 0.95)
        return (
            f"{100 * self.share:.1f} % ({100 * low:.1f} to {100 * high:.1f} %) of {self.rows} "
            "labelled source rows (validation and test)"
        )

    @property
    def class_order(self) -> str | None:
        """A warning if another class order or the opposite sign is far better, or None."""
        share = f"the classifier gets {100 * self.share:.1f} % of the source right"
        if self.negated is not None:
            return (
                f"{share}, but the class with the lowest output is right in "
                f"{100 * self.negated:.0f} % of the rows, so the outputs are negated: change their "
                "sign, and extract again"
            )
        if self.permuted is None:
            return None
        return (
            f"{share}, but would get {100 * self.permuted:.0f} % right with the classes in another "
            f"order: {self.exchanged}. Name the classes in the model's order with --classes, and "
            "extract again"
        )

    @property
    def doubt(self) -> str | None:
        """A warning with a remedy if the accuracy looks wrong, or None."""
        if self.class_order is not None:
            return self.class_order
        if not self._is_near_chance or self._ranks_well:
            return None
        ranking = ""
        if self.auroc is not None:
            ranking = f"; the AUROC is {self.auroc:.2f} (guessing gives 0.5)"
        return f"{self._against_baseline}{ranking}. {CHECKS}"

    @property
    def imbalance(self) -> str | None:
        """A note if the accuracy shows little, because most rows have one class, or None."""
        if self.doubt is not None or self.majority is None or self.majority < _RARE:
            return None
        if self.share >= self.majority + _SMALL_GAIN or self.majority_class in (RIGHT, WRONG):
            return None
        return f"{self._against_baseline}. To judge the rare classes, run {METRICS_COMMAND}"

    @property
    def _against_baseline(self) -> str:
        baseline, level = "guessing", self.chance
        if self.majority is not None:
            baseline, level = f"always answering {self.majority_class}", self.majority
        worth = "no better than" if self._is_no_better_than(level) else "little better than"
        return (
            f"the classifier gets {100 * self.share:.1f} % of the source right, which is "
            f"{worth} {baseline} ({100 * level:.1f} %)"
        )

    @property
    def _is_near_chance(self) -> bool:
        if self.rows < FEW_ROWS:
            return False
        slight = self.share < self.chance + _SLIGHT * (1 - self.chance)
        return slight or self._is_no_better_than(self.chance)

    @property
    def _ranks_well(self) -> bool:
        share = 1.0 if self.majority_class in (RIGHT, WRONG) else self.majority or 0.0
        if share >= _RARE and self.rows * (1 - share) < _FEWEST_RANKED - 0.5:
            return True
        skill = next((skill for least, skill in _SKILL.items() if share >= least), math.inf)
        return self.auroc is not None and self.auroc >= skill

    def _is_no_better_than(self, level: float) -> bool:
        return self.share <= level + 2 * math.sqrt(level * (1 - level) / self.rows)

    def is_as_promised(self, confidence: float) -> bool:
        """Return whether the accuracy is nearly as high as the mean confidence, or higher.

        If the columns are ranks instead of classes, predictions are unrelated to labels, so the
        accuracy is too low.
        """
        noise = 2 * math.sqrt(confidence * (1 - confidence) / self.rows)
        return self.share >= confidence - _SLIGHTLY - noise

    def is_below(self, expected: float) -> bool:
        """Test at the 1 % level whether the accuracy is below `expected` (exact binomial test)."""
        if not 0 < expected < 1:
            return self.right < expected * self.rows
        if self.right >= expected * self.rows:
            return False
        term = math.exp(
            math.lgamma(self.rows + 1)
            - math.lgamma(self.right + 1)
            - math.lgamma(self.rows - self.right + 1)
            + self.right * math.log(expected)
            + (self.rows - self.right) * math.log1p(-expected)
        )
        tail, odds = term, (1 - expected) / expected
        for right in range(self.right, 0, -1):
            term *= odds * right / (self.rows - right + 1)
            tail += term
            if tail >= _NOISE or term < 1e-12 * tail:
                break
        return tail < _NOISE


def mean_auroc(labels: Labels, logits: Floats) -> float | None:
    """Return the mean one-vs-rest AUROC of the 20 most frequent classes.

    Return None if fewer than two classes occur.
    """
    present, counts = np.unique(labels, return_counts=True)
    if len(present) < 2:
        return None
    exact = logits.astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    classes = present[np.argsort(-counts, kind="stable")][:_AUROC_CLASSES]
    return float(np.mean([_auroc(labels == index, exact[:, index]) for index in classes]))


def _auroc(is_positive: np.ndarray[tuple[int], np.dtype[np.bool_]], scores: Floats) -> float:
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle_ranks = np.cumsum(counts) - (counts - 1) / 2
    positives = int(is_positive.sum())
    rank_sum = float(middle_ranks[inverse][is_positive].sum())
    pairs = positives * (len(scores) - positives)
    return (rank_sum - positives * (positives + 1) / 2) / pairs


def better_order(
    labels: Labels, predictions: Labels, n_classes: int
) -> tuple[float, Labels] | None:
    """Return a far higher accuracy and the class order that gives it, or None.

    Element k of the order, (K,), is the predicted class for label k. The order is found on one half
    of the rows, and tested on the other half.
    """
    held_labels, held_predictions = labels[1::2], predictions[1::2]
    if len(held_labels) < FEW_ROWS:
        return None
    order = greedy_permutation(labels[::2], predictions[::2], n_classes)
    rows = np.bincount(held_labels, minlength=n_classes)
    moved = (order != np.arange(n_classes)) & (rows > 0)
    if rows[moved].sum() < _FEWEST_MOVED:
        return None
    right, permuted = (
        np.bincount(held_labels, held_predictions == answers, minlength=n_classes)[moved]
        for answers in (held_labels, order[held_labels])
    )
    gain = float(((permuted - right) / rows[moved]).mean())
    # Half a row is added to each count, because accuracies of 0 and 1 have noise too.
    shares = (np.stack([right, permuted]) + 0.5) / (rows[moved] + 1)
    noise = math.sqrt((shares * (1 - shares) / rows[moved]).sum()) / int(moved.sum())
    if gain < max(_BETTER, _BETTER_DEVIATIONS * noise):
        return None
    return float((order[held_labels] == held_predictions).mean()), order


def greedy_permutation(labels: Labels, predictions: Labels, n_classes: int) -> Labels:
    """Match each label with one predicted class, (K,), beginning with the most frequent pairs.

    A class without labelled rows is matched with itself, or with the first class that is left.
    """
    pairs, counts = np.unique(labels * n_classes + predictions, return_counts=True)
    matched = np.full(n_classes, -1, dtype=np.int64)
    taken = np.zeros(n_classes, dtype=bool)
    for pair in pairs[np.argsort(-counts, kind="stable")]:
        label, predicted = divmod(int(pair), n_classes)
        if matched[label] < 0 and not taken[predicted]:
            matched[label] = predicted
            taken[predicted] = True
    own = np.flatnonzero((matched < 0) & ~taken)
    matched[own] = own
    taken[own] = True
    matched[matched < 0] = np.flatnonzero(~taken)
    return matched


def _exchanges(order: Labels, label_counts: Labels, classes: Sequence[str]) -> str:
    swaps, moves = [], []
    for label in np.argsort(-label_counts, kind="stable").tolist():
        answer = int(order[label])
        if answer == label or not label_counts[label]:
            continue
        if int(order[answer]) != label:
            moves.append(f"rows of class {classes[label]} are predicted as {classes[answer]}")
        elif (answer, label) not in swaps:
            swaps.append((label, answer))
    sentences = [f"{classes[a]} and {classes[b]} seem exchanged" for a, b in swaps] + moves
    more = len(sentences) - _SHOWN_EXCHANGES
    listed = ", ".join(sentences[:_SHOWN_EXCHANGES])
    return f"{listed}, and {more} more" if more > 0 else listed
