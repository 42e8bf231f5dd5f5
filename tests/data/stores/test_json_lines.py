"""JSON lines: the layouts of several tools, the same outputs as from CSV, and damaged files."""

import csv
import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from covcal_cli.data.output_columns import OutputKind
from covcal_cli.data.outputs import OutputTable, open_outputs
from covcal_cli.data.stores import json_lines
from covcal_cli.data.stores.json_lines import JSONLinesStore
from covcal_cli.errors import CovcalError

CLASSES = ("cat", "dog", "owl")
RANDOM = np.random.default_rng(0)
PROBABILITIES = RANDOM.dirichlet(np.ones(3), size=40)
LABELS = [CLASSES[k] for k in RANDOM.integers(0, 3, size=40)]
SITES = ["Rome", "Bern"] * 20


def write(path: Path, records: list[Any]) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def outputs(path: Path, kind: OutputKind = "probabilities") -> OutputTable:
    return open_outputs(None, path, kind)["target"]


def logits(table: OutputTable) -> NDArray[np.float32]:
    rows = np.arange(len(table.ids), dtype=np.int64)
    batches = list(table.batches(None, rows, size=7, threads=1))
    return np.concatenate([batch.inputs["logits"] for batch in batches])


def own(row: int, **more: Any) -> dict[str, Any]:
    chances = dict(zip(CLASSES, PROBABILITIES[row].tolist(), strict=True))
    return {"id": f"r{row}", "label": LABELS[row], "probs": chances, "site": SITES[row], **more}


def pairs(row: int) -> list[dict[str, Any]]:
    scores = zip(CLASSES, PROBABILITIES[row].tolist(), strict=True)
    listed = [{"label": name, "score": score} for name, score in scores]
    return sorted(listed, key=lambda pair: -float(str(pair["score"])))


@pytest.fixture
def table(tmp_path: Path) -> OutputTable:
    """Return the same rows from a CSV file."""
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label", *(f"prob_{name}" for name in CLASSES), "site"])
        for row in range(40):
            numbers = map(repr, PROBABILITIES[row].tolist())
            writer.writerow([f"r{row}", LABELS[row], *numbers, SITES[row]])
    return outputs(path)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.ndjson"])
def test_an_object_of_probabilities_is_read_as_a_csv_file_is(
    name: str, table: OutputTable, tmp_path: Path
) -> None:
    read = outputs(write(tmp_path / name, [own(row) for row in range(40)]))
    np.testing.assert_array_equal(logits(read), logits(table))
    assert read.class_names == table.class_names == CLASSES
    assert read.ids == table.ids
    assert read.columns["site"].tolist() == SITES


@pytest.mark.parametrize(
    "record",
    [
        lambda row: {
            "id": f"r{row}",
            **{f"prob_{c}": p for c, p in zip(CLASSES, PROBABILITIES[row].tolist(), strict=True)},
        },
        lambda row: {"id": f"r{row}", "label": LABELS[row], "output": pairs(row)},
        lambda row: pairs(row),
        lambda row: [pairs(row)],
        lambda row: {
            "sequence": "a long text " * 100,
            "labels": [pair["label"] for pair in pairs(row)],
            "scores": [pair["score"] for pair in pairs(row)],
        },
        lambda row: own(row, probs=PROBABILITIES[row].tolist(), label=CLASSES.index(LABELS[row])),
        lambda row: {"label": LABELS[row], "predictions": [pairs(row)]},
        lambda row: {"label": LABELS[row], "cats": own(row)["probs"]},
        lambda row: {"label": LABELS[row], "output": {"probs": own(row)["probs"], "model": "m"}},
        lambda row: {"classes": CLASSES, "probs": PROBABILITIES[row].tolist()},
        lambda row: own(row, probs=[PROBABILITIES[row].tolist()]),
        lambda row: {"label": LABELS[row], "confidenceScores": own(row)["probs"], "rank": "x"},
        lambda row: {"probs": [[pair["label"], pair["score"]] for pair in pairs(row)]},
        lambda row: {
            "File": "x",
            "Classes": [{"Name": pair["label"], "Score": pair["score"]} for pair in pairs(row)],
        },
        lambda row: {
            "predictions": [
                {"tagId": "7", "class": pair["label"], "probability": pair["score"]}
                for pair in pairs(row)
            ]
        },
        lambda row: {
            "prediction": {
                "displayNames": [pair["label"] for pair in pairs(row)],
                "ids": [str(number) for number in range(len(CLASSES))],
                "confidences": [pair["score"] for pair in pairs(row)],
            }
        },
        lambda row: {"result": {"model": {"probs": own(row)["probs"], "name": "m"}}},
        lambda row: {
            "label": LABELS[row],
            "probs": PROBABILITIES[row][::-1].tolist(),
            "id2label": {str(place): name for place, name in enumerate(CLASSES[::-1])},
        },
    ],
    ids=[
        *("columns", "pairs in a line", "pipeline", "batch of 1", "zero-shot", "list"),
        *("predictions", "spaCy", "object in an object", "list of classes", "batch of 1 list"),
        *("Azure", "lists of two", "Comprehend", "Custom Vision", "Vertex", "deep", "id2label"),
    ],
)
def test_layouts_of_other_tools(record: Any, table: OutputTable, tmp_path: Path) -> None:
    read = outputs(write(tmp_path / "rows.jsonl", [record(row) for row in range(40)]))
    order = [CLASSES.index(name) for name in read.class_names or CLASSES]
    np.testing.assert_array_equal(logits(read), logits(table)[:, order])


@pytest.mark.parametrize("name", ["logprobs", "log_probs", "log_probabilities"])
def test_an_object_of_log_probabilities_has_logits(name: str, tmp_path: Path) -> None:
    scores = np.log(PROBABILITIES)
    records = [{name: dict(zip(CLASSES, row, strict=True))} for row in scores.tolist()]
    read = outputs(write(tmp_path / "rows.jsonl", records), "logits")
    assert read.class_names == CLASSES
    np.testing.assert_allclose(logits(read), scores, rtol=1e-6)


def test_log_likelihoods_of_choices_are_logits(tmp_path: Path) -> None:
    """lm-evaluation-harness saves them as texts; a question with fewer choices rules some out."""
    scores = np.log(PROBABILITIES)

    def sample(row: int) -> dict[str, Any]:
        choices = [[str(value), "False"] for value in scores[row].tolist()]
        return {
            "doc_id": row,
            "doc": {"question": "why?", "choices": list(CLASSES)},
            "target": str(row % 2),
            "resps": [[choice] for choice in choices],
            "filtered_resps": choices[: 3 if row % 5 else 2],
            "acc": 1.0,
        }

    read = outputs(write(tmp_path / "samples.jsonl", [sample(row) for row in range(40)]), "logits")
    expected = scores.astype(np.float32)
    expected[::5, 2] = -np.inf
    np.testing.assert_allclose(logits(read), expected, rtol=1e-6)
    assert read.ids[:3] == ["0", "1", "2"]


def test_a_missing_answer_is_less_likely_than_the_others(tmp_path: Path) -> None:
    records = [own(row) for row in range(40)]
    records[3]["probs"] = {"dog": 0.7, "cat": 0.299}
    read = outputs(write(tmp_path / "rows.jsonl", records))
    assert np.argmax(logits(read)[3]) == 1
    assert logits(read)[3, 2] == logits(read)[3].min()
    assert any("in 1 of 40 rows, some classes have no probability" in note for note in read.notes)
    for row in range(0, 40, 2):  # some lines number the classes with floats
        records[row]["probs"] = dict(zip(["0", "1", "2"], [0.2, 0.3, 0.5], strict=True))
        records[row + 1]["probs"] = dict(zip(["0.0", "1.0", "2.0"], [0.2, 0.3, 0.5], strict=True))
        records[row]["label"] = records[row + 1]["label"] = "1"
    with pytest.raises(CovcalError, match=r"classes 0, 0\.0, 1, .* differ only in .* a final \.0"):
        logits(outputs(write(tmp_path / "floats.jsonl", records)))


def test_empty_lines_and_missing_values(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"x": 1, "label": 3}\n\n{"x": null, "label": null, "more": "b"}\r\n{"x": 2.5}')
    store = JSONLinesStore(path)
    np.testing.assert_array_equal(store.whole("x"), [1, np.nan, 2.5])
    np.testing.assert_array_equal(store.whole("label"), [3, np.nan, np.nan])
    assert store.texts("more") == ["", "b", ""]
    assert store.place(2) == "row 2"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'x': 1}", "line 3 is not valid JSON"),
        ("[" * 100_000, "line 3 is not valid JSON"),
        ('{"x": 3, "v": [1, 2], "x": 4}', "line 3 is not valid JSON (the key 'x' occurs twice)"),
        ('{"p": {"a": 1, "a": 0}}', "line 3 is not valid JSON (the key 'a' occurs twice)"),
        ('{"p": {"a": 1, "a"\t:0}}', "line 3 is not valid JSON (the key 'a' occurs twice)"),
        ("17", "line 3 is not a JSON object: save one JSON object per line"),
        ('{"x": "a"}', "x holds a text in line 3, but a number in earlier rows: save values of"),
        ('{"x": {"a": 1}}', "x holds an object of numbers in line 3, but a number in earlier rows"),
        ('{"probs": [1, 2, 3]}', "probs holds 3 values in line 3, but 2 in earlier rows"),
        ('{"label": [1, 0]}', "label holds a list or an object in line 3: give one value per row"),
    ],
)
def test_an_error_names_the_line(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"x": 1, "probs": [1, 2], "label": 0}}\n{{"x": 2, "label": 1}}\n{line}\n')
    with pytest.raises(CovcalError, match=r"rows\.jsonl") as caught:
        JSONLinesStore(path)
    assert message in str(caught.value)


def test_lists_of_several_lengths_are_no_arrays(tmp_path: Path) -> None:
    """The token ids of a text stand beside the probabilities of its classes."""
    records = [own(row) | {"token_ids": [1] * (row % 3)} for row in range(40)]
    usual = outputs(write(tmp_path / "usual.jsonl", [own(row) for row in range(40)]))
    read = outputs(write(tmp_path / "rows.jsonl", records))
    np.testing.assert_array_equal(logits(read), logits(usual))
    with pytest.raises(CovcalError, match="token_ids holds 2 values in line 3, but 1 in earlier"):
        JSONLinesStore(tmp_path / "rows.jsonl").whole("token_ids")


def test_a_number_beyond_float64_is_refused_by_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"x": 1}, {"x": 10**400}])
    with pytest.raises(CovcalError, match="x of line 2 does not fit into 64 bits"):
        JSONLinesStore(path).whole("x")


def test_damaged_files_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    good = b"".join(json.dumps(own(row)).encode() + b"\n" for row in range(6))
    chance = random.Random(0)
    refusals = []
    for _ in range(400):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(data))
            if chance.random() < 0.3:
                del data[place : place + chance.randint(1, 60)]
            else:
                data[place] = chance.choice(b'{}[]",:0e-\\n\x00\xff')
        path = tmp_path / "rows.jsonl"
        path.write_bytes(bytes(data))
        try:
            logits(outputs(path))
        except CovcalError as error:
            refusals.append(str(error))
    assert len(refusals) > 100
    assert [line for line in refusals if "\n" in line or "rows.jsonl" not in line] == []


@pytest.mark.parametrize("space", ["\n", "\r\n ", "\t"])
def test_a_key_that_occurs_twice_cannot_hide_behind_space(space: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(f'[{{"x": 1}}, {{"x": 1, "x"{space}: 2}}]'.encode())
    with pytest.raises(CovcalError, match=r"entry 2 is not valid JSON .the key 'x' occurs twice"):
        JSONLinesStore(path)


@pytest.mark.parametrize("name", ["rows.json", "rows.json.gz"])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_is_read_as_lines_are(
    indent: int | None, name: str, table: OutputTable, tmp_path: Path
) -> None:
    text = json.dumps([own(row, text="x" * 3000) for row in range(40)], indent=indent)
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    read = outputs(path)
    np.testing.assert_array_equal(logits(read), logits(table))
    assert read.ids == table.ids


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"x": 1}', "the file does not hold a list of rows"),
        ("[]", "the file has no rows"),
        ('[{"x": 1}, {"x": 2', "entry 2 is not valid JSON"),
        ('[{"x": 1} {"x": 2}]', "there is no comma or bracket after entry 1"),
        ('[{"x": 1}, {"x": 2},', "entry 3 is not valid JSON"),
        ('[{"x": 1}]\n[{"x": 2}]', "the file has more text after the end of the list"),
        ('[{"x": 1}, 7]', "entry 2 is not a JSON object"),
    ],
)
def test_a_damaged_list_names_the_entry(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(CovcalError, match=message):
        JSONLinesStore(path)


def test_numbers_that_are_not_kept_are_read_again(
    table: OutputTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of large files only the first blocks are kept; a key that comes later is missing in them."""
    monkeypatch.setattr(json_lines, "_BLOCK", 8)
    monkeypatch.setattr(json_lines, "_MOST_KEPT", 200)
    records = [own(row) for row in range(40)]
    path = write(tmp_path / "rows.jsonl", records)
    assert len(JSONLinesStore(path)._kept) == 2
    np.testing.assert_array_equal(logits(outputs(path)), logits(table))
    records[3]["probs"] = {"dog": 0.7, "cat": 0.3}
    records[0]["probs"].pop("owl")
    store = JSONLinesStore(write(path, [*records[:1], records[3], *records[4:]]))
    values = store.whole("probs")
    assert np.isnan(values).sum() == 2
    assert np.isnan(values[:2, 2]).all()
