"""``extract`` as a whole: what it writes, what it reports, and that nothing is left half-done."""

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.errors import CovcalError, OutputExistsError
from covcal_cli.extract.extract import extract
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.files import sha256_of
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels import target_labels
from covcal_cli.progress import Progress
from tests.classifiers.onnx.onnx_float_cases import FLOAT_CASES
from tests.classifiers.onnx.onnx_graphs import SIDE, Graph, grey_classifier, node
from tests.classifiers.opening import open_onnx
from tests.cli_runner import covcal

Pixels = NDArray[np.uint8]


def pixels(n: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, size=(n, SIDE, SIDE), dtype=np.uint8)


def write_images(folder: Path, names: Sequence[str], seed: int = 0) -> Path:
    for name, values in zip(names, pixels(len(names), seed), strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(path)
    return folder


def class_names(n: int, classes: int = 3) -> list[str]:
    return [f"{i % classes}/{i:04d}.png" for i in range(n)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return grey_classifier(tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_images(tmp_path / "src", class_names(90))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_images(tmp_path / "tgt", [f"{i:04d}.png" for i in range(40)], seed=1)


def contents(path: Path, domain: str) -> dict[str, Any]:
    with FeatureFile(path) as file:
        group = file.handle[domain]
        return {name: group[name][:] for name in group}


def test_the_file_holds_what_the_specification_says(
    model: Path, source: Path, target: Path, tmp_path: Path
) -> None:
    output = tmp_path / "features.h5"
    report = extract(model, source, target, output, ExtractSettings(seed=3))
    with FeatureFile(output) as file:
        assert file.classes == ["0", "1", "2"]
        domain = file.require_source()
        rows = np.arange(domain.n)
        features, logits = domain.features(rows), domain.logits(rows)
        weight, bias = file.handle["head/weight"][:], file.handle["head/bias"][:]
        np.testing.assert_allclose(features @ weight.T + bias, logits, rtol=1e-4, atol=1e-5)
        assert domain.labels(rows).tolist() == [0] * 30 + [1] * 30 + [2] * 30
        assert domain.ids(rows)[30] == "1/0001.png"
        labels = target_labels.target_labels(file.require_target(), np.arange(40))
        assert labels.tolist() == [-1] * 40
        attributes = file.attributes
    expected = np.concatenate([pixels(90)[k::3] for k in range(3)]).reshape(90, -1) / 255
    np.testing.assert_allclose(features, expected, rtol=1e-6)
    for name, dtype in {"features": "f4", "logits": "f4", "labels": "i8", "split": "u1"}.items():
        assert contents(output, "target")[name].dtype == np.dtype(dtype)
    assert contents(output, "target")["ids"].dtype.kind == "S"
    assert attributes["model_name"] == "model.onnx"
    assert attributes["model_sha256"] == sha256_of(model)
    assert (attributes["features_tensor"], attributes["logits_tensor"]) == ("phi", "y")
    assert attributes["tail"] == "none"
    assert attributes["affine_error"] < 1e-5
    assert json.loads(attributes["fractions"]) == [0.6, 0.2, 0.2]
    assert attributes["seed"] == 3
    assert json.loads(attributes["preprocessing"])["size"] == [SIDE, SIDE]
    assert report.output == output
    assert report.head.startswith(
        "Gemm y: phi 16, 3 classes, output = logits, largest error of the last layer "
    )
    assert report.preprocessing == "L 4x4 (bilinear), pixels / 255, NCHW float32"
    assert [domain.name for domain in report.domains] == ["source", "target"]
    assert [sum(domain.rows.values()) for domain in report.domains] == [90, 40]
    assert [domain.labelled for domain in report.domains] == [90, 0]
    unseen = contents(output, "source")["split"] > 0
    hits = (logits.argmax(axis=1) == np.repeat([0, 1, 2], 30))[unseen]
    found = report.source_accuracy
    assert found is not None
    assert (found.rows, found.right) == (len(hits), hits.sum())


def test_the_same_input_gives_the_same_bytes(
    model: Path, source: Path, target: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "1.h5", tmp_path / "2.h5"
    for output in (first, second):
        extract(model, source, target, output, ExtractSettings(threads=2))
    assert sha256_of(first) == sha256_of(second)


@pytest.mark.parametrize(("batch", "threads"), [(1, 1), (7, 3), (256, 2)])
def test_batch_and_threads_change_no_value(
    batch: int, threads: int, model: Path, source: Path, target: Path, tmp_path: Path
) -> None:
    extract(model, source, target, tmp_path / "1.h5", ExtractSettings(batch=64, threads=1))
    settings = ExtractSettings(batch=batch, threads=threads)
    extract(model, source, target, tmp_path / "2.h5", settings)
    for domain in ("source", "target"):
        one, two = contents(tmp_path / "1.h5", domain), contents(tmp_path / "2.h5", domain)
        assert one.keys() == two.keys()
        for name in ("labels", "split", "ids", "features"):
            np.testing.assert_array_equal(one[name], two[name])
        np.testing.assert_allclose(one["logits"], two["logits"], rtol=1e-5, atol=1e-5)


def test_progress_counts_every_row(model: Path, source: Path, target: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    settings = ExtractSettings(batch=32)
    extract(model, source, target, tmp_path / "f.h5", settings, progress=seen.append)
    assert seen == [
        *(Progress("source", done, 90) for done in (32, 64, 90)),
        *(Progress("target", done, 40) for done in (32, 40)),
    ]


def test_the_target_alone_is_enough(model: Path, target: Path, tmp_path: Path) -> None:
    report = extract(model, None, target, tmp_path / "f.h5")
    with FeatureFile(tmp_path / "f.h5") as file:
        assert file.source is None
        assert file.require_target().n == 40
        assert file.classes == ["0", "1", "2"]
    assert report.source_accuracy is None


def test_neither_domain_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(CovcalError, match="the source and the target are missing"):
        extract(model, None, None, tmp_path / "f.h5")


def test_arrays_and_folders_of_the_same_images_agree(
    model: Path, source: Path, target: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "src.npz", x=pixels(90), y=np.arange(90) % 3)
    extract(model, tmp_path / "src.npz", target, tmp_path / "a.h5")
    extract(model, source, target, tmp_path / "f.h5")
    arrays, folder = contents(tmp_path / "a.h5", "source"), contents(tmp_path / "f.h5", "source")
    order = np.argsort(np.arange(90) % 3, kind="stable")
    np.testing.assert_array_equal(arrays["features"][order], folder["features"])
    np.testing.assert_array_equal(arrays["labels"][order], folder["labels"])


def test_rows_of_the_models_own_shape_need_no_preprocessing(model: Path, tmp_path: Path) -> None:
    x = pixels(60)[:, None].astype(np.float32)
    np.savez(tmp_path / "src.npz", x=x, y=np.arange(60) % 3, split=np.arange(60) % 3)
    np.savez(tmp_path / "tgt.npz", x=x[:30])
    report = extract(model, tmp_path / "src.npz", tmp_path / "tgt.npz", tmp_path / "f.h5")
    found = contents(tmp_path / "f.h5", "source")
    np.testing.assert_array_equal(found["features"], x.reshape(60, -1))
    np.testing.assert_array_equal(found["split"], np.arange(60) % 3)
    assert report.preprocessing == "none: the model gets the rows unchanged"
    with pytest.raises(CovcalError, match="not preprocessed: leave out --size"):
        extract(
            model,
            tmp_path / "src.npz",
            None,
            tmp_path / "g.h5",
            ExtractSettings(preprocessing=Preprocessing(scale=1.0)),
        )


def test_images_beside_finished_rows_are_noted(model: Path, target: Path, tmp_path: Path) -> None:
    x = pixels(60)[:, None].astype(np.float32) / 255
    np.savez(tmp_path / "src.npz", x=x, y=np.arange(60) % 3)
    report = extract(model, tmp_path / "src.npz", target, tmp_path / "f.h5")
    assert any("the source is used unchanged" in text for text in report.warnings)


def test_a_fixed_batch_gives_the_same_rows(source: Path, tmp_path: Path) -> None:
    free = grey_classifier(tmp_path, "free.onnx")
    rng = np.random.default_rng(3)
    constants = {
        "wk": rng.normal(size=(3, 16)).astype(np.float32),
        "bk": rng.normal(size=3).astype(np.float32),
    }
    nodes = [node("Flatten", "x", "phi", axis=1), node("Gemm", "phi wk bk", "y", transB=1)]
    graph = Graph(nodes, constants=constants, shape=(8, 1, SIDE, SIDE), shapes={"y": [8, 3]})
    fixed = graph.save(tmp_path, "fixed.onnx")
    for model in (free, fixed):
        extract(model, source, None, tmp_path / f"{model.stem}.h5", ExtractSettings(batch=20))
    one, two = (contents(tmp_path / f"{name}.h5", "source") for name in ("free", "fixed"))
    np.testing.assert_array_equal(one["features"], two["features"])
    np.testing.assert_allclose(one["logits"], two["logits"], rtol=1e-5, atol=1e-5)


def test_a_corrupt_image_is_skipped_named_and_counted(model: Path, tmp_path: Path) -> None:
    source = write_images(tmp_path / "src", class_names(200))
    (source / "1" / "0001.png").write_bytes(b"")
    (source / "2" / "0002.png").write_bytes(b"<html>")
    report = extract(model, source, None, tmp_path / "f.h5")
    (domain,) = report.domains
    reason = "this is not an image, or its format is unknown"
    assert domain.skipped == (("1/0001.png", reason), ("2/0002.png", reason))
    assert sum(domain.rows.values()) == domain.labelled == 198
    found = contents(tmp_path / "f.h5", "source")
    assert found["skipped"].tolist() == [b"1/0001.png", b"2/0002.png"]
    assert b"1/0001.png" not in found["ids"]
    assert len(found["features"]) == len(found["split"]) == 198


def test_more_than_one_percent_corrupt_stops_and_writes_nothing(
    model: Path, tmp_path: Path
) -> None:
    source = write_images(tmp_path / "src", class_names(200))
    for i in (0, 3, 6, 9):
        (source / "0" / f"{i:04d}.png").write_bytes(b"")
    with pytest.raises(
        CovcalError,
        match=r"more than 1 % of 200 images cannot be read: 0/0000\.png \(this is not an image",
    ):
        extract(model, source, None, tmp_path / "f.h5")
    assert not list(tmp_path.glob("*f.h5*"))


def test_an_output_is_not_replaced_without_force(model: Path, source: Path, tmp_path: Path) -> None:
    output = tmp_path / "f.h5"
    output.write_text("precious")
    with pytest.raises(OutputExistsError):
        extract(tmp_path / "not even a model", source, None, output)
    assert output.read_text() == "precious"
    extract(model, source, None, output, force=True)
    assert sum(contents(output, "source")["split"] >= 0) == 90


def test_a_failure_half_way_leaves_the_old_file(model: Path, source: Path, tmp_path: Path) -> None:
    output = tmp_path / "f.h5"
    output.write_text("precious")

    def fail(_: Progress) -> None:
        raise CovcalError("half way")

    with pytest.raises(CovcalError, match="half way"):
        extract(model, source, None, output, ExtractSettings(batch=8), force=True, progress=fail)
    assert output.read_text() == "precious"
    assert not list(tmp_path.glob(".f.h5*"))


def test_sigkill_leaves_the_old_output(model: Path, source: Path, tmp_path: Path) -> None:
    output = tmp_path / "f.h5"
    output.write_text("precious")
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from covcal_cli.extract.extract import ExtractSettings, extract

        def slowly(progress):
            print(progress.step, flush=True)
            if progress.step == 16:
                time.sleep(60)

        model, source, output = map(Path, sys.argv[1:])
        settings = ExtractSettings(batch=8)
        extract(model, source, None, output, settings, force=True, progress=slowly)
        """
    )
    command = [sys.executable, "-c", script, str(model), str(source), str(output)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().strip() for _ in range(2)] == ["8", "16"]
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert output.read_text() == "precious"
    extract(model, source, None, output, force=True)  # what was left behind is no obstacle
    assert len(contents(output, "source")["logits"]) == 90
    assert not list(tmp_path.glob(".f.h5*"))


def test_classes_are_those_of_the_source_by_name(model: Path, tmp_path: Path) -> None:
    source = write_images(tmp_path / "src", [f"{name}/{i}.png" for name in "abc" for i in range(9)])
    target = write_images(tmp_path / "tgt", [f"{name}/{i}.png" for name in "ca" for i in range(9)])
    report = extract(model, source, target, tmp_path / "f.h5")
    assert report.classes == ("a", "b", "c")
    assert contents(tmp_path / "f.h5", "target")["labels"].tolist() == [0] * 9 + [2] * 9
    write_images(target, ["d/1.png"])
    with pytest.raises(CovcalError, match=r"folder 'd' is not a class of the source \(a, b, c\)"):
        extract(model, source, target, tmp_path / "g.h5")
    days = write_images(tmp_path / "days", [f"2026-11-{day}/{day}.png" for day in range(10, 19)])
    report = extract(model, source, days, tmp_path / "h.h5")
    assert contents(tmp_path / "h.h5", "target")["labels"].tolist() == [-1] * 9
    assert any("days: the folders (2026-11-10" in text for text in report.warnings)


def test_a_source_that_cannot_serve_is_refused(model: Path, target: Path, tmp_path: Path) -> None:
    for names, message in (
        (["a/1.png", "b/1.png"], "2 class folders .a, b. but the model has 3 classes"),
        (["1.png", "2.png"], "has no labels, but a source needs labels"),
        (["1/1.png", "1/2.png"], "all labelled rows of .* have one class .1."),
    ):
        source = write_images(tmp_path / message[:9], names)
        with pytest.raises(CovcalError, match=message):
            extract(model, source, target, tmp_path / "f.h5")
    assert not (tmp_path / "f.h5").exists()


def test_logits_that_are_not_numbers_name_the_row(source: Path, tmp_path: Path) -> None:
    """The logarithm of a black pixel is minus infinity."""
    weight = np.ones((3, 16), np.float32)
    nodes = [
        node("Flatten", "x", "flat", axis=1),
        node("Log", "flat", "phi"),
        node("Gemm", "phi wk", "y", transB=1),
    ]
    graph = Graph(nodes, constants={"wk": weight}, shape=("N", 1, SIDE, SIDE))
    Image.new("L", (SIDE, SIDE)).save(source / "0" / "0000.png")
    model = graph.save(tmp_path, "log.onnx")
    with pytest.raises(CovcalError, match=r"logits for 0/0000\.png are NaN or infinite"):
        extract(model, source, None, tmp_path / "f.h5")


def test_size_left_open_by_the_model_names_it_and_the_flag(source: Path, tmp_path: Path) -> None:
    nodes = [
        node("GlobalAveragePool", "x", "pooled"),
        node("Flatten", "pooled", "phi", axis=1),
        node("Gemm", "phi wk", "y", transB=1),
    ]
    constants = {"wk": np.array([[1], [-1], [0]], np.float32)}
    graph = Graph(nodes, constants=constants, shape=("N", 1, "h", "w"))
    model = graph.save(tmp_path, "open.onnx")
    with pytest.raises(CovcalError, match=r"open\.onnx: .* has no fixed image size: pass"):
        extract(model, source, None, tmp_path / "f.h5")
    settings = ExtractSettings(preprocessing=Preprocessing(size=(4, 4)))
    report = extract(model, source, None, tmp_path / "f.h5", settings)
    assert report.preprocessing.startswith("L 4x4")


def test_accuracy_at_chance_is_a_warning_and_better_is_not(model: Path, tmp_path: Path) -> None:
    x = pixels(600)[:, None].astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    extract(model, None, tmp_path / "x.npz", tmp_path / "f.h5")
    right = contents(tmp_path / "f.h5", "target")["logits"].argmax(axis=1)
    np.savez(tmp_path / "good.npz", x=x, y=right)
    np.savez(tmp_path / "bad.npz", x=x, y=np.random.default_rng(5).permutation(right))
    good = extract(model, tmp_path / "good.npz", None, tmp_path / "good.h5")
    bad = extract(model, tmp_path / "bad.npz", None, tmp_path / "bad.h5")
    assert good.source_accuracy is not None
    assert good.source_accuracy.share == 1.0
    assert not any("guessing" in text for text in good.warnings)
    assert any("no better than always answering" in text for text in bad.warnings)


def test_confidence_without_doubt_is_a_warning(source: Path, tmp_path: Path) -> None:
    weight = np.zeros((3, 16), np.float32)
    nodes = [node("Flatten", "x", "phi", axis=1), node("Gemm", "phi wk bk", "y", transB=1)]
    constants = {"wk": weight, "bk": np.array([0, 50, 0], np.float32)}
    model = Graph(nodes, constants=constants, shape=("N", 1, SIDE, SIDE)).save(tmp_path, "s.onnx")
    report = extract(model, source, None, tmp_path / "f.h5")
    assert any("every confidence on the source is above 0.999" in t for t in report.warnings)


def test_a_missing_validation_split_is_a_warning(model: Path, tmp_path: Path) -> None:
    source = write_images(
        tmp_path / "src",
        [f"{s}/{k}/{i}.png" for s in ("train", "test") for k in "012" for i in "12"],
    )
    report = extract(model, source, None, tmp_path / "f.h5")
    assert report.domains[0].rows == {"train": 6, "validation": 0, "test": 6}
    assert any("has no source validation rows" in text for text in report.warnings)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"threads": 0}, {"fractions": (1.0, 1.0, 0.0)}])
def test_settings_that_make_no_sense_are_refused(
    wrong: dict[str, Any], model: Path, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(CovcalError):
        extract(model, source, None, tmp_path / "f.h5", ExtractSettings(**wrong))


def test_importing_extraction_loads_no_framework() -> None:
    """The frameworks come with the first model; a report can be read without them."""
    script = (
        "import sys, covcal_cli.extract.extract\n"
        "print([name for name in ('onnx', 'onnxruntime', 'torch') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_batch_or_threads_beyond_all_bounds(few_digits: Path, tmp_path: Path) -> None:
    """The batch and the threads are limited to the work, or they would fill a machine's memory."""
    written = []
    for name, options in (("a.h5", ()), ("b.h5", ("--batch", 10**9, "--threads", 10**5))):
        domains = (few_digits / "source.npz", few_digits / "target.npz")
        covcal(
            *("extract", few_digits / "digits.onnx", *domains, *options, "-o", name), cwd=tmp_path
        ).require_success()
        with h5py.File(tmp_path / name) as file:
            written.append(file["target/logits"][:])
    np.testing.assert_allclose(written[0], written[1], atol=1e-5)


@pytest.mark.parametrize(
    "name", ["logits", "softmax", "one logit and its sigmoid", "half precision", "cosine scale"]
)
def test_the_error_of_the_last_layer_is_that_of_the_numbers_in_the_file(
    name: str, tmp_path: Path
) -> None:
    """The proof of float32 models is used again; other numbers are compared as they are stored."""
    path = FLOAT_CASES[name].graph.save(tmp_path)
    (wanted,) = open_onnx(path).inputs
    for seed, domain in enumerate(("source", "target")):
        shape = [int(side or 1) for side in wanted.shape[1:]]
        rows = np.random.default_rng(seed).normal(size=(300, *shape))
        rows[:3] = 0
        labels = np.arange(300) % 2
        arrays: dict[str, Any] = {"y": labels, wanted.name: rows.astype(wanted.dtype)}
        np.savez(tmp_path / f"{domain}.npz", **arrays)
    output = tmp_path / "features.h5"
    settings = ExtractSettings(batch=64, threads=1)
    extract(path, tmp_path / "source.npz", tmp_path / "target.npz", output, settings)
    with h5py.File(output) as file:
        weight, bias = (file[f"head/{part}"][:].astype(np.float64) for part in ("weight", "bias"))
        errors = [
            np.abs(file[domain]["features"][:] @ weight.T + bias - file[domain]["logits"][:]).max()
            for domain in ("source", "target")
        ]
        assert file.attrs["affine_difference"] == float(f"{max(errors):.2e}")
