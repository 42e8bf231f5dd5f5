"""Compare `covcal estimate --metrics` with other estimates that use no target labels.

    python examples/research/benchmark/metrics.py FEATURES.H5... [--nannyml]

FEATURES.H5 are files that ``run.py`` wrote. Target labels are used only to compute the true
metrics. If a shift has two classes, the metrics of the second class are used. If a shift has more
classes, each metric is the mean over the classes for which it is defined. The first table has mean
absolute errors, in these columns:

- covcal: `covcal estimate`
- CBPE: the estimate of NannyML (``--nannyml``), with the source validation rows as reference and
  the target as one chunk
- weighted: the metric of source validation rows with the importance weights of `covcal estimate`
- source: the metric of source validation rows without weights

The second table shows how often covcal's range contains the true metric. Classes with fewer than
five rows are left out.
"""

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels
from covcal_cli.calibrate.estimate import estimate_file
from covcal_cli.calibrate.problem import EstimateSettings, Problem
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.inputs import EstimatorInputs
from covcal_cli.estimators.metrics import ACCURACY, MACRO, Wanted
from covcal_cli.formats.features import FeatureFile, read_labels
from covcal_cli.maths.class_metrics import CLASS_METRICS, ClassRows, class_odds, ranks_of
from covcal_cli.maths.odds import probabilities

NAMES = (ACCURACY, *CLASS_METRICS)
METHODS = ("covcal", "CBPE", "weighted", "source")
# Minimum number of rows in a class, and minimum number of rows predicted as the class.
LEAST = 5
SMALLEST = 1e-9  # A total weight below this limit counts as 0.
# Whether the shift has two classes, the name of the metric, and the error of each method.
Errors = tuple[bool, str, dict[str, float]]
# Values of metrics, by metric and class. The class None means the whole shift.
Table = dict[tuple[str, int | None], float]


def table_of(logits: Floats, labels: Labels, weights: Float64s | None = None) -> Table:
    """Return the metrics of labelled (weighted) rows, for each class and the whole shift."""
    mass = np.ones(len(labels)) if weights is None else weights
    predictions, odds = logits.argmax(axis=1), class_odds(logits)
    table = Table({(ACCURACY, None): float(mass[predictions == labels].sum() / mass.sum())})
    for label in range(logits.shape[1]):
        is_predicted, members = predictions == label, (labels == label) * mass
        rows = ClassRows(is_predicted, ranks_of(odds[label]), members, mass)
        for name, metric in CLASS_METRICS.items():
            if min(getattr(rows, need) for need in metric.needs) > SMALLEST:
                table[name, label] = metric.function(rows)[0]
    return with_means(table, logits.shape[1])


def with_means(table: Table, classes: int) -> Table:
    """Add every metric of the whole shift to the table."""
    for name in CLASS_METRICS:
        values = [value for (metric, _), value in table.items() if metric == name]
        if classes == 2:
            values = [table[name, 1]] if (name, 1) in table else []
        if values:
            table[name, None] = float(np.mean(values))
    return table


def by_nannyml(inputs: EstimatorInputs) -> Table:
    """Return the estimates by NannyML's CBPE, with the target as one chunk."""
    os.environ["NML_DISABLE_USAGE_LOGGING"] = "1"
    import nannyml
    import pandas

    classes = inputs.n_classes
    names = {name: name for name in NAMES} | {"auroc": "roc_auc"}

    def frame(logits: Floats) -> pandas.DataFrame:
        chances = probabilities(logits, 1.0)
        columns = {f"p{label}": chances[label] for label in range(classes)}
        return pandas.DataFrame(columns | {"predicted": logits.argmax(axis=1)})

    proba = {label: f"p{label}" for label in range(classes)}
    estimator = nannyml.CBPE(
        metrics=list(names.values()),
        y_pred="predicted",
        y_pred_proba="p1" if classes == 2 else proba,
        y_true="label",
        problem_type="classification_binary" if classes == 2 else "classification_multiclass",
        chunk_number=1,
    )
    estimator.fit(frame(inputs.source_logits).assign(label=inputs.source_labels))
    result = estimator.estimate(frame(inputs.target_logits)).filter(period="analysis").to_df()
    return {(name, None): float(result[theirs, "value"].iloc[0]) for name, theirs in names.items()}


def measure(path: Path, *, nannyml: bool) -> tuple[dict[str, Table], dict[str, list[bool]], int]:
    """Return the metrics by method, whether ranges contain the true metric, and K."""
    with FeatureFile(path) as file:
        problem = Problem(file, EstimateSettings(labels="none"))
        classes = file.classes
        wanted: list[Wanted] = [(name, None) for name in NAMES]
        wanted += [(name, MACRO) for name in CLASS_METRICS]
        found = estimate_file(problem, wanted).metrics
        target = file.require_target()
        rows = np.flatnonzero(read_labels(target, np.arange(target.n)) >= 0)
        labels = read_labels(target, rows)
        truth = table_of(target.logits(rows), labels)
        inputs = problem.inputs
        tables = {"source": table_of(inputs.source_logits, inputs.source_labels)}
        if problem.missing_for_weights is None:
            weights = problem.weights(problem.fullest).weights
            if weights.sum() > 0 and len(weights) == inputs.n_source:
                tables["weighted"] = table_of(inputs.source_logits, inputs.source_labels, weights)
    numbers: dict[str | None, int | None] = {name: number for number, name in enumerate(classes)}
    inside: dict[str, list[bool]] = defaultdict(list)
    own = Table()
    predictions = np.bincount(inputs.target_predictions, minlength=len(classes))
    enough = np.minimum(np.bincount(labels, minlength=len(classes)), predictions) >= LEAST
    for entry in found:
        if entry.value is None or entry.low is None or entry.high is None:
            continue
        label = numbers.get(entry.class_name)
        own[entry.metric, label] = entry.value
        if (entry.metric, label) in truth and (label is None or enough[label]):
            is_mean = label is None and entry.metric != ACCURACY
            kind = f"{entry.metric}, mean" if is_mean else entry.metric
            if not is_mean or len(classes) > 2:
                kind = f"{'two' if len(classes) == 2 else 'more'} | {kind}"
                held = entry.low <= truth[entry.metric, label] <= entry.high
                inside[kind].append(held)
    tables = {"truth": truth, "covcal": with_means(own, len(classes)), **tables}
    if nannyml:
        try:
            tables["CBPE"] = by_nannyml(inputs)
        except Exception as error:  # NannyML raises an error if a class has no rows
            print(f"{path.stem}: CBPE: {type(error).__name__}: {error}", file=sys.stderr)
    return tables, inside, len(classes)


def shown(errors: Sequence[Errors], inside: Mapping[str, Sequence[float]]) -> str:
    """Return the two result tables in Markdown."""
    methods = [name for name in METHODS if any(name in shift for _, _, shift in errors)]
    lines = [
        f"| classes | metric | shifts | {' | '.join(methods)} |",
        "|---|---|---:|" + "---:|" * len(methods),
    ]
    for two in (True, False):
        for name in NAMES:
            shifts = [shift for is_two, metric, shift in errors if (is_two, metric) == (two, name)]
            compared = [name for name in methods if name != "weighted"]
            common = [shift for shift in shifts if shift.keys() >= set(compared)]
            if not common:  # NannyML does not have the metric
                common = [shift for shift in shifts if shift.keys() >= {"covcal", "source"}]
            cells = []
            for method in methods:
                values = [shift[method] for shift in common if method in shift]
                number = f"{np.mean(values):.3f}" if values else "-"
                few = f" ({len(values)})" if values and len(values) < len(common) else ""
                cells.append(number + few)
            kind = "two" if two else "more"
            lines.append(f"| {kind} | {name} | {len(common)} | {' | '.join(cells)} |")
    lines += ["", "| classes | metric | in the range | shifts |", "|---|---|---:|---:|"]
    for name, shares in inside.items():
        lines.append(f"| {name} | {100 * np.mean(shares):.0f} % | {len(shares)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure every file, and print the two result tables."""
    parser = argparse.ArgumentParser(description=__doc__, prog=Path(__file__).name)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--nannyml", action="store_true", help="also run NannyML's CBPE")
    options = parser.parse_args()
    errors: list[Errors] = []
    inside: dict[str, list[float]] = defaultdict(list)
    for path in options.files:
        try:
            tables, held, classes = measure(path, nannyml=options.nannyml)
        except CovcalError as error:
            print(error, file=sys.stderr)
            continue
        for kind, values in held.items():
            inside[kind].append(float(np.mean(values)))
        truth = tables.pop("truth")
        for name in NAMES:
            if (name, None) in truth:
                of_shift = {
                    method: abs(table.get((name, None), np.nan) - truth[name, None])
                    for method, table in tables.items()
                }
                finite = {method: error for method, error in of_shift.items() if error >= 0}
                errors.append((classes == 2, name, finite))
    print(shown(errors, inside))


if __name__ == "__main__":
    main()
