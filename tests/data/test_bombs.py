"""Small files that would fill the memory are named before they are unpacked."""

import gzip
import io
import itertools
import tarfile
import zipfile
from pathlib import Path

import h5py
import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.lib import format as npy
from PIL import Image

from covcal_cli.arrays import ModelInput
from covcal_cli.classifiers.torch.file import load_weights, open_file
from covcal_cli.data.array_files import ArrayFile
from covcal_cli.data.folder import TarData
from covcal_cli.data.rows import RowFacts
from covcal_cli.data.stores import csv, open_store, store
from covcal_cli.data.stores.arrays import NpzStore
from covcal_cli.data.stores.csv import CSVStore
from covcal_cli.errors import CovcalError
from tests.cli_runner import covcal

ROWS = 40
IMAGES = [ModelInput("x", (None, 1, 8, 8), np.dtype(np.float32))]
LONG = "very long " * 100


@pytest.mark.parametrize(
    ("dtype", "shape"), [("<U10000000", (ROWS,)), ("<f4", (ROWS, 1 << 30)), ("|S2000000000", (2,))]
)
def test_an_npz_whose_arrays_are_nearly_all_air(
    dtype: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    header = io.BytesIO()
    npy.write_array_header_2_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("id.npy", header.getvalue() + bytes(1000))
    with pytest.raises(CovcalError, match=r"bomb.npz: id needs [\d.]+ GB, but only \d+ bytes"):
        NpzStore(tmp_path / "bomb.npz")


def test_a_compressed_table_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (store, csv):
        monkeypatch.setattr(module, "LONGEST_LINE", 1 << 20)
    for name, text in (("first", b"a" * (3 << 20)), ("second", b"a,b\n" + b"1" * (3 << 20))):
        path = tmp_path / f"{name}.csv.gz"
        path.write_bytes(gzip.compress(text))
        with pytest.raises(CovcalError, match=r"csv.gz: a line has more than 1 million characters"):
            CSVStore(path)


def test_a_label_of_a_shard_that_is_none(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        picture = io.BytesIO()
        Image.new("L", (8, 8)).save(picture, "PNG")
        for name, content in (("a.png", picture.getvalue()), ("a.cls", bytes(2 << 20))):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with pytest.raises(CovcalError, match=r"x.tar: a.cls has 2097152 bytes, which is too long"):
        TarData(tmp_path / "x.tar", IMAGES)


@pytest.mark.parametrize("name", ["a.pt", "a.pth"])
def test_torch_files_with_a_tensor_of_air(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in ("a/data.pkl", "a/constants.pkl", "a/code/net.py"):
            archive.writestr(member, b"")
        archive.writestr("a/data/0", bytes(1000))
        archive.infolist()[-1].file_size = 3_000_000_000
    line = r"a/data/0 needs 3.0 GB, but the file holds only \d+ bytes"

    def opened() -> None:
        if name == "a.pth":
            load_weights(torch.nn.Linear(2, 2), path, "net:Net")
        else:
            open_file(path, trusted=True)

    with pytest.raises(CovcalError, match=line):
        opened()


def table_with_texts(path: Path) -> Path:
    """Write rows with a column of groups, and one of texts of which one is long."""
    x = np.arange(2.0 * ROWS).reshape(ROWS, 2)
    site = ["north", "south"] * (ROWS // 2)
    review = [LONG if row == 3 else "short" for row in range(ROWS)]
    if path.suffix == ".csv":
        rows = [f"{a},{b},{one},{text}" for (a, b), one, text in zip(x, site, review, strict=True)]
        path.write_text("\n".join(["a,b,site,review", *rows]) + "\n")
    elif path.suffix == ".npz":
        np.savez(path, x=x, site=site, review=review)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["x"] = x
            for name, values in (("site", site), ("review", review)):
                file.create_dataset(name, data=values, dtype=h5py.string_dtype())
    else:
        pq.write_table(pa.table({"a": x[:, 0], "b": x[:, 1], "site": site, "review": review}), path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".h5", ".parquet"])
def test_texts_to_classify_are_no_groups(suffix: str, tmp_path: Path) -> None:
    """Kept, every row would take as much as the longest of them."""
    path = table_with_texts(tmp_path / f"rows{suffix}")
    file = ArrayFile(path)
    assert list(file.facts.groups) == ["site"]
    assert file.notes == (
        f"{path}: covcal leaves out review because of texts longer than 256 characters. "
        "To keep review for covcal pick, pass --keep review",
    )


@pytest.mark.parametrize(("name", "most"), [("label", 256), ("split", 256), ("id", 4096)])
def test_what_says_something_of_the_rows_is_short(name: str, most: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"a,{name}\n1,{'x' * (most + 1)}\n2,y\n")
    with pytest.raises(CovcalError, match=rf"{name} holds a text of {most + 1} characters"):
        RowFacts(open_store(path), 2, ["a"])


def test_images_of_a_size_that_no_memory_holds(tmp_path: Path) -> None:
    """Of a model that takes any size."""
    weight = onnx.numpy_helper.from_array(np.ones((1, 2), np.float32), "weight")
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("GlobalAveragePool", ["x"], ["pooled"]),
            onnx.helper.make_node("Flatten", ["pooled"], ["flat"]),
            onnx.helper.make_node("MatMul", ["flat", "weight"], ["logits"]),
        ],
        "free",
        [onnx.helper.make_tensor_value_info("x", 1, ["N", 1, "H", "W"])],
        [onnx.helper.make_tensor_value_info("logits", 1, ["N", 2])],
        [weight],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "m.onnx")
    for name, label, row in itertools.product(("source", "target"), ("0", "1"), range(8)):
        place = tmp_path / name / label
        place.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 80 + row).save(place / f"{row}.png")
    extract = ("extract", "m.onnx", "source", "target", "--scale", "255", "--size")
    line = covcal(*extract, 60_000, cwd=tmp_path).error_line()
    assert line == (
        "a batch of 16 images of shape [1, 60000, 60000] takes 230 GB: pass a smaller --size or "
        "--batch"
    )
    covcal(*extract, 16, cwd=tmp_path).require_success()
