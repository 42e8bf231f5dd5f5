"""Run other libraries that accept rows or make prediction sets, for `decide.py --peers`.

    pip install --no-deps mapie torchcp tqdm
    python examples/research/benchmark/decide_peers.py FOLDER ...   # only the PAC sets

MAPIE chooses a confidence threshold that guarantees the error rate. The threshold is chosen on
labelled source rows, or on random labelled target rows. MAPIE and TorchCP also make prediction
sets. Both libraries get at most 1,000 labelled rows of each domain. TorchCP's predictor is slow, so
it gets at most 500 rows. PAC prediction sets use at most 20,000 rows.

`sets_of_pac` makes PAC prediction sets under covariate shift (Park, Dobriban, Lee & Bastani, ICLR
2022). No library has this method, so it is implemented here. A discriminator between source and
target divides the rows into bins. Each bin has an interval for its importance weight, computed from
the counts of rows in the bin. Rejection sampling by these weights turns labelled source rows into a
sample of the target. A Clopper-Pearson bound chooses the threshold of the sets. The bound assumes
the worst weights in the intervals. Rows whose set lacks the right class have the largest weight,
and all other rows have the smallest weight.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from scipy.stats import beta, binom
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from covcal_cli.arrays import Booleans, Float64s, Labels, Rows
from covcal_cli.estimators.inputs import ESTIMATED
from covcal_cli.formats.features import Domain, FeatureFile
from covcal_cli.labels.draws import frame_rows
from covcal_cli.labels.target_labels import target_labels
from covcal_cli.maths.odds import probabilities as softmax

MOST, MOST_OF_TORCHCP, DRAWS, CERTAINTY, COVERAGE = 1000, 500, 3, 0.9, 0.9
COLUMNS = (
    "MAPIE threshold, source",
    *(f"MAPIE threshold, {labels} labels" for labels in (50, 100, 200)),
    "uncalibrated confidence, taken as accuracy",
    'confidence of the method "temp", taken as accuracy',
    "MAPIE sets, source",
    "MAPIE sets, 25 labels",
    "TorchCP sets",
    "PAC sets under covariate shift",
)
# BINS: number of bins. FEWEST: minimum number of rows that train the discriminator.
BINS, FEWEST, MOST_OF_PAC = 10, 100, 20_000
N_SETS = 4  # The last four of COLUMNS name prediction sets.


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn classifier whose input is already the class probabilities."""

    def __init__(self, n_classes: int = 2) -> None:
        self.n_classes = n_classes
        self.classes_ = np.arange(n_classes)

    def fit(self, _x: Any, _y: Any = None) -> "Classifier":
        """Do nothing, because the probabilities are already known."""
        return self

    def predict_proba(self, x: Float64s) -> Float64s:
        """Return the input."""
        return np.asarray(x)

    def predict(self, x: Float64s) -> Labels:
        """Return the most probable class."""
        return np.asarray(np.asarray(x).argmax(axis=1))


def certified(confidence: Float64s, right: Booleans, error: float) -> float:
    """Return the confidence threshold that MAPIE chooses; infinity if MAPIE accepts no row."""
    from mapie.risk_control import BinaryClassificationController

    controller = BinaryClassificationController(
        lambda x: np.column_stack([1 - x, x]), "precision", 1 - error, confidence_level=CERTAINTY
    )
    controller.calibrate(confidence, right.astype(int))
    threshold = controller.best_predict_param
    return np.inf if threshold is None else float(threshold)


def sets_of_mapie(known: Float64s, labels: Labels, new: Float64s) -> Booleans:
    """Return prediction sets by split conformal prediction, for rows with probabilities `new`."""
    from mapie.classification import SplitConformalClassifier

    n_classes = known.shape[1]
    split = SplitConformalClassifier(
        Classifier(n_classes), confidence_level=COVERAGE, conformity_score="lac", prefit=True
    )
    split.conformalize(known, labels)
    return np.asarray(split.predict_set(new)[1][..., 0])


def sets_of_torchcp(
    source: Sequence[Float64s], labels: Labels, target: Sequence[Float64s], truth: Labels
) -> tuple[float, float]:
    """Return coverage and mean size of sets by weighted conformal prediction.

    `source` and `target` each contain features and logits.
    """
    import torch

    # TorchCP imports these libraries, although the WeightedPredictor of TorchCP uses none.
    for name, *content in (("torchsort", "soft_rank", "soft_sort"), ("torchvision",)):
        module = sys.modules.setdefault(name, ModuleType(name))
        for function in content:
            setattr(module, function, None)
    for name in ("models", "transforms", "datasets"):
        sys.modules.setdefault(f"torchvision.{name}", ModuleType(name))
    for name in ("transformers", "torchcp.graph", "torchcp.llm", "torchcp.regression"):
        sys.modules.setdefault(name, ModuleType(name))
    from torchcp.classification.predictor import WeightedPredictor
    from torchcp.classification.score import LAC

    width = source[0].shape[1]

    class Part(torch.nn.Module):
        def __init__(self, columns: slice) -> None:
            super().__init__()
            self.columns, self.weight = columns, torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, self.columns]

    def loader(parts: Sequence[Float64s], classes: Labels) -> Any:
        rows = torch.tensor(np.hstack(parts)[:MOST_OF_TORCHCP], dtype=torch.float32)
        data = torch.utils.data.TensorDataset(rows, torch.tensor(classes[:MOST_OF_TORCHCP]))
        return torch.utils.data.DataLoader(data, batch_size=128)

    torch.manual_seed(0)
    features, logits = Part(slice(0, width)), Part(slice(width, None))
    predictor = WeightedPredictor(LAC(), logits, 1, 1 - COVERAGE, features)
    predictor.calibrate(loader(source, labels), 1 - COVERAGE)
    result = {
        key.lower(): value for key, value in predictor.evaluate(loader(target, truth)).items()
    }
    return float(result["coverage_rate"]), float(result["average_size"])


def bins_of(known: Sequence[Float64s], new: Sequence[Float64s]) -> list[Labels]:
    """Divide source and target rows into bins by the score of a discriminator.

    `known` (source) and `new` (target) contain features of training rows, and of the rows to
    divide.
    """
    scaler = StandardScaler().fit(np.vstack([known[0], new[0]]))
    is_new = np.repeat([0, 1], [len(known[0]), len(new[0])])
    fitted = LogisticRegression(C=0.01, max_iter=200, class_weight="balanced")
    fitted.fit(scaler.transform(np.vstack([known[0], new[0]])), is_new)
    scores = [fitted.decision_function(scaler.transform(part[1])) for part in (known, new)]
    edges = np.quantile(np.concatenate(scores), np.arange(1, BINS) / BINS)
    return [np.searchsorted(edges, values) for values in scores]


def weights_of(bins: Labels, new_bins: Labels, level: float) -> tuple[Float64s, Float64s]:
    """Return the lower and the upper ends of the intervals for the importance weight of each bin.

    All intervals contain the true weights with probability 1 - `level`. Each interval is the
    quotient of two Clopper-Pearson intervals, for the shares of target rows and source rows in the
    bin.
    """
    each = level / (4 * BINS)
    ends = []
    for rows in (bins, new_bins):
        k, n = np.bincount(rows, minlength=BINS), len(rows)
        low = np.nan_to_num(beta.ppf(each, k, n - k + 1))
        ends.append((low, np.nan_to_num(beta.ppf(1 - each, k + 1, n - k), nan=1.0)))
    (low, high), (new_low, new_high) = ends
    with np.errstate(divide="ignore"):
        return new_low / high, np.minimum(new_high / low, 1 / np.finfo(np.float32).tiny)


def sets_of_pac(
    bins: Labels, new_bins: Labels, shares: Float64s, labels: Labels, new_shares: Float64s
) -> Booleans:
    """Return PAC prediction sets for target rows from labelled source rows.

    Half of the allowed error probability is spent on the weights, the other half on the threshold.
    """
    level = (1 - CERTAINTY) / 2
    lowest, highest = weights_of(bins, new_bins, level)
    used = np.unique(bins)
    chance = np.random.default_rng(0).random(len(labels)) * highest[used].max()
    if_lacking, if_inside = chance <= highest[bins], chance <= lowest[bins]
    score = shares[np.arange(len(labels)), labels]
    order = np.argsort(score)
    # If the threshold is the score of a row, k of n sampled sets lack the right class.
    k = np.concatenate([[0], np.cumsum(if_lacking[order])[:-1]])
    n = k + if_inside.sum() - np.concatenate([[0], np.cumsum(if_inside[order])[:-1]])
    passes = binom.cdf(k, n, 1 - COVERAGE) <= level
    last = len(passes) if passes.all() else int(passes.argmin())
    threshold = score[order[last - 1]] if last else 0.0
    return np.asarray(new_shares >= threshold)


def rows_of(
    file: FeatureFile, most: int = MOST
) -> list[tuple[Float64s, Float64s, Labels, Float64s]]:
    """Return features, logits, labels and probabilities of labelled rows, for each domain."""
    known, new = file.require_source(), file.require_target()
    domains = []
    candidates = known.rows("validation"), frame_rows(new, ESTIMATED)
    read_of = known.labels(candidates[0]), target_labels(new, candidates[1])
    for domain, rows, read in zip((known, new), candidates, read_of, strict=True):
        chosen = np.random.default_rng(0).permutation(np.flatnonzero(read >= 0))[:most]
        rows, labels = rows[np.sort(chosen)], read[np.sort(chosen)]
        features, logits = inputs_of(domain, rows)
        domains.append((features, logits, labels, softmax(logits, 1.0).T))
    return domains


def inputs_of(domain: Domain, rows: Rows) -> tuple[Float64s, Float64s]:
    """Return features and logits. If the file has no features, return the logits twice."""
    logits = np.maximum(domain.logits(rows).astype(np.float64), -1e4)
    has_features = domain.n_features is not None
    return domain.features(rows).astype(np.float64) if has_features else logits, logits


def measured_pac(file: FeatureFile) -> list[float]:
    """Return the coverage and the mean size (divided by K) of PAC prediction sets."""
    (features, _, labels, shares), (new_features, _, truth, new_shares) = rows_of(file, MOST_OF_PAC)
    known, new = file.require_source(), file.require_target()
    pairs, ends = [], []
    for domain, inputs in ((known, features), (new, new_features)):
        # Train the discriminator on training rows, or on half of the other rows if there are fewer
        # than FEWEST training rows.
        rows = np.random.default_rng(1).permutation(domain.rows("train"))[:MOST_OF_PAC]
        half = len(inputs) // 2
        if len(rows) >= FEWEST and domain is known:
            pairs.append((inputs_of(domain, np.sort(rows))[0], inputs))
            ends.append(0)
        else:
            pairs.append((inputs[:half], inputs[half:]))
            ends.append(half)
    bins, new_bins = bins_of(*pairs)
    start = ends[0]
    members = sets_of_pac(bins, new_bins, shares[start:], labels[start:], new_shares)
    return [float(members[np.arange(len(truth)), truth].mean()), float(members.mean())]


def measured_peers(file: FeatureFile, temperature: float, error: float) -> Float64s:
    """Return two numbers for each of `COLUMNS`; NaN if a library fails.

    `temperature` was fitted to the source by temperature scaling.
    """
    new = file.require_target()
    (features, logits, labels, shares), (new_features, new_logits, truth, new_shares) = rows_of(
        file
    )
    confidence, right = new_shares.max(axis=1), new_shares.argmax(axis=1) == truth
    numbers: list[float] = []

    def accept(threshold: float, values: Float64s = confidence) -> list[float]:
        accepted = values >= threshold
        rate = float((~right[accepted]).mean()) if accepted.any() else 0.0
        return [float(accepted.mean()), float(rate > error)]

    def mean_of(values: list[list[float]]) -> list[float]:
        return [float(value) for value in np.mean(values, axis=0)]

    numbers += accept(certified(shares.max(axis=1), shares.argmax(axis=1) == labels, error))
    draws = [np.random.default_rng(draw).permutation(len(truth)) for draw in range(DRAWS)]
    for n in (50, 100, 200):
        drawn = [rows[:n] for rows in draws]
        numbers += mean_of([accept(certified(confidence[i], right[i], error)) for i in drawn])
    for t in (1.0, temperature):
        values = softmax(new_logits, t).max(axis=0)
        best = np.sort(values)[::-1]
        kept = np.flatnonzero(np.cumsum(1 - best) / np.arange(1, len(best) + 1) <= error)
        numbers += accept(float(best[kept[-1]]) if len(kept) else np.inf, values)

    def sets(members: Booleans) -> list[float]:
        return [float(members[np.arange(len(truth)), truth].mean()), float(members.mean())]

    def size_of(pair: tuple[float, float]) -> list[float]:
        return [pair[0], pair[1] / new.n_classes]

    calls: tuple[Callable[[], list[float]], ...] = (
        lambda: sets(sets_of_mapie(shares, labels, new_shares)),
        lambda: mean_of(
            [sets(sets_of_mapie(new_shares[i[:25]], truth[i[:25]], new_shares)) for i in draws]
        ),
        lambda: size_of(
            sets_of_torchcp((features, logits), labels, (new_features, new_logits), truth)
        ),
        lambda: measured_pac(file),
    )
    for call in calls:
        try:
            numbers += call()
        except (ValueError, RuntimeError, IndexError) as failure:
            print(file.path.stem, repr(failure)[:120], file=sys.stderr)
            numbers += [np.nan, np.nan]
    return np.array(numbers)


def main() -> None:
    """Measure PAC prediction sets, and print the results of every file and their means."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `benchmark`
    from benchmark.decide import print_sets

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    lines = []
    for path in sorted(
        path for folder in parser.parse_args().folders for path in folder.glob("*.h5")
    ):
        with FeatureFile(path) as file:
            lines.append(measured_pac(file))
        print(path.stem, " ".join(f"{value:.3f}" for value in lines[-1]), flush=True)
    print_sets(f"{COLUMNS[-1]} ({len(lines)} files)", *np.array(lines).T)


if __name__ == "__main__":
    main()
