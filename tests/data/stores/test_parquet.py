"""Parquet as people have it: tables of many columns, and partitioned folders."""

import re
import subprocess
import sys
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from covcal_cli.arrays import ModelInput
from covcal_cli.data.classes import named_classes, numbered_classes
from covcal_cli.data.labels import LabelSets
from covcal_cli.data.outputs import open_outputs
from covcal_cli.data.stores import open_store
from covcal_cli.data.stores import parquet as parquet_store
from covcal_cli.errors import CovcalError
from tests.made_rows import opened, parquet, write_parquet

arrow = pytest.importorskip("pyarrow", reason="Parquet needs covcal[parquet]")

TWO = ModelInput("x", (None, 2), np.dtype(np.float32))


def wide_table(n: int = 500) -> dict[str, Any]:
    """Return columns of every kind of number, some of them lists, some with gaps."""
    rng = np.random.default_rng(3)
    columns: dict[str, Any] = {f"f{i}": rng.normal(size=n).astype(np.float32) for i in range(12)}
    columns["count"] = rng.integers(-9, 9, n)
    columns["gaps"] = [None if row % 7 == 0 else row for row in range(n)]
    columns["flag"] = rng.integers(0, 2, n).astype(bool)
    columns["list"] = list(rng.normal(size=(n, 3)))
    columns["half"] = rng.normal(size=n).astype(np.float16)
    return columns


def expected(values: Any) -> NDArray[Any]:
    found = [np.nan if value is None else value for value in values]
    return np.array(found)


class TestWideTables:
    @pytest.fixture(autouse=True)
    def _small_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lower the limits, so that a table of 17 columns counts as wide."""
        monkeypatch.setattr(parquet_store, "_ENOUGH", 1000)
        monkeypatch.setattr(parquet_store, "_SET", 3000)
        monkeypatch.setattr(parquet_store, "_USUAL", 1)

    @pytest.mark.parametrize(
        ("held", "chosen"),
        [
            *((1, range(3, 490, 11)), (1, [0, 1, 256, 257]), (30, range(500)), (1000, range(500))),
            *((100, range(3, 490, 11)), (1000, [499])),
        ],
    )
    def test_their_rows_are_joined_from_a_few_columns_at_a_time(
        self, chosen: Sequence[int], held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However few rows are joined at a time, and the rows before them read again for it."""
        monkeypatch.setattr(parquet_store, "_HELD", 1)
        monkeypatch.setattr(parquet_store, "_FEWEST_HELD", held)
        columns = wide_table()
        store = open_store(write_parquet(tmp_path / "rows.parquet", columns, 256))
        opened = []
        real = arrow.parquet.ParquetFile.iter_batches

        def iter_batches(file: Any, *args: Any, columns: list[str], **options: Any) -> Any:
            opened.append(len(columns))
            return real(file, *args, columns=columns, **options)

        monkeypatch.setattr(arrow.parquet.ParquetFile, "iter_batches", iter_batches)
        rows = np.array(chosen, dtype=np.int64)
        names = list(columns)[::-1]
        pieces = list(store.pieces(names, rows, 64))
        assert max(opened) < len(names) / 2
        assert max(len(places) for places, _ in pieces) <= 64
        np.testing.assert_array_equal(np.concatenate([places for places, _ in pieces]), rows)
        for name in names:
            values = np.concatenate([arrays[name] for _, arrays in pieces])
            np.testing.assert_array_equal(values, expected(columns[name])[rows], err_msg=name)

    def test_a_few_of_their_rows_are_held_at_a_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parquet_store, "WINDOW_BYTES", 1 << 14)
        monkeypatch.setattr(parquet_store, "_HELD", 1 << 16)
        monkeypatch.setattr(parquet_store, "_FEWEST_HELD", 1)
        values = np.random.default_rng(0).normal(size=(40, 4000))
        columns = {f"f{i}": column for i, column in enumerate(values)}
        store = open_store(write_parquet(tmp_path / "rows.parquet", columns, 4000))
        seen = 0
        tracemalloc.start()
        for rows, _ in store.pieces(list(columns), np.arange(4000), 64):
            seen += len(rows)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert seen == 4000
        assert 1 << 16 < peak < 0.4 * values.nbytes


PEAK = """
import sys
import numpy as np, pyarrow
from pathlib import Path
from covcal_cli.data.stores import open_store

store = open_store(Path(sys.argv[1]))
seen = sum(len(rows) for rows, _ in store.pieces(list(store.entries), np.arange(262_144), 512))
print(seen, pyarrow.default_memory_pool().max_memory())
"""


def test_64_open_columns_do_not_take_a_page_each(tmp_path: Path) -> None:
    """At once, they would take 64 MB: one page of 1 MB of each."""
    table = arrow.table({f"f{i}": np.zeros(262_144, np.float32) for i in range(64)})
    parquet().write_table(table, tmp_path / "rows.parquet", use_dictionary=False)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "rows.parquet")],
        capture_output=True,
        text=True,
        check=True,
    )
    seen, peak = map(int, done.stdout.split())
    assert seen == 262_144
    assert 4e6 < peak < 40e6


def test_reading_numbers_loads_no_pandas(tmp_path: Path) -> None:
    """Arrow's own way to NumPy would, where it is installed, and take 50 MB for it."""
    write_parquet(tmp_path / "rows.parquet", {"a": [1, None], "b": [0.5, 1], "c": [True, None]})
    code = PEAK.replace("262_144", "2").replace("print(", "print('pandas' in sys.modules, ")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "rows.parquet")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("False 2 ")


class TestLabelsOfOddTypes:
    """Labels that are neither numbers nor texts to Arrow."""

    def labels(self, values: Any, folder: Path) -> list[int]:
        """Return the class index of every row, of the classes cat and dog."""
        n = np.arange(len(values)) / 4
        path = write_parquet(folder / "t.parquet", {"a": n, "b": n, "label": values})
        found: list[int] = opened(path, TWO).labels(named_classes(("cat", "dog"))).tolist()
        return found

    @pytest.mark.parametrize("kind", ["binary", "large_binary", "fixed"])
    def test_bytes_are_read_as_texts(self, kind: str, tmp_path: Path) -> None:
        """Spark and Impala save texts so where they are told nothing else."""
        type_of = arrow.binary(3) if kind == "fixed" else getattr(arrow, kind)()
        values = arrow.array([b"dog", b"cat", None, b"dog"], type_of)
        assert self.labels(values, tmp_path) == [1, 0, -1, 1]

    def test_a_column_without_any_value_is_unknown_everywhere(self, tmp_path: Path) -> None:
        assert self.labels(arrow.nulls(3), tmp_path) == [-1, -1, -1]

    def test_lists_of_texts_are_several_labels(self, tmp_path: Path) -> None:
        labels = arrow.array([["dog", "cat"], [], None, ["cat"]])
        path = write_parquet(tmp_path / "t.parquet", {"a": np.arange(4), "labels": labels})
        sets = LabelSets(open_store(path), 4).indices(named_classes(("cat", "dog")))
        assert sets.tolist() == [[1, 1], [0, 0], [-1, -1], [1, 0]]
        with pytest.raises(CovcalError, match="if rows have several labels, pass --multilabel"):
            self.labels(labels, tmp_path)

    def test_structs_are_refused_in_one_line(self, tmp_path: Path) -> None:
        message = r"t.parquet: column label holds struct<k: int64>: save numbers or texts"
        with pytest.raises(CovcalError, match=message):
            self.labels(arrow.array([{"k": 1}, {"k": 0}]), tmp_path)


def write_parts(folder: Path, parts: Mapping[str, dict[str, Any]]) -> Path:
    """Write parts at their place in a folder."""
    for name, columns in parts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_parquet(folder / name, columns)
    return folder


class TestPartitions:
    def test_folders_of_parts_are_one_table_with_their_keys_as_columns(
        self, tmp_path: Path
    ) -> None:
        table = write_parts(
            tmp_path,
            {
                "group_year=2024/site=Bern%2FWest/part-1.parquet": {"a": [4.0], "b": [0.5]},
                "group_year=2024/site=Bern%2FWest/part-0.parquet": {"a": [3.0], "b": [1.5]},
                "group_year=2023/site=__HIVE_DEFAULT_PARTITION__/x.parquet": {
                    "a": [1.0, 2.0],
                    "b": [2.5, 3.5],
                },
                "group_year=2024/site=Bern%2FWest/_metadata.parquet": {"c": [1]},
                "_spark/part-0.parquet": {"c": [1]},
                "group_year=2025/_SUCCESS.parquet": {"c": [1]},
            },
        )
        data = opened(table, TWO)
        assert not data.holds_images
        batches = list(data.batches(None, np.array([0, 2, 3]), size=8, threads=1))
        assert batches[0].inputs["x"].tolist() == [[1, 2.5], [3, 1.5], [4, 0.5]]
        assert data.columns["year"].tolist() == [2023, 2023, 2024, 2024]
        assert data.columns["site"].tolist() == ["", "", "Bern/West", "Bern/West"]

    @pytest.mark.parametrize(
        ("log", "kind"),
        [
            ("t/_delta_log/0.json", ""),
            ("t/_delta_log/1.json", "Delta"),
            ("t/_delta_log/2.checkpoint.parquet", "Delta"),
            ("t/.hoodie/hoodie.properties", "Hudi"),
            ("metadata/v1.metadata.json", "Iceberg"),
        ],
    )
    def test_deleted_rows_of_a_table_are_not_read(
        self, log: str, kind: str, tmp_path: Path
    ) -> None:
        write_parts(tmp_path / "t", {f"{n}.parquet": {"a": [1.0], "b": [2.0]} for n in range(2)})
        path = tmp_path / log
        path.parent.mkdir()
        action = "remove" if path.name == "1.json" else "add"
        path.write_text(f'{{"{action}": {{"path": "1.parquet"}}}}\n')
        if not kind:
            assert opened(tmp_path / "t", TWO).ids
            return
        with pytest.raises(CovcalError, match=f"is a {kind} table, whose folder also holds del"):
            opened(tmp_path / "t", TWO)

    @pytest.mark.parametrize(
        ("names", "found"),
        [
            (("1", "0"), [0, 1, 1]),
            (("cat", "dog"), [0, 1, 1]),
            (("1", "__HIVE_DEFAULT_PARTITION__"), [1, -1, -1]),
        ],
    )
    def test_a_label_may_be_a_partition(
        self, names: tuple[str, str], found: list[int], tmp_path: Path
    ) -> None:
        first, second = sorted(names)
        parts: dict[str, dict[str, Any]] = {
            f"label={first}/0.parquet": {"a": [1.0]},
            f"label={second}/0.parquet": {"a": [2.0, 3.0]},
        }
        data = opened(write_parts(tmp_path, parts))
        classes = named_classes(("cat", "dog"))
        assert data.labels(classes).tolist() == found

    def test_a_domain_may_be_a_partition(self, tmp_path: Path) -> None:
        parts = {
            f"domain={name}/0.parquet": {"logit_0": [1.0, 2.0], "logit_1": [value, 0.0]}
            for name, value in (("source", 5.0), ("target", 6.0))
        }
        path = write_parts(tmp_path, parts)
        table = open_outputs(None, path, "logits")["target"]
        batch = next(table.batches(None, np.arange(2), size=2, threads=1))
        assert batch.inputs["logits"].tolist() == [[1, 6], [2, 0]]

    def test_a_column_of_the_parts_counts_more_than_their_folder(self, tmp_path: Path) -> None:
        parts = {f"y={n}/0.parquet": {"a": [1.0], "y": [n + 1]} for n in range(2)}
        data = opened(write_parts(tmp_path, parts))
        assert data.labels(numbered_classes(3)).tolist() == [1, 2]

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (("a=1/0", "b=1/0"), "have different partitions (a and b): give"),
            (("a=1/0", "a=2/b=1/0"), "have different partitions (a and a, b): give"),
            (("0", "a=1/0"), "has both the file 0.parquet and partitions such as a=1: give"),
            (("a=1/a=2/0",), "the key a occurs twice in this path: rename one"),
            (
                ("a=1/0", "raw/0"),
                "holds Parquet files in its folder raw, which is not named KEY=VALUE: give "
                "only this inner folder, or rename it",
            ),
            (
                ("a=1/0", "a=1/raw/0"),
                "a=1 holds Parquet files in its folder raw, which is not named",
            ),
            (("train/0", "test/0"), "holds Parquet files in its folder test, which is not named"),
        ],
    )
    def test_what_is_no_partitioned_table_is_refused(
        self, names: tuple[str, ...], message: str, tmp_path: Path
    ) -> None:
        write_parts(tmp_path, {f"{name}.parquet": {"x": [1.0]} for name in names})
        with pytest.raises(CovcalError, match=re.escape(message)) as caught:
            opened(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_text_whose_bytes_are_none_is_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = arrow.table({"id": [f"row {i}" for i in range(9)]})
    parquet().write_table(table, path, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"row 7", b"row \xd8"))
    with pytest.raises(CovcalError, match=r"rows.parquet is not a readable Parquet file \('utf-8'"):
        open_store(path).texts("id")


def test_no_damaged_byte_of_the_description_ends_the_process(tmp_path: Path) -> None:
    """pyarrow ends the process if it is asked for the sizes of some damaged columns."""
    path = tmp_path / "rows.parquet"
    parquet().write_table(
        arrow.table({"prob_a": [0.2, 0.7, 0.9]}), path, compression="none", use_dictionary=False
    )
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), len(whole) - 8):
        path.write_bytes(whole[:place] + b"\x26" + whole[place + 1 :])
        try:
            store = open_store(path)
            rows = np.arange(min(3, *(entry.shape[0] for entry in store.entries.values()), 3))
            list(store.pieces([*store.entries], rows, 3))
        except CovcalError:
            refused += 1
    assert refused > 20


class TestProbabilitiesInOneColumn:
    """Vectors of Spark, lists of BigQuery, maps and structs are outputs of all classes."""

    P = np.array([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0], [0.6, 0.0, 0.4], [0.1, 0.7, 0.2]] * 3)
    NAMES = ("a", "b", "c")

    def column(self, kind: str) -> Any:
        arrow = pytest.importorskip("pyarrow", reason="Parquet needs covcal[parquet]")
        integers = arrow.list_(arrow.int32())
        vector = arrow.struct(
            {"type": arrow.int8(), "size": arrow.int32(), "indices": integers}
            | {"values": arrow.list_(arrow.float64())}
        )
        rows = self.P.tolist()
        dense = [{"type": 1, "size": None, "indices": None, "values": row} for row in rows]
        sparse = [
            {"type": 0, "size": 3, "indices": [k for k in range(3) if row[k]]}
            | {"values": [p for p in row if p]}
            for row in rows
        ]
        named = [dict(zip(self.NAMES, row, strict=True)) for row in rows]
        order = [sorted(row, key=row.__getitem__)[::-1] for row in named]
        pair = arrow.struct({"label": arrow.string(), "prob": arrow.float64()})
        pairs = [
            [{"label": k, "prob": row[k]} for k in ks if row[k]]
            for row, ks in zip(named, order, strict=True)
        ]
        mapping = arrow.map_(arrow.string(), arrow.float64())
        return {
            "dense": lambda: arrow.array(dense, vector),
            "sparse": lambda: arrow.array(sparse, vector),
            "mixed": lambda: arrow.array([sparse[0], *dense[1:6], *sparse[6:]], vector),
            "pairs": lambda: arrow.array(pairs, arrow.list_(pair)),
            "map": lambda: arrow.array([list(row.items()) for row in named], mapping),
            "struct": lambda: arrow.array(named),
        }[kind]()

    @pytest.mark.parametrize("kind", ["dense", "sparse", "mixed", "pairs", "map", "struct"])
    def test_they_are_read(self, kind: str, tmp_path: Path) -> None:
        name = "predicted_kind_probs" if kind == "pairs" else "probability"
        path = write_parquet(tmp_path / "t.parquet", {name: self.column(kind), "label": [1] * 12})
        table = open_outputs(None, path, "probabilities")["target"]
        assert table.class_names == (None if kind in ("dense", "sparse", "mixed") else self.NAMES)
        for rows in (np.arange(12), np.array([2, 7])):
            (batch,) = table.batches(None, rows, size=20, threads=1)
            np.testing.assert_allclose(np.exp(batch.inputs["logits"]), self.P[rows], atol=1e-6)

    @pytest.mark.parametrize("kind", ["pairs", "map"])
    def test_a_class_that_a_row_has_twice_is_named(self, kind: str, tmp_path: Path) -> None:
        """Else one of its probabilities would be lost, and another class would seem missing."""
        arrow = pytest.importorskip("pyarrow", reason="Parquet needs covcal[parquet]")
        column = self.column(kind)
        rows = column.to_pylist()
        twice = [("b", 0.5), ("c", 0.2), ("b", 0.3)]
        rows[5] = twice if kind == "map" else [{"label": k, "prob": p} for k, p in twice]
        path = write_parquet(tmp_path / "t.parquet", {"probs": arrow.array(rows, column.type)})
        with pytest.raises(CovcalError, match=r"column probs has the class 'b' twice in row 5: "):
            open_outputs(None, path, "probabilities")

    def test_damaged_vectors_are_named(self, tmp_path: Path) -> None:
        arrow = pytest.importorskip("pyarrow", reason="Parquet needs covcal[parquet]")
        column = self.column("sparse")
        for place, message in (
            ({"size": 4}, "has 4 values in row 11, but 3 values in row 0"),
            ({"indices": [0, 9]}, "sparse vectors with wrong indices"),
            ({"indices": [0]}, "sparse vectors with wrong indices"),
            ({"indices": [0, None]}, "sparse vectors with wrong indices"),
        ):
            rows = column.to_pylist()
            rows[-1] |= place
            rows[-1] |= {"values": [0.5, 0.5]}
            table = {"probability": arrow.array(rows, column.type)}
            path = write_parquet(tmp_path / "t.parquet", table)
            with pytest.raises(CovcalError, match=message):
                open_outputs(None, path, "probabilities")
