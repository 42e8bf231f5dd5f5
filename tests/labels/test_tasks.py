"""Tasks for Label Studio and doccano, and what these tools export, in their documented layouts."""

import csv
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from covcal_cli.files import sha256_of
from covcal_cli.labels.filled_sheet import read_sheets
from tests.cli_runner import covcal
from tests.labels.labelling import fill, truth
from tests.labels.test_cells import REVIEWS, with_columns

N = 20
Task = dict[str, Any]


@pytest.fixture(scope="module")
def picked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A features file with texts, tasks of both tools, and the file as a sheet would label it."""
    folder = tmp_path_factory.mktemp("tasks")
    path = with_columns(folder / "x.h5")
    for name in ("tasks.json", "tasks.jsonl", "sheet.csv"):
        covcal("pick", path, "-n", N, "-o", folder / name).require_success()
    fill(folder / "sheet.csv", path)
    covcal("label", path, folder / "sheet.csv", "-o", folder / "right.h5").require_success()
    return folder


@pytest.fixture
def folder(picked: Path, tmp_path: Path) -> Path:
    """A copy of the files, which a test may change."""
    return Path(shutil.copytree(picked, tmp_path, dirs_exist_ok=True))


def tasks_of(folder: Path) -> list[Task]:
    tasks: list[Task] = json.loads((folder / "tasks.json").read_text(encoding="utf-8"))
    return tasks


def annotation(label: str | None, person: int = 1, **more: Any) -> Task:
    """An annotation as Label Studio exports it; without a label, a person submitted nothing."""
    result = {
        "id": "Kq3bXvTz1e",
        "type": "choices",
        "origin": "manual",
        "from_name": "label",
        "to_name": "text",
        "value": {"choices": [label]},
    }
    return {
        "id": 100 + person,
        "completed_by": person,
        "result": [] if label is None else [result],
        "was_cancelled": False,
        "ground_truth": False,
        "created_at": "2026-11-02T09:14:55.120934Z",
        "updated_at": "2026-11-02T09:14:55.120967Z",
        "lead_time": 4.2,
        **more,
    }


def studio(folder: Path, annotations: Callable[[int, str], list[Task]]) -> list[Task]:
    """A JSON export of Label Studio; `annotations` gives a task's annotations with its label."""
    known = truth(folder / "x.h5")
    return [
        {
            "id": 1000 - place,
            "annotations": annotations(place, known[task["data"]["row_id"]]),
            "file_upload": "7f3c-tasks.json",
            "drafts": [],
            "predictions": [],
            "data": task["data"],
            "meta": {},
            "created_at": "2026-11-02T09:10:00Z",
            "inner_id": place + 1,
            "total_annotations": 1,
            "project": 3,
        }
        for place, task in reversed([*enumerate(tasks_of(folder))])
    ]


def minimal(folder: Path, name: str = "label") -> list[Task]:
    """What Label Studio exports as JSON_MIN."""
    known = truth(folder / "x.h5")
    return [
        {
            **task["data"],
            "id": 7 + place,
            name: known[task["data"]["row_id"]],
            "annotator": 1,
            "annotation_id": 300 + place,
            "created_at": "2026-11-02T09:14:55.120934Z",
            "updated_at": "2026-11-02T09:14:55.120967Z",
            "lead_time": 4.2,
        }
        for place, task in enumerate(tasks_of(folder))
    ]


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def doccano(folder: Path, **more: Any) -> list[Task]:
    """What doccano exports as JSONL."""
    known = truth(folder / "x.h5")
    lines = (folder / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    tasks = [json.loads(line) for line in lines]
    return [
        {"id": 50 + place, **task, "label": [known[task["row_id"]]], "Comments": [], **more}
        for place, task in enumerate(tasks)
    ]


def write_lines(path: Path, rows: Sequence[Task]) -> Path:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


def old_doccano(folder: Path) -> list[Task]:
    """What doccano wrote before version 1.5, with the further keys in meta."""
    return [
        {
            "id": row["id"],
            "text": row["text"],
            "meta": {name: row[name] for name in ("row_id", "inclusion", "draw")},
            "labels": row["label"],
        }
        for row in doccano(folder)
    ]


EXPORTS: dict[str, Callable[[Path], Path]] = {
    "Label Studio JSON": lambda folder: write_json(
        folder / "e.json", studio(folder, lambda _, label: [annotation(label)])
    ),
    "with an account": lambda folder: write_json(
        folder / "e.json",
        studio(
            folder, lambda _, label: [annotation(label, completed_by={"id": 1, "email": "a@b"})]
        ),
    ),
    "after a cancelled annotation": lambda folder: write_json(
        folder / "e.json",
        studio(
            folder,
            lambda _, label: [annotation("class 9", 2, was_cancelled=True), annotation(label)],
        ),
    ),
    "JSON_MIN": lambda folder: write_json(folder / "e.json", minimal(folder)),
    "JSON_MIN of another template": lambda folder: write_json(
        folder / "e.json", minimal(folder, "choice")
    ),
    "Label Studio CSV": lambda folder: write_csv(folder / "e.csv", minimal(folder)),
    "doccano JSONL": lambda folder: write_lines(folder / "e.jsonl", doccano(folder)),
    "old doccano": lambda folder: write_lines(folder / "e.jsonl", old_doccano(folder)),
    "doccano CSV": lambda folder: write_csv(
        folder / "e.csv", [row | {"label": row["label"][0]} for row in doccano(folder)]
    ),
}


@pytest.mark.parametrize("kind", EXPORTS)
def test_an_export_is_read_back_equal(kind: str, folder: Path) -> None:
    """The file has the same bytes as after the labels of a sheet."""
    export = EXPORTS[kind](folder)
    done = covcal("label", "x.h5", export.name, "-o", "y.h5", cwd=folder).require_success()
    assert f"{N} added; {N} of the {N} picked rows now have a label" in done.out
    assert "Agreement" not in done.out
    assert sha256_of(folder / "y.h5") == sha256_of(folder / "right.h5")


def test_tasks_show_the_text_and_no_answer(folder: Path) -> None:
    """And nothing that a person could take for the label."""
    tasks = tasks_of(folder)
    assert set(tasks[0]["data"]) == {"text", "row_id", "inclusion", "draw"}
    texts = {task["data"]["text"] for task in tasks}
    assert any("\nreview:\n<img src=x" in text for text in texts)
    assert any("n00: " in text and "site: site " in text for text in texts)
    assert any(f"review: {REVIEWS[1]}\n" in text for text in texts)  # no apostrophe
    lines = (folder / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [task["data"] for task in tasks]
    view = ElementTree.parse(folder / "tasks.xml").getroot()
    assert [(part.tag, part.attrib["name"]) for part in view] == [
        ("Text", "text"),
        ("Choices", "label"),
    ]
    assert [choice.attrib["value"] for choice in view[1]] == ["class 0", "class 1", "class 2"]


def test_images_are_in_the_tasks(adapted: Path, tmp_path: Path) -> None:
    for known in truth(adapted):
        (tmp_path / known).parent.mkdir(exist_ok=True)
        Image.new("RGB", (9, 9)).save(tmp_path / known)
    run = ("pick", adapted, "-n", 3, "--images", tmp_path, "-o")
    done = covcal(*run, tmp_path / "t.json").require_success()
    assert f"import {tmp_path / 't.json'} into a Label Studio project" in done.err
    (first, *_) = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert first["data"]["image"].startswith("data:image/png;base64,")
    assert 'value="$image"' in (tmp_path / "t.xml").read_text(encoding="utf-8")
    assert "doccano shows texts" in covcal(*run, tmp_path / "t.jsonl").error_line()


def test_annotators_of_one_export_are_labellers(folder: Path) -> None:
    """Each person's labels count as a sheet of theirs."""

    def both(place: int, label: str) -> list[Task]:
        other = label if place else f"class {(int(label[-1]) + 1) % 3}"
        return [annotation(label), *([annotation(other, 2)] if place < 8 else [])]

    write_json(folder / "e.json", studio(folder, both))
    assert [len(sheet) for sheet in read_sheets(folder / "e.json")] == [N, N]
    line = covcal("label", "x.h5", "e.json", cwd=folder).error_line()
    assert "labellers disagree on 1 row of 8 (Cohen's kappa 0." in line
    assert "in e.json (annotator 2)" in line


def test_an_export_may_leave_out_tasks(folder: Path) -> None:
    """The tasks themselves then say what else was drawn."""
    part = studio(folder, lambda _, label: [annotation(label)])[:12]
    write_json(folder / "e.json", part)
    line = covcal("label", "x.h5", "e.json", cwd=folder).error_line()
    assert f"e.json holds only 12 of the {N} picked rows" in line
    assert "give the tasks that covcal pick wrote in the same command" in line
    line = covcal("label", "x.h5", "tasks.json", "e.json", cwd=folder).error_line()
    assert f"8 of {N} labels are empty" in line
    run = ("label", "x.h5", "tasks.json", "e.json", "--partial")
    assert f"12 of the {N} picked rows" in covcal(*run, cwd=folder).require_success().out
    rest = studio(folder, lambda _, label: [annotation(label)])[12:]
    write_json(folder / "rest.json", rest)
    covcal("label", "x.h5", "rest.json", cwd=folder).require_success()
    assert sha256_of(folder / "x.h5") == sha256_of(folder / "right.h5")


def two_choices(label: str) -> list[Task]:
    first = annotation(label)
    first["result"][0]["value"]["choices"] = [label, "class 9"]
    return [first]


REFUSALS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no JSON": (
        lambda folder: write_csv(folder / "e.json", [{"a": "b"}]),
        "e.json is not JSON",
    ),
    "no tasks": (lambda folder: write_json(folder / "e.json", []), "e.json holds no tasks"),
    "an object": (
        lambda folder: write_json(folder / "e.json", {}),
        "does not hold a list of tasks",
    ),
    "numbers": (lambda folder: write_json(folder / "e.json", [1, 2]), "which is not a task"),
    "other tasks": (
        lambda folder: write_json(folder / "e.json", [{"data": {"text": "a"}}]),
        "has no column id",
    ),
    "nothing labelled": (
        lambda folder: write_json(folder / "e.json", studio(folder, lambda *_: [])),
        "has no labels yet",
    ),
    "two classes": (
        lambda folder: write_json(
            folder / "e.json", studio(folder, lambda _, label: two_choices(label))
        ),
        "has 2 labels: give each row one class",
    ),
    "numbers of classes": (
        lambda folder: write_lines(folder / "e.jsonl", doccano(folder, label=[4])),
        "export names, not numbers",
    ),
    "another class": (
        lambda folder: write_lines(folder / "e.jsonl", doccano(folder, label=["class 7"])),
        "is not a class",
    ),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_an_export_that_cannot_be_read_is_one_line(kind: str, folder: Path) -> None:
    make, complaint = REFUSALS[kind]
    before = (folder / "x.h5").read_bytes()
    assert complaint in covcal("label", "x.h5", make(folder).name, cwd=folder).error_line()
    assert (folder / "x.h5").read_bytes() == before


def test_a_page_beside_tasks_is_refused(folder: Path) -> None:
    run = ("pick", "x.h5", "-o", "t.json", "--page", "t.html")
    assert "the page saves labels as CSV" in covcal(*run, cwd=folder).error_line()
