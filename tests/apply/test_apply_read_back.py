"""What apply wrote goes into extract again, with the classes by name, in all four formats."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cli_runner import covcal
from tests.made_files import edited, made_domain, write_features

KINDS = ("csv", "parquet", "npz", "h5")
CLASSES = ("cat", "dog", "eel")
ORDERS = {"s": (0, 1, 2), "t": (2, 0, 1)}
SIZES = (60, 60, 30)


def applied(folder: Path, domain: str, kind: str, names: tuple[str, ...] = CLASSES) -> Path:
    """Apply a calibration to rows of a classifier whose classes stand in the domain's order."""
    order = list(ORDERS[domain])
    made = made_domain("source", sizes=SIZES)
    made["logits"] = made["logits"][:, order]
    place = np.argsort(order)
    made["labels"] = place[made["labels"]]
    write_features(
        folder / f"{domain}.features.h5",
        source=made,
        target=made,
        class_names=[names[k] for k in order],
    )
    output = folder / f"{domain}.{kind}"
    files = (f"{domain}.features.h5", "-c", f"{domain}.json")
    fit = ("calibrate", files[0], "--method", "temp", "-o", f"{domain}.json", "-q")
    covcal(*fit, cwd=folder).require_success()
    covcal("apply", *files, "-o", output.name, "-q", cwd=folder).require_success()
    return output


def label(path: Path, names: NDArray[np.str_]) -> None:
    """Add the true classes, by name, as a user would."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            everything = dict(arrays)
        np.savez(path, y=names, **everything)
    elif path.suffix == ".h5":
        with edited(path) as file:
            file["y"] = [name.encode() for name in names]
    elif path.suffix == ".csv":
        lines = path.read_text().splitlines()
        ending = ["y", *names]
        path.write_text("".join(f"{a},{b}\n" for a, b in zip(lines, ending, strict=True)))
    else:
        arrow = pytest.importorskip("pyarrow", reason="Parquet needs covcal[parquet]")
        parquet = pytest.importorskip("pyarrow.parquet")
        table = parquet.read_table(path)
        parquet.write_table(table.append_column("y", arrow.array(names.tolist())), path)


@pytest.mark.parametrize("kinds", list(zip(KINDS, (*KINDS[1:], KINDS[0]), strict=True)))
def test_classes_go_by_name(kinds: tuple[str, str], tmp_path: Path) -> None:
    """The source's order of classes holds for both, whatever the format of each."""
    if "parquet" in kinds:
        pytest.importorskip("pyarrow", reason="Parquet needs covcal[parquet]")
    source, target = (applied(tmp_path, name, kind) for name, kind in zip("st", kinds, strict=True))
    truth = made_domain("source", sizes=SIZES)["labels"]
    label(source, np.array(CLASSES)[truth])
    label(target, np.array(CLASSES)[truth])
    arguments = ("extract", "--probabilities", source.name, target.name)
    done = covcal(*arguments, cwd=tmp_path).require_success()
    assert f"{target.name}: the two tables have the classes in different orders" in done.err
    for path in (source, target):
        assert f"{path.name}: " in done.err
        assert "were written by covcal apply and are not true labels" in done.err
    with h5py.File(tmp_path / "features.h5") as file:
        assert [name.decode() for name in file["classes"]] == list(CLASSES)
        logits = {name: file[f"{name}/logits"][:] for name in ("source", "target")}
        for name in logits:
            np.testing.assert_array_equal(file[f"{name}/labels"][:], truth)
            assert "label_index" not in file[name].get("columns", ())
            assert file[f"{name}/ids"][3] == b"source/3.png"
    centred = [z - z.max(axis=1, keepdims=True) for z in logits.values()]
    np.testing.assert_allclose(centred[0], centred[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["npz", "h5"])
def test_numbered_classes_stay_numbers(kind: str, tmp_path: Path) -> None:
    """Classes 0, 1 and 2 are in numeric order, like the columns prob_0, prob_1 and prob_2."""
    names = ("0", "1", "2")
    source, target = applied(tmp_path, "s", "csv", names), applied(tmp_path, "t", kind, names)
    truth = made_domain("source", sizes=SIZES)["labels"]
    label(source, np.array(names)[truth])
    arguments = ("extract", "--probabilities", source.name, target.name)
    covcal(*arguments, cwd=tmp_path).require_success()
    with h5py.File(tmp_path / "features.h5") as file:
        found = [file[f"{name}/logits"][:].argmax(axis=1) for name in ("source", "target")]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_alone_is_read(kind: str, tmp_path: Path) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs covcal[parquet]")
    target = applied(tmp_path, "t", kind)
    arguments = ("extract", "--probabilities", "--target", target.name, "-o", "new.h5")
    covcal(*arguments, cwd=tmp_path).require_success()
    with h5py.File(tmp_path / "new.h5") as file:
        assert [name.decode() for name in file["classes"]] == ["eel", "cat", "dog"]
        assert (file["target/labels"][:] == -1).all()


def test_names_of_an_array_from_elsewhere_count_too(tmp_path: Path) -> None:
    """An array ``classes`` names the columns of logits, as numbers or as texts."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(40, 3)).astype(np.float32)
    y = np.array(["c", "a", "b"])[np.arange(40) % 3]
    np.savez(tmp_path / "s.npz", logits=z, classes=np.array(["a", "b", "c"]), y=y)
    np.savez(tmp_path / "t.npz", logits=z[:, [1, 2, 0]], classes=np.array(["b", "c", "a"]))
    covcal("extract", "--logits", "s.npz", "t.npz", cwd=tmp_path).require_success()
    with h5py.File(tmp_path / "features.h5") as file:
        np.testing.assert_array_equal(file["target/logits"][:], z)
    np.savez(tmp_path / "t.npz", logits=z, classes=np.array(["b", "c"]))
    line = covcal("extract", "--logits", "s.npz", "t.npz", "-f", cwd=tmp_path).error_line()
    assert "t.npz: classes has shape [2] but logits has 3 columns: give one name per column" in line
    np.savez(tmp_path / "t.npz", logits=z, classes=np.array(["b", "c", "d"]))
    line = covcal("extract", "--logits", "s.npz", "t.npz", "-f", cwd=tmp_path).error_line()
    assert "have different class names" in line


def test_an_applied_file_of_another_version_or_cut_short_is_refused(tmp_path: Path) -> None:
    target = applied(tmp_path, "t", "h5")
    arguments = ("extract", "--probabilities", "--target", target.name, "-o", "new.h5")
    with edited(target) as file:
        file.attrs["schema"] = "covcal.applied/2"
    line = covcal(*arguments, cwd=tmp_path).error_line()
    assert "t.h5 has schema covcal.applied/2, but this version reads covcal.applied/1: " in line
    with edited(target) as file:
        file.attrs["schema"] = "covcal.applied/1"
        del file.attrs["complete"]
    assert "t.h5 is not complete: run covcal apply" in covcal(*arguments, cwd=tmp_path).error_line()


@pytest.mark.parametrize(
    ("ids", "suffix", "kind"),
    [
        ([7, 3, 10**12, -5], ".parquet", "int64"),
        (["7", "3", "10", "5"], ".parquet", "string"),
        ([7, 3, 10, 5], ".csv", "int64"),
        (["007", "003", "010", "005"], ".csv", "string"),
        (["a", "b", "3", "4"], ".csv", "string"),
        (None, ".csv", "int64"),
    ],
)
def test_ids_keep_their_type_in_parquet(
    ids: list[object] | None, suffix: str, kind: str, tmp_path: Path
) -> None:
    """So the calibrated rows can be joined with the table of the data."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    for name in ("source", "target"):
        n = 40
        columns: dict[str, list[Any]] = {"logit_a": list(rng.normal(size=n))}
        columns["logit_b"] = list(rng.normal(size=n))
        if ids is not None:
            columns["id"] = (ids * 10)[:n]
        columns["split"] = [row % 3 for row in range(n)]
        pairs = zip(columns["logit_a"], columns["logit_b"], strict=True)
        columns["label"] = ["ab"[int((b > a) ^ (row % 5 == 0))] for row, (a, b) in enumerate(pairs)]
        if suffix == ".parquet":
            parquet.write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet")
        else:
            rows = zip(*columns.values(), strict=True)
            lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
            (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    inputs = ("--logits", f"source{suffix}", f"target{suffix}")
    covcal("extract", *inputs, cwd=tmp_path).require_success()
    covcal("calibrate", "--method", "temp", cwd=tmp_path).require_success()
    covcal("apply", "-o", "probs.parquet", cwd=tmp_path).require_success()
    table = parquet.read_table(tmp_path / "probs.parquet")
    assert str(table.schema.field("id").type) == kind
    expected = list(range(40)) if ids is None else ids * 10
    assert table.column("id").to_pylist() == expected
