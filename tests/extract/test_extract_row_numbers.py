"""Columns that number the rows, whatever they are called, are named and never fed in silence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covcal_cli.data.rows import note_on_numbered_rows
from tests.cli_runner import Outcome, covcal
from tests.extract.named_tables import ANIMALS, N, X, Y, columns, dataset, model, outputs, save
from tests.made_rows import parquet

KINDS = ("csv", "parquet")
COUNT: list[int] = [1000 + 7 * row for row in range(N)]
SHUFFLED = np.random.default_rng(3).permutation(COUNT).tolist()


def both(kind: str, folder: Path, **more: list[Any]) -> list[str]:
    """Save source and target with further columns before the features."""
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs covcal[parquet]")
    return [save(kind, folder, name[0], {**more, **columns(name)}) for name in ("source", "target")]


def extract(folder: Path, tables: list[str], *options: str) -> Outcome:
    return covcal("extract", model(folder), *tables, *options, cwd=folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("values", [COUNT, SHUFFLED])
def test_a_row_number_too_many_is_named(kind: str, values: list[int], tmp_path: Path) -> None:
    """And the remedy that the line gives works."""
    line = extract(tmp_path, both(kind, tmp_path, customer_no=values)).error_line()
    assert f"s.{kind} has 4 columns of numbers, but the model expects float32 [N, 3]. " in line
    assert line.endswith("customer_no looks like row numbers, so rename it to id")
    extract(tmp_path, both(kind, tmp_path, id=values)).require_success()
    np.testing.assert_allclose(dataset(tmp_path, "target/logits"), X["target"], rtol=1e-6)
    assert dataset(tmp_path, "target/ids")[2] == str(values[2]).encode()


def test_beside_an_id_it_becomes_a_group(tmp_path: Path) -> None:
    names = [f"r{row}" for row in range(N)]
    line = extract(tmp_path, both("csv", tmp_path, id=names, customer_no=COUNT)).error_line()
    assert line.endswith(", so rename it to group_customer_no")
    done = extract(tmp_path, both("csv", tmp_path, id=names, group_customer_no=COUNT))
    done.require_success()
    np.testing.assert_allclose(dataset(tmp_path, "source/logits"), X["source"], rtol=1e-6)


def test_two_of_them_are_both_named(tmp_path: Path) -> None:
    line = extract(tmp_path, both("csv", tmp_path, row=COUNT, customer=COUNT)).error_line()
    assert "row, customer looks like" in line
    assert line.endswith(", so rename row to id, and the other columns to group_NAME")


@pytest.mark.parametrize(
    "values", [[30 + row % 9 for row in range(N)], [row + 0.5 for row in range(N)]]
)
def test_a_column_too_many_that_numbers_nothing_is_not_blamed(
    values: list[float], tmp_path: Path
) -> None:
    """Whole numbers that repeat, or rising fractions: all columns are listed, as before."""
    line = extract(tmp_path, both("csv", tmp_path, visits=values)).error_line()
    assert "s.csv has 4 columns of numbers (visits, age, height, weight)" in line
    assert "like row numbers" not in line


def test_one_of_the_right_number_of_columns_is_fed_with_a_note(tmp_path: Path) -> None:
    """The column may be a time that the model was trained on."""
    for name in ("source", "target"):
        table = {"customer_no": COUNT, **columns(name)}
        del table["weight"]
        save("csv", tmp_path, name[0], table)
    done = extract(tmp_path, ["s.csv", "t.csv"]).require_success()
    assert done.err.count("looks like row numbers") == 1
    assert "note: s.csv: customer_no is used as a feature, but looks" in done.err
    assert "If the column is not a feature, rename it to id" in done.err
    done = extract(tmp_path, both("csv", tmp_path), "-f").require_success()
    assert "rises" not in done.err


def test_in_a_long_table_every_row_counts(tmp_path: Path) -> None:
    """Numbers that repeat once, far down, number no rows."""
    n = 2500
    rng = np.random.default_rng(0)
    table = {"label": (np.arange(n) % 3).tolist(), "a": rng.random(n), "b": rng.random(n)}
    for last, found in ((n - 2, False), (n - 1, True)):
        save("csv", tmp_path, "t", {**table, "no": [*range(n - 1), last]})
        done = extract(tmp_path, ["--target", "t.csv", "-f"]).require_success()
        assert ("no is used as a feature, but looks" in done.err) == found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Unnamed: 0", "", "Unnamed: 0.1", "__index_level_0__"])
def test_the_index_of_pandas_names_the_rows_and_is_left_out(
    kind: str, name: str, tmp_path: Path
) -> None:
    done = extract(tmp_path, both(kind, tmp_path, **{name: SHUFFLED})).require_success()
    shown = name or "the column without a name"
    assert f"note: s.{kind}: {shown} is a pandas index, so it is not used as a feature" in done.err
    np.testing.assert_allclose(dataset(tmp_path, "target/logits"), X["target"], rtol=1e-6)
    assert dataset(tmp_path, "target/ids").tolist() == [str(v).encode() for v in SHUFFLED]


@pytest.mark.parametrize("name", ["customer", "label", "group_no"])
def test_a_named_index_of_pandas_is_known_by_what_the_file_says(name: str, tmp_path: Path) -> None:
    """An index is not a feature; it gives the ids only if its name has no other meaning."""
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs covcal[parquet]")
    tables = []
    for domain in ("source", "target"):
        table = {name: SHUFFLED, **columns(domain)}
        if name == "label":
            table = {name: Y[domain].tolist(), **{k: v for k, v in table.items() if k != name}}
        said = {b"pandas": json.dumps({"index_columns": [name]}).encode()}
        made = arrow.table(table).replace_schema_metadata(said)
        tables.append(f"{domain}.parquet")
        parquet().write_table(made, tmp_path / tables[-1])
    done = extract(tmp_path, tables).require_success()
    assert f"source.parquet: {name} is a pandas index, so it is not used as a feature" in done.err
    np.testing.assert_allclose(dataset(tmp_path, "target/logits"), X["target"], rtol=1e-6)
    ids = dataset(tmp_path, "target/ids").tolist()
    assert (ids == [str(v).encode() for v in SHUFFLED]) == (name == "customer")


def test_saved_twice_it_is_there_twice(tmp_path: Path) -> None:
    """The first names the rows; and a column id goes before any index."""
    twice = {"": SHUFFLED, "Unnamed: 0": COUNT}
    done = extract(tmp_path, both("csv", tmp_path, **twice)).require_success()
    assert "s.csv: the column without a name, Unnamed: 0 is a pandas index" in done.err
    assert dataset(tmp_path, "source/ids")[0] == str(SHUFFLED[0]).encode()
    names = [f"r{row}" for row in range(N)]
    extract(tmp_path, both("csv", tmp_path, **twice, id=names), "-f").require_success()
    assert dataset(tmp_path, "source/ids")[0] == b"r0"


def test_where_paths_name_the_rows_an_index_does_not(tmp_path: Path) -> None:
    """The split of an image follows its path, whoever saved the table with an index."""
    from PIL import Image

    from tests.classifiers.onnx.onnx_graphs import SIDE, grey_classifier

    grey_classifier(tmp_path)
    paths = [f"{row}.png" for row in range(N)]
    for path in paths:
        Image.new("L", (SIDE, SIDE), int(path.split(".")[0])).save(tmp_path / path)
    table = {"Unnamed: 0": COUNT, "path": paths, "label": [k % 3 for k in range(N)]}
    save("csv", tmp_path, "t", table)
    done = covcal("extract", "model.onnx", "--target", "t.csv", cwd=tmp_path).require_success()
    assert "index" not in done.err
    assert dataset(tmp_path, "target/ids").tolist() == [path.encode() for path in paths]


def test_the_index_in_outputs_names_the_rows(tmp_path: Path) -> None:
    labels = [ANIMALS[k] for k in Y["source"]]
    save("csv", tmp_path, "t", {"Unnamed: 0": COUNT, **outputs(), "label": labels})
    done = covcal("extract", "--logits", "--target", "t.csv", cwd=tmp_path).require_success()
    assert "note: t.csv: Unnamed: 0 is a pandas index, so it is not used as a feature" in done.err
    assert dataset(tmp_path, "target/ids").tolist() == [str(v).encode() for v in COUNT]


def test_rows_without_ids_may_have_a_column_of_names() -> None:
    path, names = Path("t.csv"), np.array([b"a", b"b"])
    (note,) = note_on_numbered_rows(path, {"age": np.arange(2), "customer_id": names})
    assert note == (
        "the ids of t.csv are row numbers. To use customer_id as ids, rename the column to id"
    )
    assert not note_on_numbered_rows(path, {"shop_id": names[[0, 0]], "paid": names})
