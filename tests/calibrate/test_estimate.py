"""``covcal estimate``: every estimate side by side, in three formats, and none of it by labels."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.estimate import estimate, estimate_file
from covcal_cli.calibrate.problem import CalibrateSettings, EstimateSettings, Problem
from covcal_cli.errors import CovcalError, percent
from covcal_cli.estimators.consensus import Estimates
from covcal_cli.estimators.guards import problem_of
from covcal_cli.estimators.inputs import read_inputs
from covcal_cli.files import sha256_of
from covcal_cli.formats.features import FeatureFile
from tests.cli_runner import covcal
from tests.made_files import (
    adapted_domain,
    clusters_domain,
    only_rows,
    write_adapted,
    write_features,
)

NAMES = [
    "combined",
    "cot",
    "atc",
    "doc",
    "confidence",
    "clustering",
    "clustering with fixed class shares",
]


def write(path: Path, *, moved: float = 0.6, adapted: bool = False) -> Path:
    source = clusters_domain("source", sizes=(300, 600, 100))
    target = clusters_domain("target", sizes=(700, 500, 300), moved=moved)
    if not adapted:
        return write_features(path, source=source, target=target)
    return write_adapted(
        path,
        source=adapted_domain(source, shift=1.0),
        target=adapted_domain(target, shift=1.0),
    )


@pytest.mark.parametrize("adapted", [False, True])
def test_the_numbers_are_the_librarys(tmp_path: Path, adapted: bool) -> None:
    """The combined estimate first, then every one that the file allows."""
    path = write(tmp_path / "f.h5", adapted=adapted)
    found = estimate(path)
    further = ["agreement", "weighting"] if adapted else ["weighting"]
    assert [one.name for one in found.estimates] == [*NAMES, *further]
    assert (
        found.temperature
        == calibrate(path, CalibrateSettings(method="temp")).forecaster_temperature
    )
    with FeatureFile(path) as file:
        inputs = read_inputs(file, found.temperature)
    expected = Estimates(inputs)
    by_name = {one.name: one for one in found.estimates}
    for name, one in expected.items():
        assert by_name[name] == one
    assert found.estimates[0] == expected.combined
    assert (found.source_rows, found.target_rows) == (600, 1200)


def test_the_interval_holds_the_truth(tmp_path: Path) -> None:
    """On a made shift with errors the true accuracy lies inside, far below the source's."""
    path = write(tmp_path / "f.h5")
    target = clusters_domain("target", sizes=(700, 500, 300), moved=0.6)
    truth = float((target["logits"].argmax(axis=1) == target["labels"]).mean())
    best = estimate(path).estimates[0]
    assert best.low < truth < best.high


@pytest.mark.parametrize("moved", [0.0, 0.8])
def test_an_interval_that_leaves_half_of_all_accuracies(tmp_path: Path, moved: float) -> None:
    """Such an interval says nothing, so it is not shown."""
    done = covcal("estimate", write(tmp_path / "features.h5", moved=moved)).require_success()
    first = done.out.splitlines()[0]
    (low, high), *_ = re.findall(r"\((\d+) to (\d+) %\)", first)
    assert (int(high) - int(low) >= 50) == ("too wide to be useful" in first) == (moved > 0)


def test_json_has_everything(tmp_path: Path) -> None:
    """Schema, inputs with their hash, seed, prior, rows, and every guard with its numbers."""
    path = write(tmp_path / "features.h5")
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "estimate.json"
    done = covcal("estimate", path, "--target-prior", "uniform", "--seed", 3, "-o", output)
    assert done.require_success().out.startswith("Estimated accuracy  ")
    content: dict[str, Any] = json.loads(output.read_text())
    assert content["schema"] == "covcal.estimate/1"
    assert content["seed"] == 3
    assert content["target_prior"] == {"name": "uniform", "shares": [0.2] * 5}
    assert content["used_target_labels"] is False
    assert content["rows"] == {"source": 600, "target": 1200}
    assert content["inputs"] == [
        {"role": "features", "path": "../features.h5", "sha256": sha256_of(path)}
    ]
    guards = [*content["guards"], *(g for one in content["estimates"] for g in one["guards"])]
    for guard in guards:
        assert set(guard) == {"name", "value", "threshold", "passed", "sentence"}
    assert {guard["name"] for guard in guards} >= {
        "prior drift",
        "effective sample share",
        "detectable shift",
        "precision",
        "source errors",
    }
    printed = covcal("estimate", path, "--target-prior", "uniform", "--seed", 3, "-o", "-")
    same = json.loads(printed.require_success().out)
    assert same["estimates"] == content["estimates"]
    as_json = covcal("estimate", path, "--format", "json").require_success().out
    assert json.loads(as_json)["schema"] == "covcal.estimate/1"


def test_tables_show_each_estimate_with_its_interval_and_trust(tmp_path: Path) -> None:
    """Text and Markdown have one line per estimate; a guard that failed is named."""
    path = write(tmp_path / "f.h5", moved=0.0)
    found = estimate(path)
    text = covcal("estimate", path, "-v").require_success().out
    table = covcal("estimate", path, "--format", "markdown").require_success().out.splitlines()
    assert len(table) == 2 + len(found.estimates)
    for one, line in zip(found.estimates, table[2:], strict=True):
        cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
        failed = [problem_of(guard.name) for guard in one.guards if not guard.passed]
        trusted = "yes" if one.guards else "no check available"
        trusted = f"no: {', '.join(failed)}" if failed else trusted
        interval = f"{percent(one.low, 1)} to {percent(one.high, 1)}"
        assert cells == [
            one.name,
            percent(one.accuracy, 1),
            interval,
            trusted,
            one.assumption.replace("|", r"\|"),
        ]
        assert one.assumption in text
        assert interval in text
    assert "no: the rise of the error may be due to chance" in table[3]
    assert "no check available" in next(line for line in table if line.startswith("| confidence"))
    # What the intervals are: no noise of sampling where there is more.
    assert found.estimates[0].interval in text
    assert "90 % of 144 test shifts" in found.estimates[0].interval
    assert {one.interval for one in found.estimates[1:]} == {"95 % sampling error only"}


def test_a_prior_that_is_right_undoes_a_change_of_frequencies(tmp_path: Path) -> None:
    """Classes that became rarer cost COT accuracy it should not; the true prior gives it back."""
    shares = [0.4, 0.3, 0.2, 0.05, 0.05]
    source = clusters_domain("source", sizes=(300, 600, 100))
    target = clusters_domain("target", sizes=(700, 500, 300), prior=shares)
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    prior = tmp_path / "prior.json"
    prior.write_text(json.dumps({f"class {number}": s for number, s in enumerate(shares)}))
    truth = float((target["logits"].argmax(axis=1) == target["labels"]).mean())
    unknown, told = (
        {one.name: one.accuracy for one in found.estimates}["cot"]
        for found in (estimate(path), estimate(path, EstimateSettings(target_prior=str(prior))))
    )
    assert abs(told - truth) < 0.05 < abs(unknown - truth)


def test_what_cannot_be_estimated_is_a_note(tmp_path: Path) -> None:
    """Without features no weighting, without alignment no agreement: said, and the rest done."""
    source, target = clusters_domain("source"), clusters_domain("target", moved=0.5)
    del source["features"], target["features"]
    path = write_features(tmp_path / "f.h5", source=source, target=target)
    done = covcal("estimate", path, "-v").require_success()
    assert "importance weighting gives no estimate: it needs features" in done.err
    assert "agreement gives no estimate: it needs a file from covcal adapt" in done.err
    assert [one.name for one in estimate(path).estimates] == NAMES


def test_it_needs_a_target(tmp_path: Path) -> None:
    """A source alone, or a target with test rows alone: one line with the remedy."""
    path = write_features(tmp_path / "a.h5", only_source=True)
    with pytest.raises(CovcalError, match="an estimate needs target rows: extract them"):
        estimate(path)
    target = only_rows(clusters_domain("target"), np.arange(1000) >= 800)
    path = write_features(tmp_path / "b.h5", source=clusters_domain("source"), target=target)
    line = covcal("estimate", path).error_line()
    assert "an estimate needs at least 2 target training or validation rows" in line


def test_the_file_here_is_read(tmp_path: Path) -> None:
    """``covcal estimate`` takes adapted.h5, else features.h5; without either it says so."""
    assert "no adapted.h5 or features.h5" in covcal("estimate", cwd=tmp_path).error_line()
    write(tmp_path / "features.h5")
    done = covcal("estimate", cwd=tmp_path).require_success()
    assert "note: reading features.h5\n" in done.err
    write(tmp_path / "adapted.h5", adapted=True)
    done = covcal("estimate", "-v", "-q", cwd=tmp_path).require_success()
    assert "agreement" in done.out
    assert "reading" not in done.err


def test_inspect_knows_it(tmp_path: Path) -> None:
    """inspect shows each estimate in a line; a damaged file is one line too."""
    path = write(tmp_path / "f.h5")
    covcal("estimate", path, "-o", tmp_path / "e.json").require_success()
    out = covcal("inspect", tmp_path / "e.json").require_success().out
    best = estimate(path).estimates[0]
    assert (
        f"accuracy {percent(best.accuracy, 1)} ({percent(best.low, 1)} to {percent(best.high, 1)})"
        in out
    )
    assert "covcal.estimate/1" in out
    (tmp_path / "e.json").write_text('{"schema": "covcal.estimate/1", "rows": {}}')
    assert "is damaged" in covcal("inspect", tmp_path / "e.json").error_line()


def test_verbose_shows_every_guard(tmp_path: Path) -> None:
    """-v prints the guards' sentences to stderr."""
    done = covcal("estimate", "-v", write(tmp_path / "f.h5")).require_success()
    assert "passed  cot: the estimated error rises by" in done.out


def test_an_open_file_gives_the_same_estimates(tmp_path: Path) -> None:
    """A path, its text and the open file give the same estimates."""
    path = write_features(tmp_path / "f.h5")
    with FeatureFile(path) as file:
        assert (
            estimate_file(Problem(file, EstimateSettings()))
            == estimate(path)
            == estimate(str(path))
        )
