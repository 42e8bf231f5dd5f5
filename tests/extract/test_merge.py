"""Shards and their merging: they give the bytes of one run, and strangers are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from covcal_cli.errors import CovcalError
from covcal_cli.extract.extract import extract
from covcal_cli.extract.merge import merge
from covcal_cli.extract.settings import ExtractSettings, Selection, Shard
from covcal_cli.files import sha256_of
from covcal_cli.formats.features import FeatureFile
from tests.cli_runner import covcal
from tests.extract.made_images import write_model_and_domains
from tests.made_files import edited

CORRUPT = "1/0004.png"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, 103 source images of which one is corrupt, and 41 target rows with a column."""
    return write_model_and_domains(tmp_path_factory.mktemp("data"), 103, CORRUPT)


def shards(data: Path, folder: Path, count: int, **settings: Any) -> list[Path]:
    """Extract every shard and return the files."""
    paths = [folder / f"part-{index}.h5" for index in range(1, count + 1)]
    for index, path in enumerate(paths, 1):
        selection = Selection(shard=Shard(index, count))
        inputs = (data / "model.onnx", data / "src", data / "tgt.npz")
        extract(*inputs, path, ExtractSettings(selection=selection, threads=1, **settings))
    return paths


@pytest.fixture(scope="module")
def three(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three shards of the data."""
    return shards(data, tmp_path_factory.mktemp("three"), 3)


def whole(data: Path, path: Path, **settings: Any) -> Path:
    """Extract everything in one run."""
    inputs = (data / "model.onnx", data / "src", data / "tgt.npz")
    extract(*inputs, path, ExtractSettings(threads=1, **settings))
    return path


@pytest.mark.parametrize("count", [1, 4, pytest.param(60, marks=pytest.mark.campaign)])
def test_shards_merged_in_any_order_give_the_bytes_of_one_run(
    count: int, data: Path, tmp_path: Path
) -> None:
    """Skipped files, ids, splits, statistics and the layout of the file are all the same."""
    parts = shards(data, tmp_path, count)
    merge([*parts[1::2], *parts[::2]], tmp_path / "merged.h5")
    one = whole(data, tmp_path / "one.h5")
    with h5py.File(one) as file:
        assert file["source/skipped"][:].tolist() == [CORRUPT.encode()]
        assert file["source/skipped_reasons"][:].tolist() == [
            b"this is not an image, or its format is unknown"
        ]
        assert "shard" not in file
    assert sha256_of(tmp_path / "merged.h5") == sha256_of(one)


def test_another_batch_size_in_the_shards_changes_nothing(data: Path, tmp_path: Path) -> None:
    """ONNX Runtime gives a row the same logits in a batch of 7 and of 256."""
    parts = shards(data, tmp_path, 3, batch=7)
    merge(parts, tmp_path / "merged.h5")
    assert sha256_of(tmp_path / "merged.h5") == sha256_of(whole(data, tmp_path / "one.h5"))


def test_a_sample_in_shards_is_the_sample_of_one_run(data: Path, tmp_path: Path) -> None:
    """The rows are chosen first and dealt to the shards afterwards."""
    chosen = Selection(sample=100)
    parts = []
    for index in (1, 2, 3):
        parts.append(tmp_path / f"{index}.h5")
        whole(data, parts[-1], selection=Selection(sample=100, shard=Shard(index, 3)))
    merge(parts, tmp_path / "merged.h5")
    one = whole(data, tmp_path / "one.h5", selection=chosen)
    assert sha256_of(tmp_path / "merged.h5") == sha256_of(one)
    with FeatureFile(one) as file:
        assert file.require_source().n in (99, 100)  # the corrupt image may be among them
        assert file.attributes["source_rows"] == file.attributes["target_rows"] == "sample 100"


def test_source_and_target_apart_give_the_bytes_of_one_run(data: Path, tmp_path: Path) -> None:
    """The source extracted once can be joined with each new target."""
    model = data / "model.onnx"
    extract(model, data / "src", None, tmp_path / "s.h5", ExtractSettings(threads=1))
    extract(model, None, data / "tgt.npz", tmp_path / "t.h5", ExtractSettings(threads=1))
    done = covcal("merge", "t.h5", "s.h5", cwd=tmp_path).require_success()
    assert done.out.splitlines()[0] == "source  102 rows from 1 file; 1 file skipped"
    assert "next: covcal calibrate features.h5" in done.err
    assert sha256_of(tmp_path / "features.h5") == sha256_of(whole(data, tmp_path / "one.h5"))


def test_the_shards_of_one_domain_join_the_other_whole(data: Path, tmp_path: Path) -> None:
    """A file may hold one domain whole while the other comes in shards."""
    model = data / "model.onnx"
    parts = [tmp_path / f"{index}.h5" for index in (1, 2)]
    for index, path in enumerate(parts, 1):
        settings = ExtractSettings(threads=1, selection=Selection(shard=Shard(index, 2)))
        extract(model, None, data / "tgt.npz", path, settings)
    extract(model, data / "src", None, tmp_path / "s.h5", ExtractSettings(threads=1))
    merge([*parts, tmp_path / "s.h5"], tmp_path / "m.h5")
    assert sha256_of(tmp_path / "m.h5") == sha256_of(whole(data, tmp_path / "one.h5"))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ([0, 2], r"source shard 2/3 is missing: give all 3 shards"),
        ([0], r"source shard 2/3, 3/3 is missing"),
        ([0, 1, 2, 1], r"part-2\.h5 and .*part-2\.h5 are both shard 2/3: give each shard once"),
    ],
)
def test_a_missing_or_doubled_shard_is_an_error(
    chosen: list[int], message: str, three: list[Path], tmp_path: Path
) -> None:
    """Nothing is written, and the shard is named."""
    with pytest.raises(CovcalError, match=message):
        merge([three[index] for index in chosen], tmp_path / "m.h5")
    assert not list(tmp_path.iterdir())


def test_whole_files_of_the_same_domain_are_an_error(
    data: Path, three: list[Path], tmp_path: Path
) -> None:
    """Two sources, neither of them a shard, cannot be told apart from a mistake."""
    one = whole(data, tmp_path / "one.h5")
    with pytest.raises(CovcalError, match=r"one\.h5 holds all source rows"):
        merge([one, three[0]], tmp_path / "m.h5")
    again = whole(data, tmp_path / "two.h5")
    with pytest.raises(CovcalError, match="give one whole file, or all shards"):
        merge([one, again], tmp_path / "m.h5")


def test_shards_of_other_runs_are_an_error(data: Path, three: list[Path], tmp_path: Path) -> None:
    """Shards of two and shards of three do not mix."""
    two = shards(data, tmp_path, 2)
    with pytest.raises(
        CovcalError, match="are from runs with 2 and 3 shards: give the shards of one run"
    ):
        merge([two[0], three[1]], tmp_path / "m.h5")


def change(name: str, value: Any) -> Callable[[h5py.File], None]:
    """Return an edit that sets a root attribute."""

    def edit(file: h5py.File) -> None:
        file.attrs[name] = value

    return edit


def rename_class(file: h5py.File) -> None:
    """Give the last class another name."""
    names = file["classes"][:]
    names[-1] = b"9"
    file["classes"][...] = names


def nudge_weight(file: h5py.File) -> None:
    """Change one weight of the last layer."""
    file["head/weight"][0, 0] += 1


def drop_row_count(file: h5py.File) -> None:
    """Pretend that the shard was cut from more rows."""
    file["shard/source/chosen"][()] = 999


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change("model_sha256", "f" * 64), r"part-1\.h5 and .*other\.h5 differ in their model \("),
        (
            change("preprocessing", "null"),
            r"differ in their preprocessing \(the second has none, not that of images\)",
        ),
        (change("fractions", "[1, 0, 0]"), r"differ in their fractions"),
        (change("seed", 5), r"differ in their seed \(0 and 5\)"),
        (change("features_tensor", "other"), r"differ in their features_tensor \(phi and other\)"),
        (change("tail", "softmax"), r"differ in their tail \(none and softmax\)"),
        (change("target_rows", "sample 9"), r"differ in their choice of target rows"),
        (rename_class, r"differ in their classes \(0, 1, 2 and 0, 1, 9\)"),
        (nudge_weight, r"differ in the weight of the last layer"),
        (drop_row_count, r"differ in their number of source rows \(103 and 999\)"),
    ],
)
def test_parts_of_other_runs_are_refused_by_what_differs(
    edit: Callable[[h5py.File], None], message: str, three: list[Path], tmp_path: Path
) -> None:
    """Each thing that must agree is named, with both files and both values."""
    other = tmp_path / "other.h5"
    other.write_bytes(three[1].read_bytes())
    with edited(other) as file:
        edit(file)
    with pytest.raises(CovcalError, match=message):
        merge([three[0], other, three[2]], tmp_path / "m.h5")
    assert not (tmp_path / "m.h5").exists()


def test_more_than_one_percent_skipped_in_all_is_an_error(data: Path, tmp_path: Path) -> None:
    """Each shard may skip as many as the whole run may, and merge counts them together."""
    source = tmp_path / "src"
    for path in (data / "src").rglob("*.png"):
        copy = source / path.relative_to(data / "src")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (source / "0" / "0003.png").write_bytes(b"")
    parts = [tmp_path / f"{index}.h5" for index in (1, 2)]
    for index, path in enumerate(parts, 1):
        settings = ExtractSettings(selection=Selection(shard=Shard(index, 2)))
        extract(data / "model.onnx", source, None, path, settings)
    with pytest.raises(CovcalError, match=r"2 of 103 source images .*at most 1 %"):
        merge(parts, tmp_path / "m.h5")


def test_what_merge_does_not_take(adapted: Path, features: Path) -> None:
    """Adapted files, files of older versions, and an output that exists are refused."""
    folder = adapted.parent
    line = covcal("merge", adapted, "-o", folder / "m.h5").error_line()
    assert line.endswith("is an adapted file: merge the features files, and adapt the merged file")
    line = covcal("merge", features, "-o", folder / "m.h5").error_line()
    assert "does not record its" in line
    assert "exists already" in covcal("merge", features, "-o", features).error_line()
    covcal("merge").usage_error()
