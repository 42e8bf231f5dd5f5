"""Measure how well ``covcal decide`` keeps the promised error rate, on files with known labels.

    python examples/research/benchmark/decide.py FOLDER ... [--draws 20]
        [--error 0.1] [--labels 50 100 200] [--these-rows] [--peers]

The folders contain features files. The script prints a line for each file, and then means over the
files. The share of accepted rows is compared with the share that could be accepted if all labels
were known. In the code, a promise is a guaranteed limit of the error rate. With --peers, rules of
other libraries are measured too (`decide_peers`).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from covcal_cli.arrays import Float64s, Labels
from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.estimate import estimate
from covcal_cli.calibrate.problem import CalibrateSettings, EstimateSettings
from covcal_cli.decide.decide import LIKELY, DecideSettings, decide
from covcal_cli.decide.thresholds import (
    Sample,
    cut_by_labels,
    mean_size,
    right_excluded,
    true_scores,
)
from covcal_cli.estimators.inputs import ESTIMATED
from covcal_cli.forecast import ScaledLogits
from covcal_cli.formats.decision import Decision, beliefs_of
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.draws import drawn_along, frame_rows
from covcal_cli.labels.target_labels import target_labels
from covcal_cli.maths.acceptance import (
    BELIEFS,
    Ranking,
    best_region,
    inclusions,
    level_of_look,
    most_wrong,
    plan,
    sampling,
)
from covcal_cli.records import write_document

COVERAGE, SET_LABELS, MOST_CLASS_VALUES = 0.9, 25, 1 << 22
PEER_ERROR = 0.1


def accepted_in_truth(wrong: Float64s, error: float) -> float:
    """Return the largest share of top-scored rows whose error rate is at most `error`."""
    kept = np.flatnonzero(np.cumsum(wrong) / np.arange(1, len(wrong) + 1) <= error)
    return float(kept[-1] + 1) / len(wrong) if len(kept) else 0.0


def promises(
    ranking: Ranking,
    wrong: Float64s,
    error: float,
    labels: int,
    draws: int,
    *,
    these_rows: bool,
) -> tuple[float, float, float]:
    """Return the mean share of accepted rows, and how often a promise is made, and is broken."""
    level, n = level_of_look(0.9, 1), len(ranking)
    best = best_region(ranking, min(labels, n), error, level)
    if best is None:
        return 0.0, 0.0, 0.0
    region = ranking.above(best[0])
    p, q = inclusions(min(labels, n), region, n - region)

    def limits(threshold: float) -> tuple[int, int]:
        above = ranking.above(threshold)
        drawn = [sampling(p, above)]
        return round(p * above), most_wrong(above, drawn, error, level, these_rows=these_rows)

    tests = plan(ranking, region, limits)
    inclusion = np.where(np.arange(n) < region, p, q)
    shares, broken = [], []
    for draw in range(draws):
        rows = drawn_along([(np.arange(n), inclusion)], np.random.default_rng([draw, labels]))
        accepted = 0
        for candidate in tests.candidates:
            if wrong[rows[rows < candidate.rows]].sum() > candidate.wrong:
                break
            accepted = candidate.rows
        shares.append(accepted / n)
        broken.append(accepted > 0 and wrong[:accepted].mean() > error)
    return float(np.mean(shares)), float(np.mean(np.array(shares) > 0)), float(np.mean(broken))


def measured(
    path: Path,
    errors: Sequence[float],
    labels: Sequence[int],
    draws: int,
    *,
    these_rows: bool,
    peers: bool,
) -> Float64s:
    """Return all numbers that are printed for one file."""
    with TemporaryDirectory() as folder:
        document = Path(folder) / "cal.json"
        calibration = calibrate(path, CalibrateSettings(labels="none"))
        write_document(calibration, document, force=True)
        guess = estimate(path, EstimateSettings(labels="none")).estimates[0]
        decisions = [
            decide(path, document, DecideSettings(error=error, labels="none"), guess)
            for error in errors
        ]
    with FeatureFile(path) as file:
        target = file.require_target()
        rows = frame_rows(target, ESTIMATED)
        known = np.concatenate([target_labels(target, block) for block in target.blocks(rows)])
        rows, known = rows[known >= 0], known[known >= 0]
        scaled = ScaledLogits(calibration.scaling)
        pairs = list(scaled.confidences(target, rows))
        score = np.concatenate([confidence for _, confidence in pairs])
        is_wrong = np.concatenate([label for label, _ in pairs]) != known
        most = min(len(rows), MOST_CLASS_VALUES // target.n_classes)
        chosen = np.sort(np.random.default_rng(0).permutation(len(rows))[:most])
        logits, temperature = scaled.prepared(target, rows[chosen])
        top = np.asarray(target.logits(rows[chosen]).argmax(axis=1))
        moved = top if scaled.scaling.can_move_the_top else None
        accuracy = guess.low, guess.accuracy, guess.high
        sample = Sample(logits.T, temperature, accuracy, moved)
        of_peers = np.zeros(0)
        if peers:
            from benchmark.decide_peers import measured_peers

            temp = calibrate(path, CalibrateSettings(labels="none", method="temp")).scaling
            of_peers = measured_peers(file, temp.temperature, PEER_ERROR)
    order = np.argsort(-score, kind="stable")
    wrong = is_wrong[order].astype(np.float64)
    numbers = [
        of_error(decision, score, wrong, labels, draws, these_rows=these_rows)
        for decision in decisions
    ]
    sets = of_sets(sample.cut(COVERAGE), sample.probabilities, known[chosen], draws)
    return np.concatenate([of_peers, *numbers, sets])


def of_error(
    decision: Decision,
    score: Float64s,
    wrong: Float64s,
    labels: Sequence[int],
    draws: int,
    *,
    these_rows: bool,
) -> list[float]:
    """Return the results of one file for one error limit, in the order of the table.

    | numbers | meaning |
    |---|---|
    | 1 | largest share that could be accepted if all labels were known |
    | 3 | estimate of `decide`: accepted share, error above the limit, error above twice the limit |
    | 3 | the same, by the calibrated confidence alone |
    | 2 for each number of labels | share accepted with a promise, share of broken promises |
    | 3 | suggested number of labels, stated probability of a promise, share of draws with one |
    """
    error = decision.error or 0.0
    numbers = [accepted_in_truth(wrong, error)]
    believed = max((point.share for point in decision.planned if point.error <= error), default=0.0)
    for accepted in (int((score > decision.accept_above).sum()), int(believed * len(score))):
        rate = float(wrong[:accepted].mean()) if accepted else 0.0
        numbers += [accepted / len(score), float(rate > error), float(rate > 2 * error)]
    ranking = Ranking(np.sort(score), beliefs_of(decision.planned, BELIEFS[0]))
    for count in labels:
        share, _, broken = promises(ranking, wrong, error, count, draws, these_rows=these_rows)
        numbers += [share, broken]
    offered, promised = decision.labels_needed, 0.0
    if offered:
        _, promised, _ = promises(ranking, wrong, error, offered, draws, these_rows=False)
    return [*numbers, offered, decision.promised_chance, promised]


def of_sets(cut: float, probabilities: Float64s, labels: Labels, draws: int) -> list[float]:
    """Return coverage and mean size (divided by K) of prediction sets, without and with labels."""
    score = true_scores(probabilities, labels)
    n_classes = probabilities.shape[1]
    numbers = [float((score >= cut).mean()), mean_size(probabilities, cut) / n_classes]
    covered, sizes = [], []
    for draw in range(draws):
        rows = np.random.default_rng(draw).permutation(len(score))[:SET_LABELS]
        cut = cut_by_labels(probabilities[rows], labels[rows], right_excluded(rows, COVERAGE))
        covered.append(float((score >= cut).mean()))
        sizes.append(mean_size(probabilities, cut) / n_classes)
    return [*numbers, float(np.mean(covered)), float(np.mean(sizes))]


def print_peers(table: Float64s) -> Float64s:
    """Print the mean results of other libraries, and return the remaining columns of the table."""
    from benchmark.decide_peers import COLUMNS, N_SETS

    for place, name in enumerate(COLUMNS):
        first, second = table[:, 2 * place : 2 * place + 2].T
        has_number = ~np.isnan(first)
        first, second = first[has_number], second[has_number]
        if place < len(COLUMNS) - N_SETS:
            if_accepting = second[first > 0].mean() if (first > 0).any() else 0.0
            print(
                f"{name}: {first.mean():.3f} of the rows are accepted. The error is above the "
                f"limit on {second.mean():.3f} of the files ({if_accepting:.3f} of the files with "
                "accepted rows)"
            )
        else:
            print_sets(f"{name} ({len(first)} files)", first, second)
    return table[:, 2 * len(COLUMNS) :]


def print_sets(name: str, covered: Float64s, sizes: Float64s) -> None:
    """Print the coverage and the mean size of prediction sets."""
    distance, low_share = np.abs(covered - COVERAGE).mean(), (covered < 0.85).mean()
    print(
        f"prediction sets, {name}: the mean coverage is {covered.mean():.3f}. On average, the "
        f"coverage of a file is {distance:.3f} away from {COVERAGE}. The coverage is below 0.85 on "
        f"{low_share:.3f} of the files. A set contains {sizes.mean():.3f} of the classes on average"
    )


def main() -> None:
    """Print the results of every file, and their means."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `benchmark`
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--error", type=float, nargs="+", default=[0.05, 0.1, 0.2])
    parser.add_argument("--labels", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument(
        "--these-rows", action="store_true", help="promise the error limit only for the given rows"
    )
    parser.add_argument("--peers", action="store_true", help="needs mapie and torchcp")
    options = parser.parse_args()
    paths = sorted(path for folder in options.folders for path in folder.glob("*.h5"))
    lines = []
    for path in paths:
        line = measured(
            path,
            options.error,
            options.labels,
            options.draws,
            these_rows=options.these_rows,
            peers=options.peers,
        )
        lines.append(line)
        print(path.stem, " ".join(f"{value:.3f}" for value in lines[-1]), flush=True)
    table, width = np.array(lines), 10 + 2 * len(options.labels)
    if options.peers:
        table = print_peers(table)
    for number, error in enumerate(options.error):
        of_error = table[:, number * width : (number + 1) * width]
        mean = of_error.mean(axis=0)
        print(
            f"error limit {error}: {mean[0]:.3f} of the rows could be accepted if all labels were "
            "known"
        )
        for name, (share, broken, double) in (("decide", mean[1:4]), ("confidence", mean[4:7])):
            print(
                f" {name} without labels: {share:.3f} of the rows are accepted "
                f"({share / mean[0]:.2f} times as many as if all labels were known). The error is "
                f"above the limit on {broken:.3f} of the files, and above twice the limit on "
                f"{double:.3f} of the files"
            )
        families = np.array([path.stem.partition("-")[0] for path in paths])
        for place, labels in enumerate(options.labels):
            accepted, broken = of_error[:, 7 + 2 * place], of_error[:, 8 + 2 * place]
            worst_family = max(broken[families == name].mean() for name in families)
            share = accepted.mean()
            print(
                f"  {labels} labels: {share:.3f} of the rows are accepted ({share / mean[0]:.2f} "
                "times as many as if all labels were known). The error is above the promised limit "
                f"in {broken.mean():.4f} of all runs, in {broken.max():.2f} of the runs on the "
                f"worst file, and in {worst_family:.3f} of the runs in the worst family"
            )
        offers = of_error[:, -3:]
        for name, chances in (("probably", (LIKELY, 1.1)), ("perhaps", (0.01, LIKELY))):
            labels, _, promised = offers[
                (offers[:, 1] >= chances[0]) & (offers[:, 1] < chances[1])
            ].T
            if len(labels):
                print(
                    f' "{name} needs N labels" is printed for {len(labels)} of {len(table)} '
                    f"files. The median of N is {np.median(labels):.0f}. With N labels, decide "
                    f"promises an error limit in {promised.mean():.3f} of the runs"
                )
    for name, place in (("no labels", -4), (f"{SET_LABELS} labels", -2)):
        print_sets(name, table[:, place], table[:, place + 1])


if __name__ == "__main__":
    main()
