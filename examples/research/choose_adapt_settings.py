"""Compare settings of ``covcal adapt`` on many shifts, to choose the default setting.

    python examples/research/choose_adapt_settings.py [--data DIR]
        [--recipes default plain] [--jobs 2]

A recipe is a named combination of settings. For every recipe and shift, the script trains an
ensemble of five networks (members). Results are shown for ensembles of 1, 3 and 5 members. A recipe
is scored by its ECE (15 bins, in %) on target test rows, as the mean of the methods ``fl+temp`` and
``fl+iw+temp``. Every family of shifts has the same weight. The paper's digit shifts are not used,
so no setting is chosen on them.

``--members 3 --shifts "moved 2.5" noise rotation S-U amazon-webcam caltech-webcam books-kitchen
dvd-electronics`` prints the next table. The run takes an hour on two cores.

ECE in %, with three members in the ensemble:

| settings                      | fl+temp | fl+iw+temp |
| default                       |    7.73 |       7.07 |
| two layers, linear output     |    9.32 |       8.72 |
| two layers, always 300 steps  |    8.42 |       8.01 |
| two layers, squared losses    |    9.24 |       9.57 |
| two layers, stop at 10 % ESS  |    9.46 |       8.98 |
| plain AdamW on components     |    9.56 |       8.23 |
| plain AdamW on raw features   |   10.00 |      12.95 |
| two layers, no reversal       |   13.03 |      14.18 |

Afterwards, the default settings were tested on nine other shifts:

| members                       | fl+temp | fl+iw+temp |
| 1                             |    7.15 |       8.31 |
| 3                             |    6.96 |       7.48 |
| 5                             |    6.76 |       7.03 |
| 5, without alignment          |    7.38 |       8.72 |

The families ``made`` and ``corruptions`` (scikit-learn's digits) need no data files. ``svhn-usps``,
``office`` and ``reviews`` are read from DIR (svhn.npz, usps.npz, models/svhnnet.onnx,
office_caltech10_efflite0.npz, amazon_reviews_5000.npz).
"""

import argparse
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage, sparse
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from covcal_cli.adapt.settings import Schedule, Settings, default_settings
from covcal_cli.adapt.training import train
from covcal_cli.adapt.training_rows import read_rows
from covcal_cli.evaluate.bins import GroupBins, bin_edges, confidence_block
from covcal_cli.formats.features import FEATURES_SCHEMA, FeatureFile
from covcal_cli.formats.writer import HDF5Writer, utf8
from covcal_cli.labels.target_labels import target_labels
from covcal_cli.maths.networks import aligned_domain_logits, aligned_logits
from covcal_cli.maths.softmax import log_mean_softmax
from covcal_cli.maths.temperature import fit_temperature
from covcal_cli.maths.weights import importance_weights
from covcal_cli.progress import silent

Values = NDArray[Any]
COUNTS = (1, 3, 5)


def recipes(members: int) -> dict[str, Settings]:
    """Return the default settings, plain adversarial training, and settings between both."""
    default = replace(default_settings(), members=members)
    two_layers = replace(default, psi_widths=(64, 64), psi_output_relu=False)
    plain = replace(
        two_layers,
        penalty=0.0,
        averaging=0.0,
        stop_ess=None,
        discriminator_speed=1.0,
        schedule=Schedule("adamw", 1e-3, 0.01, batch=128, epochs=20),
    )
    unaligned = replace(two_layers, reversal_horizon=10**12, stop_ess=None, **_steps(600))
    return {
        "default": default,
        "two layers": two_layers,
        "two layers, 300 steps": replace(two_layers, stop_ess=None, **_steps(300)),
        "two layers, squared": replace(two_layers, loss="squared"),
        "two layers, stop at 10 % ESS": replace(two_layers, stop_ess=0.1),
        "plain, components": plain,
        "plain": replace(plain, components=None),
        "no reversal": unaligned,
        "300 steps": replace(default, stop_ess=None, **_steps(300)),
        "penalty 3": replace(default, penalty=3.0),
        "128 components": replace(default, components=128),
        "dropout": replace(default, dropout=0.5),
        "squared": replace(default, loss="squared"),
    }


def _steps(steps: int) -> dict[str, Any]:
    return {"schedule": replace(default_settings().schedule, steps=steps)}


@dataclass(frozen=True)
class Side:
    """One domain of a shift: features (n, d), logits (n, K), labels (n,) and split (n,)."""

    features: Values | None  # None if there are only logits
    logits: Values
    labels: Values
    split: Values


@dataclass(frozen=True)
class Shift:
    """Source and target of a data shift, with the outputs of one classifier."""

    family: str
    name: str
    source: Side
    target: Side


def made_shift(name: str, *, move: float = 0.0, tilt: float = 0.0) -> Shift:
    """Return a simulated shift with ten classes, 84 inputs and 24 informative directions.

    Parameters
    ----------
    move : float
        Distance by which the target is moved along eight uninformative directions.
    tilt : float
        Strength of a covariate shift: rows are kept with a probability that depends on x alone.
    """
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(10, 24)) * 0.8
    mixing = rng.normal(size=(32, 84)) / np.sqrt(32)
    sides = []
    for sign in (-1, 1):
        labels = rng.integers(10, size=20_000)
        latent = np.hstack([centres[labels], np.zeros((20_000, 8))])
        latent += rng.normal(size=latent.shape)
        chance = 1 / (1 + np.exp(-sign * tilt * latent[:, :4].sum(axis=1)))
        kept = np.flatnonzero(rng.random(20_000) < chance * 0.6)[:5000]
        latent, labels = latent[kept], labels[kept]
        latent[:, 24:] += move if sign == 1 else 0.0
        sides.append((np.maximum(latent @ mixing, 0), labels))
    splits = [_split(len(labels), seed) for seed, (_, labels) in enumerate(sides, start=1)]
    return _from_network("made", name, sides, splits, (84,))


def corruption_shift(name: str) -> Shift:
    """Return a shift from clean to corrupted handwritten digits of 8 x 8 pixels."""
    pixels, labels = load_digits(return_X_y=True)
    images = pixels.reshape(-1, 8, 8) / 16.0
    rng = np.random.default_rng(3)
    corrupt: dict[str, Callable[[], Values]] = {
        "noise": lambda: np.clip(images + rng.normal(size=images.shape) * 0.35, 0, 1),
        "rotation": lambda: ndimage.rotate(images, 30, axes=(1, 2), reshape=False, order=1),
        "blur": lambda: ndimage.gaussian_filter(images, (0, 0.9, 0.9)),
        "contrast": lambda: 0.3 + 0.35 * images,
    }
    sides = [(part.reshape(-1, 64), labels) for part in (images, corrupt[name]())]
    return _from_network("corruptions", name, sides, [_split(len(labels), 5)] * 2, (64, 32))


def svhn_usps(data: Path) -> Shift:
    """Return the shift from SVHN to USPS, with a published classifier for SVHN."""
    import onnxruntime
    from PIL import Image

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(data / "models" / "svhnnet.onnx"), options)

    def side(images: Values, labels: Values, split: Values) -> Side:
        outputs = []
        for block in np.array_split(images, -(-len(images) // 256)):
            pixels = np.moveaxis(block, 3, 1).astype(np.float32) / 255
            outputs.append(session.run(["features", "logits"], {"image": pixels}))
        features, logits = (np.concatenate(parts) for parts in zip(*outputs, strict=True))
        return Side(features, logits, labels.astype(np.int64), split.astype(np.uint8))

    svhn, usps = np.load(data / "svhn.npz"), np.load(data / "usps.npz")
    small = np.concatenate([usps["train_x"], usps["test_x"]])
    large = np.stack(
        [
            np.array(Image.fromarray(one).resize((32, 32), Image.Resampling.BILINEAR))
            for one in small
        ]
    )
    target = side(
        np.repeat(large[..., None], 3, axis=3),
        np.concatenate([usps["train_y"], usps["test_y"]]),
        np.repeat([0, 1, 2], [6198, 1093, 2007]),
    )
    return Shift("svhn-usps", "S-U", side(svhn["x"], svhn["y"], svhn["split"]), target)


def office_shift(data: Path, pair: str) -> Shift:
    """Return a shift between two domains of Office-Caltech10, as features of EfficientNet."""
    arrays = np.load(data / "office_caltech10_efflite0.npz")
    sides = [(arrays[f"{n}_x"].astype(np.float64), arrays[f"{n}_y"]) for n in pair.split("-")]
    splits = [_split(len(labels), seed) for seed, (_, labels) in enumerate(sides)]
    return _from_network("office", pair, sides, splits, ())


def review_shift(data: Path, pair: str) -> Shift:
    """Return a shift between two kinds of Amazon reviews, as word counts."""
    arrays = np.load(data / "amazon_reviews_5000.npz")
    sides, splits = [], []
    for name in pair.split("-"):
        counts, labels = [], []
        for part in ("train", "test"):
            values, columns, starts, truth = (
                arrays[f"{name}_{part}_{key}"] for key in ("data", "indices", "indptr", "y")
            )
            shape = (len(truth), 5000)
            counts.append(sparse.csr_matrix((np.log1p(values), columns, starts), shape=shape))
            labels.append(truth)
        sides.append((sparse.vstack(counts).tocsr(), np.concatenate(labels)))
        sizes = len(labels[0]), 1000, len(labels[1]) - 1000
        splits.append(np.repeat([0, 1, 2], sizes).astype(np.uint8))
    return _from_network("reviews", pair, sides, splits, (64,))


def _split(n: int, seed: int) -> Values:
    return np.random.default_rng(seed).choice(3, size=n, p=[0.6, 0.2, 0.2]).astype(np.uint8)


def _from_network(
    family: str,
    name: str,
    sides: Sequence[tuple[Any, Values]],
    splits: Sequence[Values],
    hidden: tuple[int, ...],
) -> Shift:
    """Train a network on source training rows. The last hidden layer gives the features."""
    inputs, labels = sides[0]
    known, labels_of = np.unique(labels, return_inverse=True)
    train_rows = np.flatnonzero(splits[0] == 0)
    if hidden:
        network = MLPClassifier(hidden, random_state=0, max_iter=60)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(inputs[train_rows], labels_of[train_rows])
        layers = list(zip(network.coefs_, network.intercepts_, strict=True))
    else:
        linear = LogisticRegression(C=1.0, max_iter=300)
        scale = inputs.std()
        linear.fit(inputs[train_rows] / scale, labels_of[train_rows])
        layers = [(linear.coef_.T / scale, linear.intercept_)]

    def side(rows: Any, truth: Values, split: Values) -> Side:
        for weight, bias in layers[:-1]:
            rows = np.maximum(rows @ weight + bias, 0)
        logits = rows @ layers[-1][0] + layers[-1][1]
        if logits.shape[1] == 1:
            logits = np.hstack([np.zeros_like(logits), logits])
        return Side(
            np.asarray(rows, np.float32),
            np.asarray(logits, np.float32),
            np.searchsorted(known, truth),
            split,
        )

    return Shift(
        family, name, *(side(x, y, split) for (x, y), split in zip(sides, splits, strict=True))
    )


def write_features(path: Path, shift: Shift) -> None:
    names = [str(number) for number in range(shift.source.logits.shape[1])]
    with HDF5Writer(path, schema=FEATURES_SCHEMA, classes=names, attributes={}) as writer:
        for domain, side in (("source", shift.source), ("target", shift.target)):
            if side.features is not None:
                writer.write(f"{domain}/features", side.features)
            writer.write(f"{domain}/logits", side.logits)
            writer.write(f"{domain}/labels", side.labels.astype(np.int64))
            writer.write(f"{domain}/split", side.split)
            writer.write(f"{domain}/ids", utf8([str(row) for row in range(len(side.labels))]))
        writer.complete()


@dataclass(frozen=True)
class Scores:
    """ECEs (in %) of a recipe on one shift. Lists have a value for each ensemble."""

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


def score(path: Path, family: str, name: str, recipe: str, members: int) -> Scores:
    """Run ``covcal adapt`` with a recipe, and measure the ECE of fl+temp and fl+iw+temp."""
    torch.set_num_threads(1)
    settings = recipes(members)[recipe]
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
            for domain, split in ((source, "validation"), (target, "validation"), (target, "test"))
        )
        labels, truth = source.labels(held), target_labels(target, test)
        logits = [
            aligned_logits(networks, d.features(r)) for d, r in ((source, held), (target, test))
        ]
        domain_logits = [
            aligned_domain_logits(networks, d.features(r))
            for d, r in ((source, held), (target, unseen))
        ]
        original = target.logits(test)
        chosen = original.argmax(axis=1)
        fl: dict[int, list[float]] = defaultdict(list)
        fl_iw: dict[int, list[float]] = defaultdict(list)
        for count in COUNTS:
            for group in combinations(members, count):
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


def combinations(members: int, count: int) -> list[list[int]]:
    """Return all groups of `count` consecutive members, in circular order."""
    if count > members:
        return []
    starts = range(members if count < members else 1)
    return [[(start + step) % members for step in range(count)] for start in starts]


def _ece(
    fitted: Values,
    labels: Values,
    weights: Values | None,
    tested: Values,
    chosen: Values,
    truth: Values,
) -> float:
    errors = int((fitted.argmax(axis=1) != labels).sum())
    fit = fit_temperature(fitted, labels, weights, allow_sharpening=errors >= 5)
    return _ece_at(tested, fit.temperature, chosen, truth)


def _ece_at(logits: Values, temperature: float, chosen: Values, truth: Values) -> float:
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    chances = np.exp(scaled)
    chances /= chances.sum(axis=1, keepdims=True)
    confidence = chances[np.arange(len(chosen)), chosen]
    bins = GroupBins(15)
    bins.add(confidence_block(confidence, chosen == truth, bin_edges(15)))
    return 100 * bins.together().ece()


def shifts(data: Path | None) -> dict[str, Callable[[], Shift]]:
    """Return the functions that make the shifts whose data files exist, by name."""
    found: dict[str, Callable[[], Shift]] = {
        "moved 0.7": partial(made_shift, "moved 0.7", move=0.7),
        "moved 2.5": partial(made_shift, "moved 2.5", move=2.5),
        "tilted": partial(made_shift, "tilted", tilt=1.0),
    }
    for name in ("noise", "rotation", "blur", "contrast"):
        found[name] = partial(corruption_shift, name)
    if data is None:
        return found
    found["S-U"] = partial(svhn_usps, data)
    for pair in ("amazon-webcam", "webcam-amazon", "caltech-webcam", "amazon-caltech"):
        found[pair] = partial(office_shift, data, pair)
    for pair in ("books-kitchen", "kitchen-dvd", "dvd-electronics", "electronics-books"):
        found[pair] = partial(review_shift, data, pair)
    return found


def summary(scores: Iterable[Scores]) -> str:
    """Return the table of results by recipe and family, and a ranking of the recipes.

    ``sd`` is the standard deviation over members, and ``worst`` is the highest ECE of a shift.
    Ensembles have three members, if at least three were trained.
    """
    by_recipe: dict[str, dict[str, list[Scores]]] = defaultdict(lambda: defaultdict(list))
    for one in scores:
        by_recipe[one.recipe][one.family].append(one)
    lines, overall = [], []
    for recipe, families in by_recipe.items():
        columns = "".join(f"   M={count}" for count in COUNTS) + "     sd  worst"
        lines.append(f"\n{recipe}\n{'':12} none   temp |{columns} |{columns} |  ess probe steps")
        blocks = []
        for family, ones in families.items():
            block = [*_columns([one.fl for one in ones]), *_columns([one.fl_iw for one in ones])]
            blocks.append(block)
            numbers = [f"{value:6.2f}" for value in block]
            before = (
                f"{_mean(one.none for one in ones):6.2f} {_mean(one.temp for one in ones):6.2f}"
            )
            after = (
                f"{_mean(one.ess for one in ones):.2f} {_mean(one.probe for one in ones):5.2f} "
                f"{_mean(one.steps for one in ones):5.0f}"
            )
            methods = f"{' '.join(numbers[:5])} | {' '.join(numbers[5:])}"
            lines.append(f"{family:11s}{before} | {methods} | {after}")
        means = np.mean(blocks, axis=0)
        shown = 1 if np.isfinite(means[1]) else 0
        both = (means[shown] + means[5 + shown]) / 2
        fl, fl_iw = ([f"{value:6.2f}" for value in part] for part in (means[:5], means[5:]))
        overall.append((both, f"{both:5.2f} | {' '.join(fl)} | {' '.join(fl_iw)} | {recipe}"))
    lines.append("\nMean ECE over families: mean of both methods | fl+temp | fl+iw+temp | recipe")
    return "\n".join(lines + [line for _, line in sorted(overall)])


def _columns(tables: list[dict[int, list[float]]]) -> list[float]:
    """Return mean ECEs by ensemble size, the deviation over members, and the highest ECE."""
    means = [
        _mean(_mean(table[count]) for table in tables) if tables[0].get(count) else float("nan")
        for count in COUNTS
    ]
    compared = 3 if tables[0].get(3) else 1
    spread = _mean(float(np.std(table[1])) for table in tables)
    return [*means, spread, max(_mean(table[compared]) for table in tables)]


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--recipes", nargs="+", choices=list(recipes(1)), default=list(recipes(1)))
    parser.add_argument("--shifts", nargs="+", help="names of the shifts; default: all")
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tasks = []
        for name, make in shifts(options.data).items():
            if options.shifts and name not in options.shifts:
                continue
            path, shift = Path(folder) / f"{name}.h5", make()
            write_features(path, shift)
            tasks += [
                (path, shift.family, shift.name, recipe, options.members)
                for recipe in options.recipes
            ]
        scores = []
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            for future in [pool.submit(score, *task) for task in tasks]:
                scores.append(future.result())
                one = scores[-1]
                print(
                    f"Shift {one.family} {one.shift} with the settings {one.recipe}: the ECE is "
                    f"{one.none:.2f} by none, {one.temp:.2f} by temp, {_mean(one.fl[1]):.2f} by "
                    f"fl+temp, and {_mean(one.fl_iw[1]):.2f} by fl+iw+temp, with one network. The "
                    f"networks were trained for {one.steps:.0f} steps on average",
                    flush=True,
                )
    print(summary(scores))


if __name__ == "__main__":
    main()
