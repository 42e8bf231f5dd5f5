"""Compare estimates of the target accuracy with and without a second model.

    python examples/research/benchmark/second_model.py --data DIR --features FOLDER
        [--half choose] [--families pets fog ...] [--own]

FOLDER contains the features files of ``run.py`` (``benchmark-results/features``). For each shift, a
second classifier of another kind is trained on the same rows (`makers/second.py`). Target labels
are used only to compute the true accuracy. The table has the mean errors of these estimates in
points:

- rule: the estimate that ``auto`` uses, which needs no second model
- with second: a rule that uses the second model on some shifts (`rule_with_second`)
- agreement: the source accuracy, minus the decrease of the rate at which both models agree
- reweighted: the source accuracy, reweighted to the rate at which both models agree on the target
- probit: like agreement, but computed on the probit scale
- FRAP: the mean probability that the second model gives to the predicted class, corrected by the
  error of this estimate on the source

With ``--own``, three more classifiers are trained on the features of source training rows: logistic
regression, nearest neighbours and extremely randomised trees. The table has the estimates *rule*
and *agreement*, and the mean of *rule* and *agreement*. A star marks features that are standardised
separately in each domain.

The last lines show by how much the error of each estimate is smaller than the error of *rule*, with
a standard error over families.
"""

import argparse
import math
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
RESEARCH = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(RESEARCH), str(RESEARCH / "paper")]

import numpy as np  # noqa: E402
from scipy.stats import norm  # noqa: E402
from sklearn.decomposition import PCA  # noqa: E402
from sklearn.ensemble import ExtraTreesClassifier  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.neighbors import KNeighborsClassifier  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

from benchmark.families import FAMILIES, HALVES, Case, cases  # noqa: E402
from benchmark.makers.second import second_sides  # noqa: E402
from covcal_cli.calibrate.problem import EstimateSettings, Problem  # noqa: E402
from covcal_cli.estimators.consensus import Estimates  # noqa: E402
from covcal_cli.estimators.inputs import (  # noqa: E402
    ESTIMATED,
    EstimatorInputs,
    most_rows,
)
from covcal_cli.formats.features import FeatureFile, read_labels, thinned  # noqa: E402
from covcal_cli.maths.odds import confidences, probabilities  # noqa: E402
from covcal_cli.maths.temperature import MIN_ERRORS, fit_temperature  # noqa: E402

Logits = np.ndarray
Errors = dict[str, float]
_MOST_BELOW = 0.05  # largest loss of source accuracy by the second model
_MOST_ROWS = 4000  # Largest number of rows per split for the classifiers of --own.
_COMPONENTS = 64
_LEAST_SPREAD = 1e-6


def rule_with_second(inputs: EstimatorInputs, source: Logits, target: Logits) -> float:
    """Return the accuracy that ``auto`` would estimate with the logits of a second model.

    The second model is used if ``auto`` would use only DoC, or if there are two classes. If the
    confidence of the second model falls more than the confidence of the classifier, the estimate is
    raised by the difference.
    """
    estimate = Estimates(inputs).combined
    accuracy = float(inputs.source_correct.mean())
    right = float((source.argmax(axis=1) == inputs.source_labels).mean())
    uses_doc_alone = "used because" in estimate.assumption
    if right < accuracy - _MOST_BELOW or not (uses_doc_alone or inputs.n_classes == 2):
        return estimate.accuracy
    fall = float(inputs.source_confidence.mean() - inputs.target_confidence.mean())
    of_second = float(confidences(source, 1.0).mean() - confidences(target, 1.0).mean())
    before, after = agreement(inputs, source.argmax(axis=1), target.argmax(axis=1))
    own = max(0.0, of_second - max(0.0, fall))
    return float(np.clip(accuracy - (before - after) + own, 0, 1))


def agreement(inputs: EstimatorInputs, source: np.ndarray, target: np.ndarray) -> list[float]:
    """Return the shares of source and target rows on which both models predict the same class."""
    return [
        float((labels == predictions).mean())
        for labels, predictions in (
            (source, inputs.source_predictions),
            (target, inputs.target_predictions),
        )
    ]


def estimates_of(inputs: EstimatorInputs, source: Logits, target: Logits) -> Errors:
    """Return all estimates of the target accuracy from the logits of a second model, by name."""
    right, agrees = inputs.source_correct, source.argmax(axis=1) == inputs.source_predictions
    accuracy = float(right.mean())
    before, after = agreement(inputs, source.argmax(axis=1), target.argmax(axis=1))
    where = {
        same: (float(right[agrees == same].sum()) + accuracy / 2)
        / (int((agrees == same).sum()) + 0.5)
        for same in (True, False)
    }
    errors = int((source.argmax(axis=1) != inputs.source_labels).sum())
    fit = fit_temperature(source, inputs.source_labels, allow_sharpening=errors >= MIN_ERRORS)
    of_label = [
        float(probabilities(part, fit.temperature)[labels, np.arange(len(labels))].mean())
        for part, labels in (
            (source, inputs.source_predictions),
            (target, inputs.target_predictions),
        )
    ]
    a, s, t = (norm.ppf(np.clip(share, 0.0025, 0.9975)) for share in (accuracy, before, after))
    return {
        "rule": Estimates(inputs).combined.accuracy,
        "with second": rule_with_second(inputs, source, target),
        "agreement": accuracy - (before - after),
        "reweighted": where[True] * after + where[False] * (1 - after),
        "probit": float(norm.cdf(a + t - s)),
        "FRAP": accuracy - (of_label[0] - of_label[1]),
    }


def estimates_of_own(problem: Problem, target_rows: np.ndarray) -> Errors | None:
    """Return estimates of the target accuracy from classifiers that are trained on the features."""
    source, target = problem.validation.source, problem.file.require_target()
    if source.n_features is None:
        return None
    train = source.rows("train")
    train = thinned(train[source.labels(train) >= 0], _MOST_ROWS, 0)
    inputs = problem.inputs
    chosen = thinned(np.arange(len(target_rows)), _MOST_ROWS, 0)
    phi, here, there = (
        source.features(train),
        source.features(problem.validation.rows),
        target.features(target_rows[chosen]),
    )
    scaler = StandardScaler().fit(phi)
    parts = [scaler.transform(part) for part in (phi, here, there)]
    parts.append(StandardScaler().fit_transform(there))
    components = PCA(min(_COMPONENTS, *phi.shape), random_state=0).fit(parts[0])
    spreads = components.transform(parts[0]).std(axis=0)
    # Constant components have no information. Dividing by infinity makes these components 0.
    spreads = np.where(spreads > _LEAST_SPREAD * spreads.max(), spreads, np.inf)
    rows, here, there, standardised = (components.transform(part) / spreads for part in parts)
    accuracy = float(inputs.source_correct.mean())
    values = {"rule": Estimates(inputs).combined.accuracy}
    for name, model in {
        "linear": LogisticRegression(C=1 / 30, max_iter=60),
        "neighbours": KNeighborsClassifier(min(15, len(rows))),
        "trees": ExtraTreesClassifier(60, min_samples_leaf=2, random_state=0),
    }.items():
        model.fit(rows, source.labels(train))
        before = (model.predict(here) == inputs.source_predictions).mean()
        for star, part in (("", there), ("*", standardised)):
            labels = model.predict(part)
            after = (labels == inputs.target_predictions[chosen]).mean()
            values[name + star] = float(accuracy - (before - after))
            values[f"mean {name}{star}"] = (values["rule"] + values[name + star]) / 2
    return values


def measure(case: Case, data: Path, folder: Path, *, own: bool) -> tuple[int, Errors] | None:
    """Return the number of classes of a shift, and each estimate's error in percentage points."""
    kind = "own classifiers"
    with FeatureFile(case.path(folder, 0)) as file:
        problem = Problem(file, EstimateSettings(labels="none"))
        target = file.require_target()
        rows = target.drawn(most_rows(target.n_classes), 0, *ESTIMATED)
        if own:
            accuracies = estimates_of_own(problem, rows)
            if accuracies is None:
                return None
        else:
            kind, sides = second_sides(FAMILIES[case.family].makers(data)[case.shift])
            for domain, side in ((problem.validation.source, sides[0]), (target, sides[1])):
                if not np.array_equal(read_labels(domain, domain.rows("all")), side.labels):
                    raise ValueError(
                        f"{file.path} and the data of {case.shift} have different rows"
                    )
            logits = sides[0].logits[problem.validation.rows], sides[1].logits[rows]
            accuracies = estimates_of(problem.inputs, *logits)
        truth = float((target.logits(rows).argmax(axis=1) == read_labels(target, rows)).mean())
        errors = {name: 100 * abs(value - truth) for name, value in accuracies.items()}
        text = ", ".join(f"{name} {value:.1f}" for name, value in errors.items())
        print(
            f"{case.shift} (second model: {kind}): the errors in points are {text}",
            file=sys.stderr,
            flush=True,
        )
        return target.n_classes, errors


def mean_row(name: str, errors: Sequence[Errors]) -> str:
    cells = (f"{np.mean([entry[method] for entry in errors]):.2f}" for method in errors[0])
    return f"| {name} ({len(errors)}) | {' | '.join(cells)} |"


def gain(errors: dict[str, list[Errors]], method: str) -> str:
    """Return a sentence on how much the error of *rule* exceeds the error of another estimate."""
    gains = {f: [e["rule"] - e[method] for e in entries] for f, entries in errors.items()}
    n, families = sum(map(len, gains.values())), len(gains)
    mean = sum(map(sum, gains.values())) / n
    spread = sum((sum(values) - len(values) * mean) ** 2 for values in gains.values())
    error = math.sqrt(families / max(1, families - 1) * spread) / n
    deviation = f"standard error {error:.2f} over {families} families"
    return f"The error of {method} is {mean:.2f} points below the error of rule ({deviation})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, required=True)
    add("--features", type=Path, required=True, help="folder of features files")
    add("--half", choices=HALVES, default="choose")
    add("--families", nargs="+", choices=FAMILIES, metavar="FAMILY")
    add("--own", action="store_true", help="train three more classifiers on the features")
    options = parser.parse_args(arguments)
    by_kind, by_classes = defaultdict(list), defaultdict(list)
    by_family: dict[str, list[Errors]] = defaultdict(list)
    for case in cases(options.data, options.families, half=options.half):
        # Shifts with published classifiers have no training rows for a second classifier.
        if not options.own and case.shift not in FAMILIES[case.family].makers(options.data):
            continue
        if not case.path(options.features, 0).is_file():
            print(f"{case.shift} has no features file", file=sys.stderr)
            continue
        measured = measure(case, options.data, options.features, own=options.own)
        if measured is None:  # the shift has no features
            continue
        classes, errors = measured
        by_kind[case.shift_kind].append(errors)
        by_classes["two classes" if classes == 2 else "more classes"].append(errors)
        by_family[case.family].append(errors)
    if not by_family:
        parser.error(f"{options.features} contains no features file of the chosen families")
    every = [entry for entries in by_family.values() for entry in entries]
    print(f"| shifts | {' | '.join(every[0])} |\n|---|{'---|' * len(every[0])}")
    for name, entries in (*by_kind.items(), *by_classes.items(), ("all", every)):
        print(mean_row(name, entries))
    print()
    for method in list(every[0])[1:]:
        print(gain(by_family, method))
    return 0


if __name__ == "__main__":
    sys.exit(main())
