"""What the estimators may read: rows, limits, refusals, and never a target label."""

from pathlib import Path

import numpy as np
import pytest

from covcal_cli.estimators import inputs
from covcal_cli.estimators.inputs import read_inputs
from covcal_cli.formats.features import FeatureFile
from covcal_cli.maths.softmax import log_mean_softmax
from tests.made_files import edited, made_domain, write_adapted, write_features


@pytest.fixture
def adapted(tmp_path: Path) -> Path:
    return write_adapted(tmp_path / "adapted.h5")


def test_it_reads_source_validation_and_target_train_and_validation(adapted: Path) -> None:
    """The target's test rows stay unread; the forecasters' logits are their members' mean."""
    with FeatureFile(adapted) as file:
        found = read_inputs(file, 1.5)
        source, target = file.require_source(), file.require_target()
        held = source.rows("validation")
        rows = np.flatnonzero(target.split < 2).astype(np.int64)
        assert np.array_equal(found.source_logits, source.logits(held))
        assert np.array_equal(found.source_labels, source.labels(held))
        assert np.array_equal(found.target_logits, target.logits(rows))
        assert found.aligned is not None
        members = target.aligned_logits(rows)
        assert found.aligned.target_logits == pytest.approx(log_mean_softmax(members).T, abs=1e-5)
        assert np.array_equal(found.aligned.target_labels, members.argmax(axis=2))
        assert found.aligned.source_labels.shape == (source.n_members, len(held))


def test_no_target_label_is_read(tmp_path: Path) -> None:
    """Changing or losing every target label changes nothing."""
    first = write_features(tmp_path / "a.h5")
    second = write_features(tmp_path / "b.h5")
    with edited(second) as handle:
        handle["target/labels"][:] = -1
    with FeatureFile(first) as one, FeatureFile(second) as other:
        known, unknown = read_inputs(one, 1.0), read_inputs(other, 1.0)
    assert np.array_equal(known.target_logits, unknown.target_logits)
    assert np.array_equal(known.source_logits, unknown.source_logits)


def test_source_rows_without_a_label_are_left_out(tmp_path: Path) -> None:
    """Weights stay with their rows."""
    source = made_domain("source")
    held = np.flatnonzero(source["split"] == 1)
    source["labels"][held[:100]] = -1
    path = write_features(tmp_path / "file.h5", source=source)
    weights = np.arange(1.0, len(held) - 99)
    with FeatureFile(path) as file:
        found = read_inputs(file, 1.0, source_weights=weights)
    assert np.array_equal(found.source_logits, source["logits"][held[100:]])
    assert found.source_weights is not None
    assert np.array_equal(found.source_weights, weights)


def test_large_domains_are_thinned_by_a_seeded_draw(
    adapted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same seed draws the same rows, in the order of the file; weights and members follow."""
    monkeypatch.setattr(inputs, "MAX_ROWS", 120)
    with FeatureFile(adapted) as file:
        weights = np.arange(1.0, 501.0)
        first = read_inputs(file, 1.0, source_weights=weights)
        again = read_inputs(file, 1.0, source_weights=weights)
        other = read_inputs(file, 1.0, seed=1)
        held = file.require_source().rows("validation")
        assert first.source_weights is not None
        assert first.aligned is not None
        drawn = first.source_weights.astype(int) - 1
        assert np.array_equal(first.source_logits, file.require_source().logits(held[drawn]))
    assert (first.n_source, first.n_target) == (120, 120)
    assert first.aligned.target_labels.shape[1] == 120
    assert np.array_equal(first.target_logits, again.target_logits)
    assert not np.array_equal(first.target_logits, other.target_logits)
    monkeypatch.setattr(inputs, "MAX_VALUES", 90)
    with FeatureFile(adapted) as file:
        assert read_inputs(file, 1.0).n_target == 30
