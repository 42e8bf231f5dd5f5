"""Unchanged inputs are known again, and anything that changed is not."""

from pathlib import Path
from typing import Any

import pytest

from covcal_cli.errors import CovcalError
from covcal_cli.records import write_document
from covcal_cli.run.journal import Journal, Said, data_digest, step_key


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


def test_a_result_stands_until_its_key_or_its_file_changes(tmp_path: Path) -> None:
    output, path = tmp_path / "cal.json", tmp_path / "run.json"
    output.write_text("{}")
    Journal(path).record(output, step_key(method="temp", seed=0), Said(("few rows",)))
    kept = Journal(path).standing(output, step_key(seed=0, method="temp"))
    assert kept is not None
    assert kept.warnings == ("few rows",)
    assert Journal(path).standing(output, step_key(seed=1, method="temp")) is None
    output.write_text("{ }")
    assert Journal(path).standing(output, step_key(seed=0, method="temp")) is None
    output.unlink()
    assert Journal(path).standing(output, step_key(seed=0, method="temp")) is None


def test_a_step_that_was_cut_off_is_known(tmp_path: Path) -> None:
    output, path = tmp_path / "cal.json", tmp_path / "run.json"
    Journal(path).begin(output, "key")
    assert Journal(path).was_begun(output, "key")
    assert not Journal(path).was_begun(output, "another")
    output.write_text("{}")
    Journal(path).record(output, "key", Said())
    assert not Journal(path).was_begun(output, "key")


def test_the_journal_is_the_same_for_the_same_results(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        journal = Journal(tmp_path / name / "run.json")
        for output in ("b.json", "a.json"):
            (tmp_path / name / output).write_text(output)
            journal.record(tmp_path / name / output, "key", Said())
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
        ({"schema": "covcal.run/1", "begun": {}, "results": {"a": 1}}, "results.a is a"),
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
        Journal(path)


def test_a_step_cut_off_before_it_changed_anything_leaves_no_trace(tmp_path: Path) -> None:
    """Its old result stands, and the journal is that of a run that was not disturbed."""
    output, path = tmp_path / "cal.json", tmp_path / "run.json"
    output.write_text("{}")
    Journal(path).record(output, "key", Said())
    undisturbed = path.read_bytes()
    Journal(path).begin(output, "key")
    assert path.read_bytes() != undisturbed
    assert Journal(path).standing(output, "key") is not None
    assert path.read_bytes() == undisturbed
