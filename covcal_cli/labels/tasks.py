"""Write tasks for the annotation tools Label Studio and doccano, and read their exports.

A task has the cells of one line of the sheet. Its key ``text`` is shown to the person who labels.
The row's id is called ``row_id``, because both tools have their own ``id``.

- Label Studio imports a ``.json`` file (a list of ``{"data": {...}}``) and an XML file with the
  labelling interface. Exports of Label Studio as JSON, JSON_MIN and CSV can be read. Tasks without
  labels may be missing. Each annotator counts as a labeller.
- doccano imports a ``.jsonl`` file, whose lines have ``text`` and other keys. Exports of doccano
  have the additional key ``label``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from covcal_cli.data.stores.csv import CSVStore
from covcal_cli.errors import CovcalError, shown
from covcal_cli.files import require_file
from covcal_cli.records import parsed_json

LABEL_STUDIO, DOCCANO = ".json", ".jsonl"
SUFFIXES = (LABEL_STUDIO, DOCCANO)
ROW_ID = "row_id"
_ANNOTATOR = "annotator"
_LABELS = ("label", "choice")  # names of the label field in templates of Label Studio
_REMEDY = "give an export of the tasks that covcal pick wrote"


@dataclass(frozen=True)
class LabelTable:
    """The lines that one person labelled, as a table of cells by column."""

    path: Path
    columns: Mapping[str, Sequence[str]]
    is_export: bool = False  # Whether an annotation tool wrote the file.
    one_line_each: bool = False  # Whether the file is a CSV without line breaks in cells.

    def place(self, row: int) -> str:
        """Return the position of a row in the file as text, such as "line 3"."""
        return f"line {row + 2}" if self.one_line_each else f"row {row}"


def task_text(facts: Mapping[str, Sequence[str]], row: int) -> str:
    """Return the text of a task, which has one line for each column."""
    cells = {name: column[row] for name, column in facts.items() if column[row]}
    if len(facts) == 1:
        return next(iter(cells.values()), "")
    return "\n".join(
        f"{name}:\n{cell}\n" if "\n" in cell else f"{name}: {cell}" for name, cell in cells.items()
    )


def label_studio_tasks(
    columns: Mapping[str, Sequence[str]], texts: Sequence[str], images: Sequence[str | None]
) -> str:
    """Return tasks for Label Studio, with images as data URIs."""
    tasks = [
        {"data": ({"image": image} if image else {"text": text}) | cells}
        for cells, text, image in zip(_lines(columns), texts, images, strict=True)
    ]
    return json.dumps(tasks, ensure_ascii=False, indent=1) + "\n"


def label_studio_interface(classes: Sequence[str], *, has_images: bool) -> str:
    """Return the labelling interface of a Label Studio project."""
    shows = "image" if has_images else "text"
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in classes)
    return (
        f'<View>\n  <{shows.title()} name="{shows}" value="${shows}"/>\n'
        f'  <Choices name="label" toName="{shows}" choice="single" showInLine="true">\n'
        f"{choices}\n  </Choices>\n</View>\n"
    )


def doccano_tasks(columns: Mapping[str, Sequence[str]], texts: Sequence[str]) -> str:
    """Return tasks for doccano, one JSON object per line."""
    lines = (
        json.dumps({"text": text} | cells, ensure_ascii=False)
        for cells, text in zip(_lines(columns), texts, strict=True)
    )
    return "".join(f"{line}\n" for line in lines)


def _lines(columns: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    names = [ROW_ID if name == "id" else name for name in columns if name != "label"]
    cells = [column for name, column in columns.items() if name != "label"]
    for line in zip(*cells, strict=True):
        yield dict(zip(names, line, strict=True))


def read_tables(path: Path) -> list[LabelTable]:
    """Read a sheet, tasks or an annotation tool's export.

    Return one table for each labeller. Raises `CovcalError` if the file cannot be read, or if a
    label is ambiguous.
    """
    require_file(path, remedy="give the CSV file that covcal pick wrote, or an export of its tasks")
    if path.suffix.lower() not in SUFFIXES:
        return _of_csv(CSVStore(path, as_texts=True))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CovcalError(f"{path} is not UTF-8 text: export it again") from error
    if path.suffix.lower() == DOCCANO:
        records = [
            _of_doccano(path, _parsed(path, line)) for line in text.split("\n") if line.strip()
        ]
    else:
        records = []
        items = _parsed(path, text)
        if not isinstance(items, list):
            raise CovcalError(f"{path} does not hold a list of tasks: {_REMEDY}")
        for item in items:
            is_task = isinstance(item, dict) and isinstance(item.get("data"), dict)
            records += _of_label_studio(path, item) if is_task else [_of_line(path, item)]
    if not records:
        raise CovcalError(f"{path} holds no tasks: {_REMEDY}")
    return _by_annotator(path, records)


def _of_csv(store: CSVStore) -> list[LabelTable]:
    columns = {name: store.texts(name) for name in store.entries}
    n = len(next(iter(columns.values())))
    if ROW_ID not in columns:
        return [LabelTable(store.path, columns, one_line_each=store.place(0) == "line 2")]
    # Annotation tools put their own number into the column ``id``.
    columns = {name: column for name, column in columns.items() if name != "id"}
    return _by_annotator(
        store.path, [{name: columns[name][row] for name in columns} for row in range(n)]
    )


def _parsed(path: Path, text: str) -> Any:
    try:
        return parsed_json(text)
    except ValueError as error:
        reason = str(error).split(": line")[0]
        raise CovcalError(f"{path} is not JSON ({reason}): export it again") from error


def _of_label_studio(path: Path, task: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    cells = _texts(task["data"])
    annotations = [
        annotation
        for annotation in task.get("annotations") or task.get("completions") or ()
        if isinstance(annotation, dict) and not annotation.get("was_cancelled")
    ]
    if not annotations:
        yield cells
    for annotation in annotations:
        person = annotation.get("completed_by") or ""
        if isinstance(person, dict):
            person = person.get("email") or person.get("id") or ""
        yield cells | {"label": _choice(path, annotation, cells), _ANNOTATOR: str(person)}


def _choice(path: Path, annotation: Mapping[str, Any], cells: Mapping[str, str]) -> str:
    results = annotation.get("result")
    chosen = {
        str(result.get("from_name")): result["value"]["choices"]
        for result in (results if isinstance(results, list) else ())
        if isinstance(result, dict)
        and isinstance(result.get("value"), dict)
        and isinstance(result["value"].get("choices"), list)
    }
    return _one_label(path, chosen, cells)


def _one_label(path: Path, chosen: Mapping[str, Any], cells: Mapping[str, str]) -> str:
    name = next((name for name in _LABELS if name in chosen), None)
    if name is None and len(chosen) > 1:
        raise CovcalError(
            f"{path} has answers from several controls for one row "
            f"({', '.join(map(shown, chosen))}): in the annotation tool, give the name 'label' to "
            "the control with the classes, and export again"
        )
    value = next(iter(chosen.values()), "") if name is None else chosen[name]
    if isinstance(value, dict):
        value = value.get("choices", "")
    labels = value if isinstance(value, list) else [value]
    if len(labels) > 1:
        raise CovcalError(
            f"{path}: the row {shown(cells.get(ROW_ID, ''))} has {len(labels)} labels: give each "
            "row one class"
        )
    label = labels[0] if labels else ""
    if label is not None and not isinstance(label, str):
        raise CovcalError(
            f"{path}: the row {shown(cells.get(ROW_ID, ''))} has the label "
            f"{shown(str(label))}, which is not the name of a class: export names, not numbers"
        )
    return label or ""


def _of_line(path: Path, item: Any) -> dict[str, str]:
    if not isinstance(item, dict):
        raise CovcalError(f"{path} holds {shown(str(item)[:40])}, which is not a task: {_REMEDY}")
    cells = _texts(item)
    chosen = {name: item[name] for name in _LABELS if name in item}
    return cells | {"label": _one_label(path, chosen, cells)}


def _of_doccano(path: Path, item: Any) -> dict[str, str]:
    if not isinstance(item, dict):
        raise CovcalError(f"{path} holds {shown(str(item)[:40])}, which is not a task: {_REMEDY}")
    meta = item.get("meta")
    cells = _texts(item | (meta if isinstance(meta, dict) else {}))
    labels = item.get("label", item.get("labels", item.get("annotations")))
    return cells | {"label": _one_label(path, {"label": labels or ""}, cells)}


def _texts(item: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(value)
        for name, value in item.items()
        if isinstance(value, (str, int, float)) and name != "id"
    }


def _by_annotator(path: Path, records: Sequence[Mapping[str, str]]) -> list[LabelTable]:
    lines: dict[str, Mapping[str, str]] = {}  # Records by the content of ``draw``.
    labels: dict[str, dict[str, str]] = {}  # Labels by annotator and by the content of ``draw``.
    for record in records:
        draw = record.get("draw", "")
        lines.setdefault(draw, record)
        name = next((name for name in _LABELS if record.get(name)), None)
        if name is not None:
            labels.setdefault(record.get(_ANNOTATOR, ""), {})[draw] = record[name]
    names = [ROW_ID, "path", "predicted", "confidence", "inclusion", "draw"]
    columns = {
        "id" if name == ROW_ID else name: [line.get(name, "") for line in lines.values()]
        for name in names
        if all(name in line for line in lines.values())
    }
    return [
        LabelTable(
            path if len(labels) < 2 else path.with_name(f"{path.name} (annotator {person})"),
            columns | {"label": [of_person.get(draw, "") for draw in lines]},
            is_export=True,
        )
        for person, of_person in (labels or {"": {}}).items()
    ]
