"""CSV and Parquet tables: which columns are what, and what is refused."""

import csv
import gzip
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from covcal_cli.arrays import ModelInput
from covcal_cli.data.classes import named_classes, numbered_classes
from covcal_cli.data.domain import DomainData
from covcal_cli.data.outputs import open_outputs
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.data.rows import GROUP_PREFIX
from covcal_cli.data.stores import open_store
from covcal_cli.data.stores.csv import CSVStore
from covcal_cli.errors import CovcalError
from tests.cli_runner import covcal
from tests.made_rows import opened, write_parquet

TWO = ModelInput("input.1", (None, 2), np.dtype(np.float32))
GREY = ModelInput("input.1", (None, 1, 4, 4), np.dtype(np.float32))


def table(folder: Path, text: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def fed(data: DomainData) -> NDArray[Any]:
    assert not data.holds_images
    rows = np.arange(len(data.ids))
    batches = data.batches(None, rows, size=2, threads=1)
    return np.concatenate([values for batch in batches for values in batch.inputs.values()])


@pytest.mark.parametrize(
    "text",
    [
        "a,b,label\n1,0.5,0\n2,1e1,1\n-3,.25,\n",
        "a;b;label\r\n1;0.5;0\r\n2;1e1;1\r\n-3;.25;\r\n",
        "a\tb\tlabel\n1\t0.5\t0\n2\t1e1\t1\n-3\t.25\t\n",
        '\ufeff"a","b","label"\n"1"," 0.5 ","0.0"\n"2","1e1","1.0"\n"-3",".25",""\n',
        "label,a,b\n\n0,1,0.5\n1,2,1e1\n\n-1,-3,.25",
        ",a,b,Label\n0,1,0.5,0\n1,2,1e1,1\n2,-3,.25,\n",
    ],
)
def test_dialects_of_csv_say_the_same(text: str, tmp_path: Path) -> None:
    data = opened(table(tmp_path, text), TWO)
    assert fed(data).tolist() == [[1, 0.5], [2, 10], [-3, 0.25]]
    assert data.labels(numbered_classes(2)).tolist() == [0, 1, -1]
    assert data.ids == ["0", "1", "2"]
    assert data.columns == {}


_ROWS = "".join(f"{row},{row / 7},c{row % 3}, {'é x'[row % 3]} \n" for row in range(200))


@pytest.mark.parametrize(
    "more",
    [
        "",
        '1,2,c",d\n',
        '1,"2","a, ""b""",d\n',
        "1,,c, \n,nan,,d\n",
        "1,-inf,c,d\n1,1e400,c,d\n",
        "+1,1_0,c,d\n",
        " 1\t, -2. ,true,None\n1e-400,4.9e-324,,\n",
        "true,false,c,d\n",
        "1,2,\ufeffc,d\n\ufeff1,2,c,d\n",
        "1,2,c\0,d\n",
        "1,2,c,d\n\n1,2,c,d\n",
        "1,2,c,d\r\n1,2,c,d\r\n",
        "1,2,c,d\r1,2,c,d\n",
        "1,2,c\n",
        "1,2,c,d,e\n",
        "1,0x1,c,d\n",
        "1,2,c,d",
    ],
)
@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_pyarrow_reads_a_table_as_python_does(
    name: str, more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / name
    text = f"a,b,label,group_d\n{_ROWS}{more}{_ROWS}".encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    def read(large: int) -> object:
        monkeypatch.setattr("covcal_cli.data.stores.csv._LARGE", large)
        try:
            store = CSVStore(path)
            assert (store._arrow is None) == (large > 0)
            n = store.entries["a"].shape[0]
            pieces = store.pieces(["b", "a"], np.delete(np.arange(n), [3, 100, n - 2]), 64)
            numbers = [
                (rows.tolist(), {name: values.tobytes() for name, values in arrays.items()})
                for rows, arrays in pieces
            ]
        except CovcalError as error:
            return str(error)
        return numbers, store.texts("label"), store.texts("group_d"), store.place(n - 1)

    assert read(0) == read(1 << 40)


def test_a_compressed_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv.gz"
    # The content decides, and not the name.
    for file in (path, tmp_path / "rows.csv"):
        for content in (gzip.compress(b"a,b\n1,2\n3,4\n"), b"a,b\n1,2\n3,4\n"):
            file.write_bytes(content)
            assert fed(opened(file, TWO)).tolist() == [[1, 2], [3, 4]]
    (tmp_path / "rows.csv").write_bytes(b"PAR1\xff\xfe")
    with pytest.raises(CovcalError, match=r"a Parquet file: give it a name that ends in \.parquet"):
        opened(tmp_path / "rows.csv")
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 5000)[:-10])
    with pytest.raises(CovcalError, match=r"rows.csv.gz: it is not a readable CSV file"):
        opened(path)


def test_a_long_text_is_read(tmp_path: Path) -> None:
    """Python's csv module allows 131,072 characters in a cell if nobody changes that."""
    path = tmp_path / "rows.csv"
    path.write_text(f"a,text,b\n1,{'x' * 200_000},2\n")
    assert fed(opened(path, TWO)).tolist() == [[1, 2]]


def test_booleans_are_numbers_and_texts_are_groups(tmp_path: Path) -> None:
    text = "a,flag,site,code,group_age,id\n1,True,,7_1,30,x\n2,false,Rome,7_2,31,y\n"
    data = opened(table(tmp_path, text), TWO)
    assert fed(data).tolist() == [[1, 1], [2, 0]]
    assert {name: values.tolist() for name, values in data.columns.items()} == {
        "site": ["", "Rome"],
        "code": ["7_1", "7_2"],
        "age": ["30", "31"],
    }
    assert data.ids == ["x", "y"]


@pytest.mark.parametrize("first", ["NA", "none", "null"])
def test_a_word_for_a_missing_value_is_kept_among_texts(first: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"region,x,size\n{first},1,\n,2,{first}\n{first},3,4\nEU,4,5\n")
    store = CSVStore(path)
    assert store.texts("region") == [first, "", first, "EU"]
    np.testing.assert_array_equal(store.whole("size"), [np.nan, np.nan, 4, 5])


def test_numbers_in_a_table_are_integers_where_the_model_wants_them(tmp_path: Path) -> None:
    wanted = ModelInput("input.1", (None, 2), np.dtype(np.int64))
    data = opened(table(tmp_path, "a,b\n1,2\n3,4.0\n"), wanted)
    assert fed(data).tolist() == [[1, 2], [3, 4]]
    data = opened(table(tmp_path, "a,b\n1,2\n3,4.5\n"), wanted)
    with pytest.raises(CovcalError, match=r"b is 4\.5 in line 3, but the model needs int64"):
        fed(data)


BAD: dict[str, tuple[str, str]] = {
    "text among numbers": (
        "a,b\n1,2\n3,red\n",
        "column b holds 'red' in line 3, but numbers in earlier rows: write a number",
    ),
    "true among numbers": (
        "a,b\n1,2\n3,TRUE\n",
        "column b holds 'TRUE' in line 3, but numbers in earlier rows: write a number",
    ),
    "number among booleans": (
        "a,b\n1,True\n3,0\n5,2.5\n",
        "column b holds '2.5' in line 4, but true or false in earlier rows: write true or false",
    ),
    "empty cell": (
        "a,b,id\n1,2,p\n3,,q\n",
        r"column b is empty, NaN or infinite in line 3 \(q\).*: fill in the value",
    ),
    "NA": ("a,b\n1,2\n3,NA\n", "column b is empty, NaN or infinite in line 3"),
    "no values": ("a,b\n1,\n3,\n", "column b is empty, NaN or infinite in line 2"),
    "short line": ("a,b\n1,2\n3\n", "line 3 has 1 cells, but the first line names 2 columns"),
    "long line": ("a,b\n1,2,3\n", "line 2 has 3 cells, but the first line names 2 columns"),
    "no header": ("1,2\n3,4\n", "the first line holds numbers, not names: add a first line"),
    "classes or a row": ("0,1\n.3,.7\n", "such as prob_0,prob_1 for the probabilities of the"),
    "no classes": ("0,1,2\n3,4,5\n", "the first line holds numbers, not names: add a first line"),
    "no first line": ("\na,b\n1,2\n", "the first line is empty: name the columns there"),
    "underscore": ("a,b\n1,2\n3,1_0\n", "column b holds '1_0' in line 3, but numbers"),
    "other digits": ("a,b\n1,2\n3,\uff11\n", "column b holds '\uff11' in line 3, but numbers"),
    "other digits first": (
        "a,b\n1,\u0663\n3,4\n",
        r"has 1 columns .* text columns are ignored: b",
    ),
    "decimal comma": (
        "a;b\n1;0,5\n3;0,6\n",
        "column b holds '0,5' in line 2, with a decimal comma",
    ),
    "twice": ("a,b,a\n1,2,3\n", "two columns are called 'a': rename one of them"),
    "no numbers": (
        "a,b\nx,y\n",
        "no column holds numbers; the columns are a, b: give one column per feature",
    ),
    "too many": (
        "a,b,c,colour\n1,2,3,red\n",
        r"has 3 columns of numbers \(a, b, c; text columns are ignored: colour\) but "
        r"the model expects float32 \[N, 2\]: give one column per feature in the model's "
        r"order\. Rename every other column to group_NAME",
    ),
    "quote": ('a,b\n1,"2\n', r"is not a readable CSV file \(.*\): check its quotes"),
    "title": ("My table\na,b\n1,2\n", "remove the lines above the names of the columns"),
    "late text": ("a,b\n1,2\n3,4a\n", "If the column holds texts, rename it to group_b"),
    "both labels": ("a,b,y,label\n1,2,0,0\n", "y and label have the same meaning: keep only"),
    "split": ("a,b,split\n1,2,train\n1,2,dev\n", "split holds 'dev' in line 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_table_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    text, message = BAD[case]
    path = table(tmp_path, text)
    with pytest.raises(CovcalError, match=message) as caught:
        fed(opened(path, TWO))
    assert "rows.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_line_of_blanks_is_a_row_without_a_value(tmp_path: Path) -> None:
    """NumPy's parser passes over it, which would shift every row below."""
    wanted = ModelInput("x", (None, 1), np.dtype(np.float32))
    data = opened(table(tmp_path, "a\n1\n \n3\n"), wanted)
    assert data.ids == ["0", "1", "2"]
    with pytest.raises(CovcalError, match="column a is empty, NaN or infinite in line 3"):
        fed(data)


def test_a_text_for_an_input_of_numbers_is_named(tmp_path: Path) -> None:
    path = table(tmp_path, "age,colour\n1,red\n2,blue\n")
    wanted = [ModelInput(name, (None, 1), np.dtype(np.float32)) for name in ("age", "colour")]
    with pytest.raises(
        CovcalError, match=r"colour holds texts, such as 'red' in line 2, but the model"
    ):
        opened(path, *wanted)


@pytest.mark.parametrize("text", ["text,label\ngood,1\nbad,0\n", "x,label\ngood,1\nbad,0\n"])
def test_texts_alone_are_told_of_the_way_without_a_model(text: str, tmp_path: Path) -> None:
    remedy = r"predict_proba .* and give these tables instead of the model"
    with pytest.raises(CovcalError, match=remedy):
        fed(opened(table(tmp_path, text), ModelInput("x", (None, 1), np.dtype(np.float32))))


def test_missing_values_are_for_models_that_take_them(tmp_path: Path) -> None:
    """Infinity is for none."""
    wanted = replace(TWO, takes_missing=True)
    data = opened(table(tmp_path, "a,b\n1,\nnan,4\n"), wanted)
    np.testing.assert_array_equal(fed(data), [[1, np.nan], [np.nan, 4]])
    with pytest.raises(CovcalError, match="column b is empty, NaN or infinite in line 3"):
        fed(opened(table(tmp_path, "a,b\n1,\n2,inf\n"), wanted))


def test_a_table_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("a,straße\n1,2\n".encode("latin-1"))
    with pytest.raises(CovcalError, match="line 1 is not UTF-8 or UTF-16 text: save the file"):
        opened(path)
    lines = tmp_path / "rows.jsonl"
    long = b'{"a": "%s"}\n' % (b"1" * 800)
    lines.write_bytes(long * 2_500 + '{"a": "é"}\n'.encode("latin-1"))
    with pytest.raises(CovcalError, match="line 2501 is not UTF-8 or UTF-16 text"):
        open_store(lines)
    path.write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(CovcalError, match="it is a workbook or a ZIP archive"):
        opened(path)


@pytest.mark.parametrize("kind", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_table_is_read_in_every_unicode_encoding(suffix: str, kind: str, tmp_path: Path) -> None:
    """Excel's "Unicode text" is UTF-16 with tabs."""
    path = tmp_path / f"rows{suffix}"
    content = "größe\tb\tid\n1\t2\tä\n3\t4\tЖ\n".encode(kind)
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    data = opened(path, TWO)
    assert fed(data).tolist() == [[1, 2], [3, 4]]
    assert data.ids == ["ä", "Ж"]


def test_a_decimal_comma_in_a_column_that_is_not_needed_is_a_text(tmp_path: Path) -> None:
    data = opened(table(tmp_path, "a;price;b\n1;0,5;2\n3;0,6;4\n"), TWO)
    assert fed(data).tolist() == [[1, 2], [3, 4]]
    assert data.columns["price"].tolist() == ["0,5", "0,6"]
    outputs = table(tmp_path, "price;logit_a;logit_b\n0,5;1;2\n0,6;3;4\n")
    assert open_outputs(None, outputs, "logits")["target"].columns["price"].tolist() == [
        "0,5",
        "0,6",
    ]


def test_a_table_cut_short_between_two_readings_is_named(tmp_path: Path) -> None:
    path = table(tmp_path, "a,b\n" + "1,2\n" * 50)
    data = opened(path, TWO)
    table(tmp_path, "a,b\n1,2\n")
    with pytest.raises(CovcalError, match="the file became shorter while covcal read it"):
        fed(data)


def images(folder: Path) -> None:
    (folder / "pictures").mkdir()
    for value in range(4):
        Image.new("L", (4, 4), 50 * value).save(folder / "pictures" / f"{value}.png")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_path_column_names_images_beside_the_table(kind: str, tmp_path: Path) -> None:
    images(tmp_path)
    names = [f"pictures/{value}.png" for value in (3, 1, 0)]
    if kind == "csv":
        lines = [
            f"{name},{label},40" for name, label in zip(names, ("eel", "cat", ""), strict=True)
        ]
        path = table(tmp_path, "\n".join(["path,label,age", *lines]))
    else:
        columns = {"file_name": names, "label": ["eel", "cat", None], "age": [40, 40, 40]}
        path = write_parquet(tmp_path / "rows.parquet", columns)
    data = opened(path, GREY)
    assert data.holds_images
    assert data.ids == names
    assert data.labels(named_classes(("cat", "eel"))).tolist() == [1, 0, -1]
    assert data.columns["age"].astype(int).tolist() == [40, 40, 40]
    pipeline = Preprocessing().resolve(GREY.shape, GREY.dtype)
    batches = list(data.batches(pipeline, np.array([0, 2]), size=2, threads=1))
    pixels = batches[0].inputs["input.1"]
    np.testing.assert_allclose(pixels[:, 0, 0, 0], [150 / 255, 0], rtol=1e-6)


def test_a_file_that_a_table_names_in_vain_is_skipped_and_named(tmp_path: Path) -> None:
    images(tmp_path)
    data = opened(table(tmp_path, "path\npictures/1.png\nelsewhere.png\n"), GREY)
    pipeline = Preprocessing().resolve(GREY.shape, GREY.dtype)
    (batch,) = data.batches(pipeline, np.array([0, 1]), size=2, threads=1)
    assert batch.rows.tolist() == [0]
    assert batch.skipped == ((1, "no such file or directory"),)


def test_parquet_columns_of_many_types(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs covcal[parquet]")
    from decimal import Decimal

    columns = {
        "a": arrow.array([1, 2], arrow.int8()),
        "flag": arrow.array([True, False]),
        "half": arrow.array(np.array([0.5, 1.5], np.float16)),
        "price": arrow.array([Decimal("1.25"), Decimal("2.50")]),
        "site": arrow.array(["Bern", "Rome"]).dictionary_encode(),
        "day": arrow.array([0, 1], arrow.date32()),
        "nested": arrow.array([{"u": 1}, {"u": 2}]),
        "class": arrow.array([1, None]),
    }
    wanted = ModelInput("x", (None, 4), np.dtype(np.float32))
    data = opened(write_parquet(tmp_path / "rows.parquet", columns), wanted)
    assert fed(data).tolist() == [[1, 1, 0.5, 1.25], [2, 0, 1.5, 2.5]]
    assert data.columns["site"].tolist() == ["Bern", "Rome"]
    assert data.columns["day"].tolist() == ["1970-01-01", "1970-01-02"]
    assert data.labels(numbered_classes(2)).tolist() == [1, -1]
    assert data.notes == (f"{data.path}: nested not used",)


def test_a_parquet_column_of_lists_is_a_wide_array(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet", {"v": [[1.0, 2.0], [3.0, 4.0]], "age": [7, 8]})
    assert fed(opened(path, TWO)).tolist() == [[1, 2], [3, 4]]
    path = write_parquet(tmp_path / "rows.parquet", {"v": [[1.0, 2.0], [3.0]]})
    with pytest.raises(CovcalError, match="column v has 1 values in row 1, but 2 values in row 0"):
        fed(opened(path, TWO))


def test_a_null_in_parquet_is_a_missing_value(tmp_path: Path) -> None:
    for values in ([1, None], [True, None], [1.5, None]):
        path = write_parquet(tmp_path / "rows.parquet", {"a": values, "b": [1, 2]})
        with pytest.raises(CovcalError, match="column a is empty, NaN or infinite in row 1"):
            fed(opened(path, TWO))


def test_damage_inside_a_parquet_file_is_named(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet", {"a": list(range(999)), "b": [0.5] * 999}, 999)
    content = bytearray(path.read_bytes())
    content[4:400] = b"\xff" * 396
    path.write_bytes(content)
    with pytest.raises(CovcalError, match=r"rows\.parquet is not a readable Parquet file"):
        fed(opened(path, TWO))


@pytest.mark.parametrize("name", [".", "\0", "a/b", GROUP_PREFIX])
def test_a_column_whose_name_cannot_be_stored_is_no_group(name: str, tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 2},{i % 2 - 0.5},{0.5 - i % 2},g{i % 3}\n" for i in range(60))
    for table in ("source.csv", "target.csv"):
        (tmp_path / table).write_text(f"id,label,logit_0,logit_1,{name}\n{rows}")
    covcal("extract", "--logits", "source.csv", "target.csv", cwd=tmp_path).require_success()
    with h5py.File(tmp_path / "features.h5") as file:
        assert "columns" not in file["target"]


class TestCSVIsScannedAsItsReaderReadsIt:
    """Plain lines are cut by hand and other lines by the CSV reader; both give the same cells."""

    CELLS = ("1", "2.5", "", "x", "a b")
    QUOTED = ('"q"', '"a;b,c\td"', '"l\nm"', '"x""y"')

    @pytest.mark.parametrize("seed", range(24))
    def test_texts_rows_and_lines(
        self, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("covcal_cli.data.stores.csv.WINDOW_BYTES", 1)  # blocks of 64 rows
        rng = np.random.default_rng(seed)
        n, width, delimiter = int(rng.integers(1, 400)), int(rng.integers(1, 6)), ",;\t"[seed % 3]
        choices = [*self.CELLS, *(self.QUOTED if seed % 2 else ())]
        cells = rng.choice(choices, size=(n, width)).tolist()
        lines = [delimiter.join([*row, f"id{i}"]) for i, row in enumerate(cells)]
        if seed % 4 > 1:
            lines.insert(int(rng.integers(n)), "")
        newline = ("\n", "\r\n")[seed % 5 % 2]
        names = [*(f"c{k}" for k in range(width)), "id"]
        text = newline.join([delimiter.join(names), *lines]) + newline * (seed % 2)
        path = tmp_path / "t.csv"
        path.write_bytes(text.encode())
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))[1:]
        rows = [row for row in rows if row]
        store = CSVStore(path, of_images=False)
        assert store.entries["id"].shape == (len(rows),)
        for place, name in enumerate(names):
            if store.entries[name].is_text:
                assert store.texts(name) == [row[place] for row in rows]
        lines.append(delimiter.join(["9"] * (width + 3)))
        path.write_bytes(newline.join([delimiter.join(names), *lines]).encode())
        last = path.read_bytes().count(b"\n") + 1
        with pytest.raises(CovcalError, match=f"line {last} has {width + 3} cells"):
            CSVStore(path, of_images=False)


def test_a_line_with_the_separator_counts_in_the_numbers_of_lines(tmp_path: Path) -> None:
    """Excel writes it above the names of the columns."""
    path = tmp_path / "x.csv"
    path.write_text("sep=;\na;b\n1;2\n3;4\n")
    store = CSVStore(path)
    assert store.whole("b").tolist() == [2, 4]
    assert store.place(1) == "line 4"
    path.write_text("sep=;\na;b\n1;2\n3;4;5\n")
    with pytest.raises(CovcalError, match="line 4 has 3 cells, but the first line names 2 columns"):
        CSVStore(path)
