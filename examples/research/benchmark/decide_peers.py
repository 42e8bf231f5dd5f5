"""Measure the accepted rows and the sets of MAPIE and TorchCP, for `decide.py --peers`.

    pip install --no-deps mapie torchcp tqdm

MAPIE's controller certifies a threshold of the confidence, on labelled source rows or on labels of
random target rows. MAPIE and TorchCP also make sets of classes. Both libraries get at most 1,000
labelled rows of each domain. TorchCP's predictor gets at most 500, because it computes one row at a
time.
"""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from covcal_cli.arrays import Booleans, Float64s, Labels
from covcal_cli.decide.decide import SPLITS_READ
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.draws import frame_rows
from covcal_cli.labels.target_labels import target_labels
from covcal_cli.maths.odds import probabilities as softmax

MOST, MOST_OF_TORCHCP, DRAWS, CERTAINTY, COVERAGE = 1000, 500, 3, 0.9, 0.9
COLUMNS = (
    "certified on the source",
    *(f"certified with {labels} labels" for labels in (50, 100, 200)),
    "raw confidence believed",
    "confidence of temp taken as the accuracy",
    "MAPIE sets, source",
    "MAPIE sets, 25 labels",
    "TorchCP sets",
)
N_SETS = 3  # number of columns with coverage and size, which are the last columns


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier whose inputs are the probabilities that it returns."""

    def __init__(self, n_classes: int = 2) -> None:
        self.n_classes = n_classes
        self.classes_ = np.arange(n_classes)

    def fit(self, _x: Any, _y: Any = None) -> "Classifier":
        """Do nothing: the probabilities are known."""
        return self

    def predict_proba(self, x: Float64s) -> Float64s:
        """Return the input."""
        return np.asarray(x)

    def predict(self, x: Float64s) -> Labels:
        """Return the most probable class."""
        return np.asarray(np.asarray(x).argmax(axis=1))


def certified(confidence: Float64s, right: Booleans, error: float) -> float:
    """Return the threshold that MAPIE's controller certifies, or infinity if there is none."""
    from mapie.risk_control import BinaryClassificationController

    controller = BinaryClassificationController(
        lambda x: np.column_stack([1 - x, x]), "precision", 1 - error, confidence_level=CERTAINTY
    )
    controller.calibrate(confidence, right.astype(int))
    threshold = controller.best_predict_param
    return np.inf if threshold is None else float(threshold)


def sets_of_mapie(known: Float64s, labels: Labels, new: Float64s) -> Booleans:
    """Return sets of classes for the rows `new`, by split conformal prediction."""
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

    `source` and `target` are features and logits.
    """
    import torch

    # TorchCP imports these libraries although this predictor needs none of them.
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


def measured_peers(file: FeatureFile, temperature: float, error: float) -> Float64s:
    """Return two numbers for each of `COLUMNS`; NaN where a library fails.

    `temperature` is T by temperature scaling on the source.
    """
    known, new = file.require_source(), file.require_target()
    domains = []
    candidates = known.rows("validation"), frame_rows(new, SPLITS_READ)
    read_of = known.labels(candidates[0]), target_labels(new, candidates[1])
    for domain, rows, read in zip((known, new), candidates, read_of, strict=True):
        chosen = np.random.default_rng(0).permutation(np.flatnonzero(read >= 0))[:MOST]
        rows, labels = rows[np.sort(chosen)], read[np.sort(chosen)]
        logits = np.maximum(domain.logits(rows).astype(np.float64), -1e4)
        has_features = domain.n_features is not None
        features = domain.features(rows).astype(np.float64) if has_features else logits
        domains.append((features, logits, labels, softmax(logits, 1.0).T))
    features, logits, labels, shares = domains[0]
    new_features, new_logits, truth, new_shares = domains[1]
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
    )
    for call in calls:
        try:
            numbers += call()
        except (ValueError, RuntimeError, IndexError) as failure:
            print(file.path.stem, repr(failure)[:120], file=sys.stderr)
            numbers += [np.nan, np.nan]
    return np.array(numbers)
