"""``covcal apply``: what stands in its files, against SciPy, brute force and ``evaluate``."""

import csv
import io
import json
import os
import re
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.special import softmax

from covcal_cli.apply import apply as apply_module
from covcal_cli.apply import writers
from covcal_cli.apply.apply import ApplySettings, apply
from covcal_cli.arrays import Floats, Labels
from covcal_cli.formats.calibration import read_calibration
from covcal_cli.formats.features import FeatureFile
from covcal_cli.formats.writer import utf8
from covcal_cli.records import write_document
from tests.calibrating import calibrated
from tests.cli_runner import covcal
from tests.forked import Forked
from tests.made_files import Arrays, edited, made_domain, write_adapted, write_features

ENDINGS = ("csv", "parquet", "npz", "h5")


@dataclass
class Table:
    """What a file of calibrated rows holds, whatever its format."""

    ids: list[str]
    labels: list[str]
    index: Labels
    confidence: Floats
    probabilities: Floats
    columns: list[str]


def read_csv(text: str) -> Table:
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    numbers = np.array([row[3:] for row in rows], dtype=np.float64).astype(np.float32)
    return Table(
        [row[0] for row in rows],
        [row[1] for row in rows],
        np.array([int(row[2]) for row in rows]),
        numbers[:, 0],
        numbers[:, 1:],
        header,
    )


def read(path: Path) -> Table:
    if path.suffix == ".csv":
        return read_csv(path.read_bytes().decode("utf-8"))
    if path.suffix == ".parquet":
        table = import_module("pyarrow.parquet").read_table(path)
        columns = [column.to_pylist() for column in table.itercolumns()]
        numbers = np.array(columns[3:], dtype=np.float32)
        index = np.array(columns[2])
        return Table(columns[0], columns[1], index, numbers[0], numbers[1:].T, table.column_names)
    if path.suffix == ".npz":
        with np.load(path) as archive:
            held = {name: archive[name] for name in archive.files}
        classes = held["classes"].tolist()
    else:
        with h5py.File(path) as file:
            held = {name: file[name][()] for name in file}
        held["id"] = np.char.decode(held["id"], "utf-8")
        classes = np.char.decode(held["classes"], "utf-8").tolist()
    index = held["label_index"]
    empty = np.empty((len(index), 0), dtype=np.float32)
    return Table(
        held["id"].tolist(),
        [classes[label] for label in index],
        index,
        held["confidence"],
        held.get("probabilities", empty),
        sorted(held),
    )


def logits_of(path: Path, domain: str = "target", name: str = "logits") -> Floats:
    with h5py.File(path) as file:
        values: Floats = file[domain][name][()].astype(np.float64)
    return values


def temperature(path: Path) -> float:
    return read_calibration(path).forecaster_temperature


def uncalibrated(file: Path, scale: float = 1.0) -> Path:
    """Write cal.json of method none beside `file`, with another temperature."""
    return calibrated(file, "none", forecaster=scale)


@pytest.fixture(scope="module")
def fl_files(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """adapted.h5 with real networks, cal.json by fl+temp, and new.h5: target features alone."""
    folder = tmp_path_factory.mktemp("fl")
    for name in ("adapted.h5", "features.h5"):
        shutil.copy(trained.with_name(name), folder)
    arguments = ("adapted.h5", "--method", "fl+temp", "-o", "cal.json")
    covcal("calibrate", *arguments, cwd=folder).require_success()
    (folder / "features.h5").rename(folder / "new.h5")
    with edited(folder / "new.h5") as file:
        del file["source"]
    return folder


@pytest.fixture
def fl_folder(fl_files: Path, tmp_path: Path) -> Path:
    """A copy of these files that a test may change."""
    return Path(shutil.copytree(fl_files, tmp_path, dirs_exist_ok=True))


class TestNumbers:
    def test_probabilities_are_a_softmax_of_scaled_logits(
        self, small_files: Path, tmp_path: Path
    ) -> None:
        """Every row has SciPy's softmax(z / T); the confidence is for the classifier's label."""
        arguments = ("-c", small_files / "temp.json", "-o", tmp_path / "p.csv")
        covcal("apply", small_files / "features.h5", *arguments).require_success()
        found = read(tmp_path / "p.csv")
        logits = logits_of(small_files / "features.h5")
        expected = softmax(logits / temperature(small_files / "temp.json"), axis=1)
        with FeatureFile(small_files / "features.h5") as file:
            classes = file.classes
        assert found.columns == ["id", "label", "label_index", "confidence"] + [
            f"prob_{name}" for name in classes
        ]
        assert found.ids == [f"target/{row}.png" for row in range(len(logits))]
        assert found.probabilities == pytest.approx(expected, rel=1e-5, abs=1e-7)
        assert found.index.tolist() == logits.argmax(axis=1).tolist()
        assert found.labels == [classes[label] for label in found.index]
        assert found.confidence == pytest.approx(expected.max(axis=1), abs=1e-6)

    def test_aligned_probabilities_average_the_members(
        self, small_files: Path, tmp_path: Path
    ) -> None:
        """A loop over rows in plain Python; the confidence is of the classifier's own label."""
        arguments = ("-c", small_files / "fl+iw+temp.json", "-o", tmp_path / "p.npz")
        covcal("apply", small_files / "adapted.h5", *arguments).require_success()
        found = read(tmp_path / "p.npz")
        members = logits_of(small_files / "adapted.h5", name="aligned_logits")
        labels = logits_of(small_files / "adapted.h5").argmax(axis=1)
        scale = temperature(small_files / "fl+iw+temp.json")
        own = 0
        for row in range(members.shape[1]):
            mean = np.mean([softmax(member[row]) for member in members], axis=0)
            expected = mean ** (1 / scale) / np.sum(mean ** (1 / scale))
            assert found.probabilities[row] == pytest.approx(expected, rel=1e-4, abs=1e-7)
            assert found.index[row] == labels[row]
            assert found.confidence[row] == found.probabilities[row, labels[row]]
            own += int(expected.argmax() != labels[row])
        assert own > 0  # rows where the forecaster would rather say something else

    def test_a_blend_is_the_mean_of_both(self, small_files: Path, tmp_path: Path) -> None:
        """Half SciPy's softmax(z / T_f), half that of the members' mean at T_a."""
        file, document = small_files / "adapted.h5", small_files / "blend.json"
        calibration = read_calibration(document)
        done = covcal("apply", file, "-c", document, "-o", tmp_path / "p.h5").require_success()
        given = calibration.forecaster_temperature, calibration.aligned_temperature
        assert f"blend, T = {given[0]:.4g}, {given[1]:.4g}" in done.out
        found, logits = read(tmp_path / "p.h5"), logits_of(file)
        learnt = np.log(softmax(logits_of(file, name="aligned_logits"), axis=2).mean(axis=0))
        parts = zip((logits, learnt), given, strict=True)
        expected = np.mean([softmax(part / scale, axis=1) for part, scale in parts], axis=0)
        assert found.probabilities == pytest.approx(expected, rel=1e-5, abs=1e-7)
        assert found.index.tolist() == logits.argmax(axis=1).tolist()
        every = np.arange(len(logits))
        assert found.confidence.tolist() == found.probabilities[every, found.index].tolist()
        with h5py.File(tmp_path / "p.h5") as held:
            assert held.attrs["aligned_temperature"] == given[1]

    @pytest.mark.parametrize("method", ["temp", "blend"])
    def test_the_csv_gives_what_evaluate_reports(self, small_files: Path, method: str) -> None:
        """Accuracy, mean confidence, ECE, NLL and Brier, computed from the file joined by id."""
        file, document = small_files / "adapted.h5", small_files / f"{method}.json"
        done = covcal("apply", file, "-c", document, "--split", "test", "-o", "-").require_success()
        found = read_csv(done.out)
        done = covcal("evaluate", file, "-c", document, "-o", "-").require_success()
        reported = json.loads(done.out)["metrics"][method]
        with h5py.File(file) as held:
            ids = held["target/ids"][()].astype(str).tolist()
            truth = dict(zip(ids, held["target/labels"][()].tolist(), strict=True))
        labels = np.array([truth[known] for known in found.ids])
        hits, confidence = found.index == labels, found.confidence.astype(np.float64)
        assert len(labels) == reported["n"]
        assert hits.mean() == pytest.approx(reported["accuracy"], abs=1e-12)
        assert confidence.mean() == pytest.approx(reported["mean_confidence"], abs=1e-6)
        ece = 0.0
        for low in range(15):
            inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
            if inside.any():
                ece += abs(confidence[inside].mean() - hits[inside].mean()) * inside.mean()
        assert ece == pytest.approx(reported["ece"], abs=1e-6)
        p = found.probabilities.astype(np.float64)
        nll = -np.log(p[np.arange(len(labels)), labels]).mean()
        assert nll == pytest.approx(reported["nll"], abs=1e-5)
        brier = ((p - np.eye(p.shape[1])[labels]) ** 2).sum(axis=1).mean()
        assert brier == pytest.approx(reported["brier"], abs=1e-6)

    @pytest.mark.parametrize(
        ("classes", "scale"), [(2, 1e-99), (2, 1.0), (2, 1e99), (32, 1e99), (33, 1e-99), (90, 1e99)]
    )
    def test_many_classes_and_extreme_temperatures(
        self, tmp_path: Path, classes: int, scale: float
    ) -> None:
        """Never NaN, never a warning, whatever the temperature and the number of classes."""
        target = made_domain("target", sizes=(0, 30, 20), classes=classes)
        file = write_features(tmp_path / "f.h5", source=target, target=target)
        document = uncalibrated(file, scale)
        target["logits"][0] = -1e38
        target["logits"][0, 1] = 1e38
        write_features(file, source=target, target=target)
        apply(file, document, tmp_path / "p.h5")
        found = read(tmp_path / "p.h5")
        with np.errstate(over="ignore"):
            expected = softmax(target["logits"].astype(np.float64) / scale, axis=1)
        assert found.probabilities == pytest.approx(expected, rel=1e-4, abs=1e-7)
        assert found.index.tolist() == target["logits"].argmax(axis=1).tolist()
        assert found.confidence.tolist() == found.probabilities.max(axis=1).tolist()

    def test_none_is_the_classifier_as_it_is(self, small_files: Path) -> None:
        """Without a calibration in force the confidence is the softmax of the classifier."""
        stream = io.BytesIO()
        done = apply(small_files / "features.h5", small_files / "none.json", stream)
        p = softmax(logits_of(small_files / "features.h5"), axis=1)
        assert done.mean_confidence == pytest.approx(p.max(axis=1).mean(), abs=1e-6)


class TestLabelBesideTheLikeliestClass:
    """An offset or adapted features can make another class likelier than the label."""

    @pytest.mark.parametrize("change", ["confidence_offset", "class_offsets"])
    def test_an_offset_is_counted_and_named(
        self, small_files: Path, tmp_path: Path, change: str
    ) -> None:
        file = small_files / "features.h5"
        shutil.copy(file, tmp_path)
        document = uncalibrated(tmp_path / "features.h5")
        content = json.loads(document.read_text())
        shift = -1.5 if change == "confidence_offset" else [-3.0, *[0.0] * 20]
        content[change] = shift if isinstance(shift, float) else shift[: len(content["classes"])]
        write_document(content, document, force=True)
        done = covcal("apply", file, "-c", document, "-o", tmp_path / "p.csv").require_success()
        rows = read(tmp_path / "p.csv")
        count = int((rows.probabilities.argmax(axis=1) != rows.index).sum())
        assert 0 < count < len(rows.ids)
        assert rows.index.tolist() == logits_of(file).argmax(axis=1).tolist()
        assert (
            f"in {count} of {len(rows.ids)} rows, the predicted class is no longer the most"
            in done.err
        )
        assert "use the columns label and confidence" in done.err
        assert apply(file, document, io.BytesIO()).label_is_not_top == count

    def test_rows_without_an_answer_are_counted(self, small_files: Path, tmp_path: Path) -> None:
        """If all classes have the same logit, the first class is the label."""
        file = Path(shutil.copy(small_files / "features.h5", tmp_path))
        with edited(file) as content:
            content["target/logits"][:7] = 0.5
        plain = uncalibrated(file)
        changed = json.loads(plain.read_text()) | {"confidence_offset": -1.5}
        write_document(changed, tmp_path / "moved.json", force=False)
        for document, options in (
            (plain, ()),
            (tmp_path / "moved.json", ("--confidence-only",)),
        ):
            rows = ("-o", tmp_path / "p.csv", "-f", *options)
            done = covcal("apply", file, "-c", document, *rows).require_success()
            confidence = re.search(
                r"in 7 of \d+ rows, all classes have the same output.* confidence of (\S+)",
                done.err,
                re.MULTILINE,
            )
            assert confidence is not None
            with (tmp_path / "p.csv").open() as lines:
                shown = [line["confidence"] for line in csv.DictReader(lines)]
            assert shown[:7] == [confidence[1]] * 7
            assert shown.count(confidence[1]) == 7

    def test_adapted_features_are_counted_too(self, small_files: Path) -> None:
        stream = io.BytesIO()
        applied = apply(small_files / "adapted.h5", small_files / "fl+temp.json", stream)
        rows = read_csv(stream.getvalue().decode())
        count = int((rows.probabilities.argmax(axis=1) != rows.index).sum())
        assert applied.label_is_not_top == count > 0

    def test_a_temperature_alone_leaves_the_label_on_top(self, small_files: Path) -> None:
        file, document = small_files / "features.h5", small_files / "temp.json"
        done = covcal("apply", file, "-c", document, "-o", "-").require_success()
        assert "likelier" not in done.err
        assert apply(file, document, io.BytesIO()).label_is_not_top == 0


class TestFormats:
    def test_agree_to_the_last_bit(self, small_files: Path, tmp_path: Path) -> None:
        """CSV, Parquet, NPZ and HDF5 hold the same float32 numbers, ids and labels."""
        tables = {}
        for ending in ENDINGS:
            if ending == "parquet":
                pytest.importorskip("pyarrow")
            arguments = ("-c", small_files / "blend.json", "-o", tmp_path / f"p.{ending}")
            covcal("apply", small_files / "adapted.h5", *arguments).require_success()
            tables[ending] = read(tmp_path / f"p.{ending}")
        first = tables["csv"]
        for other in tables.values():
            assert other.ids == first.ids
            assert other.labels == first.labels
            assert other.index.tolist() == first.index.tolist()
            assert other.confidence.tobytes() == first.confidence.tobytes()
            assert other.probabilities.tolist() == first.probabilities.tolist()
        if "parquet" in tables:
            assert tables["parquet"].columns == first.columns

    @pytest.mark.parametrize("ending", ENDINGS)
    def test_the_same_bytes_whatever_the_blocks(
        self, small_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
    ) -> None:
        """Twice the same file; smaller blocks change no number."""
        if ending == "parquet":
            pytest.importorskip("pyarrow")
        inputs = (small_files / "adapted.h5", small_files / "fl+temp.json")
        paths = [tmp_path / f"{number}.{ending}" for number in range(3)]
        apply(*inputs, paths[0])
        apply(*inputs, paths[1])
        assert paths[0].read_bytes() == paths[1].read_bytes()
        monkeypatch.setattr(apply_module, "_BLOCK_VALUES", 1)
        apply(*inputs, paths[2])
        assert read(paths[2]).probabilities.tolist() == read(paths[0]).probabilities.tolist()
        assert read(paths[2]).ids == read(paths[0]).ids

    @pytest.mark.parametrize("ending", ENDINGS)
    def test_confidence_only(self, small_files: Path, tmp_path: Path, ending: str) -> None:
        """Without the classes' probabilities, everything else is the same."""
        if ending == "parquet":
            pytest.importorskip("pyarrow")
        inputs = (small_files / "features.h5", small_files / "temp.json")
        apply(*inputs, tmp_path / f"all.{ending}")
        apply(*inputs, tmp_path / f"few.{ending}", ApplySettings(confidence_only=True))
        whole, few = read(tmp_path / f"all.{ending}"), read(tmp_path / f"few.{ending}")
        assert few.probabilities.shape == (len(whole.ids), 0)
        assert few.ids == whole.ids
        assert few.labels == whole.labels
        assert few.confidence.tolist() == whole.confidence.tolist()
        assert not any(name.startswith("p") for name in few.columns)

    def test_the_provenance_goes_along(self, small_files: Path, tmp_path: Path) -> None:
        """HDF5, NPZ and Parquet say by sha256 what they were computed from."""
        file, document = small_files / "adapted.h5", small_files / "fl+temp.json"
        with FeatureFile(file) as opened:
            sha256 = opened.sha256()
        expected: dict[str, Any] = {
            "input_sha256": sha256,
            "method_used": "fl+temp",
            "temperature": temperature(document),
            "networks_sha256": "7" * 64,
            "domain": "target",
            "split": "validation",
        }
        apply(file, document, tmp_path / "p.h5", ApplySettings(split="validation"))
        with h5py.File(tmp_path / "p.h5") as held:
            assert held.attrs["schema"] == "covcal.applied/1"
            assert held.attrs["complete"] == 1
            assert {name: held.attrs[name] for name in expected} == expected
            assert len(held.attrs["calibration_sha256"]) == 64
        apply(file, document, tmp_path / "p.npz", ApplySettings(split="validation"))
        with np.load(tmp_path / "p.npz") as archive:
            assert {name: archive[name].item() for name in expected} == expected
        parquet = pytest.importorskip("pyarrow.parquet")
        apply(file, document, tmp_path / "p.parquet", ApplySettings(split="validation"))
        metadata = parquet.read_schema(tmp_path / "p.parquet").metadata
        found = json.loads(metadata[b"covcal"])
        assert {name: found[name] for name in expected} == expected

    @pytest.mark.parametrize("ending", ENDINGS)
    def test_odd_names_survive(self, tmp_path: Path, ending: str) -> None:
        """Commas, quotes, line ends and letters beyond ASCII in ids and class names."""
        if ending == "parquet":
            pytest.importorskip("pyarrow")
        classes = ['a,"b"', "zwölf", "line\nend"]
        ids = ["plain.png", "a,b.png", 'say "x".png', "zwölf/日本.png", "two\nlines", "cr\rid"]
        target = made_domain("target", sizes=(0, 4, 2))
        target["ids"] = utf8(ids)
        file = write_features(tmp_path / "f.h5", source=target, target=target, class_names=classes)
        apply(file, uncalibrated(file), tmp_path / f"p.{ending}")
        found = read(tmp_path / f"p.{ending}")
        assert found.ids == ids
        assert found.labels == [classes[label] for label in target["logits"].argmax(axis=1)]
        if ending in ("csv", "parquet"):
            assert found.columns[4:] == [f"prob_{name}" for name in classes]

    def test_classes_of_one_name_are_numbered(self, tmp_path: Path) -> None:
        """ImageNet has two cranes; columns must be told apart."""
        target = made_domain("target", sizes=(0, 4, 2))
        names = ["crane", "ox", "crane"]
        file = write_features(tmp_path / "f.h5", source=target, target=target, class_names=names)
        stream = io.BytesIO()
        apply(file, uncalibrated(file), stream)
        found = read_csv(stream.getvalue().decode())
        assert found.columns[4:] == ["prob_0", "prob_1", "prob_2"]
        assert set(found.labels) <= set(names)

    @pytest.mark.parametrize("ending", ENDINGS)
    def test_memory_does_not_grow_with_the_rows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
    ) -> None:
        """Four times the rows need no more memory, with blocks that are small beside them."""
        if ending == "parquet":
            pytest.importorskip("pyarrow")
            monkeypatch.setattr(writers, "_GROUP_BYTES", 1 << 16)
        monkeypatch.setattr(writers, "_COPY_BYTES", 1 << 14)
        monkeypatch.setattr(apply_module, "_BLOCK_VALUES", 1 << 12)
        monkeypatch.setattr("covcal_cli.hdf5._BLOCK_BYTES", 1 << 12)

        def peak(rows: int) -> int:
            target = made_domain("target", sizes=(0, rows, 0))
            file = write_features(tmp_path / "f.h5", source=target, target=target)
            if not (tmp_path / "cal.json").exists():
                uncalibrated(file)
            arguments = (file, tmp_path / "cal.json", tmp_path / f"p.{ending}")
            tracemalloc.start()
            apply(*arguments, force=True)
            _, highest = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return highest - 2 * rows  # the split, a byte per row, and its maximum

        peak(10)  # what is loaded once counts for neither
        few, many = peak(10_000), peak(40_000)
        assert many < 1.2 * few


class TestNewRows:
    @pytest.mark.parametrize("method", ["fl+temp", "blend"])
    def test_networks_are_found_where_the_calibration_says(
        self, fl_folder: Path, method: str
    ) -> None:
        """Rows extracted later give what the same rows gave in adapted.h5."""
        arguments = ("adapted.h5", "--method", method, "-o", "cal.json", "-f")
        covcal("calibrate", *arguments, cwd=fl_folder).require_success()
        covcal("apply", "adapted.h5", "-o", "stored.npz", cwd=fl_folder).require_success()
        done = covcal("apply", "new.h5", "-o", "new.npz", cwd=fl_folder).require_success()
        assert "the networks from covcal adapt are read from adapted.h5" in done.err
        stored, new = read(fl_folder / "stored.npz"), read(fl_folder / "new.npz")
        assert new.ids == stored.ids
        assert new.index.tolist() == stored.index.tolist()
        assert new.probabilities == pytest.approx(stored.probabilities, abs=1e-5)
        assert new.confidence == pytest.approx(stored.confidence, abs=1e-5)

    def test_networks_can_be_pointed_at(self, fl_folder: Path) -> None:
        """--networks takes the place of the file that has been moved."""
        (fl_folder / "adapted.h5").rename(fl_folder / "moved.h5")
        done = covcal("apply", "new.h5", "-o", "-", cwd=fl_folder)
        assert "which is missing: pass --networks" in done.error_line()
        arguments = ("--networks", "moved.h5", "-o", "-")
        done = covcal("apply", "new.h5", *arguments, cwd=fl_folder).require_success()
        assert len(read_csv(done.out).ids) == 350

    def test_networks_that_were_damaged(self, fl_folder: Path, tmp_path: Path) -> None:
        shutil.copy(fl_folder / "adapted.h5", tmp_path / "bad.h5")
        with edited(tmp_path / "bad.h5") as file:
            file["networks/psi/bias_0"][...] = np.nan
        arguments = ("--networks", tmp_path / "bad.h5", "-o", "-")
        line = covcal("apply", "new.h5", *arguments, cwd=fl_folder).error_line()
        assert "/networks/psi/bias_0 is missing or damaged" in line

    def test_numpy_gives_what_torch_gives(self, fl_folder: Path) -> None:
        """The networks' logits against torch's own layers, to 1e-5."""
        torch = pytest.importorskip("torch")
        from covcal_cli.forecast import read_aligned_networks

        networks = read_aligned_networks(fl_folder / "adapted.h5")
        arrays = {name: torch.from_numpy(values) for name, values in networks.arrays.items()}
        with FeatureFile(fl_folder / "new.h5") as file:
            target = file.require_target()
            rows = target.rows("test")
            found = networks.aligned_logits(target, rows)
            values = torch.from_numpy(target.features(rows)) - arrays["projection/mean"]
        if "projection/components" in arrays:
            values = values @ arrays["projection/components"]
        values = values / arrays["projection/scale"]
        layers = [name for name in arrays if "/weight_" in name]
        order = [sorted(name for name in layers if name.startswith(p)) for p in ("psi/", "head/")]
        for part, names in zip(("psi", "head"), order, strict=True):
            for number, name in enumerate(names):
                bias = arrays[name.replace("weight", "bias")][0]
                values = torch.nn.functional.linear(values, arrays[name][0].T, bias)
                if number < len(names) - 1 or (part == "psi" and arrays["psi/output_relu"][0]):
                    values = torch.relu(values)
        assert found.shape == (1, *values.shape)
        assert found[0] == pytest.approx(values.numpy(), abs=1e-5)

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (lambda file: file.__delitem__("networks"), "/networks is missing"),
            (
                lambda file: file["networks/head/bias_0"].__setitem__(0, 9.0),
                "cal.json was not fitted with the networks of",
            ),
        ],
    )
    def test_wrong_networks(
        self, fl_folder: Path, spoil: Callable[[Any], None], message: str
    ) -> None:
        """Missing networks, and networks of another calibration, are refused."""
        with edited(fl_folder / "adapted.h5") as file:
            spoil(file)
        arguments = ("new.h5", "-c", "cal.json", "-o", "-")
        assert message in covcal("apply", *arguments, cwd=fl_folder).error_line()

    def test_features_that_are_missing_or_too_narrow(self, fl_folder: Path) -> None:
        """Aligned logits of new rows are computed from features."""
        with edited(fl_folder / "new.h5") as file:
            narrow = file["target/features"][:, :3]
            del file["target/features"]
        error = covcal("apply", "new.h5", "-o", "p.csv", cwd=fl_folder).error_line()
        assert "/target/features is missing" in error
        with edited(fl_folder / "new.h5") as file:
            file["target/features"] = narrow
        error = covcal("apply", "new.h5", "-o", "p.csv", cwd=fl_folder).error_line()
        assert "has 3 columns, but the networks of adapted.h5 take 4" in error

    def test_networks_that_have_no_use(self, fl_folder: Path) -> None:
        """An adapted file holds its logits; temp needs none; new.h5 holds no networks."""
        arguments = ("--networks", "adapted.h5", "-o", "-")
        error = covcal("apply", "adapted.h5", *arguments, cwd=fl_folder).error_line()
        assert error == "adapted.h5 holds aligned logits: leave out --networks"
        error = covcal(
            "apply", "new.h5", "--networks", "new.h5", "-o", "-", cwd=fl_folder
        ).error_line()
        assert error == "new.h5 holds no networks: name the file that covcal adapt made"
        calibrated = ("adapted.h5", "--method", "temp", "-o", "temp.json")
        covcal("calibrate", *calibrated, cwd=fl_folder).require_success()
        done = covcal("apply", "new.h5", "-c", "temp.json", *arguments, cwd=fl_folder)
        assert "no calibration uses it" in done.usage_error()


class TestChoice:
    @pytest.mark.parametrize("domain", ["source", "target"])
    @pytest.mark.parametrize("split", ["train", "validation", "test"])
    def test_one_split_of_one_domain(self, small_files: Path, domain: str, split: str) -> None:
        """The rows of the split in the file's order, with the numbers that they have among all."""
        inputs = ("apply", small_files / "features.h5", "-c", small_files / "temp.json", "-o", "-")
        every = read_csv(covcal(*inputs, "--domain", domain).require_success().out)
        some = read_csv(covcal(*inputs, "--domain", domain, "--split", split).out)
        with FeatureFile(small_files / "features.h5") as file:
            chosen = file.source if domain == "source" else file.target
            assert chosen is not None
            rows = chosen.rows(split)
            assert some.ids == chosen.ids(rows)
        assert some.probabilities.tolist() == every.probabilities[rows].tolist()

    def test_no_true_label_is_read(self, small_files: Path, features: Path) -> None:
        """What stands in the labels, even what is no label, changes nothing."""
        document = small_files / "temp.json"
        before = covcal("apply", features, "-c", document, "-o", "-").require_success().out
        with edited(features) as file:
            file["target/labels"][...] = 12345
            file["source/labels"][...] = -7
        assert covcal("apply", features, "-c", document, "-o", "-").require_success().out == before

    def test_missing_rows(self, small_files: Path, tmp_path: Path) -> None:
        """An empty split or domain says what there is."""
        target = made_domain("target", sizes=(0, 6, 0))
        file = write_features(tmp_path / "f.h5", target=target)
        document = small_files / "temp.json"
        arguments = ("apply", file, "-c", document, "-o", "-")
        assert "no target test rows" in covcal(*arguments, "--split", "test").error_line()
        with edited(file) as held:
            del held["target"]
        error = covcal(*arguments).error_line()
        assert error == f"{file} has no target rows: pass --domain source"
        empty: Arrays = {name: values[:0] for name, values in target.items()}
        file = write_features(tmp_path / "g.h5", target=empty)
        assert "has no target rows" in covcal("apply", file, *arguments[2:]).error_line()


class TestCommand:
    def test_alone_it_takes_the_calibration_here(self, small_files: Path, tmp_path: Path) -> None:
        """cal.json of this folder on the input that it names, to probs.csv."""
        shutil.copy(small_files / "features.h5", tmp_path)
        covcal("calibrate", "--method", "temp", cwd=tmp_path).require_success()
        done = covcal("apply", cwd=tmp_path).require_success()
        assert "note: applying cal.json to features.h5" in done.err
        assert "wrote probs.csv" in done.err
        assert "\nCalibration  temp, T = " in done.out
        assert " % on average over 350 target rows" in done.out
        assert len(read(tmp_path / "probs.csv").ids) == 350
        error = covcal("apply", cwd=tmp_path).err
        assert "probs.csv exists already: pass --force" in error
        with edited(tmp_path / "features.h5") as file:
            file["target/logits"][0, 0] += 1
        error = covcal("apply", "-f", cwd=tmp_path).error_line()
        assert "features.h5 has changed since cal.json was fitted on it" in error
        (tmp_path / "features.h5").unlink()
        error = covcal("apply", "-f", cwd=tmp_path).error_line()
        assert "features.h5, which is missing: give a file to apply" in error

    def test_stdout_holds_the_csv_and_nothing_else(self, small_files: Path, tmp_path: Path) -> None:
        """stdout gets the bytes of the file, and no summary, which is not CSV."""
        inputs = ("apply", small_files / "features.h5", "-c", small_files / "temp.json")
        done = covcal(*inputs, "-o", "-").require_success()
        assert done.err == ""
        covcal(*inputs, "-o", tmp_path / "p.csv").require_success()
        assert (tmp_path / "p.csv").read_text() == done.out

    def test_a_reader_that_leaves_early_is_no_bug(self, small_files: Path) -> None:
        """``covcal apply -o - | head`` ends without a traceback."""
        inputs = ("apply", small_files / "features.h5", "-c", small_files / "temp.json")
        read, write = os.pipe()
        os.close(read)
        with TemporaryFile() as err:
            words = [*map(str, inputs), "-o", "-"]
            with Forked(words, stdout=write, stderr=err.fileno()) as process:
                os.close(write)
                process.wait()
            err.seek(0)
            assert b"Traceback" not in err.read()

    @pytest.mark.parametrize("ending", ENDINGS)
    def test_bad_values_leave_the_old_file(
        self, small_files: Path, features: Path, ending: str
    ) -> None:
        """A NaN at the end of the rows, found after many were written."""
        if ending == "parquet":
            pytest.importorskip("pyarrow")
        with edited(features) as file:
            file["target/logits"][-1, 0] = np.nan
        old = features.with_name(f"p.{ending}")
        old.write_text("old")
        arguments = ("-c", small_files / "temp.json", "-o", old, "--force")
        error = covcal("apply", features, *arguments).error_line()
        assert "row 349 (target/349.png) holds nan" in error
        assert old.read_text() == "old"
        assert sorted(entry.name for entry in features.parent.iterdir()) == [
            "features.h5",
            old.name,
        ]

    def test_an_interruption_leaves_nothing(
        self, small_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C between two blocks leaves no file, not even a part of a file."""

        def interrupted(*_: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(apply_module, "_calibrated", interrupted)
        inputs = ("apply", small_files / "features.h5", "-c", small_files / "temp.json")
        for ending in ("csv", "npz", "h5"):
            done = covcal(*inputs, "-o", tmp_path / f"p.{ending}")
            assert done.code == 130
        assert list(tmp_path.iterdir()) == []

    def test_progress_counts_rows(self, small_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One sign of life per block, up to the last row."""
        monkeypatch.setattr(apply_module, "_BLOCK_VALUES", 1)
        seen: list[tuple[int, int]] = []
        apply(
            small_files / "features.h5",
            small_files / "temp.json",
            io.BytesIO(),
            progress=lambda step: seen.append((step.step, step.total)),
        )
        assert seen == [(256, 350), (350, 350)]

    def test_outputs_that_cannot_be(self, small_files: Path, features: Path) -> None:
        """An unknown ending, an input as the output, two calibrations."""
        document = small_files / "temp.json"
        inputs = ("apply", features, "-c", document, "-o")
        error = covcal(*inputs, "p.txt").error_line()
        assert error == "p.txt: name a file that ends in .csv, .parquet, .npz, .h5"
        error = covcal(*inputs, features, "--force").error_line()
        assert error == f"{features} is an input of this command: pass another -o"
        done = covcal("apply", features, "-c", document, "-c", document)
        assert "give only one calibration" in done.usage_error()

    def test_the_networks_file_is_never_overwritten(self, fl_folder: Path) -> None:
        """Not even by --force, and not where the calibration alone names it."""
        before = (fl_folder / "adapted.h5").read_bytes()
        done = covcal("apply", "new.h5", "-o", "adapted.h5", "--force", cwd=fl_folder)
        assert "is an input of this command" in done.error_line()
        assert (fl_folder / "adapted.h5").read_bytes() == before

    def test_parquet_without_pyarrow(
        self, small_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Asked for by name, before any work."""
        monkeypatch.setattr(writers, "find_spec", lambda _: None)
        arguments = ("-c", tmp_path / "missing.json", "-o", "p.parquet")
        error = covcal("apply", small_files / "features.h5", *arguments).error_line()
        assert error == (
            "p.parquet needs pyarrow: pip install pyarrow, or name a .csv, .npz or .h5 file"
        )

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"attributes": {"model_sha256": "6" * 64}}, "come from different models"),
            ({"class_names": ["class 0", "class 1", "x"]}, "have different class names"),
        ],
    )
    @pytest.mark.parametrize("method", ["temp", "fl+temp"])
    def test_files_of_another_classifier(
        self, small_files: Path, tmp_path: Path, change: dict[str, Any], message: str, method: str
    ) -> None:
        """A calibration of another model or other classes is refused, for all methods and files."""
        files = [write_features(tmp_path / "f.h5", **change)]
        files.append(write_adapted(tmp_path / "a.h5", **change))
        for file in files:
            done = covcal("apply", file, "-c", small_files / f"{method}.json", "-o", "-")
            assert message in done.error_line()

    def test_ids_that_are_no_text(self, small_files: Path, features: Path) -> None:
        """Bytes that are not UTF-8 are the file's fault, and said to be."""
        with edited(features) as file:
            file["target/ids"][3] = b"\xff\xfe"
        arguments = ("-c", small_files / "temp.json", "-o", features.with_name("p.csv"))
        error = covcal("apply", features, *arguments).error_line()
        assert error == f"{features}: /target/ids is not UTF-8: extract again"

    def test_pandas_joins_by_id(self, small_files: Path, tmp_path: Path) -> None:
        """What a data scientist does first: read the file, join the table it came with."""
        pandas = pytest.importorskip("pandas")
        inputs = ("apply", small_files / "features.h5", "-c", small_files / "temp.json")
        covcal(*inputs, "-o", tmp_path / "p.csv").require_success()
        table = pandas.read_csv(tmp_path / "p.csv", index_col="id")
        own = pandas.DataFrame({"id": ["target/3.png", "target/1.png"], "price": [3, 1]})
        joined = own.join(table, on="id")
        assert joined["confidence"].notna().all()
        assert table.dtypes["confidence"] == "float64"
        assert table.filter(like="prob_").sum(axis=1).sub(1).abs().max() < 1e-6


def test_files_may_be_named_by_strings(small_files: Path, tmp_path: Path) -> None:
    """As from Python; what is written is the same."""
    file, document = small_files / "adapted.h5", small_files / "temp.json"
    apply(file, document, tmp_path / "one.csv")
    apply(str(file), str(document), str(tmp_path / "two.csv"))
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
