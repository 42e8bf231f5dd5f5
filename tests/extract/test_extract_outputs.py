"""``extract --logits`` and ``--probabilities``: outputs from elsewhere, without the model."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.special import softmax

from covcal_cli.files import sha256_of
from covcal_cli.formats.features import FeatureFile
from tests.cli_runner import covcal, covcal_process
from tests.made_files import Arrays, made_domain


@pytest.fixture(scope="module")
def domains() -> dict[str, Arrays]:
    """A made source and a shifted target."""
    return {name: made_domain(name, shift=0.7) for name in ("source", "target")}


def save(
    path: Path, domain: Arrays, *, features: bool = False, probabilities: bool = False
) -> None:
    """Save a domain as a table of outputs in an .npz."""
    logits = domain["logits"]
    outputs = {"probabilities": softmax(logits.astype(np.float64), axis=1)} if probabilities else {}
    arrays = outputs or {"logits": logits}
    if features:
        arrays = {**arrays, "features": domain["features"]}
    np.savez(path, y=domain["labels"], split=domain["split"], **arrays)


def write_csv(path: Path, domains: dict[str, Arrays]) -> None:
    """Save both domains as one CSV with a column domain, rows in turn."""
    width = domains["source"]["logits"].shape[1]
    lines = [
        (index, [name, str(label), str(split), *(repr(float(z)) for z in logits)])
        for name, domain in domains.items()
        for index, (label, split, logits) in enumerate(
            zip(
                domain["labels"],
                np.array(["train", "val", "test"])[domain["split"]],
                domain["logits"],
                strict=True,
            )
        )
    ]
    header = ["domain", "label", "split", *(f"logit_{k}" for k in range(width))]
    ordered = [cells for _, cells in sorted(lines, key=lambda line: line[0])]
    path.write_text("\n".join(",".join(cells) for cells in [header, *ordered]) + "\n")


def test_without_features(domains: dict[str, Arrays], tmp_path: Path) -> None:
    """The file holds what the tables hold; temp, estimate and evaluate work, adapt says why not."""
    for name, domain in domains.items():
        save(tmp_path / f"{name}.npz", domain)
    arguments = ("extract", "--logits", "source.npz", "target.npz")
    done = covcal(*arguments, cwd=tmp_path).require_success()
    assert "model     none, the tables hold logits; no features\n" in done.out
    assert "note: use a calibration of these logits only with" in done.err
    assert "next: covcal calibrate features.h5" in done.err
    with FeatureFile(tmp_path / "features.h5") as file:
        assert (file.attributes["model_name"], file.attributes["model_sha256"]) == ("logits", "")
        for name, domain in domains.items():
            group = file.handle[name]
            assert "features" not in group
            for dataset in ("logits", "labels", "split"):
                np.testing.assert_array_equal(group[dataset][:], domain[dataset])
    covcal("estimate", cwd=tmp_path).require_success()
    for method in ("temp", "auto"):
        covcal("calibrate", "-f", "--method", method, cwd=tmp_path).require_success()
        covcal("evaluate", cwd=tmp_path).require_success()
    line = covcal("adapt", cwd=tmp_path).error_line()
    assert "features" in line
    line = covcal(
        "calibrate", "features.h5", "-f", "--method", "iw+temp", cwd=tmp_path
    ).error_line()
    assert "features" in line


def test_with_features(domains: dict[str, Arrays], tmp_path: Path) -> None:
    """Features in the table make adapt possible, and the methods that need them."""
    for name, domain in domains.items():
        save(tmp_path / f"{name}.npz", domain, features=True)
    done = covcal("extract", "--logits", "source.npz", "target.npz", cwd=tmp_path)
    assert "next: covcal calibrate features.h5" in done.require_success().err
    with FeatureFile(tmp_path / "features.h5") as file:
        found = file.handle["target/features"][:]
        np.testing.assert_array_equal(found, domains["target"]["features"])
    covcal("calibrate", "--method", "iw+temp", cwd=tmp_path).require_success()
    covcal("evaluate", cwd=tmp_path).require_success()


def test_probabilities_become_logits_that_give_them_back(
    domains: dict[str, Arrays], tmp_path: Path
) -> None:
    """softmax(log p) = p, so that temp finds the temperature it finds on the logits."""
    for kind in ("logits", "probabilities"):
        for name, domain in domains.items():
            save(tmp_path / f"{name}.npz", domain, probabilities=kind == "probabilities")
        covcal(
            "extract", f"--{kind}", "source.npz", "target.npz", "-o", f"{kind}.h5", cwd=tmp_path
        ).require_success()
    with h5py.File(tmp_path / "probabilities.h5") as file:
        found = softmax(file["target/logits"][:].astype(np.float64), axis=1)
    expected = softmax(domains["target"]["logits"].astype(np.float64), axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    lines = []
    for kind in ("logits", "probabilities"):
        done = covcal("calibrate", f"{kind}.h5", "--method", "temp", "-o", "-", cwd=tmp_path)
        lines.append(
            [
                float(line.split(": ")[1].rstrip(","))
                for line in done.out.splitlines()
                if '"forecaster_temperature"' in line
            ]
        )
    assert lines[0] == pytest.approx(lines[1], rel=1e-3)


def test_one_table_with_both_domains(domains: dict[str, Arrays], tmp_path: Path) -> None:
    """A column domain says which rows are whose; ids are the rows of the table."""
    write_csv(tmp_path / "both.csv", domains)
    covcal("extract", "--logits", "both.csv", cwd=tmp_path).require_success()
    with h5py.File(tmp_path / "features.h5") as file:
        for name, domain in domains.items():
            np.testing.assert_allclose(file[f"{name}/logits"][:], domain["logits"], rtol=1e-6)
            np.testing.assert_array_equal(file[f"{name}/labels"][:], domain["labels"])
            np.testing.assert_array_equal(file[f"{name}/split"][:], domain["split"])


def test_the_target_alone(domains: dict[str, Arrays], tmp_path: Path) -> None:
    """One table without a column domain is the target."""
    save(tmp_path / "t.npz", domains["target"])
    covcal("extract", "--logits", "t.npz", cwd=tmp_path).require_success()
    with FeatureFile(tmp_path / "features.h5") as file:
        assert file.source is None
        assert file.require_target().n == len(domains["target"]["labels"])


def test_tables_take_shards_like_data(domains: dict[str, Arrays], tmp_path: Path) -> None:
    """Shards of tables merge to the bytes of one run."""
    for name, domain in domains.items():
        save(tmp_path / f"{name}.npz", domain, features=True)
    arguments = ("extract", "--logits", "source.npz", "target.npz")
    covcal(*arguments, cwd=tmp_path).require_success()
    parts = []
    for index in (1, 2, 3):
        parts.append(f"{index}.h5")
        extra = ("--shard", f"{index}/3", "-o", parts[-1])
        done = covcal(*arguments, *extra, cwd=tmp_path).require_success()
        assert "(all 3 shards)" in done.err
    covcal("merge", *parts, "-o", "m.h5", cwd=tmp_path).require_success()
    assert sha256_of(tmp_path / "m.h5") == sha256_of(tmp_path / "features.h5")


def test_what_does_not_go_together(domains: dict[str, Arrays], tmp_path: Path) -> None:
    """Usage errors, and tables of different classifiers."""
    save(tmp_path / "s.npz", domains["source"])
    save(tmp_path / "t.npz", domains["target"], features=True)
    for arguments in (
        ("--logits",),
        ("--logits", "m.onnx", "s.npz", "t.npz"),
        ("--logits", "--probabilities", "s.npz", "t.npz"),
        ("--logits", "t.npz", "--target", "t.npz"),
    ):
        covcal("extract", *arguments, cwd=tmp_path).usage_error()
    line = covcal("extract", "--logits", "s.npz", "t.npz", cwd=tmp_path).error_line()
    assert line.startswith("s.npz and t.npz differ in their features (none and ")
    line = covcal("extract", "--logits", "t.npz", "--size", 8, cwd=tmp_path).error_line()
    assert "leave out --size" in line
    line = covcal("extract", "--probabilities", "t.npz", cwd=tmp_path).error_line()
    assert line.startswith("t.npz")


@pytest.mark.parametrize("features", [False, True])
def test_training_rows_are_missed_only_where_something_is_trained(
    features: bool, domains: dict[str, Arrays], tmp_path: Path
) -> None:
    """adapt and the discriminator read features; a temperature needs validation rows alone."""
    for name, domain in domains.items():
        held_out = np.maximum(domain["split"], 1).astype(np.uint8)
        save(tmp_path / f"{name}.npz", domain | {"split": held_out}, features=features)
    done = covcal("extract", "--logits", "source.npz", "target.npz", cwd=tmp_path)
    missed = "has no source train rows" in done.require_success().err
    assert missed == features
    assert "no source validation rows" not in done.err


def test_tables_of_outputs_need_no_image_package(tmp_path: Path) -> None:
    """In an installation for jobs that run no model."""
    rows = "\n".join(f"0.{row % 9},{1 - row % 9 / 10:.1f},{row % 2}" for row in range(90))
    for name in ("source.csv", "target.csv"):
        (tmp_path / name).write_text(f"prob_0,prob_1,label\n{rows}\n")
    without = "import sys\nfor name in ('PIL', 'onnx', 'torch'): sys.modules[name] = None\n"
    arguments = ("extract", "--probabilities", "source.csv", "target.csv", "-q")
    covcal_process(*arguments, cwd=tmp_path, before=without, fresh=True).require_success()
