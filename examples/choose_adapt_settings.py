"""The table behind the default setting of ``covcal adapt``.

    python examples/choose_adapt_settings.py [--data DIR] [--recipes default plain] [--jobs 2]

Every recipe is tried on every shift of five families, five members each: single members show the
spread over seeds, and 1, 3 and 5 of them are compared. What counts is the calibration error (ECE,
15 bins, in %) on target test rows after ``fl+temp`` and ``fl+iw+temp``, the mean of both, each
family weighing the same. The digit shifts MNIST-USPS, USPS-MNIST, MNIST-MNIST, MNIST-SVHN and
SVHN-MNIST are not among them: they are run once a setting is written down, never to choose one.

Families ``made`` and ``corruptions`` (scikit-learn's digits) need no data; ``svhn-usps``,
``office`` and ``reviews`` are read from DIR (svhn.npz, usps.npz, models/svhnnet.onnx,
office_caltech10_efflite0.npz, amazon_reviews_5000.npz).
"""

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage, sparse
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from covcal_cli.adapt import forward
from covcal_cli.adapt.progress import silent
from covcal_cli.adapt.reading import read_rows
from covcal_cli.adapt.settings import Schedule, Settings, default_settings
from covcal_cli.adapt.training import train
from covcal_cli.featurefile import FEATURES_SCHEMA, Domain, FeatureFile
from covcal_cli.featurewriter import HDF5Writer, utf8
from covcal_cli.metrics import ReliabilityBins
from covcal_cli.softmax import log_mean_softmax
from covcal_cli.target_labels import target_labels
from covcal_cli.temperature import fit_temperature
from covcal_cli.weights import importance_weights

Array = NDArray[Any]
MEMBERS = 5
COMBINATIONS = {1: [(m,) for m in range(5)], 3: [(0, 1, 2), (2, 3, 4), (0, 3, 4)], 5: [range(5)]}


def recipes() -> dict[str, Settings]:
    """Return what is compared: the default, plain adversarial training, and steps between them."""
    default = replace(default_settings(), members=MEMBERS)
    epochs = Schedule("adamw", 1e-3, 0.01, batch=128, epochs=20)
    plain = replace(
        default,
        components=None,
        penalty=0.0,
        averaging=0.0,
        stop_ess=None,
        discriminator_speed=1.0,
        schedule=epochs,
    )
    return {
        "default": default,
        "plain": plain,
        "plain, components": replace(plain, components=64),
        "plain, squared": replace(plain, loss="squared"),
        "no alignment": replace(default, reversal_horizon=10**12, stop_ess=None, **_steps(600)),
        "300 steps": replace(default, stop_ess=None, **_steps(300)),
        "600 steps": replace(default, stop_ess=None, **_steps(600)),
        "stop at 10 %": replace(default, stop_ess=0.1),
        "stop at 60 %": replace(default, stop_ess=0.6),
        "penalty 0.1": replace(default, penalty=0.1),
        "penalty 10": replace(default, penalty=10.0),
        "32 components": replace(default, components=32),
        "128 components": replace(default, components=128),
        "squared": replace(default, loss="squared"),
        "one layer": replace(default, psi_widths=(64,), psi_output_relu=True),
        "forecaster x3": replace(default, forecaster_weight=3.0),
    }


def _steps(steps: int) -> dict[str, Any]:
    return {"schedule": replace(default_settings().schedule, steps=steps)}


@dataclass(frozen=True)
class Side:
    """One domain of a shift: features (n, d), logits (n, K), labels (n,) and split (n,)."""

    features: Array
    logits: Array
    labels: Array
    split: Array


@dataclass(frozen=True)
class Shift:
    """A source and a target seen by one classifier."""

    family: str
    name: str
    source: Side
    target: Side


def made_shifts() -> Iterator[Shift]:
    """Yield made shifts: ten classes, nuisance directions moved, and a proper covariate shift."""
    for name, move, tilt in (("moved 0.7", 0.7, 0.0), ("moved 2.5", 2.5, 0.0), ("tilted", 0.0, 1.0)):
        rng = np.random.default_rng(7)
        centres = rng.normal(size=(10, 24)) * 0.8
        mixing = rng.normal(size=(32, 84)) / np.sqrt(32)
        sides = []
        for target in (False, True):
            labels = rng.integers(10, size=20_000)
            latent = np.hstack([centres[labels], np.zeros((20_000, 8))])
            latent += rng.normal(size=latent.shape)
            # Tilting keeps p(y | x): rows are kept with a chance that depends on x alone.
            chance = 1 / (1 + np.exp(-tilt * latent[:, :4].sum(axis=1) * (1 if target else -1)))
            kept = np.flatnonzero(rng.random(20_000) < chance * 0.6)[:5000]
            latent, labels = latent[kept], labels[kept]
            latent[:, 24:] += move if target else 0.0
            sides.append((np.maximum(latent @ mixing, 0), labels))
        split = _split(len(sides[0][1]), 1)
        yield _from_network("made", name, sides, [split, _split(len(sides[1][1]), 2)], (84,))


def corruption_shifts() -> Iterator[Shift]:
    """Yield clean to corrupted handwritten digits of 8 x 8 pixels."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) / 16.0
    rng = np.random.default_rng(3)
    split = _split(len(labels), 5)
    corrupted = {
        "noise": np.clip(images + rng.normal(size=images.shape) * 0.35, 0, 1),
        "rotation": ndimage.rotate(images, 30, axes=(1, 2), reshape=False, order=1),
        "blur": ndimage.gaussian_filter(images, (0, 0.9, 0.9)),
        "contrast": 0.3 + 0.35 * images,
    }
    for name, changed in corrupted.items():
        sides = [(images.reshape(-1, 64), labels), (changed.reshape(-1, 64), labels)]
        yield _from_network("corruptions", name, sides, [split, split], (64, 32))


def svhn_usps(data: Path) -> Iterator[Shift]:
    """Yield SVHN to USPS, by a published SVHN classifier."""
    import onnxruntime
    from PIL import Image

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(data / "models" / "svhnnet.onnx"), options)

    def side(images: Array, labels: Array, split: Array) -> Side:
        outputs = []
        for block in np.array_split(images, -(-len(images) // 256)):
            pixels = np.moveaxis(block, 3, 1).astype(np.float32) / 255
            outputs.append(session.run(["features", "logits"], {"image": pixels}))
        features, logits = (np.concatenate(parts) for parts in zip(*outputs, strict=True))
        return Side(features, logits, labels.astype(np.int64), split.astype(np.uint8))

    svhn, usps = np.load(data / "svhn.npz"), np.load(data / "usps.npz")
    small = np.concatenate([usps["train_x"], usps["test_x"]])
    large = np.stack(
        [np.array(Image.fromarray(one).resize((32, 32), Image.Resampling.BILINEAR)) for one in small]
    )
    target = side(
        np.repeat(large[..., None], 3, axis=3),
        np.concatenate([usps["train_y"], usps["test_y"]]),
        np.repeat([0, 1, 2], [6198, 1093, 2007]),
    )
    yield Shift("svhn-usps", "S-U", side(svhn["x"], svhn["y"], svhn["split"]), target)


def office_shifts(data: Path) -> Iterator[Shift]:
    """Yield Office-Caltech10 pairs on EfficientNet features, with a linear head."""
    arrays = np.load(data / "office_caltech10_efflite0.npz")
    pairs = ("amazon webcam", "webcam amazon", "caltech webcam", "amazon caltech")
    for source, target in (pair.split() for pair in pairs):
        sides = [(arrays[f"{n}_x"].astype(np.float64), arrays[f"{n}_y"]) for n in (source, target)]
        splits = [_split(len(labels), seed) for seed, (_, labels) in enumerate(sides)]
        yield _from_network("office", f"{source}-{target}", sides, splits, ())


def review_shifts(data: Path) -> Iterator[Shift]:
    """Yield Amazon review pairs with a small network on word counts."""
    arrays = np.load(data / "amazon_reviews_5000.npz")
    pairs = ("books kitchen", "kitchen dvd", "dvd electronics", "electronics books")
    for source, target in (pair.split() for pair in pairs):
        sides, splits = [], []
        for name in (source, target):
            counts, labels = [], []
            for part in ("train", "test"):
                data_, columns, starts, truth = (
                    arrays[f"{name}_{part}_{key}"] for key in ("data", "indices", "indptr", "y")
                )
                shape = (len(truth), 5000)
                counts.append(sparse.csr_matrix((np.log1p(data_), columns, starts), shape=shape))
                labels.append(truth)
            sides.append((sparse.vstack(counts).tocsr(), np.concatenate(labels)))
            rest = len(labels[1]) - 1000
            splits.append(np.repeat([0, 1, 2], [len(labels[0]), 1000, rest]).astype(np.uint8))
        yield _from_network("reviews", f"{source}-{target}", sides, splits, (64,))


def _split(n: int, seed: int) -> Array:
    return np.random.default_rng(seed).choice(3, size=n, p=[0.6, 0.2, 0.2]).astype(np.uint8)


def _from_network(
    family: str,
    name: str,
    sides: Sequence[tuple[Any, Array]],
    splits: Sequence[Array],
    hidden: tuple[int, ...],
) -> Shift:
    """Train a classifier on the source's training rows; its last hidden layer is phi."""
    inputs, labels = sides[0]
    known, labels_of = np.unique(labels, return_inverse=True)
    train_rows = np.flatnonzero(splits[0] == 0)
    if hidden:
        network = MLPClassifier(hidden, random_state=0, max_iter=60, early_stopping=False)
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network.fit(inputs[train_rows], labels_of[train_rows])
        layers = list(zip(network.coefs_, network.intercepts_, strict=True))
    else:
        from sklearn.linear_model import LogisticRegression

        linear = LogisticRegression(C=1.0, max_iter=300)
        scale = inputs.std()
        linear.fit(inputs[train_rows] / scale, labels_of[train_rows])
        layers = [(linear.coef_.T / scale, linear.intercept_)]

    def side(rows: Any, truth: Array, split: Array) -> Side:
        for weight, bias in layers[:-1]:
            rows = np.maximum(rows @ weight + bias, 0)
        logits = rows @ layers[-1][0] + layers[-1][1]
        if logits.shape[1] == 1:
            logits = np.hstack([np.zeros_like(logits), logits])
        return Side(
            np.asarray(rows, np.float32), np.asarray(logits, np.float32),
            np.searchsorted(known, truth), split,
        )

    return Shift(
        family, name, *(side(x, y, split) for (x, y), split in zip(sides, splits, strict=True))
    )


def write_features(path: Path, shift: Shift) -> None:
    names = [str(number) for number in range(shift.source.logits.shape[1])]
    with HDF5Writer(path, schema=FEATURES_SCHEMA, classes=names, attributes={}) as writer:
        for domain, side in (("source", shift.source), ("target", shift.target)):
            writer.write(f"{domain}/features", side.features)
            writer.write(f"{domain}/logits", side.logits)
            writer.write(f"{domain}/labels", side.labels.astype(np.int64))
            writer.write(f"{domain}/split", side.split)
            writer.write(f"{domain}/ids", utf8([str(row) for row in range(len(side.labels))]))
        writer.complete()


@dataclass(frozen=True)
class Scores:
    """ECE in % of one recipe on one shift; lists run over combinations of as many members."""

    family: str
    shift: str
    recipe: str
    none: float
    temp: float
    fl: dict[int, list[float]]
    fl_iw: dict[int, list[float]]
    ess: float
    probe: float
    steps: float


def score(path: Path, family: str, name: str, recipe: str) -> Scores:
    """Adapt by a recipe and measure both methods on target test rows."""
    torch.set_num_threads(1)
    settings = recipes()[recipe]
    with FeatureFile(path) as file:
        source, target = file.require_source(), file.require_target()
        rows, projection, predictions = read_rows(file, settings, seed=0, progress=silent)
        trained = train(
            rows, predictions, settings, seed=0, device=torch.device("cpu"), progress=silent
        )
        networks = trained.arrays() | {
            f"projection/{key}": values for key, values in projection.arrays().items()
        }
        held, unseen, test = (
            domain.rows(split)
            for domain, split in (
                (source, "validation"), (target, "validation"), (target, "test")
            )
        )
        labels, truth = source.labels(held), target_labels(target, test)
        logits = [forward.aligned_logits(networks, d.features(r)) for d, r in
                  ((source, held), (target, test))]
        domain_logits = [forward.aligned_domain_logits(networks, d.features(r)) for d, r in
                         ((source, held), (target, unseen))]
        original = target.logits(test)
        chosen = original.argmax(axis=1)
        fl: dict[int, list[float]] = defaultdict(list)
        fl_iw: dict[int, list[float]] = defaultdict(list)
        for count, groups in COMBINATIONS.items():
            for group in map(list, groups):
                fitted, tested = (log_mean_softmax(part[group]).T for part in logits)
                weights = importance_weights(domain_logits[0][group], domain_logits[1][group])
                for scores, row_weights in ((fl, None), (fl_iw, weights.fit_weights)):
                    scores[count].append(_ece(fitted, labels, row_weights, tested, chosen, truth))
        before = source.logits(held)
        return Scores(
            family,
            name,
            recipe,
            none=_ece_at(original, 1.0, chosen, truth),
            temp=_ece(before, labels, None, original, chosen, truth),
            fl=dict(fl),
            fl_iw=dict(fl_iw),
            ess=float(np.mean([member.ess_share for member in trained.members])),
            probe=float(np.mean([member.probe_accuracy for member in trained.members])),
            steps=float(np.mean([member.steps for member in trained.members])),
        )


def _ece(
    fitted: Array, labels: Array, weights: Array | None, tested: Array, chosen: Array, truth: Array
) -> float:
    errors = int((fitted.argmax(axis=1) != labels).sum())
    fit = fit_temperature(fitted, labels, weights, allow_sharpening=errors >= 5)
    return _ece_at(tested, fit.temperature, chosen, truth)


def _ece_at(logits: Array, temperature: float, chosen: Array, truth: Array) -> float:
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    chances = np.exp(scaled)
    chances /= chances.sum(axis=1, keepdims=True)
    bins = ReliabilityBins(15)
    bins.add(chances[np.arange(len(chosen)), chosen], chosen == truth)
    return 100 * bins.ece()


def shifts(data: Path | None) -> Iterator[Shift]:
    """Yield every shift for which there is data."""
    yield from made_shifts()
    yield from corruption_shifts()
    if data is not None:
        yield from svhn_usps(data)
        yield from office_shifts(data)
        yield from review_shifts(data)


def summary(scores: Iterable[Scores]) -> str:
    """Return one line per recipe and family, and a last block with the mean over families."""
    by_recipe: dict[str, dict[str, list[Scores]]] = defaultdict(lambda: defaultdict(list))
    for one in scores:
        by_recipe[one.recipe][one.family].append(one)
    lines = []
    overall = []
    for recipe, families in by_recipe.items():
        lines.append(f"\n{recipe}")
        lines.append("  family        none  temp | fl+temp M=1  sd   M=3  M=5 worst | "
                     "fl+iw+temp M=1  sd   M=3  M=5 worst | ess  probe steps")
        means = defaultdict(list)
        for family, ones in families.items():
            row = f"  {family:12s} {_mean(o.none for o in ones):5.2f} {_mean(o.temp for o in ones):5.2f} |"
            for kind in ("fl", "fl_iw"):
                table = [getattr(o, kind) for o in ones]
                for count in (1, 3, 5):
                    value = _mean(_mean(t[count]) for t in table)
                    means[kind, count].append(value)
                    row += f" {value:6.2f}"
                    if count == 1:
                        row += f" {_mean(np.std(t[1]) for t in table):5.2f}"
                worst = max(_mean(t[3]) for t in table)
                means[kind, "worst"].append(worst)
                row += f" {worst:6.2f} |"
            row += f" {_mean(o.ess for o in ones):.2f} {_mean(o.probe for o in ones):.2f}"
            row += f" {_mean(o.steps for o in ones):5.0f}"
            lines.append(row)
        parts = [
            f"{kind} M=1 {_mean(means[kind, 1]):.2f} M=3 {_mean(means[kind, 3]):.2f} "
            f"M=5 {_mean(means[kind, 5]):.2f} worst {max(means[kind, 'worst']):.2f}"
            for kind in ("fl", "fl_iw")
        ]
        both = (_mean(means["fl", 3]) + _mean(means["fl_iw", 3])) / 2
        overall.append((both, f"{both:6.2f}  {recipe:22s} {'; '.join(parts)}"))
    lines.append("\nmean over families, both methods, M=3")
    lines.extend(line for _, line in sorted(overall))
    return "\n".join(lines)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--recipes", nargs="+", choices=list(recipes()), default=list(recipes()))
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tasks = []
        for number, shift in enumerate(shifts(options.data)):
            path = Path(folder) / f"{number}.h5"
            write_features(path, shift)
            tasks += [(path, shift.family, shift.name, recipe) for recipe in options.recipes]
        scores = []
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            for future in [pool.submit(score, *task) for task in tasks]:
                scores.append(future.result())
                one = scores[-1]
                print(
                    f"{one.family} {one.shift}, {one.recipe}: none {one.none:.2f} temp "
                    f"{one.temp:.2f} fl+temp {_mean(one.fl[3]):.2f} fl+iw+temp "
                    f"{_mean(one.fl_iw[3]):.2f} (3 members), steps {one.steps:.0f}",
                    flush=True,
                )
    print(summary(scores))


if __name__ == "__main__":
    main()
