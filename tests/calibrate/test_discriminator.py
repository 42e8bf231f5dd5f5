"""The logistic source discriminator: what it is fitted on, and that nothing else changes it."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from covcal_cli.calibrate import problem
from covcal_cli.calibrate.problem import LogisticDiscriminator, fit_discriminator
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import FeatureFile
from tests.made_files import Arrays, made_domain, only_rows, write_features

Floats = NDArray[np.float64]


def fitted(path: Path, *, seed: int = 0) -> LogisticDiscriminator:
    with FeatureFile(path) as file:
        return fit_discriminator(file.require_source(), file.require_target(), seed=seed)


def domains(shift: float = 1.0, n: int = 300, n_target: int = 300) -> tuple[Arrays, Arrays]:
    source = made_domain("source", sizes=(n, 10, 0))
    return source, made_domain("target", sizes=(n_target, 10, 0), shift=shift)


def gradient(
    found: LogisticDiscriminator, source: Arrays, target: Arrays, ridge: float = 1e-3
) -> Floats:
    """Return the gradient of the balanced objective on training rows, from its definition."""
    total = np.append(ridge * found.coefficients, 0.0)
    for is_source, domain in ((1.0, source), (0.0, target)):
        features = domain["features"][domain["split"] == 0].astype(np.float64)
        inputs = np.column_stack([(features - found.mean) / found.scale, np.ones(len(features))])
        logits = inputs @ np.append(found.coefficients, found.intercept)
        error = 1 / (1 + np.exp(-logits)) - is_source
        total += 0.5 * (inputs * error[:, None]).mean(axis=0)
    return total


@pytest.mark.parametrize("sizes", [(300, 300), (2000, 20), (15, 900)])
def test_is_the_optimum_of_the_balanced_objective(tmp_path: Path, sizes: tuple[int, int]) -> None:
    """The gradient of balanced cross-entropy plus ridge vanishes: the one answer was reached."""
    source, target = domains(1.0, *sizes)
    found = fitted(write_features(tmp_path / "f.h5", source=source, target=target))
    assert np.abs(gradient(found, source, target)).max() < 1e-7


def test_standardises_with_each_domain_weighing_one_half(tmp_path: Path) -> None:
    """Mean and scale are of the half-and-half mixture of training rows, not of the pooled rows."""
    source, target = domains(4.0, 500, 25)
    found = fitted(write_features(tmp_path / "f.h5", source=source, target=target))
    parts = [
        domain["features"][domain["split"] == 0].astype(np.float64) for domain in (source, target)
    ]
    mean = sum(part.mean(axis=0) for part in parts) / 2
    square = sum(((part - mean) ** 2).mean(axis=0) for part in parts) / 2
    assert found.mean == pytest.approx(mean, abs=1e-9)
    assert found.scale == pytest.approx(np.sqrt(square), rel=1e-6)


def test_only_training_rows_are_read(tmp_path: Path) -> None:
    """Features of validation and test rows change nothing."""
    source, target = domains()
    before = fitted(write_features(tmp_path / "a.h5", source=source, target=target))
    for domain in (source, target):
        domain["features"][domain["split"] != 0] = 1e6
    after = fitted(write_features(tmp_path / "b.h5", source=source, target=target))
    assert after.coefficients.tolist() == before.coefficients.tolist()
    assert after.intercept == before.intercept


@pytest.mark.parametrize("factor", [1e-9, 1e-3, 1e6])
def test_the_unit_of_a_feature_does_not_matter(tmp_path: Path, factor: float) -> None:
    """A feature in other units, however small its numbers, gives the same logits."""
    source, target = domains(1.0, 200, 200)
    path = write_features(tmp_path / "a.h5", source=source, target=target)
    before = fitted(path).logits(source["features"])
    for domain in (source, target):
        domain["features"] *= np.float32(factor)
    after = fitted(write_features(tmp_path / "b.h5", source=source, target=target))
    assert after.logits(source["features"]) == pytest.approx(before, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("value", [0.0, 3.7, -1e6])
def test_a_constant_feature_is_ignored(tmp_path: Path, value: float) -> None:
    """A feature that never changes gets no weight and harms no other."""
    source, target = domains()
    plain = fitted(write_features(tmp_path / "a.h5", source=source, target=target))
    for domain in (source, target):
        column = np.full((len(domain["features"]), 1), value, dtype=np.float32)
        domain["features"] = np.hstack([domain["features"], column])
    found = fitted(write_features(tmp_path / "b.h5", source=source, target=target))
    assert found.coefficients[-1] == pytest.approx(0, abs=1e-9)
    assert found.coefficients[:-1] == pytest.approx(plain.coefficients, rel=1e-5)


def test_a_large_common_offset_costs_no_digits(tmp_path: Path) -> None:
    """Features around 1000 (float32 steps of 6e-5) give the discriminator of features around 0."""
    source, target = domains()
    plain = fitted(write_features(tmp_path / "a.h5", source=source, target=target))
    for domain in (source, target):
        domain["features"] = domain["features"] + np.float32(1000)
    found = fitted(write_features(tmp_path / "b.h5", source=source, target=target))
    assert found.coefficients == pytest.approx(plain.coefficients, rel=1e-3, abs=1e-4)
    assert found.intercept == pytest.approx(plain.intercept, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("shift", [30.0, 1e6])
def test_separable_domains_give_a_finite_answer(tmp_path: Path, shift: float) -> None:
    """Where a plane separates the domains the ridge keeps the weights finite, and it says so."""
    source, target = domains(shift)
    found = fitted(write_features(tmp_path / "f.h5", source=source, target=target))
    assert np.isfinite(found.coefficients).all()
    assert found.logits(source["features"]).min() > 0 > found.logits(target["features"]).max()
    assert np.abs(gradient(found, source, target)).max() < 1e-7


def test_more_features_than_rows_give_a_finite_answer(tmp_path: Path) -> None:
    """Forty features and ten rows of each domain: separable by chance, and still one optimum."""
    source = made_domain("source", sizes=(10, 5, 0), width=40)
    target = made_domain("target", sizes=(10, 5, 0), width=40)
    found = fitted(write_features(tmp_path / "f.h5", source=source, target=target))
    assert np.abs(gradient(found, source, target)).max() < 1e-7


def test_more_rows_than_the_cap_are_thinned_by_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the cap, the seed draws rows: the same seed gives the same T, another a close T."""
    source, target = domains(1.0, 1000, 90)
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    everything = fitted(path)
    monkeypatch.setattr(problem, "MAX_ROWS_PER_DOMAIN", 400)
    one, again, other = fitted(path), fitted(path), fitted(path, seed=1)
    assert one.coefficients.tolist() == again.coefficients.tolist()
    assert one.coefficients.tolist() != other.coefficients.tolist()
    for capped in (one, other):
        assert capped.coefficients == pytest.approx(everything.coefficients, abs=0.5)


def test_a_cap_that_no_domain_reaches_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At or below the cap every row is used and the seed does not matter."""
    path = write_features(tmp_path / "f.h5")
    monkeypatch.setattr(problem, "MAX_ROWS_PER_DOMAIN", 300)
    assert fitted(path).coefficients.tolist() == fitted(path, seed=5).coefficients.tolist()


def test_the_size_of_blocks_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in one block or in blocks of 256 rows, the answer is the same."""
    source, target = domains(1.0, 1500, 700)
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    whole = fitted(path)
    monkeypatch.setattr("covcal_cli.formats.features._BLOCK_BYTES", 1)
    parts = fitted(path)
    assert parts.coefficients == pytest.approx(whole.coefficients, abs=1e-8)
    assert parts.intercept == pytest.approx(whole.intercept, abs=1e-8)


def test_the_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    """Shuffled rows, splits interleaved, give the same discriminator."""
    source, target = domains()
    plain = fitted(write_features(tmp_path / "a.h5", source=source, target=target))
    order = np.random.default_rng(0).permutation(310)
    shuffled = only_rows(source, order), only_rows(target, order[::-1])
    found = fitted(write_features(tmp_path / "b.h5", source=shuffled[0], target=shuffled[1]))
    assert found.coefficients == pytest.approx(plain.coefficients, abs=1e-8)


def test_a_nan_feature_is_named(tmp_path: Path) -> None:
    """A NaN among the features stops the fit with the file, the row and its id."""
    source, target = domains()
    target["features"][7, 2] = np.nan
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    with pytest.raises(CovcalError, match=r"f\.h5: /target/features row 7 \(target/7\.png\)"):
        fitted(path)


def test_an_empty_training_split_is_refused(tmp_path: Path) -> None:
    """Without training rows of a domain the error names the domain and the rows per split."""
    path = write_features(tmp_path / "f.h5", target=made_domain("target", sizes=(0, 5, 5)))
    with pytest.raises(CovcalError, match=r"no target train rows .*validation 5, test 5"):
        fitted(path)
