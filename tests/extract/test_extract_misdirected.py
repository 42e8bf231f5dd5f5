"""Mistakes in tables and options: what extract says names the mistake, and a way out that works."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covcal_cli.data.outputs import open_outputs
from covcal_cli.data.stores.parquet import ParquetStore
from tests.classifiers.onnx.onnx_graphs import Graph, node
from tests.cli_runner import covcal
from tests.extract.named_tables import (
    ANIMALS,
    FEATURES,
    LOGITS,
    N,
    X,
    Y,
    columns,
    dataset,
    model,
    outputs,
    save,
)
from tests.made_rows import write_parquet

WRONG = np.random.default_rng(8).random(N) < 0.3
NOISY = [ANIMALS[k] for k in np.where(WRONG, 0, LOGITS.argmax(axis=1))]
EXACT = np.exp(LOGITS - LOGITS.max(axis=1, keepdims=True)).astype(np.float64)
PROBABILITIES = EXACT / EXACT.sum(axis=1, keepdims=True)


def refusal(folder: Path, *arguments: str) -> str:
    """Return the one line with which extract refuses, having written nothing."""
    line = covcal("extract", *arguments, cwd=folder).error_line()
    assert not (folder / "features.h5").exists()
    return line


class TestTwoColumnsOfOneName:
    """Which of them is meant, nobody knows: no reader may choose."""

    @pytest.mark.parametrize("again", [*FEATURES, "label"])
    @pytest.mark.parametrize("folder_of_parts", [False, True])
    def test_parquet(self, again: str, folder_of_parts: bool, tmp_path: Path) -> None:
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        table = columns("target")
        twice = arrow.table([*table.values(), table[again]], names=[*table, again])
        name = "t/part-0.parquet" if folder_of_parts else "t.parquet"
        (tmp_path / name).parent.mkdir(exist_ok=True)
        parquet.write_table(twice, tmp_path / name)
        line = refusal(tmp_path, model(tmp_path), "--target", name.partition("/")[0])
        assert line == f"{name}: two columns are called '{again}': rename one of them"

    def test_parquet_with_every_name_once(self, tmp_path: Path) -> None:
        store = ParquetStore(write_parquet(tmp_path / "t.parquet", columns("target")))
        assert list(store.entries) == [*FEATURES, "label"]


class TestClassesInAnotherOrder:
    """A table with its class columns in another order fits the calibration of the first."""

    @pytest.fixture
    def calibrated(self, tmp_path: Path) -> Path:
        """A folder with cal.json, s.csv, t.csv and r.csv, the target's columns in reverse."""
        save("csv", tmp_path, "s", {**outputs(), "label": NOISY})
        save("csv", tmp_path, "t", {**outputs(), "label": NOISY})
        save("csv", tmp_path, "r", {**outputs((2, 1, 0)), "label": NOISY})
        covcal("extract", "--logits", "s.csv", "t.csv", cwd=tmp_path).require_success()
        arguments = ("features.h5", "--method", "temp", "-o", "cal.json")
        covcal("calibrate", *arguments, cwd=tmp_path).require_success()
        return tmp_path

    @pytest.mark.parametrize("command", ["apply", "evaluate"])
    def test_the_way_out_that_is_named_gives_the_same(self, calibrated: Path, command: str) -> None:
        def extract(table: str, *options: str) -> None:
            arguments = ("--logits", "--target", table, "-f", "-o", "n.h5", *options)
            covcal("extract", *arguments, cwd=calibrated).require_success()

        def answer() -> str:
            return covcal(command, "n.h5", "-c", "cal.json", cwd=calibrated).require_success().out

        def probabilities() -> str:
            arguments = ("n.h5", "-c", "cal.json", "-o", "p.csv", "-f")
            covcal("apply", *arguments, cwd=calibrated).require_success()
            return (calibrated / "p.csv").read_text()

        extract("r.csv")
        line = covcal(command, "n.h5", "-c", "cal.json", cwd=calibrated).error_line()
        assert line == (
            "n.h5 and the calibration have the same classes in different orders "
            "(class 0 is eel, not cat): extract it again with --classes cal.json"
        )
        extract("r.csv", "--classes", "cal.json")
        if command == "evaluate":
            reordered = answer()
            extract("t.csv")
            assert answer() == reordered
        else:
            reordered = probabilities()
            extract("t.csv")
            assert probabilities() == reordered

    def test_other_names_are_other_classes(self, calibrated: Path) -> None:
        names = [*ANIMALS[:2], "emu"]
        table = {f"logit_{name}": LOGITS[:, k].tolist() for k, name in enumerate(names)}
        save("csv", calibrated, "o", table)
        arguments = ("--logits", "--target", "o.csv", "-o", "n.h5")
        covcal("extract", *arguments, cwd=calibrated).require_success()
        line = covcal("apply", "n.h5", "-c", "cal.json", cwd=calibrated).error_line()
        assert "have different class names (class 2 is emu, not eel)" in line
        assert "--classes" not in line


class TestNumbersThatMightBeFeatures:
    """Numbers beside the outputs are groups, unless they are called features: said aloud."""

    def test_columns(self, tmp_path: Path) -> None:
        features = dict(zip(("f0", "f1", "f2"), X["target"].T.tolist(), strict=True))
        save("csv", tmp_path, "t", {**outputs(), **features, "label": NOISY})
        save("csv", tmp_path, "s", {**outputs(), **features, "label": NOISY})
        done = covcal("extract", "--logits", "s.csv", "t.csv", cwd=tmp_path).require_success()
        assert (
            "t.csv: these columns of numbers are not used as features: f0, f1, f2. To use them, "
            "rename features to feature_0, feature_1, ..." in done.err
        )
        line = covcal("adapt", cwd=tmp_path).error_line()
        assert line.endswith("or from a table with feature_0, feature_1, ...")
        renamed = {f"feature_{name[1:]}": values for name, values in features.items()}
        save("csv", tmp_path, "t", {**outputs(), **renamed, "label": NOISY})
        arguments = ("--logits", "--target", "t.csv", "-f")
        done = covcal("extract", *arguments, cwd=tmp_path).require_success()
        assert "not used as features" not in done.err
        np.testing.assert_array_equal(dataset(tmp_path, "target/features"), X["target"])

    @pytest.mark.parametrize("name", ["embedding", "features"])
    def test_an_array(self, name: str, tmp_path: Path) -> None:
        arrays: dict[str, Any] = {"logits": LOGITS, name: X["target"]}
        np.savez(tmp_path / "t.npz", **arrays)
        table = open_outputs(None, tmp_path / "t.npz", "logits")["target"]
        said = [
            note
            for note in table.notes
            if 'not used as features. To use it, rename it to "features"' in note
        ]
        assert len(said) == (name == "embedding")
        assert table.n_features == (3 if name == "features" else None)

    def test_groups_are_no_features(self, tmp_path: Path) -> None:
        table = {**outputs(), "age": [30.0] * N, "group_a": [1] * N, "group_b": [2] * N}
        save("csv", tmp_path, "t", table)
        assert not open_outputs(None, tmp_path / "t.csv", "logits")["target"].notes


@pytest.mark.parametrize("lacking", ["s", "t"])
@pytest.mark.parametrize("prefix", ["prob", "logit"])
def test_a_class_that_one_table_lacks_comes_before_sums_that_follow_from_it(
    lacking: str, prefix: str, tmp_path: Path
) -> None:
    whole = outputs(prefix=prefix, values=LOGITS if prefix == "logit" else PROBABILITIES)
    for name in ("s", "t"):
        left = {key: v for key, v in whole.items() if name != lacking or not key.endswith("dog")}
        save("csv", tmp_path, name, left)
    option = "--logits" if prefix == "logit" else "--probabilities"
    named = "cat, eel and cat, dog, eel" if lacking == "s" else "cat, dog, eel and cat, eel"
    line = refusal(tmp_path, option, "s.csv", "t.csv")
    assert line.startswith(f"s.csv and t.csv have different class names ({named}): give outputs")


SUREST = PROBABILITIES.max(axis=1).tolist()
PERCENT = np.round(100 * PROBABILITIES, 1)


@pytest.mark.parametrize(
    ("option", "table", "message"),
    [
        (
            "--probabilities",
            {"prob": SUREST, "label": NOISY},
            "prob has one number per row, but the labels have 3 classes: give one column of "
            "outputs per class",
        ),
        (
            "--probabilities",
            {"confidence": SUREST, "prediction": [0] * N},
            "holds no probabilities, only confidence, prediction. Name the outputs prob_NAME, "
            "one column per class, or give an array probabilities [n, K]. If confidence is the "
            "confidence of one class per row, pass --confidence",
        ),
        (
            "--logits",
            outputs(values=PERCENT),
            "every row sums to 100, as percentages do: rename the outputs to the columns prob_NAME "
            "and pass --probabilities (covcal divides each row by its sum)",
        ),
        (
            "--probabilities",
            {"prob": (100 * PROBABILITIES[:, 0]).tolist()},
            "which is not a probability: pass --logits if the values are logits, or divide "
            "percentages by 100",
        ),
    ],
    ids=["one number", "confidence", "as logits", "one percentage"],
)
def test_what_is_no_output_of_all_classes_is_told_so(
    option: str, table: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save("csv", tmp_path, "t", table)
    assert refusal(tmp_path, option, "--target", "t.csv").endswith(message)


@pytest.mark.parametrize("kind", ["answer", "class", "few rows"])
def test_a_column_that_is_always_likely_is_doubted(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    values = rng.random(40 if kind == "few rows" else 200)
    if kind != "class":
        values = np.maximum(values, 1 - values)
    save("csv", tmp_path, "t", {"prob": values.tolist()})
    table = open_outputs(None, tmp_path / "t.csv", "probabilities")["target"]
    doubts = [
        note for note in table.notes if "the only output is at least 0.5 in all 200 rows" in note
    ]
    assert len(doubts) == (kind == "answer")


def test_a_confidence_beside_all_classes_is_a_group(tmp_path: Path) -> None:
    save(
        "csv", tmp_path, "t", {**outputs(prefix="prob", values=PROBABILITIES), "confidence": SUREST}
    )
    found = open_outputs(None, tmp_path / "t.csv", "probabilities")["target"]
    assert (found.n_classes, list(found.columns)) == (3, ["confidence"])


@pytest.mark.parametrize("smallest", [0.0, 1e-40, 1e-30])
def test_probabilities_that_float32_cannot_hold_are_said_to_count_as_more(
    smallest: float, tmp_path: Path
) -> None:
    values = PROBABILITIES.copy()
    values[N - 1] = 1 - smallest, smallest, 0.0 if smallest == 0 else smallest
    save("csv", tmp_path, "t", outputs(prefix="prob", values=values))
    arguments = ("--probabilities", "--target", "t.csv")
    done = covcal("extract", *arguments, cwd=tmp_path).require_success()
    note = "t.csv: some probabilities are below 1e-38 and count as 1e-38"
    assert done.err.count(note) == (smallest < 1e-38)
    tiny = float(np.finfo(np.float32).tiny)
    expected = np.log(np.maximum(values, tiny))
    np.testing.assert_allclose(dataset(tmp_path, "target/logits"), expected, rtol=1e-5, atol=1e-6)


class TestSaturation:
    """What may make every confidence 1 depends on what the data are."""

    def test_rows(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        rows = rng.permuted(np.tile([2.0**40, 0.0, 2.0**30], (60, 1)), axis=1)
        table = dict(zip(FEATURES, rows.T.tolist(), strict=True))
        save("csv", tmp_path, "t", table)
        done = covcal("extract", model(tmp_path), "--target", "t.csv", cwd=tmp_path)
        err = done.require_success().err
        assert "is above 0.999: the inputs may be unscaled. Scale the inputs" in err
        assert "pixels" not in err
        assert "--scale" not in err

    def test_outputs(self, tmp_path: Path) -> None:
        hard = np.tile(np.eye(3)[LOGITS.argmax(axis=1)], (2, 1))
        save("csv", tmp_path, "t", outputs(prefix="prob", values=hard))
        done = covcal("extract", "--probabilities", "--target", "t.csv", cwd=tmp_path)
        err = done.require_success().err
        assert "is above 0.999: the outputs may be labels or rounded" in err
        assert "pixels" not in err


class TestDecimalCommas:
    """A number with a decimal comma is no text, whichever column and row has it first."""

    def write(self, folder: Path, delimiter: str, table: dict[str, list[str]]) -> str:
        with (folder / "t.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))
        return "t.csv"

    @pytest.mark.parametrize("delimiter", [";", "\t"])
    @pytest.mark.parametrize(
        ("column", "row", "cell"),
        [("age", 0, "3,25"), ("height", 0, "-0,5"), ("weight", 7, "1,5E-3"), ("age", 3, ",5")],
    )
    def test_refused(
        self, delimiter: str, column: str, row: int, cell: str, tmp_path: Path
    ) -> None:
        table = {name: [repr(v) for v in columns("target")[name]] for name in FEATURES}
        table[column][row] = cell
        name = self.write(tmp_path, delimiter, table)
        line = refusal(tmp_path, model(tmp_path), "--target", name)
        assert line == (
            f"t.csv: column {column} holds '{cell}' in line {row + 2}, with a decimal comma: "
            "write a decimal point. If the column holds texts, rename it to "
            f"group_{column}"
        )

    def test_texts_with_commas_stay(self, tmp_path: Path) -> None:
        table = {name: [repr(v) for v in columns("target")[name]] for name in FEATURES}
        table |= {"group_size": ["1,5"] * N, "place": ["Bern, 3"] * N}
        name = self.write(tmp_path, ";", table)
        covcal("extract", model(tmp_path), "--target", name, cwd=tmp_path).require_success()
        assert dataset(tmp_path, "target/columns/size")[0].decode() == "1,5"


class TestArraysUnderOtherNames:
    """What is taken for an input that it is not called like is said."""

    @pytest.mark.parametrize("name", ["byte", "x", "tokens"])
    def test_the_only_array(self, name: str, tmp_path: Path) -> None:
        self.classifier(tmp_path, "FLOAT")
        arrays: dict[str, Any] = {name: X["target"]}
        np.savez(tmp_path / "t.npz", **arrays)
        done = covcal("extract", "model.onnx", "--target", "t.npz", cwd=tmp_path).require_success()
        said = "t.npz: the array byte is used as the model's input tokens" in done.err
        assert said == (name == "byte")

    def test_the_right_shape_of_the_wrong_type(self, tmp_path: Path) -> None:
        self.classifier(tmp_path, "INT32")
        np.savez(tmp_path / "t.npz", x=X["target"])
        line = refusal(tmp_path, "model.onnx", "--target", "t.npz")
        wanted = "x is float32 [N, 3] but the model expects int32 [N, 3]: save it as int32"
        assert line == f"t.npz: {wanted}"
        np.savez(tmp_path / "t.npz", x=X["target"][:, :2])
        line = refusal(tmp_path, "model.onnx", "--target", "t.npz")
        assert line.endswith("[N, 2] but the model expects int32 [N, 3]: give rows of this shape")
        np.savez(tmp_path / "t.npz", x=Y["target"][:, None].repeat(3, axis=1))
        covcal("extract", "model.onnx", "--target", "t.npz", cwd=tmp_path).require_success()

    @staticmethod
    def classifier(folder: Path, kind: str) -> None:
        """Save a classifier of three numbers of this type, whose input is called tokens."""
        import onnx

        element = onnx.TensorProto.DataType.Value(kind)
        constants = {"wk": np.eye(3, dtype=np.float32), "bk": np.zeros(3, np.float32)}
        nodes = [
            node("Cast", "tokens", "phi", to=onnx.TensorProto.FLOAT),
            node("Gemm", "phi wk bk", "y", transB=1),
        ]
        inputs = [("tokens", element, ["N", 3])]
        Graph(nodes, constants=constants, typed_inputs=inputs).save(folder)


@pytest.mark.parametrize("command", ["extract", "run"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--size", "0"),
        ("--size", "28x0"),
        ("--crop", "-3"),
        ("--std", "0"),
        ("--std", "0.2,-1,0.2"),
        ("--std", "inf"),
        ("--mean", "nan"),
        ("--mean", "0.5,-inf,0.5"),
        ("--scale", "0"),
        ("--scale", "nan"),
        ("--fractions", "nan,nan,nan"),
    ],
)
def test_a_value_that_no_image_can_have_is_a_mistake_of_usage(
    command: str, option: str, value: str, tmp_path: Path
) -> None:
    arguments = (command, "model.onnx", "s.csv", "t.csv", f"{option}={value}")
    assert f"Invalid value for {option}" in covcal(*arguments, cwd=tmp_path).usage_error()
