"""Make shifts between recordings of sensors: a watch, a microphone, and electricity meters.

Recordings are cut into windows, and statistics of each window are the inputs of the classifier. A
domain is a group of people, one wrist, a part of the recordings, or a set of recordings.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from choose_adapt_settings import Shift

from benchmark.makers.classifiers import (
    TREES,
    Classifier,
    Maker,
    Part,
    Values,
    classified,
    fixed,
    split_pair,
)
from benchmark.makers.packages import folder_of
from benchmark.makers.unsure import FOREST

_WINDOW = 100  # number of samples in a time window of a smartwatch (two seconds)
_SMALLEST_SCALE = 1e-6


def described(windows: Values) -> Values:
    """Return the mean, deviation, quantiles and spectrum of windows (n, time, channels)."""
    spectrum = np.abs(np.fft.rfft(windows - windows.mean(axis=1, keepdims=True), axis=1))
    parts = [
        windows.mean(axis=1),
        windows.std(axis=1),
        *np.quantile(windows, (0.1, 0.5, 0.9), axis=1),
        np.abs(np.diff(windows, axis=1)).mean(axis=1),
        *(band.mean(axis=1) for band in np.array_split(np.log1p(spectrum), 6, axis=1)),
    ]
    return np.concatenate(parts, axis=1)


def cut_windows(series: Values, length: int) -> Values:
    """Cut a series (time, channels) into windows of equal length, shape (n, length, channels)."""
    count = len(series) // length
    return series[: count * length].reshape(count, length, -1)


def sensor_shift(
    family: str, name: str, domains: tuple[Part, Part], classifier: Classifier
) -> Shift:
    """Return a shift between two sets of time windows, standardised by source statistics."""
    source, target = domains
    mean = source[0].mean(axis=0)
    scale = np.maximum(source[0].std(axis=0), _SMALLEST_SCALE)
    parts = [((inputs - mean) / scale, labels) for inputs, labels in (source, target)]
    return classified(family, name, split_pair(*parts), classifier)


def divided(part: Part) -> tuple[Part, Part]:
    """Divide rows into two random halves."""
    inputs, labels = part
    order = np.random.default_rng(3).permutation(len(labels))
    first, second = np.sort(order[0::2]), np.sort(order[1::2])
    return (inputs[first], labels[first]), (inputs[second], labels[second])


# Recordings of smartwatches on both wrists of 10 people who do 7 shoulder exercises.

_Range = tuple[str, float, float]  # name of a column, lowest value and highest value


@cache
def _watch() -> dict[str, Values]:
    """Return the time windows of smartwatches, with columns y (exercise), subject, side, part."""
    path = folder_of("seglearn") / "data" / "watch_dataset.npy"
    recordings = np.load(path, allow_pickle=True).item()
    columns: dict[str, list[Values]] = {"windows": [], "part": []}
    for number, series in enumerate(recordings["X"]):
        windows = cut_windows(np.asarray(series), _WINDOW)
        columns["windows"].append(windows)
        columns["part"].append(np.arange(len(windows)) / len(windows))
        for name in ("y", "subject", "side"):
            value = int(recordings[name][number])
            columns.setdefault(name, []).append(np.full(len(windows), value))
    return {name: np.concatenate(values) for name, values in columns.items()}


def _selected(where: _Range) -> Part:
    """Return the time windows with a column value in a range, and the exercise of each window."""
    column, low, high = where
    rows = (_watch()[column] >= low) & (_watch()[column] <= high)
    return _watch()["windows"][rows], _watch()["y"][rows]


def _turned(windows: Values, degrees: float) -> Values:
    """Turn the measured axes, as if the watch were turned around the arm."""
    angle = np.deg2rad(degrees)
    turned = windows.copy()
    for axes in ((0, 1), (3, 4)):
        first, second = (windows[..., axis] for axis in axes)
        turned[..., axes[0]] = np.cos(angle) * first - np.sin(angle) * second
        turned[..., axes[1]] = np.sin(angle) * first + np.cos(angle) * second
    return turned


def watch_shift(
    name: str, source: _Range, target: _Range, degrees: float, classifier: Classifier
) -> Shift:
    """Return a shift between two sets of time windows from the smartwatches.

    If `source` and `target` are the same range, its time windows are divided at random.
    """
    if source == target:
        first, second = divided(_selected(source))
    else:
        first, second = _selected(source), _selected(target)
    second = (_turned(second[0], degrees), second[1])
    domains = (described(first[0]), first[1]), (described(second[0]), second[1])
    return sensor_shift("watch", name, domains, classifier)


def watch(data: Path) -> dict[str, Maker]:
    del data
    people, trained = ("subject", 1, 10), ("subject", 1, 5)
    shifts: Sequence[tuple[str, _Range, _Range, float, Classifier]] = (
        ("watch-none", people, people, 0, (64,)),
        ("watch-turned15", people, people, 15, (64,)),
        ("watch-turned60", people, people, 60, FOREST),
        ("watch-people", trained, ("subject", 6, 10), 0, (64,)),
        ("watch-person", ("subject", 1, 8), ("subject", 9, 10), 0, TREES),
        ("watch-wrists", ("side", 0, 0), ("side", 1, 1), 0, (64, 32)),
        ("watch-ends", ("part", 0, 0.49), ("part", 0.7, 1), 0, ()),
    )
    return {name: fixed(watch_shift, name, *shift) for name, *shift in shifts}


# Recordings of 9 speakers, and of household appliances, in the package sktime.


@cache
def _recordings(dataset: str, part: str) -> tuple[list[Values], list[str]]:
    """Read the series (time, channels) and the labels of a data set in sktime."""
    path = folder_of("sktime") / "datasets" / "data" / dataset / f"{dataset}_{part}.ts"
    lines = path.read_text(errors="replace").splitlines()
    first = next(n for n, line in enumerate(lines) if line.lower().startswith("@data"))
    series, labels = [], []
    for line in filter(None, lines[first + 1 :]):
        *channels, label = line.split(":")
        series.append(np.array([channel.split(",") for channel in channels], float).T)
        labels.append(label)
    return series, labels


@cache
def _windows(dataset: str, part: str, length: int) -> tuple[Values, Values, Values]:
    """Return the statistics, the label and the position (0 to 1) of each time window."""
    series, labels = _recordings(dataset, part)
    classes = sorted(set(_recordings(dataset, "TRAIN")[1]))
    inputs, truth, parts = [], [], []
    for recording, label in zip(series, labels, strict=True):
        windows = cut_windows(recording, length)
        if len(windows):
            inputs.append(windows)
            truth.append(np.full(len(windows), classes.index(label)))
            parts.append(np.arange(len(windows)) / len(windows))
    windows = np.concatenate(inputs)
    rows = described(windows) if length > 1 else windows[:, 0]
    return rows, np.concatenate(truth), np.concatenate(parts)


def recording_shift(
    name: str, dataset: str, length: int, kind: str, classifier: Classifier
) -> Shift:
    """Return a shift between two sets of recordings.

    Parameters
    ----------
    kind : {'none', 'recordings', 'ends'}
        With ``none``, the training recordings are divided at random. With ``recordings``, the
        source is the training recordings, and the target is the test recordings. With ``ends``, the
        source is the first half of training recordings, and the target is the end of test
        recordings.
    """
    inputs, labels, parts = _windows(dataset, "TRAIN", length)
    if kind == "none":
        domains = divided((inputs, labels))
    else:
        others, truth, other_parts = _windows(dataset, "TEST", length)
        if kind == "ends":
            early, late = parts < 0.5, other_parts > 0.75
            domains = (inputs[early], labels[early]), (others[late], truth[late])
        else:
            domains = (inputs, labels), (others, truth)
    return sensor_shift("recordings", name, domains, classifier)


def recordings(data: Path) -> dict[str, Maker]:
    del data
    shifts: Sequence[tuple[str, str, int, str, Classifier]] = (
        ("speakers-none", "JapaneseVowels", 1, "none", (64,)),
        ("speakers-recordings", "JapaneseVowels", 1, "recordings", (64,)),
        ("speakers-ends", "JapaneseVowels", 1, "ends", FOREST),
        ("appliances-none", "PLAID", 100, "none", TREES),
        ("appliances-recordings", "PLAID", 100, "recordings", (64,)),
        ("appliances-ends", "PLAID", 100, "ends", ()),
        ("meters-recordings", "ACSF1", 73, "recordings", (64, 32)),
    )
    return {name: fixed(recording_shift, name, *shift) for name, *shift in shifts}
