"""Two tables mean the same by their names: domains, feature columns, classes; never by position."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax

from covcal_cli.data.classes import named_classes
from covcal_cli.data.labels import LabelSets
from covcal_cli.data.outputs import OutputTable, open_outputs
from covcal_cli.data.stores import open_store
from covcal_cli.errors import CovcalError
from tests.cli_runner import covcal
from tests.extract.named_tables import ANIMALS, LOGITS, N, X, columns, dataset, model, outputs, save
from tests.made_rows import write_json_lines


@pytest.mark.parametrize("kinds", [("csv", "csv"), ("parquet", "csv"), ("parquet", "parquet")])
def test_columns_in_another_order_go_by_name(kinds: tuple[str, str], tmp_path: Path) -> None:
    source = save(kinds[0], tmp_path, "s", columns("source"))
    target = save(kinds[1], tmp_path, "t", columns("target", ("weight", "age", "height")))
    done = covcal("extract", model(tmp_path), source, target, cwd=tmp_path).require_success()
    assert f"{target} and {source} have their columns in different orders" in done.err
    np.testing.assert_allclose(dataset(tmp_path, "target/logits"), X["target"], rtol=1e-6)
    np.testing.assert_allclose(dataset(tmp_path, "source/logits"), X["source"], rtol=1e-6)


def test_columns_in_the_same_order_need_no_words(tmp_path: Path) -> None:
    source, target = (save("csv", tmp_path, n[0], columns(n)) for n in ("source", "target"))
    done = covcal("extract", model(tmp_path), source, target, cwd=tmp_path).require_success()
    assert "order" not in done.err


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        (
            {"height": "size"},
            "t.csv lacks the column height, and s.csv lacks the column size: give both files",
        ),
        (
            {"age": "a", "height": "b"},
            "t.csv lacks the column age, and s.csv lacks the column a (2 more columns differ): ",
        ),
    ],
)
def test_other_columns_are_refused(renamed: dict[str, str], message: str, tmp_path: Path) -> None:
    save("csv", tmp_path, "s", columns("source"))
    table = {renamed.get(name, name): values for name, values in columns("target").items()}
    save("csv", tmp_path, "t", table)
    line = covcal("extract", model(tmp_path), "s.csv", "t.csv", cwd=tmp_path).error_line()
    assert message in line


def test_a_column_that_only_one_table_has_is_named(tmp_path: Path) -> None:
    save("csv", tmp_path, "s", columns("source"))
    save("csv", tmp_path, "t", {"year": [2024] * N, **columns("target")})
    line = covcal("extract", model(tmp_path), "s.csv", "t.csv", cwd=tmp_path).error_line()
    assert "s.csv lacks the column year: give both" in line
    save("csv", tmp_path, "t", {**columns("target"), "height": ["tall"] * N})
    line = covcal("extract", model(tmp_path), "s.csv", "t.csv", cwd=tmp_path).error_line()
    assert "t.csv lacks the column height as numbers: give both" in line


@pytest.mark.parametrize("place", ["source", "target", "alone"])
def test_rows_of_the_other_domain_are_refused_beside_a_model(place: str, tmp_path: Path) -> None:
    both = {**columns("source"), "domain": ["source", "target"] * (N // 2)}
    save("csv", tmp_path, "both", both)
    save("csv", tmp_path, "one", columns("target"))
    given = {
        "source": ("both.csv", "one.csv"),
        "target": ("one.csv", "both.csv"),
        "alone": ("--target", "both.csv"),
    }[place]
    line = covcal("extract", model(tmp_path), *given, cwd=tmp_path).error_line()
    assert "both.csv is given as the " in line
    assert "in 20 of 40 rows: save one table per domain" in line
    assert ("(with one.csv)" in line) == (place != "alone")


@pytest.mark.parametrize("places", [("both.csv", "one.csv"), ("one.csv", "both.csv")])
def test_rows_of_the_other_domain_are_refused_in_outputs(
    places: tuple[str, str], tmp_path: Path
) -> None:
    labels = {"label": [ANIMALS[i % 3] for i in range(N)]}
    both = {**outputs(), **labels, "Domain": ["Source ", "target"] * (N // 2)}
    save("csv", tmp_path, "both", both)
    save("csv", tmp_path, "one", {**outputs(), **labels})
    line = covcal("extract", "--logits", *places, cwd=tmp_path).error_line()
    assert "both.csv" in line
    assert "(with one.csv)" in line
    assert "give only both.csv, or remove the column domain" in line
    covcal("extract", "--logits", "both.csv", cwd=tmp_path).require_success()
    assert len(dataset(tmp_path, "source/logits")) == N // 2


def test_a_domain_that_agrees_with_its_place_is_no_obstacle(tmp_path: Path) -> None:
    for name in ("source", "target"):
        save("csv", tmp_path, name, {**columns(name), "domain": [name] * N})
    arguments = ("extract", model(tmp_path), "source.csv", "target.csv")
    covcal(*arguments, cwd=tmp_path).require_success()
    line = covcal(*arguments[:2], "target.csv", "source.csv", "-f", cwd=tmp_path).error_line()
    assert line.startswith("target.csv is given as the source (with source.csv), but its column ")
    assert line.endswith("exchange the two tables, or remove the column domain")


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_classes_in_another_order_go_by_name(kind: str, tmp_path: Path) -> None:
    values = LOGITS if kind == "logits" else softmax(LOGITS.astype(np.float64), axis=1)
    prefix = "logit" if kind == "logits" else "prob"
    labels = {"label": [ANIMALS[i % 3] for i in range(N)]}
    save("csv", tmp_path, "s", {**outputs(prefix=prefix, values=values), **labels})
    save("csv", tmp_path, "t", {**outputs((2, 0, 1), prefix, values), **labels})
    done = covcal("extract", f"--{kind}", "s.csv", "t.csv", cwd=tmp_path).require_success()
    assert "t.csv: the two tables have the classes in different orders" in done.err
    source, target = (dataset(tmp_path, f"{name}/logits") for name in ("source", "target"))
    np.testing.assert_allclose(target, source, rtol=1e-6)
    labelled, found = (dataset(tmp_path, f"{name}/labels") for name in ("source", "target"))
    np.testing.assert_array_equal(found, labelled)


def test_features_beside_outputs_go_by_name(tmp_path: Path) -> None:
    """Also in a file of its own; other names are refused."""
    features = {f"feature_{name}": X["source"][:, i].tolist() for i, name in enumerate("xyz")}
    labels = {"label": [ANIMALS[i % 3] for i in range(N)]}
    save("csv", tmp_path, "s", {**outputs(), **features, **labels})
    save("csv", tmp_path, "t", {**outputs(), **dict(reversed(features.items()))})
    renamed = {
        f"feature_{name}": values for name, values in zip("xyw", features.values(), strict=False)
    }
    save("csv", tmp_path, "w", {**outputs(), **renamed})
    covcal("extract", "s.csv", "t.csv", cwd=tmp_path).require_success()
    covcal("extract", "--target", "t.csv", "-o", "t.h5", cwd=tmp_path).require_success()
    for file in ("features.h5", "t.h5"):
        np.testing.assert_allclose(dataset(tmp_path, "target/features", file), X["source"])
    line = covcal("extract", "s.csv", "w.csv", "-f", cwd=tmp_path).error_line()
    assert "have different names of features (x, y, z and w, x, y)" in line


def test_classes_asked_for_in_another_order_go_by_name(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("eel\ncat\ndog\n")
    save("csv", tmp_path, "s", {**outputs(), "label": [ANIMALS[i % 3] for i in range(N)]})
    save("csv", tmp_path, "t", outputs((1, 0, 2)))
    arguments = ("extract", "--logits", "s.csv", "t.csv", "--classes", "names.txt")
    covcal(*arguments, cwd=tmp_path).require_success()
    for name in ("source", "target"):
        found = dataset(tmp_path, f"{name}/logits")
        np.testing.assert_allclose(found, LOGITS[:, [2, 0, 1]], rtol=1e-6)
    assert dataset(tmp_path, "source/labels")[:3].tolist() == [1, 2, 0]


def test_other_class_names_are_refused(tmp_path: Path) -> None:
    save("csv", tmp_path, "s", {**outputs(), "label": [ANIMALS[i % 3] for i in range(N)]})
    save("csv", tmp_path, "t", {**outputs((0, 1)), "logit_fox": [0.5] * N})
    line = covcal("extract", "--logits", "s.csv", "t.csv", cwd=tmp_path).error_line()
    assert "have different class names (cat, dog, eel and cat, dog, fox): give outputs" in line


@pytest.mark.parametrize(
    ("source", "target", "order"),
    [
        ("benign", "benign", ("benign", "malignant")),
        ("malignant", "malignant", ("benign", "malignant")),
        ("benign", "malignant", ("benign", "malignant")),
        ("benign", "benign", ("malignant", "benign")),
        ("malignant", "benign", ("malignant", "benign")),
        ("0", "0", ("0", "1")),
        ("1", "0", ("0", "1")),
    ],
)
def test_a_single_probability_is_of_the_class_that_it_names(
    source: str, target: str, order: tuple[str, str], tmp_path: Path
) -> None:
    p = np.linspace(0.02, 0.98, N)
    likely = "malignant" if "malignant" in order else "1"
    of = {name: (p if name == likely else 1 - p).tolist() for name in order}
    labels = np.where(p > 0.5, likely, next(name for name in order if name != likely))
    save("csv", tmp_path, "s", {f"prob_{source}": of[source], "label": labels.tolist()})
    save("csv", tmp_path, "t", {f"prob_{target}": of[target]})
    (tmp_path / "names.txt").write_text("\n".join(order))
    options = () if order[0] in ("benign", "0") else ("--classes", "names.txt")
    done = covcal("extract", "--probabilities", "s.csv", "t.csv", *options, cwd=tmp_path)
    err = done.require_success().err
    assert f"prob_{source} is read as the output of class {source}" in err
    assert "class 1 of two" not in err
    assert [name.decode() for name in dataset(tmp_path, "classes")] == list(order)
    expected = np.stack([of[name] for name in order], axis=1)
    for domain in ("source", "target"):
        found = softmax(dataset(tmp_path, f"{domain}/logits").astype(np.float64), axis=1)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    right = dataset(tmp_path, "source/logits").argmax(axis=1) == dataset(tmp_path, "source/labels")
    assert right.all()


def test_a_name_that_is_no_class_keeps_the_second_class(tmp_path: Path) -> None:
    p = np.linspace(0.02, 0.98, N)
    labels = np.where(p > 0.5, "spam", "ham")
    table = {"prob_positive": p.tolist(), "label": labels.tolist()}
    save("csv", tmp_path, "s", table)
    save("csv", tmp_path, "t", {"prob_positive": p.tolist()})
    done = covcal("extract", "--probabilities", "s.csv", "t.csv", cwd=tmp_path)
    expected = "prob_positive is read as the probabilities of class 1. The other class is class 0"
    assert expected in done.require_success().err


# A table alone, whose classes `--classes` names, as after a calibration.


def later(path: Path, classes: tuple[str, ...], *, multilabel: bool = False) -> OutputTable:
    """Open a later table of logits with the classes of a calibration."""
    names = path.parent / "cal.json"
    names.write_text(json.dumps({"classes": classes}))
    return open_outputs(None, path, "logits", names, multilabel=multilabel)["target"]


def logits(table: OutputTable) -> NDArray[Any]:
    return next(table.batches(None, np.arange(N), size=N, threads=1)).inputs["logits"]


def saved(kind: str, folder: Path, names: Sequence[str], order: tuple[int, ...]) -> Path:
    """Save the logits in this order of the classes, under these names."""
    values = LOGITS[:, list(order)]
    if kind == "npz":
        np.savez(folder / "t.npz", logits=values, classes=names)
    elif kind == "jsonl":
        write_json_lines(
            folder / "t.jsonl",
            {"logits": [dict(zip(names, row, strict=True)) for row in values.tolist()]},
        )
    else:
        save(kind, folder, "t", {f"logit_{n}": values[:, k] for k, n in enumerate(names)})
    return folder / f"t.{kind}"


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "npz"])
def test_later_classes_go_by_name_or_are_refused(
    kind: str, multilabel: bool, tmp_path: Path
) -> None:
    path = saved(kind, tmp_path, ("eel", "cat", "dog"), (2, 0, 1))
    np.testing.assert_allclose(logits(later(path, ANIMALS, multilabel=multilabel)), LOGITS)
    for names, facts in (
        (("Eel", "cat", "dog"), "only t has Eel; only cal.json has eel"),
        (("a", "b", "c"), "only t has a, b, c; only cal.json has cat, dog, eel"),
        (("1", "2", "3"), "only t has 1, 2, 3; only cal.json has cat, dog, eel"),
    ):
        path = saved(kind, tmp_path, names, (0, 1, 2))
        with pytest.raises(CovcalError) as caught:
            later(path, ANIMALS, multilabel=multilabel)
        line = str(caught.value).replace(f"{tmp_path}/", "").replace(f"t.{kind}", "t")
        assert f"t and cal.json have different class names ({facts}): rename " in line
        assert line.endswith("of t to cat, dog, eel")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "npz"])
@pytest.mark.parametrize("name", ["{}", "LABEL_{}"])
def test_numbered_outputs_get_the_names_by_number(kind: str, name: str, tmp_path: Path) -> None:
    """The numbers 0 to K-1 are no names, unless the calibration has the same numbers."""
    numbers = [name.format(k) for k in range(3)]
    path = saved(kind, tmp_path, [numbers[k] for k in (2, 0, 1)], (2, 0, 1))
    np.testing.assert_allclose(logits(later(path, ANIMALS)), LOGITS)
    backwards = logits(later(path, tuple(numbers[::-1])))
    np.testing.assert_allclose(backwards, LOGITS[:, ::-1])


@pytest.mark.parametrize(("name", "place"), [("ham", 0), ("0", 0), ("1", 1), ("Ham", None)])
def test_a_later_single_column_is_of_its_class(
    name: str, place: int | None, tmp_path: Path
) -> None:
    save("csv", tmp_path, "t", {f"logit_{name}": LOGITS[:, 0]})
    if place is None:
        with pytest.raises(CovcalError, match=r"\(only .* has Ham\): rename"):
            later(tmp_path / "t.csv", ("ham", "spam"))
    else:
        found = logits(later(tmp_path / "t.csv", ("ham", "spam")))
        np.testing.assert_allclose(found[:, place] - found[:, 1 - place], LOGITS[:, 0])


def test_two_single_columns_of_different_classes_are_refused(tmp_path: Path) -> None:
    save("csv", tmp_path, "s", {"logit_ham": LOGITS[:, 0], "label": [0, 1] * (N // 2)})
    save("csv", tmp_path, "t", {"logit_spam": LOGITS[:, 0]})
    with pytest.raises(CovcalError, match=r"have different class names \(ham and spam\)"):
        open_outputs(tmp_path / "s.csv", tmp_path / "t.csv", "logits")


def test_sets_of_other_labels_are_refused(tmp_path: Path) -> None:
    """An object of 1 and 0 for each label names the labels as the outputs do."""
    rows = [dict(zip(("cat", "dog", "fox"), (1, 0, 1), strict=True))] * N
    write_json_lines(tmp_path / "t.jsonl", {"labels": rows})
    sets = LabelSets(open_store(tmp_path / "t.jsonl"), N)
    with pytest.raises(CovcalError, match="the true labels are cat, dog, fox, but the outputs"):
        sets.indices(named_classes(ANIMALS))
