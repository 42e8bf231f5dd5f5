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
from reproduction import driver, experiment
from reproduction.datasets import MissingDataError, find_digits
from reproduction.features import Extracted
from reproduction.figures import draw_weights, heaviest, shrink
from reproduction.office import find_office, random_split, train_linear_head
from reproduction.shifts import METHODS, PAPER, SHIFTS
from reproduction.summary import over_seeds, ranked
from reproduction.table import markdown

from covcal_cli.adapt import settings
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
        ("mnist", (900, 300), 60, 0),
        ("usps", (700, 300), 75, 25),
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
    with short_training(60, members=2):
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
    assert run.main([*asked, "--keep"]) == 0
    printed = capsys.readouterr()
    place = tmp_path / "default"
    assert printed.out == (place / "table.md").read_text("utf-8")
    assert "[2/2]" in printed.err

    table = json.loads((place / "table.json").read_text("utf-8"))
    assert list(table["shifts"]) == ["M-U"]
    for name, entry in table["shifts"].items():
        records = [
            json.loads((place / "records" / f"{name}-seed{seed}.json").read_text("utf-8"))
            for seed in (0, 1)
        ]
        for method in METHODS:
            cell = entry["methods"][method]
            for metric in ("ece", "over_ece"):
                values = [100 * record["methods"][method][metric] for record in records]
                assert cell[metric]["mean"] == pytest.approx(np.mean(values), abs=1e-9)
                if method in ("none", "temp"):
                    assert len(set(values)) == 1
                    assert cell[metric]["sd"] is None
                else:
                    assert cell[metric]["values"] == pytest.approx(values)
                    assert cell[metric]["sd"] == pytest.approx(np.std(values, ddof=1))
        for seed, record in enumerate(records):
            (adapted,) = (place / "adapted").glob(f"{name}-seed{seed}-*.h5")
            for method in ("fl+temp", "fl+iw+temp"):
                found = record["methods"][method]
                expected = confidence_error(adapted, found["temperature"])
                assert 100 * found["ece"] == pytest.approx(expected, abs=1e-6)
            used = record["auto"]["method_used"]
            if used in METHODS:
                assert record["auto"]["ece"] == record["methods"][used]["ece"]
        means = {method: entry["methods"][method]["ece"]["mean"] for method in METHODS}
        levels = sorted({round(mean, 2) for mean in means.values()})
        assert entry["best"] == [m for m in METHODS if round(means[m], 2) == levels[0]]
        assert entry["second"] == [m for m in METHODS if round(means[m], 2) == levels[1]]
        assert sum(entry["auto"]["chosen"].values()) == 2
        seconds = entry["seconds"]
        assert 0 < seconds["alignment"]["wall"] < 60
        assert set(seconds["temperatures"]) == set(METHODS[1:])
        _check_figures(place / "figures", name)
    assert table["shifts"]["M-U"]["comparable"] == "other rows"
    assert "| M-U, paper | 21.26 / 21.26 | 12.16 / 11.88 | 15.92 ± 1.38 |" in printed.out

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr(experiment, "adapt", refuse)
    assert run.main(asked) == 0
    assert capsys.readouterr().out == printed.out


def _check_figures(folder: Path, name: str) -> None:
    with Image.open(folder / f"{name}-reliability.png") as image:
        assert image.width == 900
        assert image.height > 1500  # five methods
        colours = np.asarray(image.convert("RGB")).reshape(-1, 3)
    bars = np.abs(colours.astype(int) - (200, 206, 214)).max(axis=1) < 12
    assert 0.01 < bars.mean() < 0.5
    with Image.open(folder / f"{name}-weights.png") as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    medians = np.abs(pixels - (213, 94, 0)).max(axis=2) < 40
    columns = np.flatnonzero(medians.any(axis=0))
    assert 1 + int((np.diff(columns) > 1).sum()) == 15  # one median line per row


def test_another_setting_is_another_run(small_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("source", "target", "classifier", "other rows")
    made = Extracted(SHIFTS["M-U"], small_files / "features.h5", "0" * 64, *words)

    def setting(
        extracted: Extracted = made,
        preset: str = "default",
        decay: float | None = None,
        seed: int = 0,
    ) -> str:
        found = experiment.setting_of(extracted, experiment.Preset(preset, decay), seed)
        return json.dumps(found, sort_keys=True)

    first = setting()
    assert setting() == first
    others = {
        setting(seed=1),
        setting(preset="paper"),
        setting(preset="paper", decay=5e-3),
        setting(replace(made, sha256="1" * 64)),
    }
    changed = replace(settings.default_settings(), members=1)
    monkeypatch.setattr(settings, "default_settings", lambda: changed)
    others.add(setting())
    monkeypatch.setattr(experiment, "CODE_SHA256", "other code")
    others.add(setting())
    assert len(others - {first}) == 6


def test_exact_cells_need_no_training(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(arguments(made, tmp_path, "--exact-only")) == 0
    printed = capsys.readouterr()
    assert "| shift | none | temp | beside the paper's |" in printed.out
    assert "<u>" not in printed.out.split("| shift")[1]
    table = json.loads((tmp_path / "default" / "exact.json").read_text("utf-8"))
    assert set(table["shifts"]) == {"M-M", "M-U", "A-W", "D-A", "W-A"}
    assert "stand-in" in table["shifts"]["A-W"]["comparable"]
    assert "left out M-S, S-M, S-U: SVHN is not in" in printed.err
    assert "left out U-M: U-M wants the classifier" in printed.err


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
    assert given.preset.tag == "paper-wd0.005"


def test_best_and_second_follow_what_is_shown() -> None:
    means = {"none": 9.0, "temp": 3.001, "iw+temp": 3.004, "fl+temp": 4.0, "fl+iw+temp": 12.5}
    assert ranked(means) == (["temp", "iw+temp"], ["fl+temp"])
    assert ranked({"none": 1.0, "temp": 1.0, "iw+temp": 1.0}) == (["none", "temp", "iw+temp"], [])
    assert ranked({"none": 2.0, "temp": 1.0}) == (["temp"], [])
    assert over_seeds([1.0, 3.0]) == {"mean": 2.0, "sd": pytest.approx(2**0.5), "values": [1, 3]}
    assert over_seeds([4.0])["sd"] is None


def test_marks_stand_at_best_and_second_in_the_table() -> None:
    values = dict(zip(METHODS, (5.0, 4.0, 3.0, 2.0, 1.0), strict=True))
    best, second = ranked(values)
    entry = {
        "methods": {
            name: {"ece": over_seeds([v]), "over_ece": over_seeds([v / 2]), "paper": None}
            for name, v in values.items()
        },
        "best": best,
        "second": second,
        "auto": None,
        "comparable": "one to one",
        "seeds": [],
        "source": "a",
        "target": "b",
        "classifier": "c",
        "accuracy": 50.0,
        "n_test": 10,
        "overlap": None,
        "none_on_all_rows": {"n": 30, "ece": 7.0, "over_ece": 6.5},
    }
    text = markdown({"preset": "default", "weight_decay": None, "shifts": {"X-Y": entry}})
    assert "| 3.00 / 1.50 | <u>2.00 / 1.00</u> | **1.00 / 0.50** | one to one |" in text
    assert "none on all 30 rows 7.00 / 6.50" in text


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
    with pytest.raises(MissingDataError, match="is no IDX file"):
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
    for part, name in (
        (driver, "draw_weights"),
        (experiment, "draw_diagram"),
        (experiment, "shrink"),
    ):
        monkeypatch.setattr(part, name, lambda *_, **__: None)  # the test above looks at pictures
    asked = arguments(made, tmp_path, "--shifts", "M-U", "--seeds", "2")
    assert run.main([*asked, "--batched", "--keep"]) == 0
    place = tmp_path / "default-batched"
    stored = []
    for path in sorted((place / "adapted").glob("*.h5")):
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
    entry = json.loads((place / "table.json").read_text("utf-8"))["shifts"]["M-U"]
    assert entry["methods"]["fl+temp"]["ece"]["sd"] > 0
