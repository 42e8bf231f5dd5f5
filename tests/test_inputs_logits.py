"""Tables of logits and probabilities: found by name, checked, and the same in every format."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.classes import choose_classes
from covcal_cli.inputs.domaincolumn import holds_both_domains
from covcal_cli.inputs.logits import OutputTable, open_outputs
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
FORMATS = ("npz", "h5", "csv", "parquet", "lists")


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    above = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(above / above.sum(axis=1, keepdims=True))


def write(kind: str, folder: Path, values: NDArray[Any], *, probabilities: bool = False) -> Path:
    """Write outputs with all that may lie beside them."""
    word = "probabilities" if probabilities else "logits"
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
    prefix = "prob" if probabilities else "logit"
    columns = {f"{prefix}_{index}": values[:, index].tolist() for index in (2, 0, 1)}
    columns |= {f"phi_{index}": FEATURES[:, index].tolist() for index in range(D)}
    columns |= {"label": LABELS.tolist(), **{n: list(v) for n, v in beside.items()}}
    if kind == "csv":
        return write_csv(folder / "out.csv", columns)
    return write_parquet(folder / "out.parquet", columns)


def read(
    table: OutputTable, rows: NDArray[np.int64] | None = None, size: int = 7
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32]]:
    rows = np.arange(len(table.ids)) if rows is None else rows
    blocks = list(table.blocks(rows, size))
    np.testing.assert_array_equal(np.concatenate([block[0] for block in blocks]), rows)
    assert [len(block[0]) for block in blocks[:-1]] == [size] * (len(blocks) - 1)
    features = [block[1] for block in blocks if block[1] is not None]
    logits = np.concatenate([block[2] for block in blocks])
    assert logits.dtype == np.float32
    return (np.concatenate(features) if features else None), logits


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("probabilities", [False, True])
def test_every_format_says_the_same(kind: str, probabilities: bool, tmp_path: Path) -> None:
    values = softmax(LOGITS) if probabilities else LOGITS
    path = write(kind, tmp_path, values, probabilities=probabilities)
    table = open_outputs(path, probabilities=probabilities)
    assert (table.n_classes, table.n_features, table.class_names) == (K, D, None)
    features, logits = read(table)
    assert features is not None
    np.testing.assert_array_equal(features, FEATURES)
    if probabilities:
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
    np.testing.assert_array_equal(read(table, chosen, 3)[1], logits[chosen])


def test_names_of_columns_are_the_classes(tmp_path: Path) -> None:
    columns = {f"prob_{name}": softmax(LOGITS)[:, i].tolist() for i, name in enumerate("zax")}
    columns["label"] = ["" if label < 0 else "zax"[label] for label in LABELS]
    table = open_outputs(write_csv(tmp_path / "out.csv", columns), probabilities=True)
    assert table.class_names == ("z", "a", "x")
    classes = choose_classes(None, table.class_names, [table], K)
    np.testing.assert_array_equal(table.labels(classes), LABELS)


@pytest.mark.parametrize(
    ("names", "order", "found"),
    [
        (["logit_0", "logit_2", "logit_1"], [0, 2, 1], None),
        (["logit_10", "logit_2", "logit_1"], [2, 1, 0], ("1", "2", "10")),
        (["Logit_b", "Logit_a", "Logit_1"], [0, 1, 2], ("b", "a", "1")),
        (["cat", "dog", "eel"], [0, 1, 2], ("cat", "dog", "eel")),
        (["2", "0", "1"], [1, 2, 0], None),
    ],
)
def test_numbered_columns_are_ordered_by_number(
    names: list[str], order: list[int], found: tuple[str, ...] | None, tmp_path: Path
) -> None:
    columns = {name: LOGITS[:, index].tolist() for index, name in enumerate(names)}
    table = open_outputs(
        write_csv(tmp_path / "o.csv", columns | {"y": [0] * N}), probabilities=False
    )
    assert table.class_names == found
    np.testing.assert_array_equal(read(table)[1], LOGITS[:, order])
    plain = not names[0].lower().startswith("logit")
    assert bool(table.notes) == plain


def test_a_npy_file_of_outputs_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", LOGITS)
    table = open_outputs(tmp_path / "o.npy", probabilities=False)
    features, logits = read(table)
    assert features is None
    assert table.n_features is None
    np.testing.assert_array_equal(logits, LOGITS)


def test_one_probability_of_two_classes_is_enough(tmp_path: Path) -> None:
    p = np.linspace(0, 1, N)
    columns = {"prob_spam": p.tolist(), "label": (p > 0.5).astype(int).tolist()}
    table = open_outputs(write_csv(tmp_path / "o.csv", columns), probabilities=True)
    assert (table.n_classes, table.class_names) == (2, None)
    assert "prob_spam is taken for the probabilities of class 1 of two" in table.notes[0]
    logits = read(table)[1]
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(softmax(logits), np.stack([1 - p, p], axis=1), atol=1e-7)


def test_one_logit_of_two_classes_is_enough(tmp_path: Path) -> None:
    z = np.linspace(-9, 9, N, dtype=np.float32)
    np.savez(tmp_path / "o.npz", logits=z[:, None])
    table = open_outputs(tmp_path / "o.npz", probabilities=False)
    assert table.n_classes == 2
    np.testing.assert_allclose(softmax(read(table)[1])[:, 1], 1 / (1 + np.exp(-z)), rtol=1e-6)


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_probabilities_given_as_logits_are_found_out(kind: str, tmp_path: Path) -> None:
    path = write(kind, tmp_path, softmax(LOGITS))
    with pytest.raises(CovcalError, match="every row sums to 1, as probabilities do: pass --prob"):
        open_outputs(path, probabilities=False)


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_logits_given_as_probabilities_are_found_out(kind: str, tmp_path: Path) -> None:
    path = write(kind, tmp_path, LOGITS, probabilities=True)
    with pytest.raises(CovcalError, match="which is no probability: drop --probabilities where"):
        open_outputs(path, probabilities=True)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_names_tell_one_from_the_other(kind: str, tmp_path: Path) -> None:
    path = write(kind, tmp_path, LOGITS)
    with pytest.raises(CovcalError, match=r"holds no probabilities but logit.*: drop --probab"):
        open_outputs(path, probabilities=True)
    path = write(kind, tmp_path, softmax(LOGITS), probabilities=True)
    with pytest.raises(CovcalError, match=r"holds no logits but prob.*: pass --probabilities"):
        open_outputs(path, probabilities=False)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("row", "place"), [(3, "(row 3|line 5)"), (38, "(row 38|line 40)")])
def test_a_row_that_is_no_distribution_is_named(
    kind: str, row: int, place: str, tmp_path: Path
) -> None:
    values = softmax(LOGITS)
    values[row] *= 0.9
    path = write(kind, tmp_path, values, probabilities=True)
    with pytest.raises(
        CovcalError, match=rf"probabilities of {place} sum to 0\.9, not 1, where 0.99"
    ):
        open_outputs(path, probabilities=True)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_value_that_is_not_finite_is_named(kind: str, value: float, tmp_path: Path) -> None:
    values = LOGITS.copy()
    values[30, 1] = value
    with pytest.raises(CovcalError, match=r"logit\w* of (row 30|line 32) is missing, NaN or inf"):
        read(open_outputs(write(kind, tmp_path, values), probabilities=False))


def test_one_table_may_hold_both_domains(tmp_path: Path) -> None:
    is_source = np.arange(N) % 3 > 0
    columns = {f"logit_{i}": LOGITS[:, i].tolist() for i in range(K)}
    columns |= {"domain": ["Source" if s else "target" for s in is_source], "id": IDS}
    columns |= {"label": LABELS.tolist(), "site": SITE}
    path = write_csv(tmp_path / "both.csv", columns)
    assert holds_both_domains(path)
    for domain, keep in (("source", is_source), ("target", ~is_source)):
        table = open_outputs(path, probabilities=False, domain=domain)
        np.testing.assert_array_equal(read(table)[1], LOGITS[keep])
        assert table.ids == [name for name, kept in zip(IDS, keep, strict=True) if kept]
        assert len(table.columns["site"]) == keep.sum()
        classes = choose_classes(None, None, [table], K)
        np.testing.assert_array_equal(table.labels(classes), LABELS[keep])
        rows = np.array([1, 4])
        np.testing.assert_array_equal(read(table, rows)[1], LOGITS[keep][rows])


def test_a_table_of_one_domain_has_no_other(tmp_path: Path) -> None:
    path = write("csv", tmp_path, LOGITS)
    assert not holds_both_domains(path)
    with pytest.raises(CovcalError, match="has no column domain with source and target in it"):
        open_outputs(path, probabilities=False, domain="source")
    columns = {"logit_a": [1.0], "logit_b": [2.0], "domain": ["target"]}
    path = write_csv(tmp_path / "o.csv", columns)
    assert not holds_both_domains(path)
    with pytest.raises(CovcalError, match="no row has source in its column domain: give source"):
        open_outputs(path, probabilities=False, domain="source")
    path = write_csv(tmp_path / "o.csv", columns | {"domain": ["reviews"]})
    with pytest.raises(CovcalError, match="domain holds 'reviews': source and target are allowed"):
        holds_both_domains(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"scores": LOGITS}, r"holds no logits, only scores: give an array logits \[n, K\]"),
        ({"logits": LOGITS, "y": LABELS[:5]}, r"y has shape \[5\] and there are 40 rows"),
        ({"logits": LOGITS, "features": FEATURES[:5]}, r"features has shape \[5, 2\]"),
        ({"logits": LOGITS[:0]}, r"logits has shape \[0, 3\]: give one row per example"),
        ({"label": LABELS}, "holds no logits, only label"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "o.npz", **arrays)
    with pytest.raises(CovcalError, match=message):
        open_outputs(tmp_path / "o.npz", probabilities=False)


def test_covcals_own_file_is_named_as_such(tmp_path: Path) -> None:
    path = write_features(tmp_path / "features.h5")
    with pytest.raises(CovcalError, match="covcal's own features file: pass it to covcal adapt or"):
        open_outputs(path, probabilities=False)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(CovcalError, match=r"no\.csv does not exist: give a table of logits"):
        open_outputs(tmp_path / "no.csv", probabilities=False)
