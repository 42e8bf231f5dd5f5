"""Tables of logits and probabilities: found by name, checked, and the same in every format."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from covcal_cli.data.classes import choose_classes, named_classes, numbered_classes
from covcal_cli.data.output_columns import OutputKind
from covcal_cli.data.outputs import OutputTable, open_outputs
from covcal_cli.errors import CovcalError
from tests.made_files import write_features
from tests.made_rows import write_csv, write_hdf5, write_parquet

N, K, D = 40, 3, 2
RNG = np.random.default_rng(3)
LOGITS = (3 * RNG.normal(size=(N, K))).astype(np.float32)
FEATURES = RNG.normal(size=(N, D)).astype(np.float32)
LABELS = RNG.integers(-1, K, size=N)
SPLIT = RNG.integers(0, 3, size=N)
IDS = [f"img/{row}.png" for row in range(N)]
SITE = [("Bern", "Rome")[row % 2] for row in range(N)]
KINDS: tuple[OutputKind, OutputKind] = ("logits", "probabilities")
FORMATS = ("npz", "h5", "csv", "parquet", "lists")
# Every format, with logits and probabilities in turn.
BOTH = [(kind, KINDS[place % 2]) for place, kind in enumerate(FORMATS)]


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    above = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(above / above.sum(axis=1, keepdims=True))


def write(kind: str, folder: Path, values: NDArray[Any], word: OutputKind) -> Path:
    """Write outputs with all that may lie beside them."""
    beside: dict[str, Any] = {"split": SPLIT, "site": SITE, "id": IDS}
    if kind == "npz":
        path = folder / "out.npz"
        arrays: dict[str, Any] = {word: values, "features": FEATURES, "y": LABELS, **beside}
        np.savez(path, **arrays)
        return path
    if kind == "h5":
        arrays = {word: values, "phi": FEATURES, "label": LABELS, **beside}
        return write_hdf5(folder / "out.h5", arrays)
    if kind == "lists":
        lists = {word: values.tolist(), "features": FEATURES.tolist()}
        return write_parquet(folder / "out.parquet", {"label": LABELS, **lists, **beside})
    prefix = {"logits": "logit", "probabilities": "prob"}[word]
    columns = {f"{prefix}_{index}": values[:, index].tolist() for index in (2, 0, 1)}
    columns |= {f"phi_{index}": FEATURES[:, index].tolist() for index in range(D)}
    columns |= {"label": LABELS.tolist(), **{n: list(v) for n, v in beside.items()}}
    if kind == "csv":
        return write_csv(folder / "out.csv", columns)
    return write_parquet(folder / "out.parquet", columns)


def opened(path: Path, kind: OutputKind) -> OutputTable:
    """Open a table of the target alone."""
    return open_outputs(None, path, kind)["target"]


def read(
    table: OutputTable, rows: NDArray[np.int64] | None = None, size: int = 7, name: str = "logits"
) -> NDArray[np.float32]:
    rows = np.arange(len(table.ids)) if rows is None else rows
    batches = list(table.batches(None, rows, size=size, threads=1))
    np.testing.assert_array_equal(np.concatenate([batch.rows for batch in batches]), rows)
    assert [len(batch.rows) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    values = np.concatenate([batch.inputs[name] for batch in batches])
    assert values.dtype == np.float32
    return values


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("holds", KINDS)
def test_every_format_says_the_same(kind: str, holds: OutputKind, tmp_path: Path) -> None:
    values = softmax(LOGITS) if holds == "probabilities" else LOGITS
    table = opened(write(kind, tmp_path, values, holds), holds)
    assert (table.n_classes, table.n_features, table.class_names) == (K, D, None)
    logits = read(table)
    np.testing.assert_array_equal(read(table, name="features"), FEATURES)
    if holds == "probabilities":
        np.testing.assert_allclose(softmax(logits), values, atol=1e-6)
    else:
        np.testing.assert_array_equal(logits, LOGITS)
    assert table.ids == table.split_names == IDS
    assert table.given_split is not None
    np.testing.assert_array_equal(table.given_split, SPLIT)
    assert table.columns["site"].tolist() == SITE
    assert list(table.columns) == ["site"]
    classes = choose_classes(None, table.class_names, [table], K)
    np.testing.assert_array_equal(table.labels(classes), LABELS)
    assert table.notes == ()
    chosen = np.array([0, 5, 6, 39])
    np.testing.assert_array_equal(read(table, chosen, 3), logits[chosen])


def test_names_of_columns_are_the_classes(tmp_path: Path) -> None:
    columns = {f"prob_{name}": softmax(LOGITS)[:, i].tolist() for i, name in enumerate("zax")}
    columns["label"] = ["" if label < 0 else "zax"[label] for label in LABELS]
    table = opened(write_csv(tmp_path / "out.csv", columns), "probabilities")
    assert table.class_names == ("z", "a", "x")
    classes = choose_classes(None, table.class_names, [table], K)
    np.testing.assert_array_equal(table.labels(classes), LABELS)
    # Class numbers need no word such as prob if nothing else can be meant.
    columns = {str(k): softmax(LOGITS)[:, k].tolist() for k in range(K)}
    path = write_csv(tmp_path / "out.csv", columns)
    np.testing.assert_allclose(
        softmax(read(opened(path, "probabilities"))), softmax(LOGITS), atol=1e-6
    )


def test_numbers_that_turn_into_texts_are_a_group_of_texts(tmp_path: Path) -> None:
    """A column that is not an output may hold anything; an output may hold only numbers."""
    columns: dict[str, Any] = {f"prob_{k}": softmax(LOGITS)[:, k].tolist() for k in range(K)}
    columns["extra"] = [1.5] * (N - 1) + ["none of these"]
    table = opened(write_csv(tmp_path / "out.csv", columns), "probabilities")
    assert table.columns["extra"].tolist() == list(map(str, columns["extra"]))
    columns["prob_1"][-1] = "many"
    with pytest.raises(CovcalError, match=r"'many' in line \d+, .*: write a number$"):
        read(opened(write_csv(tmp_path / "out.csv", columns), "probabilities"))


@pytest.mark.parametrize(
    ("names", "order", "found"),
    [
        (["logit_0", "logit_2", "logit_1"], [0, 2, 1], None),
        (["logit_10", "logit_2", "logit_1"], [2, 1, 0], ("1", "2", "10")),
        (["Logit_b", "Logit_a", "Logit_1"], [0, 1, 2], ("b", "a", "1")),
        (["logit_1.0", "logit_0.0", "logit_2.0"], [1, 0, 2], None),
        (["logit_01", "logit_1", "logit_2"], [0, 1, 2], ("01", "1", "2")),
    ],
)
def test_numbered_columns_are_ordered_by_number(
    names: list[str], order: list[int], found: tuple[str, ...] | None, tmp_path: Path
) -> None:
    columns = {name: LOGITS[:, index].tolist() for index, name in enumerate(names)}
    table = opened(write_csv(tmp_path / "o.csv", columns | {"y": [0] * N}), "logits")
    assert table.class_names == found
    np.testing.assert_array_equal(read(table), LOGITS[:, order])
    assert not table.notes


class TestLayoutsOfTools:
    """Tables as tools write them are read as they stand."""

    P = softmax(LOGITS)
    HARD = P.argmax(axis=1).tolist()

    @pytest.mark.parametrize(
        ("columns", "truth"),
        [
            ({"predict": HARD, "p0": 0, "p1": 1, "p2": 2}, "label"),
            ({"p_0": 0, "p_1": 1, "p_2": 2}, "y"),
            ({f"y_pred_proba_{k}": k for k in range(K)} | {"y_pred": HARD}, "y_true"),
            ({"0": 0, "1": 1, "2": 2}, "class"),
        ],
        ids=["H2O", "covcal apply", "NannyML", "predict_proba"],
    )
    def test_several_classes(self, columns: dict[str, Any], truth: str, tmp_path: Path) -> None:
        table = {
            name: self.P[:, of].tolist() if isinstance(of, int) else of
            for name, of in columns.items()
        }
        found = opened(
            write_csv(tmp_path / "t.csv", {**table, truth: LABELS.tolist()}), "probabilities"
        )
        np.testing.assert_allclose(softmax(read(found)), self.P, atol=1e-6)
        np.testing.assert_array_equal(found.labels(numbered_classes(K)), LABELS)
        assert not found.notes

    @pytest.mark.parametrize("wrong", [0, 1])
    def test_class_names_after_predict(self, wrong: int, tmp_path: Path) -> None:
        """H2O: no labels are needed to find the classes, but the columns must be probabilities."""
        names = [f"kind {k}" for k in range(K)]
        columns = {"predict": [names[k] for k in self.HARD]}
        columns |= {name: (self.P[:, k] + wrong).tolist() for k, name in enumerate(names)}
        path = write_csv(tmp_path / "t.csv", columns | {"y_true": ["kind 0", "kind 2"] * (N // 2)})
        if wrong:
            with pytest.raises(CovcalError):
                opened(path, "probabilities")
        else:
            assert opened(path, "probabilities").class_names == tuple(names)

    @pytest.mark.parametrize(
        ("column", "truth"),
        [
            ("model_score", "actual"),
            ("y_pred_proba", "y_true"),
            ("p", "label"),
            ("prob_spam", "y_true"),
        ],
    )
    def test_one_of_two_classes(self, column: str, truth: str, tmp_path: Path) -> None:
        p = np.linspace(0, 1, N)
        hard = (p > 0.5).astype(int).tolist()
        columns = {truth: hard, column: p.tolist(), "y_pred": hard}
        found = opened(write_csv(tmp_path / "t.csv", columns), "probabilities")
        np.testing.assert_allclose(softmax(read(found)), np.stack([1 - p, p], axis=1), atol=1e-6)
        assert found.labels(numbered_classes(2)).tolist() == hard
        assert (found.n_classes, found.class_names) == (2, None)
        assert (
            f"{column} is read as the probabilities of class 1. The other class is class 0"
            in found.notes[0]
        )

    @pytest.mark.parametrize("name", ["no", "False", "absent", "0"])
    def test_one_column_may_be_of_the_class_that_is_false(self, name: str, tmp_path: Path) -> None:
        p = np.linspace(0, 1, N)
        columns = {"label": [*map(bool, p < 0.5)], f"prob_{name}": p.tolist()}
        found = opened(write_parquet(tmp_path / "t.parquet", columns), "probabilities")
        np.testing.assert_allclose(softmax(read(found)), np.stack([p, 1 - p], axis=1), atol=1e-6)
        assert f"prob_{name} is read as the" in found.notes[0]
        assert " of class 0" in found.notes[0]

    @pytest.mark.parametrize(
        "pattern",
        [
            ".pred_{}",
            "Scored Probabilities_{}",
            'Scored Probabilities for Class "{}"',
            "target_{}_PREDICTION",
            "confidence({})",
            "P (species={})",
            "{} score",
            "proba_class_{}",
            "Probability: {}",
            "y_hat[{}].1",
        ],
    )
    def test_names_of_other_tools(self, pattern: str, tmp_path: Path) -> None:
        names = ("eel", "a cat", "dog_2")
        columns: dict[str, Any] = {
            pattern.format(name): self.P[:, k].tolist() for k, name in enumerate(names)
        }
        columns |= {".pred_class": ["eel"] * N, "label": [names[k] for k in LABELS]}
        table = opened(write_csv(tmp_path / "t.csv", columns), "probabilities")
        assert table.class_names == names
        np.testing.assert_allclose(softmax(read(table)), self.P, atol=1e-6)

    def test_the_choice_of_label_studio_is_the_label(self, tmp_path: Path) -> None:
        columns: dict[str, Any] = {f"prob_{name}": self.P[:, k] for k, name in enumerate("abc")}
        columns["choice"] = ["abc"[k] for k in LABELS]
        table = opened(write_csv(tmp_path / "t.csv", columns), "probabilities")
        assert table.labels(named_classes("abc")).tolist() == (LABELS % K).tolist()
        columns["label"] = ["a"] * N
        table = opened(write_csv(tmp_path / "t.csv", columns), "probabilities")
        assert not table.labels(named_classes("abc")).any()
        assert table.columns["choice"].tolist() == columns["choice"]

    def test_numbers_of_features_are_no_classes(self, tmp_path: Path) -> None:
        """Columns x_0 and x_1 are no outputs of classes 0 and 1, but score_0 and score_1 are."""
        columns: dict[str, Any] = {f"x_{k}": self.P[:, k].tolist() for k in range(K)}
        path = write_csv(tmp_path / "t.csv", {**columns, "label": (LABELS % K).tolist()})
        with pytest.raises(CovcalError, match="holds no probabilities, only x_0"):
            opened(path, "probabilities")
        columns = {name.replace("x", "score"): values for name, values in columns.items()}
        path = write_csv(tmp_path / "t.csv", {**columns, "label": (LABELS % K).tolist()})
        np.testing.assert_allclose(softmax(read(opened(path, "probabilities"))), self.P, atol=1e-6)

    @pytest.mark.parametrize("kind", ["npz", "h5", "parquet"])
    def test_class_names_beside_an_array_are_heeded(self, kind: str, tmp_path: Path) -> None:
        """Under any name in a file of arrays; in a table every row has the same list."""
        names, path = ("c", "a", "b"), tmp_path / f"t.{kind}"
        arrays: dict[str, Any] = {"probs": self.P, "y": [names[k] for k in LABELS]}
        if kind == "parquet":
            lists = {"probs": self.P.tolist(), "class_names": [list(names)] * N}
            write_parquet(path, arrays | lists)
        elif kind == "npz":
            np.savez(path, **arrays, target_names=np.array(names))
        else:
            write_hdf5(path, arrays | {"target_names": list(names)})
        assert opened(path, "probabilities").class_names == names
        if kind == "parquet":
            lists["class_names"][3] = ["a", "b", "c"]
            with pytest.raises(
                CovcalError, match="the lists in column class_names have different classes"
            ):
                opened(write_parquet(path, arrays | lists), "probabilities")

    @pytest.mark.parametrize("names", [("c", "a", "b"), ("0", "1", "2")])
    def test_classes_of_the_source_name_the_columns_of_the_target(
        self, names: tuple[str, ...], tmp_path: Path
    ) -> None:
        columns = {name: self.P[:, k].tolist() for k, name in enumerate(names)}
        labels = {"label": [names[k] for k in LABELS]}
        source = write_csv(tmp_path / "s.csv", columns | labels)
        target = write_csv(tmp_path / "t.csv", {"age": [1.5] * N, **columns})
        tables = open_outputs(source, target, "probabilities")
        np.testing.assert_allclose(softmax(read(tables["target"])), self.P, atol=1e-6)
        assert tables["target"].class_names == (None if names[0] == "0" else names)
        with pytest.raises(CovcalError, match=r"holds no probabilities, only age, .*Name the out"):
            opened(target, "probabilities")

    @pytest.mark.parametrize(
        ("cell", "remedy"),
        [
            ("[0.1, 0.9]", "one column of numbers prob_NAME per class"),
            ("52.3%", "divide the percentages by 100, without the percent sign"),
        ],
    )
    def test_texts_are_no_outputs(self, cell: str, remedy: str, tmp_path: Path) -> None:
        path = write_csv(tmp_path / "t.csv", {"probability": [cell] * N, "prediction": [1.0] * N})
        with pytest.raises(CovcalError, match="probability holds the text ") as error:
            opened(path, "probabilities")
        assert f"{cell!r}: " in str(error.value)
        assert remedy in str(error.value)

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    def test_a_path_names_the_row_and_nothing_else(self, kind: str, tmp_path: Path) -> None:
        columns: dict[str, Any] = {"filename": IDS, "site": SITE}
        columns |= {f"prob_{k}": self.P[:, k].tolist() for k in range(K)}
        write_table = write_csv if kind == "csv" else write_parquet
        found = opened(write_table(tmp_path / f"t.{kind}", columns), "probabilities")
        assert (found.ids, list(found.columns)) == (IDS, ["site"])


def test_a_column_of_sums_among_probabilities_is_refused(tmp_path: Path) -> None:
    p = np.tile(softmax(LOGITS), (2, 1))
    columns = {f"prob_{k}": p[:, k].tolist() for k in range(K)} | {"prob_sum": [1.0] * len(p)}
    with pytest.raises(CovcalError, match="without column 4 of 4, all rows have the same sum"):
        opened(write_csv(tmp_path / "t.csv", columns), "probabilities")


def test_the_outputs_of_several_classifiers_are_refused(tmp_path: Path) -> None:
    p = np.tile(softmax(LOGITS), (2, 1))
    parts = {"": p, "low": 0.9 * p, "high": 1.1 * p}
    columns = {f"prob_{m}{k}": part[:, k].tolist() for m, part in parts.items() for k in range(K)}
    with pytest.raises(CovcalError, match="sums to about 3, but no value is above "):
        opened(write_csv(tmp_path / "t.csv", columns), "probabilities")


def test_names_in_two_unicode_forms_are_the_same_classes(tmp_path: Path) -> None:
    files: list[Path] = []
    for names in (("caf\u00e9", "b", "c"), ("c", "cafe\u0301", "b")):
        places = [{"b": 1, "c": 2}.get(name, 0) for name in names]
        columns: dict[str, Any] = {
            f"logit_{name}": LOGITS[:, place].tolist()
            for name, place in zip(names, places, strict=True)
        }
        files.append(write_csv(tmp_path / f"{len(files)}.csv", columns | {"label": [names[0]] * N}))
    (tmp_path / "names.txt").write_text("cafe\u0301\nb\nc\n")
    for classes in (None, tmp_path / "names.txt"):
        tables = open_outputs(files[0], files[1], "logits", classes)
        for table, label in zip(tables.values(), (0, 2), strict=True):
            assert table.class_names == ("caf\u00e9", "b", "c")
            np.testing.assert_array_equal(read(table), LOGITS)
            assert table.labels(named_classes(table.class_names)).tolist() == [label] * N


@pytest.mark.parametrize(
    ("name", "classes"), [("classes", [2.0, 0, 1]), ("classes_", [2, 0, 1]), ("classes_", "bca")]
)
def test_an_array_of_classes_gives_the_order(name: str, classes: Any, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"logits": LOGITS, name: np.array([*classes])}
    np.savez(tmp_path / "t.npz", **arrays)
    table = opened(tmp_path / "t.npz", "logits")
    order = [0, 1, 2] if isinstance(classes, str) else [1, 2, 0]
    assert table.class_names == (("b", "c", "a") if isinstance(classes, str) else None)
    np.testing.assert_array_equal(read(table), LOGITS[:, order])


@pytest.mark.parametrize(("column", "class_1"), [("prob_SPAM", "spam"), ("prob_HAM", "ham")])
def test_a_single_column_names_its_class(column: str, class_1: str, tmp_path: Path) -> None:
    p = softmax(LOGITS)[:, 1]
    columns: dict[str, Any] = {column: p.tolist(), "label": ["ham", "spam"] * (N // 2)}
    path = write_csv(tmp_path / "o.csv", columns)
    table = open_outputs(path, path, "probabilities")["target"]
    assert table.class_names == ("ham", "spam")
    place = ("ham", "spam").index(class_1)
    np.testing.assert_allclose(softmax(read(table))[:, place], p, atol=1e-6)
    path = write_csv(path, {"prob_viagra": columns[column], "label": columns["label"]})
    with pytest.raises(
        CovcalError, match=r"prob_viagra names .*: rename prob_viagra to prob_ham or"
    ):
        open_outputs(path, path, "probabilities")


@pytest.mark.parametrize(
    ("name", "truth", "kind"),
    [
        ("preds", "targets", "logits"),
        ("y_pred", "y_true", "probabilities"),
        ("y_score", "ground_truth", "logits"),
        ("arr_0", "true_label", "probabilities"),
    ],
)
def test_other_names_of_arrays_are_known(
    name: str, truth: str, kind: OutputKind, tmp_path: Path
) -> None:
    values = LOGITS if kind == "logits" else softmax(LOGITS)
    arrays: dict[str, Any] = {name: values, truth: LABELS}
    np.savez(tmp_path / "t.npz", **arrays)
    table = opened(tmp_path / "t.npz", kind)
    np.testing.assert_allclose(softmax(read(table)), softmax(LOGITS), atol=1e-6)
    assert table.labels(numbered_classes(K)).tolist() == LABELS.tolist()


def test_a_npy_file_of_outputs_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", LOGITS)
    table = opened(tmp_path / "o.npy", "logits")
    assert table.n_features is None
    np.testing.assert_array_equal(read(table), LOGITS)


def test_one_logit_of_two_classes_is_enough(tmp_path: Path) -> None:
    z = np.linspace(-9, 9, N, dtype=np.float32)
    np.savez(tmp_path / "o.npz", logits=z[:, None])
    table = opened(tmp_path / "o.npz", "logits")
    assert table.n_classes == 2
    np.testing.assert_allclose(softmax(read(table))[:, 1], 1 / (1 + np.exp(-z)), rtol=1e-6)


SHARES = {
    "votes of 50": np.array([RNG.multinomial(50, p) for p in softmax(LOGITS)]),
    "percentages": (100 * softmax(LOGITS)).round(1),
    "8 bits": (255 * softmax(LOGITS)).round().astype(np.uint8),
    "signed 8 bits": ((255 * softmax(LOGITS)).round() - 128).astype(np.int8),
    "less 1": softmax(LOGITS) - 1,
    "less 1/3": softmax(LOGITS) - 1 / 3,
}


@pytest.mark.parametrize("kind", ["npz", "csv"])
@pytest.mark.parametrize("name", SHARES)
def test_shares_of_another_number_than_1_are_probabilities(
    name: str, kind: str, tmp_path: Path
) -> None:
    """Votes, percentages and quantised scores are divided by their sum, never taken for logits."""
    values = SHARES[name]
    table = opened(write(kind, tmp_path, values, "probabilities"), "probabilities")
    assert "each row is scaled to the sum 1" in table.notes[0]
    parts = values + {"signed 8 bits": 128.0, "less 1": 1.0, "less 1/3": 1 / 3}.get(name, 0.0)
    np.testing.assert_allclose(
        softmax(read(table)), parts / parts.sum(axis=1, keepdims=True), atol=1e-6
    )
    with pytest.raises(CovcalError, match=r"(sums to|like quantised) .* and pass --probabilities"):
        opened(write(kind, tmp_path, values, "logits"), "logits")


@pytest.mark.parametrize(("kind", "holds"), BOTH[:3])
def test_negated_probabilities_are_refused_with_the_remedy(
    holds: OutputKind, kind: str, tmp_path: Path
) -> None:
    path = write(kind, tmp_path, -100 * softmax(LOGITS), holds)
    with pytest.raises(CovcalError, match=r"sums to about -100, as negated .* every value by -1"):
        opened(path, holds)


@pytest.mark.parametrize("holds", KINDS)
@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        (1 - softmax(LOGITS), "1 minus .*: subtract every value from 1 and pass --prob"),
        (-np.log(softmax(LOGITS)), "-log p of .*: multiply every value by -1 and pass --logits"),
        (
            np.log10(softmax(LOGITS)),
            "log10 p of .*: multiply every value by 2.302585 and pass",
        ),
        (
            np.log(softmax(LOGITS) / (1 - softmax(LOGITS))),
            r"log\(p / \(1 - p\)\) of .* value by -log\(1 \+ exp\(-value\)\) and pass --logits",
        ),
        (
            np.log10(softmax(LOGITS) / (1 - softmax(LOGITS))),
            r"log10\(p / \(1 - p\)\) of .* by -log\(1 \+ exp\(-2.302585 \* value\)\) and pass",
        ),
        (LOGITS.argsort().argsort() + 1, "ranks 1 to .*: give the scores from which"),
    ],
    ids=["1 - p", "-log p", "log10 p", "log odds", "log10 odds", "ranks"],
)
def test_outputs_whose_lowest_value_is_best_are_refused(
    values: NDArray[Any], remedy: str, holds: OutputKind, tmp_path: Path
) -> None:
    with pytest.raises(CovcalError, match=remedy):
        opened(write("npz", tmp_path, values, holds), holds)


@pytest.mark.parametrize("kind", FORMATS)
def test_logits_keep_their_digits_behind_a_common_offset(kind: str, tmp_path: Path) -> None:
    exact = LOGITS.astype(np.float64)
    table = opened(write(kind, tmp_path, exact + 1e8, "logits"), "logits")
    np.testing.assert_allclose(softmax(read(table)), softmax(exact), atol=1e-6)


@pytest.mark.parametrize(("kind", "holds"), [*BOTH, ("unlabelled", "logits")])
def test_columns_that_may_be_ranks_are_doubted(
    kind: str, holds: OutputKind, tmp_path: Path
) -> None:
    logits = np.sort(LOGITS, axis=1)[:, ::-1]
    values = softmax(logits) if holds == "probabilities" else logits
    if kind != "unlabelled":
        path = write(kind, tmp_path, values, holds)
    else:
        path = tmp_path / "o.npz"
        np.savez(path, **{holds: values})  # type: ignore[arg-type]
    assert "the columns look like ranks" in (opened(path, holds).doubt_on_order or "")


class TestAnswersOfLanguageModels:
    """Probability on other tokens is lost, and only the likeliest answers are listed."""

    P = softmax(LOGITS)

    def write(self, kind: str, folder: Path, values: NDArray[Any], holds: OutputKind) -> Path:
        """Write missing values as NaN, in Parquet as null."""
        if kind != "parquet":
            return write(kind, folder, values, holds)
        names = {"logits": "logit", "probabilities": "prob"}
        columns = {
            f"{names[holds]}_{k}": [None if np.isnan(v) else v for v in values[:, k]]
            for k in range(K)
        }
        return write_parquet(folder / "o.parquet", columns)

    @pytest.mark.parametrize(
        ("kind", "lost", "notes"), [*((kind, 0.1, 1) for kind in FORMATS), ("npz", 0.4, 2)]
    )
    def test_rows_that_sum_to_less_than_1_are_divided_by_their_sum(
        self, lost: float, notes: int, kind: str, tmp_path: Path
    ) -> None:
        mass = 1 - lost * np.linspace(0.5, 1.5, N)[:, None]
        table = opened(write(kind, tmp_path, self.P * mass, "probabilities"), "probabilities")
        np.testing.assert_allclose(softmax(read(table)), self.P, atol=1e-6)
        assert f"on average, {100 * lost:.0f} % of the probability belongs to no" in table.notes[0]
        assert len(table.notes) == notes

    @pytest.mark.parametrize(("kind", "holds"), [*BOTH, ("parquet", "probabilities")])
    def test_an_answer_that_is_not_listed_is_less_likely_than_those_that_are(
        self, holds: OutputKind, kind: str, tmp_path: Path
    ) -> None:
        values = 0.9 * self.P
        least = values.argmin(axis=1)
        rows = np.arange(0, N, 2)
        values[rows, least[rows]] = np.nan
        outputs = np.log(values) if holds == "logits" else values
        table = opened(self.write(kind, tmp_path, outputs, holds), holds)
        assert "in 20 of 40 rows, some classes have no probability" in " ".join(table.notes)
        p = softmax(read(table))
        assert (p.argmin(axis=1) == least).all()
        assert (p > 0).all()
        known = ~np.isnan(values)
        ratios = p / p.max(axis=1, keepdims=True)
        np.testing.assert_allclose(
            ratios[known], (values / np.nanmax(values, axis=1, keepdims=True))[known], rtol=1e-5
        )

    def test_a_row_that_lists_everything_but_a_class_leaves_it_nothing(
        self, tmp_path: Path
    ) -> None:
        values = self.P.copy()
        values[3] = 0.25, np.nan, 0.75
        table = opened(write("npz", tmp_path, values, "probabilities"), "probabilities")
        np.testing.assert_allclose(softmax(read(table))[3], [0.25, 0, 0.75], atol=1e-6)

    @pytest.mark.parametrize(
        ("kind", "row"),
        [
            *((kind, [np.nan] * 3) for kind in FORMATS),
            ("csv", [np.nan, 0.9, 0.3]),
            ("npz", [np.inf, 0.5, 0.1]),
        ],
    )
    def test_other_values_that_are_missing_are_errors(
        self, row: list[float], kind: str, tmp_path: Path
    ) -> None:
        values = self.P.copy()
        values[30] = row
        with pytest.raises(CovcalError, match=r"of (row 30|line 32) is missing, NaN or infinite"):
            opened(write(kind, tmp_path, values, "probabilities"), "probabilities")


class TestArraysWithFurtherAxes:
    """Models give [N, 1, K] and [1, N, K]."""

    @pytest.mark.parametrize(
        ("kind", "shape"),
        [
            ("npz", (N, 1, K)),
            ("npy", (1, N, K)),
            ("h5", (N, 1, K)),
            ("npz", (N, K, 1, 1)),
            ("npy", (1, N, 1, K)),
        ],
    )
    def test_axes_of_length_1_are_left_out(
        self, shape: tuple[int, ...], kind: str, tmp_path: Path
    ) -> None:
        values = LOGITS.reshape(shape)
        path = tmp_path / f"o.{kind}"
        if kind == "npy":
            np.save(path, values)
        else:
            features = FEATURES.reshape(*shape[:-1], D) if shape[-1] == K else FEATURES
            arrays: dict[str, Any] = {"logits": values, "features": features, "y": LABELS}
            np.savez(path, **arrays) if kind == "npz" else write_hdf5(path, arrays)
        table = opened(path, "logits")
        np.testing.assert_array_equal(read(table), LOGITS)
        rows = np.array([0, 5, 39])
        np.testing.assert_array_equal(read(table, rows, 2), LOGITS[rows])
        if kind != "npy":
            assert table.labels(numbered_classes(K)).tolist() == LABELS.tolist()
            np.testing.assert_array_equal(read(table, name="features"), FEATURES)

    def test_others_are_refused(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "o.npz", logits=np.stack([LOGITS, LOGITS], axis=1))
        with pytest.raises(CovcalError, match=r"array logits \[n, K\]"):
            opened(tmp_path / "o.npz", "logits")


class TestProbabilitiesGivenAsLogits:
    """What the outputs are shows in all rows, whatever the first ones and the names say."""

    def save(self, folder: Path, values: NDArray[Any]) -> Path:
        np.savez(folder / "t.npz", logits=values)
        return folder / "t.npz"

    @pytest.mark.parametrize("failed", [0, 1])
    def test_nearly_all_rows_that_sum_to_1_are_refused(self, failed: int, tmp_path: Path) -> None:
        values = np.tile(softmax(LOGITS), (50, 1))
        values[:failed] = 0
        rows = "every row sums" if failed == 0 else "1999 of 2000 rows sum"
        message = rf"{rows} to 1, as probabilities do: rename the outputs to the array prob"
        with pytest.raises(CovcalError, match=message):
            opened(self.save(tmp_path, values), "logits")

    @pytest.mark.parametrize("width", [1, 3])
    @pytest.mark.parametrize("last", [0.5, 1.5])
    def test_values_between_0_and_1_are_doubted(
        self, width: int, last: float, tmp_path: Path
    ) -> None:
        values = np.tile(1 / (1 + np.exp(-LOGITS[:, :width])), (50, 1))
        values[-1, 0] = last
        notes = opened(self.save(tmp_path, values), "logits").notes
        said = "covcal reads them as logits: pass --probabilities"
        assert sum(said in note for note in notes) == (last < 1)


@pytest.mark.parametrize("below", [-3e-7, -3e-5])
def test_probabilities_below_0_by_rounding_count_as_0(below: float, tmp_path: Path) -> None:
    """Forests that sum float32 print them, and 1.0000004 beside them."""
    values = softmax(LOGITS)[:, :2] / softmax(LOGITS)[:, :2].sum(axis=1, keepdims=True)
    values[30] = 1 - below, below
    np.savez(tmp_path / "t.npz", probabilities=values)
    if below < -1e-6:
        with pytest.raises(CovcalError, match=r"row 30 holds -3e-05, which is not a probability"):
            opened(tmp_path / "t.npz", "probabilities")
        return
    table = opened(tmp_path / "t.npz", "probabilities")
    assert "are slightly below 0 because of rounding, and count as 0" in table.notes[0]
    np.testing.assert_allclose(softmax(read(table)), np.clip(values, 0, 1), atol=1e-6)


@pytest.mark.parametrize(("classes", "decimals", "sums"), [(10, 2, "0.95"), (3, 3, "0.99")])
def test_rounded_probabilities_are_taken_with_a_note(
    classes: int, decimals: int, sums: str, tmp_path: Path
) -> None:
    """Each of two decimals may be half a hundredth off; values with more digits may not."""
    exact = softmax(np.random.default_rng(1).normal(size=(300, classes)))
    values = exact.round(decimals)
    values[7, values[7].argmax()] += 3 * 10.0**-decimals
    np.savez(tmp_path / "t.npz", probabilities=values)
    table = opened(tmp_path / "t.npz", "probabilities")
    assert f"the probabilities are rounded and their sums are {sums} to 1.0" in table.notes[0]
    expected = np.maximum(values, 1e-38) / values.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(softmax(read(table)), expected, atol=1e-6)
    exact[200] *= 0.97
    np.savez(tmp_path / "t.npz", probabilities=exact)
    with pytest.raises(
        CovcalError, match=r"row 200 sum to 0\.97\. Rounding .*Columns used: probabilities"
    ):
        opened(tmp_path / "t.npz", "probabilities")


@pytest.mark.parametrize("unit", [1.0, 1e306])
@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_logits_given_as_probabilities_are_found_out(
    kind: str, unit: float, tmp_path: Path
) -> None:
    """A huge number overflows in no computation, which would print a warning."""
    path = write(kind, tmp_path, LOGITS * np.float64(unit), "probabilities")
    with pytest.raises(CovcalError, match="which is not a probability: pass --logits if the"):
        opened(path, "probabilities")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("holds", "asked"), [KINDS, KINDS[::-1]])
def test_the_names_tell_one_from_the_other(
    kind: str, holds: OutputKind, asked: OutputKind, tmp_path: Path
) -> None:
    path = write(kind, tmp_path, LOGITS, holds)
    message = rf"covcal reads as {holds}: pass --{holds}. .* use the names {asked[:4]}"
    with pytest.raises(CovcalError, match=message):
        opened(path, asked)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("row", "place"), [(3, "(row 3|line 5)"), (38, "(row 38|line 40)")])
def test_a_row_that_is_no_distribution_is_named(
    kind: str, row: int, place: str, tmp_path: Path
) -> None:
    values = softmax(LOGITS)
    values[row] *= 0.9
    path = write(kind, tmp_path, values, "probabilities")
    with pytest.raises(
        CovcalError, match=rf"probabilities of {place} sum to 0\.9\. Rounding explains"
    ):
        opened(path, "probabilities")


def test_a_row_with_a_missing_value_that_does_not_sum_to_1_says_so(tmp_path: Path) -> None:
    """The likeliest class is missing, which no list of the likeliest answers leaves out."""
    values = softmax(LOGITS)
    values[3, values[3].argmax()] = np.nan
    path = write("csv", tmp_path, values, "probabilities")
    with pytest.raises(CovcalError, match=r"line 5 sum to [0-9.]+ after covcal filled in miss"):
        opened(path, "probabilities")
    path.write_text("prob_a,prob_b,label\n" + "0.9,,a\n0.2,,b\n" * 5)
    with pytest.raises(CovcalError, match="the column prob_b is empty in the first 10 rows"):
        opened(path, "probabilities")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named(kind: str, value: float, tmp_path: Path) -> None:
    values = LOGITS.copy()
    values[30, 1] = value
    with pytest.raises(CovcalError, match=r"logit\w* of (row 30|line 32) is missing, NaN or inf"):
        opened(write(kind, tmp_path, values, "logits"), "logits")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_logit_of_minus_infinity_rules_a_class_out(kind: str, tmp_path: Path) -> None:
    """Every format gives it as it is; a row of nothing else is refused."""
    values = LOGITS.copy()
    values[:, 1] = -np.inf
    table = opened(write(kind, tmp_path, values, "logits"), "logits")
    batches = table.batches(None, np.arange(N), size=N, threads=1)
    assert (next(batches).inputs["logits"][:, 1] == -np.inf).all()
    values[30] = -np.inf
    (tmp_path / "none").mkdir()
    with pytest.raises(CovcalError, match=r"logit\w* of (row 30|line 32) is missing, NaN or inf"):
        opened(write(kind, tmp_path / "none", values, "logits"), "logits")


def test_one_table_may_hold_both_domains(tmp_path: Path) -> None:
    is_source = np.arange(N) % 3 > 0
    columns = {f"logit_{i}": LOGITS[:, i].tolist() for i in range(K)}
    columns |= {"domain": ["Source" if s else "target" for s in is_source], "id": IDS}
    columns |= {"label": LABELS.tolist(), "site": SITE, "a": [0.5] * N, "b": [1.5] * N}
    tables = open_outputs(None, write_csv(tmp_path / "both.csv", columns), "logits")
    assert [len(table.notes) for table in tables.values()] == [
        1,
        1,
    ]  # columns a, b; extract says it once
    for domain, keep in (("source", is_source), ("target", ~is_source)):
        table = tables[domain]
        np.testing.assert_array_equal(read(table), LOGITS[keep])
        assert table.ids == [name for name, kept in zip(IDS, keep, strict=True) if kept]
        assert len(table.columns["site"]) == keep.sum()
        classes = choose_classes(None, None, [table], K)
        np.testing.assert_array_equal(table.labels(classes), LABELS[keep])
        rows = np.array([1, 4])
        np.testing.assert_array_equal(read(table, rows), LOGITS[keep][rows])


def test_a_table_of_one_domain_is_the_target(tmp_path: Path) -> None:
    columns = {"logit_a": [1.0], "logit_b": [2.0], "domain": ["target"]}
    assert list(open_outputs(None, write_csv(tmp_path / "o.csv", columns), "logits")) == ["target"]
    path = write_csv(tmp_path / "o.csv", columns | {"domain": ["reviews"]})
    with pytest.raises(CovcalError, match="domain holds 'reviews': write source or target"):
        opened(path, "logits")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"scores": LOGITS}, r"no logits, only scores\..* or give an array logits \[n, K\]"),
        ({"logits": LOGITS, "y": LABELS[:5]}, r"y has shape \[5\] but there are 40 rows"),
        ({"logits": LOGITS, "features": FEATURES[:5]}, r"features has shape \[5, 2\]"),
        ({"label": LABELS}, "holds no logits, only label. Name the outputs logit_NAME, one col"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "o.npz", **arrays)
    with pytest.raises(CovcalError, match=message):
        opened(tmp_path / "o.npz", "logits")


def test_covcals_own_file_is_named_as_such(tmp_path: Path) -> None:
    path = write_features(tmp_path / "features.h5")
    with pytest.raises(
        CovcalError,
        match="a features file of covcal, not data for covcal extract: pass it to covcal adapt or",
    ):
        opened(path, "logits")


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(CovcalError, match=r"no\.csv does not exist: give a table of logits"):
        opened(tmp_path / "no.csv", "logits")


@pytest.mark.parametrize("name", ["o.csv", "o.npz"])
def test_a_table_without_rows_has_classes(name: str, tmp_path: Path) -> None:
    """A night without rows is no error."""
    if name == "o.csv":
        (tmp_path / name).write_text("id,label,logit_a,logit_b,logit_c\n")
    else:
        np.savez(tmp_path / name, logits=LOGITS[:0])
    table = opened(tmp_path / name, "logits")
    assert (list(table.ids), table.n_classes) == ([], 3)
