"""The driver of the paper's experiments: its arithmetic, marks, figures, readers and messages."""

import bz2
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import run
from PIL import Image
from reproduction import driver
from reproduction.datasets import MissingDataError, find_digits
from reproduction.figures import draw_weights, heaviest, shrink
from reproduction.office import find_office, random_split, train_linear_head
from reproduction.shifts import METHODS, PAPER, SHIFTS
from reproduction.table import ranked

from covcal_cli.formats.features import FeatureFile
from covcal_cli.maths.networks import aligned_logits, networks_sha256, read_networks
from tests.classifiers.onnx.onnx_graphs import Graph, node
from tests.real_data import real_data
from tests.short_training import short_training

Array = np.ndarray[Any, Any]
TEMPLATES = np.random.default_rng(5).uniform(40, 215, size=(10, 4, 4))


def made_digits(
    rng: np.random.Generator, n: int, noise: float, light: float
) -> tuple[Array, Array]:
    labels = rng.integers(10, size=n)
    images = TEMPLATES[labels] + rng.normal(size=(n, 4, 4)) * noise + light
    return np.clip(images, 0, 255).astype(np.uint8), labels.astype(np.uint8)


def write_data(folder: Path) -> Path:
    """Write a made MNIST, USPS, MNIST classifier and Office-Caltech10."""
    rng = np.random.default_rng(0)
    for name, sizes, noise, light in (
        ("mnist", (400, 200), 60, 0),
        ("usps", (300, 200), 75, 25),
    ):
        (train_x, train_y), (test_x, test_y) = (made_digits(rng, n, noise, light) for n in sizes)
        np.savez(
            folder / f"{name}.npz", train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y
        )
    (folder / "models").mkdir()
    centres = (TEMPLATES / 255).reshape(10, 16)
    constants = {
        "wk": (20 * centres).astype(np.float32),
        "bk": (-10 * (centres**2).sum(axis=1)).astype(np.float32),
    }
    nodes = [node("Flatten", "x", "phi", axis=1), node("Gemm", "phi wk bk", "y", transB=1)]
    graph = Graph(nodes, constants=constants, shape=("N", 1, 4, 4))
    graph.save(folder / "models", "park2020_lenet_mnist.onnx")
    means = rng.normal(size=(4, 6))
    office: dict[str, Any] = {}
    for number, name in enumerate(("amazon", "dslr", "webcam")):
        labels = np.arange(200) % 4
        rows = means[labels] + rng.normal(size=(200, 6)) + 0.4 * number
        office |= {f"{name}_x": rows.astype(np.float16), f"{name}_y": labels.astype(np.uint8)}
    np.savez(folder / "office_caltech10_efflite0.npz", **office)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("paper-data"))


@pytest.fixture
def briefly() -> Iterator[None]:
    with short_training(10, members=2):
        yield


def arguments(data: Path, output: Path, *more: str) -> list[str]:
    return ["--data", str(data), "--output", str(output), *more]


def confidence_error(adapted: Path, temperature: float) -> float:
    """Return the ECE in % of the aligned forecaster, by the definitions alone."""
    with h5py.File(adapted) as file:
        target = file["target"]
        test = target["split"][:] == 2
        logits = target["aligned_logits"][:][:, test].astype(np.float64)
        predicted, labels = target["logits"][:][test].argmax(axis=1), target["labels"][:][test]
    chances = np.exp(logits - logits.max(axis=2, keepdims=True))
    mixed = np.log((chances / chances.sum(axis=2, keepdims=True)).mean(axis=0)) / temperature
    calibrated = np.exp(mixed - mixed.max(axis=1, keepdims=True))
    calibrated /= calibrated.sum(axis=1, keepdims=True)
    confidence = calibrated[np.arange(len(labels)), predicted]
    edges = np.linspace(0, 1, 16)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, 14)
    gaps = [(confidence - (predicted == labels))[place == b].sum() for b in range(15)]
    return 100 * float(np.abs(gaps).sum()) / len(labels)


@pytest.mark.usefixtures("briefly")
def test_a_made_table_from_end_to_end(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = arguments(made, tmp_path, "--shifts", "M-U", "--seeds", "2")
    monkeypatch.setattr("reproduction.figures.METHODS", METHODS[:1])  # drawing takes longest
    assert run.main(asked) == 0
    printed = capsys.readouterr()
    place = tmp_path / "default"
    assert printed.out == (place / "table.md").read_text("utf-8")

    records = [json.loads((place / f"M-U-seed{seed}.json").read_text("utf-8")) for seed in (0, 1)]
    errors, times = (
        next(line for line in part.splitlines() if line.startswith("| M-U | "))
        for part in printed.out.split("### Running time")
    )
    heads = (*METHODS, "auto")
    cells = dict(zip(heads, errors.split(" | ")[1:], strict=False))
    means = {}
    for method, cell in cells.items():
        if method == "auto":
            used = [record["fits"]["auto"]["method_used"] for record in records]
            assert cell.startswith(used[0])
            cell = cell.partition(": ")[2]
        for metric, text in zip(("ece", "over_ece"), cell.strip("*u<>/").split(" / "), strict=True):
            values = [100 * record["metrics"][method][metric] for record in records]
            mean, *spread = text.split(" ± ")
            assert float(mean) == pytest.approx(np.mean(values), abs=0.0051)
            if spread:
                assert float(spread[0]) == pytest.approx(np.std(values, ddof=1), abs=0.0051)
            else:
                assert len(set(values)) == 1
        means[method] = float(
            np.mean([100 * record["metrics"][method]["ece"] for record in records])
        )
    for method in ("none", "temp"):
        assert "±" not in cells[method]
    for seed, record in enumerate(records):
        for method in ("fl+temp", "fl+iw+temp"):
            expected = confidence_error(
                place / f"M-U-seed{seed}.h5", record["fits"][method]["temperature"]
            )
            assert 100 * record["metrics"][method]["ece"] == pytest.approx(expected, abs=1e-6)
    best, second = ranked({method: means[method] for method in METHODS})
    assert [m for m in METHODS if cells[m].startswith("**")] == best
    assert [m for m in METHODS if cells[m].startswith("<u>")] == second
    assert errors.endswith("| other rows |")
    assert "| M-U, paper | 21.26 / 21.26 | 12.16 / 11.88 | 15.92 ± 1.38 |" in printed.out
    assert all(float(cell.split(" ")[0]) >= 0 for cell in times.split(" | ")[1:-1])
    _check_figures(place / "figures", "M-U")
    table = (place / "table.csv").read_text("utf-8").splitlines()
    assert [one.split(",")[:3] for one in table[1:3]] == [
        ["M-U", "auto", "2"],
        ["M-U", "none", "2"],
    ]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr("covcal_cli.adapt.adapt.adapt", refuse)
    monkeypatch.setattr("covcal_cli.compare.runs.calibrate", refuse)
    monkeypatch.setattr(driver, "draw_reliability", lambda *_, **__: None)
    assert run.main(asked) == 0
    assert capsys.readouterr().out == printed.out


def _check_figures(folder: Path, name: str) -> None:
    with Image.open(folder / f"{name}-reliability.png") as image:
        assert image.width == 900
        assert 300 < image.height < 600  # one method
        colours = np.asarray(image.convert("RGB")).reshape(-1, 3)
    bars = np.abs(colours.astype(int) - (200, 206, 214)).max(axis=1) < 12
    assert 0.01 < bars.mean() < 0.5
    with Image.open(folder / f"{name}-weights.png") as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    medians = np.abs(pixels - (213, 94, 0)).max(axis=2) < 40
    columns = np.flatnonzero(medians.any(axis=0))
    assert 1 + int((np.diff(columns) > 1).sum()) == 15  # one median line per row


def test_exact_cells_need_no_training(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(arguments(made, tmp_path, "--exact-only")) == 0
    printed = capsys.readouterr()
    assert "| shift | none | temp | compared with the paper |" in printed.out
    assert "<u>" not in printed.out.split("| shift")[1]
    lines = printed.out.splitlines()
    shifts = [line.split(" | ")[0].strip("| ") for line in lines if line.startswith("| ")]
    assert shifts[1::2] == ["M-M", "M-U", "A-W", "D-A", "W-A"]
    (line,) = (line for line in lines if line.startswith("| A-W | "))
    assert "stand-in" in line
    assert not list(tmp_path.rglob("*seed0.h5"))
    assert "left out M-S, S-M, S-U: SVHN is not in" in printed.err
    assert "left out U-M: U-M needs the classifier" in printed.err


@pytest.mark.parametrize(
    ("shift", "words"),
    [
        ("M-M", ["MNIST is not in", "train-images-idx3-ubyte", "torchvision.datasets.MNIST"]),
        ("M-U", ["MNIST is not in"]),
        ("S-U", ["SVHN is not in", "test_32x32.mat", "ufldl.stanford.edu/housenumbers"]),
        ("A-W", ["Office-Caltech10 is not in", "--office31-model"]),
    ],
)
def test_missing_data_is_named(
    shift: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert run.main(arguments(tmp_path, output, "--shifts", shift)) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert all(word in printed.err for word in words)


def test_options_that_contradict_each_other_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.parse(arguments(tmp_path, tmp_path, "--weight-decay", "0.1"))
    with pytest.raises(SystemExit, match="2"):
        run.parse(arguments(tmp_path, tmp_path, "--seeds", "0"))
    given = run.parse(arguments(tmp_path, tmp_path, "--preset", "paper", "--weight-decay", "5e-3"))
    assert given.settings.state == "paper-wd0.005"


def test_best_and_second_follow_what_is_shown() -> None:
    means = {"none": 9.0, "temp": 3.001, "iw+temp": 3.004, "fl+temp": 4.0, "fl+iw+temp": 12.5}
    assert ranked(means) == (["temp", "iw+temp"], ["fl+temp"])
    assert ranked({"none": 1.0, "temp": 1.0, "iw+temp": 1.0}) == (["none", "temp", "iw+temp"], [])
    assert ranked({"none": 2.0, "temp": 1.0}) == (["temp"], [])


def test_the_published_table_is_whole() -> None:
    assert set(SHIFTS) - set(PAPER) == {"S-U"}
    assert all(tuple(cells) == METHODS for cells in PAPER.values())
    assert PAPER["U-M"]["fl+iw+temp"].ece == 10.58


def test_the_heaviest_rows_are_those_with_the_largest_mean(tmp_path: Path) -> None:
    weights = np.random.default_rng(1).exponential(size=(4, 40))
    weights[:, 7] += 100
    rows = heaviest(weights)
    assert rows[0] == 7
    assert len(rows) == 15
    assert set(rows) == set(np.argsort(weights.mean(axis=0))[-15:])
    picture = tmp_path / "w.png"
    draw_weights(dict(enumerate(weights)), picture, title="made")
    before = picture.stat().st_size
    shrink(picture)
    assert picture.stat().st_size > 1000
    assert before > 5000


# Readers of the usual files.


def idx(values: Array) -> bytes:
    shape = b"".join(int(size).to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + shape + values.astype(np.uint8).tobytes()


@pytest.mark.parametrize(("joint", "packed"), [("-", ".gz"), ("-", ""), (".", "")])
def test_mnist_from_idx_files(joint: str, packed: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    images, labels = rng.integers(256, size=(18, 5, 5)), rng.integers(10, size=18)
    for part, rows in (("train", slice(0, 12)), ("t10k", slice(12, 18))):
        for name, values in ((f"images{joint}idx3", images), (f"labels{joint}idx1", labels)):
            content = idx(values[rows])
            path = folder / f"{part}-{name}-ubyte{packed}"
            path.write_bytes(gzip.compress(content) if packed else content)
    rows_read = find_digits("mnist", tmp_path)()
    np.testing.assert_array_equal(rows_read.x, images)
    np.testing.assert_array_equal(rows_read.y, labels)
    np.testing.assert_array_equal(rows_read.split, np.repeat([0, 1, 2], [10, 2, 6]))
    assert not rows_read.official


def test_a_damaged_idx_file_is_refused(tmp_path: Path) -> None:
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / f"{part}-ubyte").write_bytes(b"<html>not found</html>")
    with pytest.raises(MissingDataError, match="is not an IDX file"):
        find_digits("mnist", tmp_path)()


def test_usps_from_h5_and_from_libsvm_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    steps = rng.integers(2001, size=(30, 256))
    steps[0, :5] = (0, 400, 800, 1200, 2000)  # whole multiples of 1/255
    labels = rng.integers(10, size=30)
    (tmp_path / "h5").mkdir()
    (tmp_path / "bz2").mkdir()
    with h5py.File(tmp_path / "h5" / "usps.h5", "w") as file:
        for part, rows in (("train", slice(0, 20)), ("test", slice(20, 30))):
            file[f"{part}/data"] = (steps[rows] / 2000).astype(np.float32)
            file[f"{part}/target"] = labels[rows]
    for name, rows in (("usps.bz2", slice(0, 20)), ("usps.t.bz2", slice(20, 30))):
        lines = [
            f"{label + 1} " + " ".join(f"{i}:{v / 1000 - 1:.3f}" for i, v in enumerate(row, 1))
            for label, row in zip(labels[rows], steps[rows], strict=True)
        ]
        (tmp_path / "bz2" / name).write_bytes(bz2.compress("\n".join(lines).encode()))
    for kind in ("h5", "bz2"):
        found = find_digits("usps", tmp_path / kind)()
        assert found.x.shape == (30, 16, 16)
        np.testing.assert_array_equal(found.x.reshape(30, 256), steps * 255 // 2000)
        np.testing.assert_array_equal(found.y, labels)
        np.testing.assert_array_equal(found.split, np.repeat([0, 1, 2], [17, 3, 10]))


def test_svhn_from_mat_files(tmp_path: Path) -> None:
    from scipy.io import savemat

    rng = np.random.default_rng(4)
    images, labels = rng.integers(256, size=(60, 4, 4, 3)), rng.integers(10, size=60)
    for part, rows in (("train", slice(0, 40)), ("test", slice(40, 60))):
        numbers = np.where(labels[rows] == 0, 10, labels[rows])[:, None]
        pixels = np.moveaxis(images[rows], 0, 3).astype(np.uint8)
        savemat(tmp_path / f"{part}_32x32.mat", {"X": pixels, "y": numbers})
    found = find_digits("svhn", tmp_path)()
    np.testing.assert_array_equal(found.x, images)
    np.testing.assert_array_equal(found.y, labels)
    np.testing.assert_array_equal(found.split, np.repeat([0, 1, 2], [34, 6, 20]))
    unseen = find_digits("svhn-unseen", tmp_path)()
    np.testing.assert_array_equal(unseen.x, images[40:])
    np.testing.assert_array_equal(unseen.split, np.repeat([0, 1, 2], [12, 3, 5]))


def test_office31_from_folders(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    for number, kind in enumerate(("bike", "mug", "phone")):
        folder = tmp_path / "office31" / "webcam" / "images" / kind
        folder.mkdir(parents=True)
        for image in range(8):
            pixels = rng.integers(40, size=(20, 30, 3))
            pixels[..., number] += 200
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"frame_{image}.jpg")
    constants = {
        "wk": np.eye(5, 3, dtype=np.float32),
        "bk": np.zeros(5, np.float32),
    }
    nodes = [
        node("GlobalAveragePool", "x", "pooled"),
        node("Flatten", "pooled", "phi", axis=1),
        node("Gemm", "phi wk bk", "y", transB=1),
    ]
    model = Graph(nodes, constants=constants, shape=("N", 3, 224, 224)).save(tmp_path)
    rows = find_office("webcam", tmp_path, model, tmp_path)()
    assert rows.x.shape == (24, 3)
    np.testing.assert_array_equal(rows.y, np.repeat([0, 1, 2], 8))
    np.testing.assert_array_equal(rows.x.argmax(axis=1), rows.y)  # the brightest colour
    assert not rows.official
    with pytest.raises(MissingDataError, match="Office31 lacks the folder dslr"):
        find_office("dslr", tmp_path, model, tmp_path)
    with pytest.raises(MissingDataError, match="Office31 lacks the model"):
        find_office("webcam", tmp_path, tmp_path / "gone.onnx", tmp_path)


def test_splits_of_office_domains_are_random_and_stay(made: Path, tmp_path: Path) -> None:
    first, again = random_split(295, "webcam"), random_split(295, "webcam")
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(np.bincount(first), [206, 44, 45])
    assert not np.array_equal(first, random_split(295, "dslr"))
    rows = find_office("amazon", made, None, tmp_path)()
    only_three = replace(rows, y=np.where(rows.split == 0, 0, rows.y))
    with pytest.raises(MissingDataError, match="no training row of class 1"):
        train_linear_head(only_three, tmp_path / "head.onnx")


@pytest.mark.real
def test_exact_cells_of_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = real_data("mnist.npz").parent
    real_data("usps.npz")
    asked = arguments(data, tmp_path, "--exact-only", "--shifts", "M-U")
    assert run.main(asked) == 0
    out = capsys.readouterr().out
    assert "21.26 / 21.26 | **12.15 / 11.88** | one to one" in out


@pytest.mark.usefixtures("briefly")
def test_a_batch_of_seeds_leaves_a_whole_adapted_file_for_each(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file's networks give its own logits, and the seeds are different members."""
    for name in ("draw_weights", "draw_reliability"):
        monkeypatch.setattr(driver, name, lambda *_, **__: None)  # the test above looks at pictures
    asked = arguments(made, tmp_path, "--shifts", "M-U", "--seeds", "2")
    assert run.main([*asked, "--batched"]) == 0
    place = tmp_path / "batched" / "default-1members"
    stored = []
    for path in sorted(place.glob("*.h5")):
        with FeatureFile(path) as file, FeatureFile(tmp_path / "features" / "M-U.h5") as features:
            rows = file.require_target().rows("test")
            networks = read_networks(file.handle["networks"])
            assert file.attributes["networks_sha256"] == networks_sha256(networks)
            phi = features.require_target().features(rows)
            stored.append(file.require_target().aligned_logits(rows))
            np.testing.assert_allclose(
                stored[-1], aligned_logits(networks, phi), rtol=1e-4, atol=1e-4
            )
    assert [len(logits) for logits in stored] == [1, 1]
    assert np.abs(stored[0] - stored[1]).max() > 0.1
    records = [json.loads(path.read_text("utf-8")) for path in sorted(place.glob("*.json"))]
    first, second = (record["metrics"]["fl+temp"]["ece"] for record in records)
    assert first != second
    assert not any("align" in record["seconds"] for record in records)  # none was adapted alone
