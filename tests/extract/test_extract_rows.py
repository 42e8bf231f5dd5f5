"""Which rows are extracted, and how: sample, limit, shard, batches, unreadable files, memory."""

import subprocess
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import h5py
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from PIL import Image

from covcal_cli.classifiers.open import open_classifier
from covcal_cli.errors import CovcalError
from covcal_cli.extract.domain import BatchRunner, prove
from covcal_cli.extract.extract import extract
from covcal_cli.extract.settings import ExtractSettings, Selection, Shard
from covcal_cli.files import sha256_of
from tests.classifiers.onnx.onnx_graphs import (
    D_IN,
    GEMM,
    HIDDEN,
    SIDE,
    Graph,
    K,
    grey_classifier,
    node,
)
from tests.cli_runner import Argument, covcal

IDS = [f"{i % 10}/{i:05d}.png" for i in range(2000)]


class TestSample:
    def test_it_is_seeded_and_in_order(self) -> None:
        """The same seed draws the same rows, another seed others, each row once, ascending."""
        drawn = Selection(sample=200).chosen(IDS, 0)
        assert len(set(drawn.tolist())) == 200
        assert (np.diff(drawn) > 0).all()
        np.testing.assert_array_equal(drawn, Selection(sample=200).chosen(IDS, 0))
        other = Selection(sample=200).chosen(IDS, 1)
        assert len(np.intersect1d(drawn, other)) < 60  # 20 are expected

    def test_it_is_even(self) -> None:
        """Every tenth of the rows gives about a tenth of the sample."""
        drawn = Selection(sample=1000).chosen(IDS, 0)
        counts = np.bincount(drawn // 200, minlength=10)
        assert ((counts > 70) & (counts < 130)).all()

    def test_a_smaller_sample_is_part_of_a_larger(self) -> None:
        """One can start small and go on."""
        small, large = (set(Selection(sample=n).chosen(IDS, 0).tolist()) for n in (50, 500))
        assert small < large

    def test_new_rows_push_out_few_old_ones(self) -> None:
        """A tenth more rows replace about a tenth of the rows that were drawn before."""
        before = {IDS[row] for row in Selection(sample=500).chosen(IDS, 0)}
        more = [f"new/{i}.png" for i in range(200)] + IDS
        after = {more[row] for row in Selection(sample=500).chosen(more, 0)}
        assert 410 < len(before & after) < 490

    def test_it_does_not_follow_the_split(self) -> None:
        """The splits of a sample have the shares of the whole."""
        from covcal_cli.data.rows import hashed_split

        split = hashed_split(IDS, (0.6, 0.2, 0.2), 0)[Selection(sample=1000).chosen(IDS, 0)]
        shares = np.bincount(split, minlength=3) / 1000
        np.testing.assert_allclose(shares, (0.6, 0.2, 0.2), atol=0.05)

    def test_more_than_there_are_is_all(self) -> None:
        """A sample larger than the domain takes every row."""
        assert len(Selection(sample=5000).chosen(IDS, 0)) == 2000

    @pytest.mark.parametrize("wrong", [Selection(0), Selection(None, 0), Selection(1, 1)])
    def test_what_makes_no_sense_is_refused(self, wrong: Selection) -> None:
        """No rows, or two ways of choosing at once."""
        with pytest.raises(CovcalError):
            wrong.chosen(IDS, 0)


class TestShard:
    @pytest.mark.parametrize("count", [1, 3, 7, 50])
    def test_shards_part_the_rows(self, count: int) -> None:
        """Every row is in exactly one shard, and the sizes of shards differ by at most one row."""
        rows = Selection(limit=20).chosen(IDS, 0)
        parts = [Selection(shard=Shard(i, count)).of_shard(rows) for i in range(1, count + 1)]
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), rows)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1

    @pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3", "1/2/3"])
    def test_no_shards(self, text: str) -> None:
        """The command line refuses them as usage."""
        with pytest.raises(ValueError, match=r"not a shard|invalid literal"):
            Shard.parse(text)
        done = covcal("extract", "m.onnx", "s", "t", "--shard", text)
        assert "must be I/N with I from 1 to N" in done.usage_error()


@pytest.fixture
def digits_arguments(few_digits: Path) -> list[Path]:
    """The embedded model and data."""
    return [few_digits / name for name in ("digits.onnx", "source.npz", "target.npz")]


def group(path: Path, name: str) -> dict[str, Any]:
    """Read a domain's datasets."""
    with h5py.File(path) as file:
        return {key: value[:] for key, value in file[name].items() if hasattr(value, "shape")}


def test_sample_and_limit_take_rows_of_the_whole_run(
    digits_arguments: list[Path], tmp_path: Path
) -> None:
    """Chosen rows have the numbers, labels, split and id that they have in a run over all."""
    covcal("extract", *digits_arguments, "-o", "all.h5", cwd=tmp_path).require_success()
    for option in ("--sample", "--limit"):
        arguments: list[Argument] = ["extract", *digits_arguments, "-f", option, 100]
        done = covcal(*arguments, cwd=tmp_path).require_success()
        assert done.out.startswith("source    100 rows, all labelled\n")
        for domain in ("source", "target"):
            whole = group(tmp_path / "all.h5", domain)
            part = group(tmp_path / "features.h5", domain)
            rows = np.flatnonzero(np.isin(whole["ids"], part["ids"]))
            assert len(rows) == 100
            assert (rows[-1] == 99) == (option == "--limit")
            for name, values in part.items():
                np.testing.assert_array_equal(values, whole[name][rows])


def test_one_class_among_the_first_rows_is_a_warning(tmp_path: Path) -> None:
    """Class folders come one after the other, so that the first rows are of one class."""
    model = grey_classifier(tmp_path)
    for i in range(30):
        path = tmp_path / "src" / f"{i // 10}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (SIDE, SIDE), 8 * i).save(path)
    copytree(tmp_path / "src", tmp_path / "tgt")
    done = covcal("extract", model, tmp_path / "src", tmp_path / "tgt", "--limit", 5, cwd=tmp_path)
    assert "fewer than two classes" in done.require_success().err
    done = covcal(
        "extract", model, tmp_path / "src", tmp_path / "tgt", "--sample", 20, "-f", cwd=tmp_path
    )
    assert "fewer than two classes" not in done.require_success().err


@pytest.fixture
def corrupt(tmp_path: Path) -> Path:
    """A folder of 200 images, of which one is no image."""
    for i in range(200):
        path = tmp_path / "src" / f"{i % 3}" / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (SIDE, SIDE), i).save(path)
    (tmp_path / "src" / "1" / "100.png").write_bytes(b"")
    grey_classifier(tmp_path)
    return tmp_path


def test_a_skipped_file_is_named_on_stderr_and_in_the_file(corrupt: Path) -> None:
    """Its reason too."""
    copytree(corrupt / "src", corrupt / "tgt")
    arguments = ("extract", "model.onnx", "src", "tgt")
    done = covcal(*arguments, "--on-error", "skip", cwd=corrupt).require_success()
    reason = "this is not an image, or its format is unknown"
    assert done.err.count(f"1/100.png ({reason})\n") == 2
    found = group(corrupt / "features.h5", "target")
    assert found["skipped"].tolist() == [b"1/100.png"]
    assert found["skipped_reasons"].tolist() == [reason.encode()]
    assert len(found["logits"]) == 199


def test_on_error_fail_stops_at_the_first(corrupt: Path) -> None:
    """The file and the reason are named, and nothing is written."""
    copytree(corrupt / "src", corrupt / "tgt")
    arguments = ("extract", "model.onnx", "src", "tgt", "--on-error", "fail")
    line = covcal(*arguments, cwd=corrupt).error_line()
    assert line.startswith(
        "src: 1/100.png (this is not an image, or its format is unknown) cannot be read: "
    )
    assert sorted(path.name for path in corrupt.iterdir()) == ["model.onnx", "src", "tgt"]


def dynamic_quantised(folder: Path) -> Path:
    """Save a classifier on [N, 16] whose hidden layer is quantised by the batch's own range."""
    rng = np.random.default_rng(0)
    constants: dict[str, NDArray[Any]] = {
        "w1": rng.integers(-127, 127, size=(16, 12)).astype(np.int8),
        "w": rng.normal(size=(3, 12)).astype(np.float32),
        "b": rng.normal(size=3).astype(np.float32),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "w1", "zero"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "scale"], ["h"]),
        helper.make_node("Relu", ["h"], ["phi"]),
        helper.make_node("Gemm", ["phi", "w", "b"], ["y"], transB=1),
    ]
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("x", kind, ["N", 16])],
        [helper.make_tensor_value_info("y", kind, ["N", 3])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "quantised.onnx"
    path.write_bytes(model.SerializeToString())
    return path


class TestBatches:
    def rows(self, n: int) -> NDArray[np.float32]:
        """Return rows whose ranges differ."""
        rng = np.random.default_rng(1)
        return (rng.normal(size=(n, 16)) * (1 + np.arange(n)[:, None])).astype(np.float32)

    @pytest.mark.parametrize("few", [None, 4])
    def test_rows_that_influence_each_other_are_run_alone(
        self, few: int | None, tmp_path: Path
    ) -> None:
        """Under dynamic quantisation a row's logits depend on the range of the batch."""
        opened = open_classifier(dynamic_quantised(tmp_path))
        x = self.rows(40)
        classifier = opened.prove({"x": x})
        together, alone = classifier.run({"x": x})[1], classifier.run({"x": x[:1]})[1]
        assert np.abs(together[0] - alone[0]).max() > 1e-3
        assert BatchRunner(classifier, 16).note is None
        runner, _ = prove(opened, {"x": x[:16]}, 16, few)
        assert runner.note is not None
        assert "each row runs alone" in runner.note
        _, found = runner.run({"x": x[:10]})
        expected = [classifier.run({"x": x[row : row + 1]})[1][0] for row in range(10)]
        np.testing.assert_array_equal(found, expected)

    def test_such_a_model_merges_to_the_same_bytes(self, tmp_path: Path) -> None:
        """Shards, and other batch sizes, change no bit."""
        from covcal_cli.extract.merge import merge

        model = dynamic_quantised(tmp_path)
        np.savez(tmp_path / "x.npz", x=self.rows(90))
        data, parts = tmp_path / "x.npz", [tmp_path / "1.h5", tmp_path / "2.h5"]
        report = extract(model, None, data, tmp_path / "one.h5")
        assert any("each row runs alone" in note for note in report.notes)
        for index, path in enumerate(parts, 1):
            settings = ExtractSettings(selection=Selection(shard=Shard(index, 2)), batch=7)
            extract(model, None, data, path, settings)
        merge(parts, tmp_path / "merged.h5")
        assert sha256_of(tmp_path / "merged.h5") == sha256_of(tmp_path / "one.h5")

    def test_other_rows_are_run_together_and_padded(self, tmp_path: Path) -> None:
        """Each run has the full size, and what fills it up is not given back."""
        opened = open_classifier(grey_classifier(tmp_path))
        sizes: list[int] = []

        class Watched:
            def prove(self, batch: Any, few: int | None = None) -> Any:
                sizes.append(len(batch["x"]))
                self.proved = opened.prove(batch, few)
                self.first_results = self.proved.first_results
                return self

            def run(self, batch: Any) -> Any:
                sizes.append(len(batch["x"]))
                return self.proved.run(batch)

        watched: Any = Watched()
        x = np.random.default_rng(0).random((21, 1, SIDE, SIDE), dtype=np.float32)
        runner, first = prove(watched, {"x": x[:5]}, 16, 4)
        assert runner.note is None
        assert sizes == [16, 4]  # the checked batch, and copies of its first row
        for checked, again in zip(first or (), runner.run({"x": x[:5]}), strict=True):
            assert checked is not None
            np.testing.assert_array_equal(checked, again)
        features, logits = runner.run({"x": x[16:]})
        assert sizes[2:] == [16, 16]
        assert features is not None
        np.testing.assert_array_equal(features, x[16:].reshape(5, -1))
        np.testing.assert_allclose(
            logits, watched.proved.run({"x": x})[1][16:], rtol=1e-6, atol=1e-6
        )


class TestDryRun:
    def test_it_says_what_would_be_done_and_writes_nothing(
        self, digits_arguments: list[Path], tmp_path: Path
    ) -> None:
        """Model and proof, preprocessing, rows, size and time, on stdout."""
        arguments: list[Argument] = ["extract", *digits_arguments, "--threads", 1]
        dry = covcal(*arguments, "--dry-run", cwd=tmp_path).require_success()
        assert not list(tmp_path.iterdir())
        lines = dict(line.split(maxsplit=1) for line in dry.out.splitlines())
        assert list(lines) == [
            "source",
            "target",
            "model",
            "images",
            "classes",
            "needs",
        ]
        assert (
            "largest error of the last layer"
            in covcal(*arguments, "--dry-run", "-v", cwd=tmp_path).err
        )
        assert lines["needs"].startswith("about ")
        wet = covcal(*arguments, cwd=tmp_path).require_success()
        assert len(wet.out.splitlines()) == 6
        for name in ("source", "target", "model", "images", "classes"):
            assert f"{name:<8}  {lines[name]}" in wet.out.splitlines()
        size, unit = lines["needs"].partition(" and ")[2].split()[:2]
        assert unit == "kB"
        actual = (tmp_path / "features.h5").stat().st_size
        assert float(size) * 1000 == pytest.approx(actual, rel=0.1)

    def test_an_output_in_the_way_is_told(
        self, digits_arguments: list[Path], tmp_path: Path
    ) -> None:
        """A dry run writes nothing, so it only says that the run itself would need --force."""
        (tmp_path / "features.h5").write_text("old")
        arguments: list[Argument] = ["extract", *digits_arguments, "--dry-run"]
        told = "note: features.h5 already exists. To replace the file, pass --force when you run"
        assert told in covcal(*arguments, cwd=tmp_path).require_success().err
        assert told not in covcal(*arguments, "-f", cwd=tmp_path).require_success().err
        assert (tmp_path / "features.h5").read_text() == "old"

    def test_of_a_sample_it_counts_the_sample(
        self, digits_arguments: list[Path], tmp_path: Path
    ) -> None:
        """The rows of a dry run are the rows that would be run."""
        arguments: list[Argument] = ["extract", *digits_arguments, "--dry-run"]
        arguments += ["--sample", 50, "--shard", "1/5"]
        done = covcal(*arguments, cwd=tmp_path).require_success()
        assert "source   10 rows" in done.out


MEMORY = """
import re, sys
from pathlib import Path
from covcal_cli.extract.extract import extract

for name in ("small", "large"):
    extract(Path("model.onnx"), None, Path(f"{name}.npy"), Path(f"{name}.h5"))
    # Not getrusage, whose peak includes that of the process that started this one.
    print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to read the peak")
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """Ten times the rows: 40 MB of features pass through, and the peak grows by far less."""
    constants = {
        "wk": np.random.default_rng(0).normal(size=(10, 512)).astype(np.float32),
        "bk": np.zeros(10, np.float32),
    }
    nodes = [node("Relu", "x", "phi"), node("Gemm", "phi wk bk", "y", transB=1)]
    Graph(nodes, constants=constants, shape=("N", 512)).save(tmp_path, "model.onnx")
    for name, n in (("small", 2000), ("large", 20_000)):
        np.save(tmp_path / f"{name}.npy", np.full((n, 512), 0.5, np.float32))
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    small, large = map(int, done.stdout.split())
    assert large - small < 20 * 1024


class TestNoRows:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """A model of five features, and rows of them."""
        x = np.random.default_rng(0).normal(size=(60, D_IN)).astype(np.float32)
        np.savez(tmp_path / "rows.npz", x=x, y=np.arange(60) % K)
        np.savez(tmp_path / "empty.npz", x=x[:0])
        names = ",".join(f"x{number}" for number in range(D_IN))
        (tmp_path / "empty.csv").write_text(f"{names}\n")
        return Graph([*HIDDEN, GEMM, node("Softmax", "z", "y", axis=1)]).save(tmp_path)

    @pytest.mark.parametrize("name", ["empty.npz", "empty.csv"])
    @pytest.mark.parametrize("source", [None, "rows.npz"])
    def test_a_target_without_rows_is_extracted(
        self, model: Path, name: str, source: str | None
    ) -> None:
        folder = model.parent
        report = extract(model, source and folder / source, folder / name, folder / "features.h5")
        with h5py.File(folder / "features.h5") as file:
            assert file["target/logits"].shape == (0, K)
        assert f"{folder / name} has no rows: covcal watch records an" in report.notes[-1]

    def test_a_source_without_rows_is_refused(self, model: Path) -> None:
        folder = model.parent
        with pytest.raises(CovcalError, match="has no rows, but a source needs labelled rows"):
            extract(model, folder / "empty.npz", folder / "rows.npz", folder / "features.h5")
