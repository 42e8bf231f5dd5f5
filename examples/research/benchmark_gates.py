"""Measure how often gates of ``covcal evaluate`` fail in a nightly job, with and without drift.

    python examples/research/benchmark_gates.py [--draws 500] [--resamples 1000]

The classifier is simulated, with two classes and a true ECE of 2.4 %. The baseline and each night
are random samples of the same size. Without drift, both samples have the same distribution, so
every failed gate is a false alarm. With drift, the accuracy is lower at the same confidence. Each
gate is run with measured values (``--confidence 0``) and with 95 % intervals (``--confidence
0.95``). The script prints a Markdown table with the share of nights on which a gate fails.
"""

import argparse
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Booleans, Float64s
from covcal_cli.evaluate.bins import bin_edges, confidence_block
from covcal_cli.evaluate.bootstrap import LEVEL, Resampling, intervals
from covcal_cli.evaluate.limits import Baseline, Limit, apply_limits, compare
from covcal_cli.evaluate.metrics import LabelledRows, Metrics, MetricsAccumulator
from covcal_cli.evaluate.result import Evaluation, MetricsRecord
from covcal_cli.forecast import NONE, UNSCALED
from covcal_cli.maths.softmax import class_major, softmax

BINS = 15
SIZES = (56, 250, 1000, 2683)
ABOVE, REGRESSION = Limit("ece", 0.05), Limit("ece", 0.005)
HONEST = 0.855  # this factor gives a true ECE of 2.4 %
DRIFTS = {"none": HONEST, "mild": 0.62, "strong": 0.4}


def draw(rng: np.random.Generator, n: int, honest: float) -> tuple[Float64s, Float64s]:
    """Draw `n` rows. Return the log odds of the confidence, and the probability to be right.

    The true log odds are `honest` times the log odds of the confidence. If `honest` is below 1, the
    classifier is over-confident.
    """
    odds = 2.2 * np.abs(rng.normal(size=n))
    return odds, 1 / (1 + np.exp(-honest * odds))


def true_ece(honest: float) -> float:
    """Return the true ECE, computed from the true probabilities of a million rows."""
    odds, right = draw(np.random.default_rng(0), 1_000_000, honest)
    confidence = 1 / (1 + np.exp(-odds))
    rows = confidence_block(confidence, np.zeros(len(odds), dtype=bool), bin_edges(BINS))
    return float(np.abs(np.bincount(rows.index, confidence - right, BINS)).sum() / len(odds))


def measured(n: int, honest: float, seed: int) -> Metrics:
    """Return the metrics of `n` random rows."""
    rng = np.random.default_rng([seed, n])
    odds, right = draw(rng, n, honest)
    correct: Booleans = rng.random(n) < right
    accumulator = MetricsAccumulator(BINS, 2, keep_losses=True)
    logits = class_major(np.stack([odds, np.zeros(n)], axis=1))
    accumulator.add(
        softmax(logits, 1.0), LabelledRows(np.zeros(n, dtype=np.int64), (~correct).astype(np.int64))
    )
    return accumulator.result()


def evaluation(n: int, honest: float, seed: int, resamples: int) -> Evaluation:
    """Return what ``covcal evaluate`` would compute from `n` random rows."""
    found = measured(n, honest, seed)
    return Evaluation(
        split="test",
        predictions="original",
        labelled=n,
        total=n,
        unlabelled=0,
        left_out=0,
        metrics={NONE: found},
        scalings={NONE: UNSCALED},
        inputs=(),
        resamples=resamples,
        seed=seed,
        intervals={NONE: intervals(found, Resampling(resamples, seed))},
    )


def as_baseline(found: Evaluation) -> Baseline:
    """Convert the evaluation of a night to a baseline for later nights."""
    written = MetricsRecord(
        metrics={name: entry.to_json() for name, entry in found.metrics.items()},
        n=found.n,
        split=found.split,
        predictions=found.predictions,
        edges=tuple(bin_edges(BINS).tolist()),
        bootstrap={"level": LEVEL},
        intervals=found.intervals,
    )
    return Baseline(Path("metrics.json"), written)


def failures(n: int, honest: float, draws: int, resamples: int) -> Float64s:
    """Return the share of nights on which each gate fails, shape (4,)."""
    failed = np.zeros(4)
    for number in range(draws):
        before = evaluation(n, HONEST, 2 * number, resamples)
        now = evaluation(n, honest, 2 * number + 1, resamples)
        for place, level in enumerate((None, LEVEL)):
            failed[place] += apply_limits(now, [ABOVE], (), level=level)[0].exceeded
            (change,) = compare(now, as_baseline(before), [REGRESSION], (), level=level)
            failed[2 + place] += change.exceeded
    return failed / draws


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=500, help="nights per line")
    parser.add_argument("--resamples", type=int, default=1000, help="resamples for an interval")
    arguments = parser.parse_args()
    gates = [f"{gate}, {how}" for gate in ("above", "worse") for how in ("plain value", "95 %")]
    print(f"| drift | true ECE | rows | {' | '.join(gates)} |")
    print(f"|---|{'---:|' * 6}")
    for drift, honest in DRIFTS.items():
        for n in SIZES:
            shares = failures(n, honest, arguments.draws, arguments.resamples)
            cells = " | ".join(f"{share:.1%}" for share in shares)
            print(f"| {drift} | {true_ece(honest):.1%} | {n} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
