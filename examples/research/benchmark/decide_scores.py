"""Compare scores by which ``covcal decide`` could rank rows.

    python examples/research/benchmark/decide_scores.py FOLDER ... [--adapted FOLDER]
        [--draws 20] [--error 0.1] [--labels 50 100 200]

The folders contain features files with known labels. For each score, the script prints the share of
rows that could be accepted if all labels were known. The script also prints the share that ``covcal
decide`` accepts after some rows are labelled (`decide.promises`). With --adapted, the confidence of
the method ``blend`` is compared too. The folder of --adapted contains files of ``covcal adapt``
with the same names as the features files. Features files without an adapted file are skipped.

To add a score, write a function and an entry in `SCORES`.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Float64s, Integers, Labels
from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.estimate import estimate
from covcal_cli.calibrate.problem import CalibrateSettings, EstimateSettings
from covcal_cli.decide.thresholds import Sample
from covcal_cli.estimators.inputs import ESTIMATED
from covcal_cli.forecast import ScaledLogits
from covcal_cli.formats.features import Domain, FeatureFile
from covcal_cli.labels.draws import frame_rows
from covcal_cli.labels.target_labels import target_labels
from covcal_cli.maths.acceptance import BELIEFS, Ranking
from covcal_cli.maths.odds import logit, probabilities, sigmoid

MOST_CLASS_VALUES = 1 << 22
BLEND, NEAREST, PRIOR_ROWS = "blend", 1e-6, 20


@dataclass(frozen=True)
class Rows:
    """Calibrated probabilities (n, K), predicted classes (n,) and labels (n,) of n rows."""

    probabilities: Float64s
    predicted: Labels
    labels: Labels

    @property
    def confidence(self) -> Float64s:
        """Calibrated probability of each row's predicted class."""
        return np.asarray(self.probabilities[np.arange(len(self.predicted)), self.predicted])


def confidence(target: Rows, _source: Rows) -> Float64s:
    """Return the calibrated confidence."""
    return target.confidence


def margin(target: Rows, _source: Rows) -> Float64s:
    """Return the difference of the two highest probabilities, scaled to 0..1."""
    others = target.probabilities.copy()
    others[np.arange(len(others)), target.predicted] = 0
    return np.asarray((target.confidence - others.max(axis=1) + 1) / 2)


def entropy(target: Rows, _source: Rows) -> Float64s:
    """Return 1 - entropy / (maximum entropy) of each row's probabilities."""
    shares = target.probabilities
    terms = shares * np.log(np.maximum(shares, np.finfo(np.float64).tiny))
    return np.asarray(1 + terms.sum(axis=1) / np.log(shares.shape[1]))


def quantile_in_class(target: Rows, _source: Rows) -> Float64s:
    """Return the quantile of each row's confidence among the rows with the same predicted class."""
    score = np.empty(len(target.predicted))
    for label in np.unique(target.predicted):
        rows = np.flatnonzero(target.predicted == label)
        values = target.confidence[rows]
        score[rows] = np.searchsorted(np.sort(values), values, "right") / (len(rows) + 1)
    return score


def corrected_by_class(target: Rows, source: Rows) -> Float64s:
    """Return the confidence, corrected for the source error of each predicted class."""
    log_odds = logit(target.confidence, NEAREST)
    right, overall = source.predicted == source.labels, source.confidence
    for label in np.unique(target.predicted):
        rows = source.predicted == label
        expected = float(overall[rows].sum()) + PRIOR_ROWS / 2
        n = int(rows.sum()) + PRIOR_ROWS
        accuracy = np.array([(int(right[rows].sum()) + PRIOR_ROWS / 2) / n, expected / n])
        gap = logit(accuracy, 1e-3)
        log_odds[target.predicted == label] += gap[0] - gap[1]
    return sigmoid(log_odds)


SCORES: Mapping[str, Callable[[Rows, Rows], Float64s]] = {
    "confidence": confidence,
    "margin": margin,
    "entropy": entropy,
    "quantile within the class": quantile_in_class,
    "corrected by class": corrected_by_class,
}


def read_rows(
    scaled: ScaledLogits, domain: Domain, rows: Integers, labels: Labels
) -> tuple[Rows, Integers, tuple[Float64s, float]]:
    """Return a sample of labelled rows, with row numbers, logits and T."""
    has_label = np.flatnonzero(labels >= 0)
    most = min(len(has_label), MOST_CLASS_VALUES // domain.n_classes)
    chosen = np.sort(np.random.default_rng(0).permutation(has_label)[:most])
    logits, temperature = scaled.prepared(domain, rows[chosen])
    predicted = np.asarray(domain.logits(rows[chosen]).argmax(axis=1))
    shares = probabilities(logits.T, temperature).T
    return Rows(shares, predicted, labels[chosen]), rows[chosen], (logits.T, temperature)


def shares_of(
    path: Path, adapted: Path | None, errors: Sequence[float], labels: Sequence[int], draws: int
) -> Float64s:
    """Return the shares of accepted rows for each score and error limit."""
    from benchmark.decide import accepted_in_truth, promises

    calibration = calibrate(path, CalibrateSettings(labels="none"))
    guess = estimate(path, EstimateSettings(labels="none")).estimates[0]
    with FeatureFile(path) as file:
        scaled = ScaledLogits(calibration.scaling)
        target, source = file.require_target(), file.require_source()
        rows = frame_rows(target, ESTIMATED)
        new, chosen, z = read_rows(scaled, target, rows, target_labels(target, rows))
        rows = source.rows("validation")
        known, _, _ = read_rows(scaled, source, rows, source.labels(rows))
    scores = {name: score(new, known) for name, score in SCORES.items()}
    if adapted is not None:
        settings = CalibrateSettings(labels="none", method=BLEND)
        blended = ScaledLogits(calibrate(adapted, settings).scaling)
        with FeatureFile(adapted) as file:
            scores[BLEND] = blended.confidence(file.require_target(), chosen)
    # `decide` chooses its tests by the expected errors, 1 - confidence, whatever the score is.
    moved = new.predicted if scaled.scaling.can_move_the_top else None
    sample = Sample(*z, (guess.low, guess.accuracy, guess.high), moved)
    expected = [1 - values for values in sample.confidence]
    wrong = (new.predicted != new.labels).astype(np.float64)
    numbers = []
    for score in scores.values():
        order = np.argsort(-score, kind="stable")
        sums = [np.concatenate([[0.0], np.cumsum(values[order])]) for values in expected]
        places = np.linspace(0, len(order), 101).round().astype(np.int64)
        middle, high, low = (total[places] / len(order) for total in sums)
        ends = {0.0: middle, 0.5: (middle + high) / 2, -0.5: (middle + low) / 2}
        ranking = Ranking(np.sort(score), [ends[part] for part in BELIEFS[0]])
        for error in errors:
            numbers.append(accepted_in_truth(wrong[order], error))
            for count in labels:
                share, _, broken = promises(
                    ranking, wrong[order], error, count, draws, these_rows=False
                )
                numbers += [share, broken]
    return np.array(numbers)


def main() -> None:
    """Print the results of every file, and their means."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `benchmark`
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--adapted", type=Path)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--error", type=float, nargs="+", default=[0.05, 0.1, 0.2])
    parser.add_argument("--labels", type=int, nargs="+", default=[50, 100, 200])
    options = parser.parse_args()
    lines, classes = [], []
    for path in sorted(path for folder in options.folders for path in folder.glob("*.h5")):
        adapted = None if options.adapted is None else options.adapted / path.name
        if adapted is not None and not adapted.is_file():
            continue
        lines.append(shares_of(path, adapted, options.error, options.labels, options.draws))
        with FeatureFile(path) as file:
            classes.append(len(file.classes))
        print(path.stem, " ".join(f"{value:.3f}" for value in lines[-1]), flush=True)
    names = [*SCORES, *([BLEND] if options.adapted is not None else [])]
    table = np.array(lines).reshape(len(lines), len(names), len(options.error), -1)
    for kind, chosen in (
        ("all", np.ones(len(lines), dtype=bool)),
        ("two classes", np.array(classes) == 2),
        ("more classes", np.array(classes) > 2),
    ):
        for place, error in enumerate(options.error if chosen.any() else ()):
            print(f"{kind}: {int(chosen.sum())} files, at most {error} of the accepted rows wrong")
            of_error = table[chosen, :, place]
            for number, name in enumerate(names):
                gain = of_error[:, number, 1::2] - of_error[:, 0, 1::2]
                mean, deviation = gain.mean(axis=0), gain.std(axis=0) / np.sqrt(len(gain))
                shares = " ".join(
                    f"{share:.3f}" for share in of_error[:, number, 1::2].mean(axis=0)
                )
                gains = " ".join(
                    f"{part:+.3f} ({error_of_part:.3f})"
                    for part, error_of_part in zip(mean, deviation, strict=True)
                )
                possible = of_error[:, number, 0].mean()
                broken = of_error[:, number, 2::2].mean(axis=0).max()
                print(
                    f"  {name}: {possible:.3f} of the rows could be accepted if all labels were "
                    f"known. With {options.labels} labels, the accepted shares are {shares}. The "
                    f"gains compared with the confidence are {gains}, with standard errors in "
                    "brackets. "
                    f"The promised limit is exceeded in at most {broken:.4f} of the runs"
                )


if __name__ == "__main__":
    main()
