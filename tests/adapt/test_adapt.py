"""``adapt``: what it writes, that it aligns, and that it can be trusted with files."""

import json
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from covcal_cli.adapt import training_rows
from covcal_cli.adapt.adapt import adapt
from covcal_cli.adapt.alignment import Aligner, probe_overlap
from covcal_cli.adapt.perceptrons import Perceptrons
from covcal_cli.adapt.settings import (
    AdaptSettings,
    Schedule,
    Settings,
    default_settings,
    paper_settings,
)
from covcal_cli.adapt.training import brier_errors, weighted_brier
from covcal_cli.adapt.training_rows import Projection, TrainingRows, read_rows
from covcal_cli.errors import CovcalError, OutputExistsError
from covcal_cli.files import sha256_of
from covcal_cli.formats.features import FEATURES_SCHEMA, FeatureFile
from covcal_cli.formats.writer import HDF5Writer, utf8
from covcal_cli.maths.networks import (
    aligned_domain_logits,
    aligned_logits,
    networks_sha256,
    perceptron,
    projected,
    read_networks,
)
from covcal_cli.progress import Progress, silent
from tests import made_files
from tests.made_files import edited

CPU = torch.device("cpu")
CLASSES, WIDTH = 3, 12
SIZES = {"source": (600, 200, 50), "target": (300, 150, 80)}
Changes = dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]]


def write_features(path: Path, changes: Changes | None = None, *, shift: float = 2.0) -> Path:
    """Write three classes in six directions; the target is moved along two of six others.

    `changes` maps a dataset such as ``"target/labels"`` to a function of its values.
    """
    rng = np.random.default_rng(0)
    centres, head = rng.normal(size=(CLASSES, 6)) * 2, rng.normal(size=(CLASSES, WIDTH))
    with HDF5Writer(
        path, schema=FEATURES_SCHEMA, classes=["a", "b", "c"], attributes={"seed": 5, "model": "m"}
    ) as writer:
        writer.write("head/weight", head)
        for domain, sizes in SIZES.items():
            n = sum(sizes)
            labels = rng.integers(CLASSES, size=n)
            features = np.hstack([centres[labels], np.zeros((n, 6))]) + rng.normal(size=(n, WIDTH))
            features[:, 6:8] += shift if domain == "target" else 0.0
            arrays: dict[str, np.ndarray[Any, Any]] = {
                "features": features.astype(np.float32),
                "logits": (features @ head.T).astype(np.float32),
                "labels": labels,
                "split": np.repeat([0, 1, 2], sizes).astype(np.uint8),
                "ids": utf8([f"{domain}/{row}" for row in range(n)]),
                "columns/camera": np.arange(n),
            }
            for name, values in arrays.items():
                change = (changes or {}).get(f"{domain}/{name}")
                writer.write(f"{domain}/{name}", values if change is None else change(values))
        writer.complete()
    return path


def small(settings: Settings) -> Settings:
    """Return settings that train in a blink."""
    schedule = replace(settings.schedule, batch=64)
    if schedule.steps is not None:
        schedule = replace(schedule, steps=20, check_every=10)
    else:
        schedule = replace(schedule, epochs=3)
    discriminator = replace(settings.discriminator, schedule=schedule)
    return replace(settings, schedule=schedule, discriminator=discriminator)


@pytest.fixture(autouse=True)
def short_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let both presets train briefly: what they find is tested where it matters."""
    full_default, full_paper = default_settings, paper_settings
    monkeypatch.setattr("covcal_cli.adapt.settings.default_settings", lambda: small(full_default()))
    monkeypatch.setattr(
        "covcal_cli.adapt.settings.paper_settings", lambda d, decay: small(full_paper(d, decay))
    )


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_numpy_reproduces_the_stored_logits(tmp_path: Path, preset: str) -> None:
    features, output = write_features(tmp_path / "features.h5"), tmp_path / "adapted.h5"
    report = adapt(features, output, AdaptSettings(preset=preset, members=2, device="cpu"))
    with FeatureFile(features) as before, FeatureFile(output) as after:
        networks = read_networks(after.handle["networks"])
        assert networks_sha256(networks) == report.networks_sha256
        assert after.attributes["networks_sha256"] == report.networks_sha256
        for old, new in ((before.source, after.source), (before.target, after.target)):
            assert old is not None
            assert new is not None
            rows = np.arange(old.n)
            phi = old.features(rows)
            inputs = projected(networks, phi)[None]
            assert new.n_members == 2
            for ours, stored in (
                (aligned_logits(networks, phi), new.aligned_logits(rows)),
                (
                    perceptron(networks, "discriminator", inputs)[0, :, 0],
                    new.domain_logits(rows),
                ),
                (
                    aligned_domain_logits(networks, phi),
                    new.aligned_domain_logits(rows),
                ),
            ):
                assert ours.dtype == stored.dtype == np.float32
                assert np.allclose(ours, stored, atol=1e-4)


def test_file_keeps_what_came_in_and_how_it_was_made(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    features, output = write_features(tmp_path / "in" / "features.h5"), tmp_path / "adapted.h5"
    adapt(features, output, AdaptSettings(members=2, seed=3, device="cpu"))
    with h5py.File(features) as before, h5py.File(output) as after:
        for domain in ("source", "target"):
            assert "features" not in after[domain]
            for name in ("logits", "labels", "split", "ids", "columns/camera"):
                assert np.array_equal(before[domain][name], after[domain][name])
        assert np.array_equal(before["head/weight"], after["head/weight"])
        attributes = dict(after.attrs)
    expected = {
        "schema": "covcal.adapted/1",
        "model": "m",
        "extract_seed": 5,
        "seed": 3,
        "members": 2,
        "preset": "default",
        "device": "cpu",
        "threads": 1,
        "torch_version": str(torch.__version__),
        "features_file": "in/features.h5",
        "features_sha256": sha256_of(features),
    }
    assert expected.items() <= attributes.items()
    record = json.loads(attributes["training"])
    assert len(record["members"]) == 2
    assert {"forecaster", "discriminator", "step"} <= set(record["members"][0]["losses"][0])


def test_same_seed_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    features = write_features(tmp_path / "features.h5")
    digests = []
    for name, seed in (("a.h5", 0), ("b.h5", 0), ("c.h5", 1)):
        adapt(features, tmp_path / name, AdaptSettings(members=1, seed=seed, device="cpu"))
        digests.append(sha256_of(tmp_path / name))
    assert digests[0] == digests[1] != digests[2]


def test_first_of_three_members_equals_a_single_one(tmp_path: Path) -> None:
    features = write_features(tmp_path / "features.h5")
    found = []
    for members in (1, 3):
        adapt(features, tmp_path / f"{members}.h5", AdaptSettings(members=members, device="cpu"))
        with FeatureFile(tmp_path / f"{members}.h5") as file:
            source = file.require_source()
            rows = source.rows("test")
            found.append((source.aligned_logits(rows)[0], source.aligned_domain_logits(rows)[0]))
    for alone, among in zip(*found, strict=True):
        assert np.allclose(alone, among, atol=1e-3)


def test_target_labels_change_nothing_but_their_own_copy(tmp_path: Path) -> None:
    def some_absent(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.where(np.arange(len(labels)) % 2, -1, 0)

    files: dict[str, Changes] = {"true": {}, "other": {"target/labels": some_absent}}
    for name, changes in files.items():
        features = write_features(tmp_path / f"{name}.features.h5", changes)
        adapt(features, tmp_path / f"{name}.h5", AdaptSettings(members=1, device="cpu"))
    with h5py.File(tmp_path / "true.h5") as true, h5py.File(tmp_path / "other.h5") as other:
        names: list[str] = []
        true.visit(names.append)
        for name in names:
            if isinstance(true[name], h5py.Dataset) and name != "target/labels":
                assert np.array_equal(true[name], other[name]), name
        assert true.attrs["training"] == other.attrs["training"]


def test_source_rows_without_label_are_tolerated_and_counted(tmp_path: Path) -> None:
    def hide(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.where(np.arange(len(labels)) % 3 == 0, -1, labels)

    features = write_features(tmp_path / "features.h5", {"source/labels": hide})
    report = adapt(features, tmp_path / "adapted.h5", AdaptSettings(members=1, device="cpu"))
    assert (report.counts["source train"], report.counts["labelled source train"]) == (600, 400)
    assert np.isfinite(report.members[0].weighted_brier)


def test_alignment_brings_the_domains_together(tmp_path: Path) -> None:
    """On a moved nuisance direction a fresh probe does worse on psi than on phi."""
    features = write_features(tmp_path / "features.h5")
    settings = replace(default_settings(), members=1)
    settings = replace(settings, schedule=replace(settings.schedule, batch=64, steps=500))
    with FeatureFile(features) as file:
        rows, _, _ = read_rows(file, settings, seed=0, progress=silent)
    width = rows.width
    unchanged = Perceptrons([torch.eye(width)[None]], [torch.zeros(1, 1, width)])
    before = probe_overlap(unchanged, rows)
    after = probe_overlap(Aligner(rows, settings, 0, CPU).run(silent).psi, rows)
    assert float(before["probe_accuracy"]) > 0.85
    assert float(after["probe_accuracy"]) < float(before["probe_accuracy"]) - 0.1
    assert float(after["ess_share"]) > 2 * float(before["ess_share"])


def test_papers_stop_rule_counts_a_mean_over_both_domains(tmp_path: Path) -> None:
    """An untrained discriminator stands at 0.25; the rule fires once the mean is below 0.10."""
    features = write_features(tmp_path / "features.h5", shift=12.0)
    full = paper_settings(WIDTH, None)
    fast = Schedule("adamw", 1e-2, 0.0, batch=64, epochs=30)
    settings = replace(full, schedule=fast, reversal_horizon=10**9)
    with FeatureFile(features) as file:
        rows, _, _ = read_rows(file, settings, seed=0, progress=silent)
    trace = Aligner(rows, settings, 0, CPU).run(silent).traces[0]
    errors = [check["training_domain_error"] for check in trace.losses]
    assert trace.stop_reason == "discriminator won"
    assert errors[-1] < 0.10 <= min([1.0, *errors[:-1]])
    assert trace.steps == max(10, trace.losses[-1]["step"] - 10)


def test_progress_names_stages_and_report_has_every_member(tmp_path: Path) -> None:
    seen: list[Progress] = []
    features = write_features(tmp_path / "features.h5")
    report = adapt(
        features, tmp_path / "a.h5", AdaptSettings(members=2, device="cpu"), progress=seen.append
    )
    assert [*dict.fromkeys(one.stage for one in seen)] == [
        "read",
        "align",
        "discriminators",
        "apply",
    ]
    assert all(0 < one.step <= one.total for one in seen)
    numbers = {name: value for step in seen for name, value in step.losses.items()}
    assert re.fullmatch(r"\d+ %", str(numbers["source error"]))
    assert "chance: 0.25" in str(numbers["error"])
    assert len(report.members) == 2
    assert 0 <= report.members[0].target_agreement <= 1
    assert any("few rows" in warning for warning in report.warnings)


def test_large_files_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_rows, "MAX_ROWS", 100)
    features = write_features(tmp_path / "features.h5")
    report = adapt(features, tmp_path / "adapted.h5", AdaptSettings(members=1, device="cpu"))
    assert report.counts["source train"] == report.counts["target validation"] == 100


def test_features_are_never_in_memory_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are projected as they are read; the rows and the projection do not depend on them."""
    source, target = (
        made_files.made_domain(name, sizes=(4000, 1000, 10), width=300)
        for name in ("source", "target")
    )
    monkeypatch.setattr("covcal_cli.hdf5._BLOCK_BYTES", 1 << 16)
    path = made_files.write_features(tmp_path / "features.h5", source=source, target=target)
    settings = AdaptSettings().training(300)

    def rows_of(block: int) -> tuple[TrainingRows, Projection, int]:
        monkeypatch.setattr("covcal_cli.adapt.training_rows._BLOCK", block)
        with FeatureFile(path) as file:
            tracemalloc.start()
            rows, projection, _ = read_rows(file, settings, seed=0, progress=silent)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return rows, projection, peak

    whole, expected, _ = rows_of(10**6)
    rows, projection, peak = rows_of(400)
    assert peak < source["features"].nbytes / 3
    assert projection.scale == pytest.approx(expected.scale, rel=1e-5)
    for domain_rows, whole_rows in ((rows.source, whole.source), (rows.target, whole.target)):
        lengths = domain_rows.validation.norm(dim=1)
        assert torch.allclose(lengths, whole_rows.validation.norm(dim=1), rtol=1e-3)
        assert len(domain_rows.train) == len(whole_rows.train)


def test_weighted_brier_and_its_control_variate() -> None:
    """With constant errors the control variate gives the error itself, whatever the weights."""
    rng = np.random.default_rng(0)
    logits, labels = np.zeros((50, 2), dtype=np.float32), rng.integers(2, size=50)
    plain, controlled = weighted_brier(brier_errors(logits, labels), np.full(50, 3.0))
    assert (plain, controlled) == pytest.approx((1.5, 1.5))
    weights = rng.exponential(size=50)
    plain, controlled = weighted_brier(brier_errors(logits, labels), weights)
    assert plain == pytest.approx(0.5 * weights.mean())
    assert controlled == pytest.approx(0.5)
    assert np.isnan(weighted_brier(brier_errors(logits, np.full(50, -1)), weights)[0])


def one_class(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ones_like(labels)


def unlabelled(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.full_like(labels, -1)


def without_validation(split: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(split == 1, 0, split).astype(np.uint8)


def without_train(split: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(split == 0, 2, split).astype(np.uint8)


def with_nan(features: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    features[3, 2] = np.nan
    return features


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source/labels": one_class}, "only class b"),
        ({"source/labels": unlabelled}, "no label"),
        ({"source/split": without_validation}, "no source validation rows"),
        ({"target/split": without_validation}, "no target validation rows"),
        ({"target/split": without_train}, "no target train rows"),
        ({"target/features": with_nan}, "row 3"),
        (
            {"target/features": lambda features: features[:, :7]},
            "have different numbers of features (12 and 7)",
        ),
    ],
)
def test_unusable_input_is_refused(tmp_path: Path, changes: Changes, words: str) -> None:
    features = write_features(tmp_path / "features.h5", changes)
    with pytest.raises(CovcalError, match=re.escape(words)):
        adapt(features, tmp_path / "adapted.h5", AdaptSettings(device="cpu"))
    assert [path.name for path in tmp_path.iterdir()] == ["features.h5"]


def test_divergence_is_an_error_and_not_a_file_of_nan(tmp_path: Path) -> None:
    features = write_features(tmp_path / "features.h5")
    with pytest.raises(CovcalError, match="training diverged"):
        adapt(
            features,
            tmp_path / "a.h5",
            AdaptSettings(preset="paper", weight_decay=1e30, device="cpu"),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["features.h5"]


@pytest.mark.parametrize(
    ("gone", "words"),
    [("target", "no target rows"), ("target/features", "features is missing")],
)
def test_missing_parts_are_named(tmp_path: Path, gone: str, words: str) -> None:
    features = write_features(tmp_path / "features.h5")
    with edited(features) as file:
        del file[gone]
    with pytest.raises(CovcalError, match=words):
        adapt(features, tmp_path / "adapted.h5", AdaptSettings(device="cpu"))


def test_adapted_file_is_refused_as_input(tmp_path: Path) -> None:
    features = write_features(tmp_path / "features.h5")
    adapt(features, tmp_path / "adapted.h5", AdaptSettings(members=1, device="cpu"))
    with pytest.raises(CovcalError, match="adapted already"):
        adapt(tmp_path / "adapted.h5", tmp_path / "twice.h5", AdaptSettings(device="cpu"))
    with pytest.raises(OutputExistsError):
        adapt(features, tmp_path / "adapted.h5", AdaptSettings(device="cpu"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "tpu"}, "auto, cpu or cuda"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"seed": -1}, "seed at least 0"),
    ],
)
def test_impossible_options_are_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    features = write_features(tmp_path / "features.h5")
    with pytest.raises(CovcalError, match=words):
        adapt(features, tmp_path / "adapted.h5", AdaptSettings(**options))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_is_refused_where_there_is_none(tmp_path: Path) -> None:
    features = write_features(tmp_path / "features.h5")
    with pytest.raises(CovcalError, match="no CUDA device"):
        adapt(features, tmp_path / "adapted.h5", AdaptSettings(device="cuda"))


def test_a_run_leaves_the_old_output_alone_until_it_is_done(tmp_path: Path) -> None:
    """So a kill at any time leaves the old file whole and unchanged."""
    features, output = write_features(tmp_path / "features.h5"), tmp_path / "adapted.h5"
    output.write_bytes(b"old")
    stages = []

    def look(progress: Progress) -> None:
        stages.append(progress.stage)
        assert output.read_bytes() == b"old"

    settings = AdaptSettings(members=1, device="cpu")
    adapt(features, output, settings, force=True, progress=look)
    assert {"align", "apply"} < set(stages)
    with FeatureFile(output) as file:
        assert file.require_target().n_members == 1


def test_interrupt_cleans_up(tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == "apply":
            raise KeyboardInterrupt

    features = write_features(tmp_path / "features.h5")
    with pytest.raises(KeyboardInterrupt):
        adapt(
            features, tmp_path / "a.h5", AdaptSettings(members=1, device="cpu"), progress=interrupt
        )
    assert [path.name for path in tmp_path.iterdir()] == ["features.h5"]


def test_settings_and_forward_load_no_torch() -> None:
    code = (
        "import sys; import covcal_cli.adapt.settings, "
        "covcal_cli.adapt.adapt; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_cuda_trains_the_same_networks(tmp_path: Path, preset: str) -> None:
    """Losses agree to 1e-3 relative: every random number is drawn on the CPU."""
    features = write_features(tmp_path / "features.h5")
    reports = [
        adapt(
            features,
            tmp_path / f"{device}.h5",
            AdaptSettings(preset=preset, members=2, device=device),
        )
        for device in ("cpu", "cuda")
    ]
    for ours, theirs in zip(reports[0].members, reports[1].members, strict=True):
        assert ours.steps == theirs.steps
        assert ours.forecaster_loss == pytest.approx(theirs.forecaster_loss, rel=1e-3)
        assert ours.discriminator_loss == pytest.approx(theirs.discriminator_loss, rel=1e-3)
        assert ours.domain_error == pytest.approx(theirs.domain_error, rel=1e-3)
