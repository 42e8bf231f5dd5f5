"""Where the data has no splits of its own: what each domain is split into."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covcal_cli.formats.features import FeatureFile
from tests.cli_runner import covcal

ROWS = 400


def extracted(folder: Path, *options: str, features: bool) -> FeatureFile:
    """Extract tables of logits, with features or without."""
    rng = np.random.default_rng(0)
    for name in ("source", "target"):
        arrays: dict[str, Any] = {
            "logits": rng.normal(size=(ROWS, 3)),
            "y": rng.integers(3, size=ROWS),
        }
        if features:
            arrays["features"] = rng.normal(size=(ROWS, 4))
        np.savez(folder / f"{name}.npz", **arrays)
    inputs = ("--logits", "source.npz", "target.npz", *options)
    covcal("extract", *inputs, "-q", cwd=folder).require_success()
    return FeatureFile(folder / "features.h5")


@pytest.mark.parametrize(
    ("features", "options", "source", "target"),
    [
        (True, (), (0.6, 0.4, 0), (0.6, 0.2, 0.2)),
        (False, (), (0, 1, 0), (0.6, 0.2, 0.2)),
        (True, ("--fractions", "0.5,0.3,0.2"), (0.5, 0.3, 0.2), (0.5, 0.3, 0.2)),
        (False, ("--fractions", "0,0.5,0.5"), (0, 0.5, 0.5), (0, 0.5, 0.5)),
    ],
)
def test_labelled_source_rows_fit_t_where_none_is_asked_for(
    features: bool,
    options: tuple[str, ...],
    source: tuple[float, ...],
    target: tuple[float, ...],
    tmp_path: Path,
) -> None:
    """No source row is tested, and training rows are for what trains on features alone."""
    with extracted(tmp_path, *options, features=features) as file:
        for domain, shares in ((file.source, source), (file.target, target)):
            assert domain is not None
            found = np.bincount(domain.split, minlength=3) / ROWS
            np.testing.assert_allclose(found, shares, atol=0.07)
            assert ((found == 0) == (np.array(shares) == 0)).all()
        assert json.loads(file.attributes["fractions"]) == list(target)
        assert ("source_fractions" in file.attributes) == (not options)


def test_source_test_rows_that_there_are_none_of(tmp_path: Path) -> None:
    extracted(tmp_path, features=True).__exit__()
    covcal("calibrate", "--method", "temp", "-q", cwd=tmp_path).require_success()
    arguments = ("--domain", "source", "--split", "test", "-o", "p.csv", "-q")
    line = covcal("apply", *arguments, cwd=tmp_path).error_line()
    assert "has no source test rows" in line
    assert "--fractions" in line


def test_merged_domains_are_split_as_those_extracted_together(tmp_path: Path) -> None:
    extracted(tmp_path, features=True).__exit__()
    whole = (tmp_path / "features.h5").read_bytes()
    for index in ("1/2", "2/2"):
        shard = ("--shard", index, "-o", f"{index[0]}.h5")
        inputs = ("--logits", "source.npz", "target.npz", *shard)
        covcal("extract", *inputs, cwd=tmp_path).require_success()
    covcal("merge", "2.h5", "1.h5", "-o", "merged.h5", cwd=tmp_path).require_success()
    assert (tmp_path / "merged.h5").read_bytes() == whole
