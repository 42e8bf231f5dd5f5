"""Unchanged inputs are known again, and anything that changed is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covcal_cli.errors import CovcalError
from covcal_cli.records import write_document
from covcal_cli.run.journal import (
    Journal,
    Messages,
    data_digest,
    finish_placing,
    place,
    step_key,
)


def folder(path: Path) -> Path:
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(name.encode())
    return path


def test_equal_folders_have_one_digest_wherever_they_lie(tmp_path: Path) -> None:
    assert data_digest(folder(tmp_path / "x")) == data_digest(folder(tmp_path / "deep" / "y"))


def test_hidden_files_and_links_back_up_change_nothing(tmp_path: Path) -> None:
    made = folder(tmp_path / "x")
    before = data_digest(made)
    (made / ".DS_Store").write_bytes(b"x")
    (made / "a" / "up").symlink_to(made, target_is_directory=True)
    assert data_digest(made) == before


@pytest.mark.parametrize("change", ["content", "name", "class", "more", "fewer"])
def test_any_change_of_the_data_changes_its_digest(change: str, tmp_path: Path) -> None:
    made = folder(tmp_path / "x")
    before = data_digest(made)
    if change == "content":
        (made / "a" / "1.png").write_bytes(b"a/1.pnh")
    elif change == "name":
        (made / "a" / "1.png").rename(made / "a" / "3.png")
    elif change == "class":
        (made / "a" / "2.png").rename(made / "b" / "2.png")
    elif change == "more":
        (made / "b" / "2.png").write_bytes(b"")
    else:
        (made / "b" / "1.png").unlink()
    assert data_digest(made) != before


def test_a_result_is_current_until_its_key_or_its_file_changes(tmp_path: Path) -> None:
    output = tmp_path / "cal.json"
    output.write_text("{}")
    Journal(tmp_path).record(output, step_key(method="temp", seed=0), Messages(("few rows",)))
    kept = Journal(tmp_path).current(output, step_key(seed=0, method="temp"))
    assert kept is not None
    assert kept.warnings == ("few rows",)
    assert Journal(tmp_path).current(output, step_key(seed=1, method="temp")) is None
    output.write_text("{ }")
    assert Journal(tmp_path).current(output, step_key(seed=0, method="temp")) is None
    output.unlink()
    assert Journal(tmp_path).current(output, step_key(seed=0, method="temp")) is None


def test_a_step_that_was_cut_off_is_known(tmp_path: Path) -> None:
    output = tmp_path / "cal.json"
    Journal(tmp_path).begin(output, "key")
    assert Journal(tmp_path).was_begun(output, "key")
    assert not Journal(tmp_path).was_begun(output, "another")
    output.write_text("{}")
    Journal(tmp_path).record(output, "key", Messages())
    assert not Journal(tmp_path).was_begun(output, "key")


def test_the_journal_is_the_same_for_the_same_results(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        journal = Journal(tmp_path / name)
        for output in ("metrics.json", "cal.json"):
            (tmp_path / name / output).write_text(output)
            journal.record(tmp_path / name / output, "key", Messages())
    one, two = ((tmp_path / name / "run.json").read_bytes() for name in ("one", "two"))
    assert one == two
    assert "time" not in one.decode()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("not json", "is not JSON: name another folder"),
        ("[]", "has schema None"),
        ('{"schema": "covcal.run/1"}', r"is damaged \(content_sha256 is missing\): name another"),
        ({"schema": "covcal.run/1"}, r"is damaged \(begun is missing\): name another"),
        ({"schema": "covcal.run/1", "begun": {}, "results": {"cal.json": 1}}, "cal.json is a"),
        ({"schema": "covcal.run/9", "results": {}}, "this version reads"),
    ],
)
def test_a_file_that_is_no_journal_is_refused(
    content: str | dict[str, Any], part: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    if isinstance(content, str):
        path.write_text(content)
    else:
        write_document(content, path, force=False)
    with pytest.raises(CovcalError, match=part):
        Journal(tmp_path)


def test_a_step_cut_off_before_it_changed_anything_leaves_no_trace(tmp_path: Path) -> None:
    """Its old result stands, and the journal is that of a run that was not disturbed."""
    output, path = tmp_path / "cal.json", tmp_path / "run.json"
    output.write_text("{}")
    Journal(tmp_path).record(output, "key", Messages())
    undisturbed = path.read_bytes()
    Journal(tmp_path).begin(output, "key")
    assert path.read_bytes() != undisturbed
    assert Journal(tmp_path).current(output, "key") is not None
    assert path.read_bytes() == undisturbed


# Folders from somewhere else.

RESULT = {"key": "k", "sha256": "s", "warnings": []}
FOREIGN = (
    *("/etc/passwd", "../cal.json", "..", ".", "", "a/cal.json", "cal.json/..", "./cal.json"),
    *(
        "notes.txt",
        "run.json",
        "cal.1.json",
        ".bashrc",
        "calibrated",
        "calibrated./x",
        "cal.json\n",
    ),
    *("calibrated.onnx\n", "CAL.JSON", "cal.json\x00", "a\\cal.json"),
    *("~/cal.json", ".git/config", "next/cal.json", "%2e%2e/cal.json", "cal.json:x", "cal.json "),
)
SECOND = (
    *("/tmp/x.pth", "../cal.1.json", "a/cal.1.json", "cal.json", "cal.0.json", "cal.01.json"),
    *("cal.-1.json", "cal.1.txt", "cal.1.reference.json", "cal..json", "metrics.1.json"),
    *("cal.1.json/../../x", "cal.1.json\n", "cal.\u0661.json", "cal\uff0e1\uff0ejson"),
    *("cal.1.json:x", "cal.1.json ", f"cal.{'9' * 300}.json", "..", "", "cal.2.json"),
)


def write_journal(folder: Path, **fields: Any) -> None:
    """Write a run.json that proves itself, with any names."""
    content = {"schema": "covcal.run/1", "begun": {}, "results": {}, "given": {}, "kept": {}}
    write_document(content | fields, folder / "run.json", force=True)


@pytest.mark.parametrize("field", ["begun", "results", "kept"])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_journal_names_only_the_results_of_a_run(name: str, field: str, tmp_path: Path) -> None:
    entry = {"begun": "k", "results": RESULT, "kept": "cal.1.json"}[field]
    write_journal(tmp_path, **{field: {name: entry}})
    with pytest.raises(
        CovcalError, match=r"run\.json is damaged \(.* is not a result of covcal run"
    ):
        Journal(tmp_path)


@pytest.mark.parametrize("name", SECOND[:-1])
def test_a_result_is_kept_only_under_its_own_numbered_name(name: str, tmp_path: Path) -> None:
    write_journal(tmp_path, kept={"cal.json": name})
    with pytest.raises(
        CovcalError, match=r"run\.json is damaged \(covcal run cannot have renamed cal"
    ):
        Journal(tmp_path)


def test_the_names_that_a_run_makes_are_accepted(tmp_path: Path) -> None:
    names = {
        "cal.json": "cal.12.json",
        "cal.reference.json": "cal.12.reference.json",
        "features.h5": "features.12.h5",
        "calibrated.onnx": "calibrated.12.onnx",
        "calibrated.pt2": "calibrated.12.pt2",
    }
    write_journal(tmp_path, kept=names)
    assert Journal(tmp_path).kept == names


@pytest.mark.parametrize("begin", [finish_placing, place])
def test_nothing_is_planted_outside_of_the_folder(
    begin: Callable[[Path], object], tmp_path: Path
) -> None:
    """As the first reader of the folder does it, whatever the map of second names says."""
    folder, outside = tmp_path / "run", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "cal.json").write_text("import os")
    (outside / "secret").write_text("s")
    for kept in (
        {"cal.json": str(outside / "x.pth")},
        {"cal.json": "../outside/x.pth"},
        {str(outside / "secret"): "cal.1.json"},
        {"../outside/secret": "cal.1.json"},
    ):
        write_journal(folder, kept=kept, results={"cal.json": RESULT})
        with pytest.raises(CovcalError, match="is damaged"):
            begin(folder)
        assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
            "cal.json",
            "run.json",
            "secret",
        ]


@pytest.mark.parametrize("name", ["cal.json", "run.json", "next"])
@pytest.mark.parametrize("depth", ["absolute", "relative", "missing"])
def test_a_link_that_leads_out_is_refused(name: str, depth: str, tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    write_journal(outside)
    (outside / "cal.json").write_text("{}")
    write_journal(folder, kept={"cal.json": "cal.1.json"}, results={"cal.json": RESULT})
    (folder / name).unlink(missing_ok=True)
    to = {"absolute": outside, "relative": Path("../outside"), "missing": tmp_path / "none"}[depth]
    (folder / name).symlink_to(to if name == "next" else to / name)
    before = {path: path.read_bytes() for path in outside.iterdir()}
    with pytest.raises(CovcalError, match="is a link to a place outside"):
        finish_placing(folder)
    assert {path: path.read_bytes() for path in outside.iterdir()} == before
    assert not (tmp_path / "none").exists()


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "stored.json").write_text("{}")
    (tmp_path / "cal.json").symlink_to("stored.json")
    write_journal(tmp_path, results={"cal.json": RESULT})
    assert Journal(tmp_path).files() == [tmp_path / "cal.json"]
