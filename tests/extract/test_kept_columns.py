"""Columns of tables that extract keeps: long texts, and columns that the user asks for."""

import json
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from covcal_cli.data.stores.store import cut_utf8
from covcal_cli.files import sha256_of
from covcal_cli.formats.features import FeatureFile
from tests.cli_runner import covcal
from tests.extract.named_tables import N, columns, dataset, model, outputs, save
from tests.made_rows import write_csv

REVIEWS = [f"row {row}\nsecond line, “quoted” " + "long " * (row % 7 * 30) for row in range(N)]


def table(path: Path, reviews: list[str], **more: list[float]) -> Path:
    """Save logits, labels, a text and a group of every row."""
    cells = outputs() | {"label": [row % 3 for row in range(len(reviews))], "review": reviews}
    cells |= {"site": ["north", "south"] * (N // 2)} | more
    if path.suffix == ".jsonl":
        rows = (
            dict(zip(cells, values, strict=True)) for values in zip(*cells.values(), strict=True)
        )
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".csv":
        write_csv(path, cells)
    else:
        pq.write_table(pa.table(cells), path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_texts_of_a_table_of_outputs_are_kept(suffix: str, tmp_path: Path) -> None:
    """Long texts too, as they are; a text of 100 kB is cut, and a note says so."""
    reviews = [*REVIEWS[1:], "é" * 50_000]
    path = table(tmp_path / f"rows{suffix}", reviews)
    run = covcal("extract", "--logits", path, path, cwd=tmp_path).require_success()
    assert f"{path}: the texts of review are cut to 4096 bytes in 1 of {N} rows" in run.err
    with FeatureFile(tmp_path / "features.h5") as file:
        target = file.require_target()
        texts = [text.decode() for text in target.column("review", target.rows("all")).tolist()]
    assert texts[:-1] == reviews[:-1]
    # 4,096 bytes hold 2,046 letters of two bytes and an ellipsis of three.
    assert texts[-1] == "é" * 2046 + "…"


def test_texts_are_cut_to_a_width_in_bytes() -> None:
    values, cut = cut_utf8(["a" * 9, "b" * 8, "€€€", ""], 4, 8)
    assert cut == 2
    assert values.tolist() == [b"aaaaa\xe2\x80\xa6", b"bbbbbbbb", "€…".encode(), b""]
    assert cut_utf8(["ab", "c"], 2, 4096)[0].dtype == np.dtype("S2")


def test_a_column_that_a_model_reads_is_kept_on_request(tmp_path: Path) -> None:
    """Beside a model, long texts are kept only on request too."""
    name = model(tmp_path)
    for domain in ("source", "target"):
        save("csv", tmp_path, domain, columns(domain) | {"review": REVIEWS})
    run = ("extract", name, "source.csv", "target.csv", "-o")
    said = covcal(*run, "few.h5", cwd=tmp_path).require_success()
    assert "To keep review for covcal pick, pass --keep review" in said.err
    covcal(*run, "all.h5", "--keep", "review", "--keep", "age", cwd=tmp_path).require_success()
    with h5py.File(tmp_path / "few.h5") as few, h5py.File(tmp_path / "all.h5") as full:
        assert "columns" not in few["target"]
        assert [*full["target/columns"]] == ["age", "review"]
        assert (full["target/features"][()] == few["target/features"][()]).all()
        assert json.loads(full.attrs["options"]) == ["--keep=review", "--keep=age"]
    ages = dataset(tmp_path, "target/columns/age", "all.h5")
    assert ages == pytest.approx(columns("target")["age"])


def test_shards_and_adapted_files_carry_kept_columns(tmp_path: Path) -> None:
    """The merged shards have the bytes of one run."""
    path = table(tmp_path / "rows.csv", REVIEWS)
    run = ("extract", "--logits", path, path, "-o")
    covcal(*run, "whole.h5", cwd=tmp_path).require_success()
    for part in ("1/2", "2/2"):
        covcal(*run, f"{part[0]}.h5", "--shard", part, cwd=tmp_path).require_success()
    covcal("merge", "1.h5", "2.h5", "-o", "merged.h5", cwd=tmp_path).require_success()
    assert sha256_of(tmp_path / "merged.h5") == sha256_of(tmp_path / "whole.h5")


@pytest.mark.parametrize(
    ("keep", "complaint"),
    [
        ("colour", "there is no column 'colour' to keep in rows.csv"),
        ("id", "there is no column 'id' to keep in rows.csv"),
        ("label", "rows.csv: label holds the true labels"),
    ],
)
def test_a_column_that_cannot_be_kept_is_refused(keep: str, complaint: str, tmp_path: Path) -> None:
    table(tmp_path / "rows.csv", REVIEWS, id=list(range(N)))
    run = ("extract", "--logits", "rows.csv", "--keep", keep)
    assert complaint in covcal(*run, cwd=tmp_path).error_line()
    assert not (tmp_path / "features.h5").exists()
