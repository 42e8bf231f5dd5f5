"""Documents: what is written is read back, and what is not what it must be is named."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

import covcal_cli
from covcal_cli.errors import CovcalError
from covcal_cli.records import (
    Document,
    Guard,
    Input,
    at,
    parsed_json,
    read_document,
    write_document,
)


@dataclass(frozen=True)
class Made(Document):
    """A document with a field of every kind."""

    schema: ClassVar[str] = "covcal.made/1"

    kind: Literal["plain", "odd"]
    share: float = field(metadata=at("inside.share"))
    names: tuple[str, ...] = field(metadata=at("inside.names"))
    sure: bool
    n: int | None
    mark: Literal["a", "b"] | None
    guards: tuple[Guard, ...]
    by_name: Mapping[str, tuple[int, ...]]
    anything: Mapping[str, Any]
    inputs: tuple[Input, ...]
    later: str = "as before"

    def __post_init__(self) -> None:
        if self.n == 13:
            raise ValueError("n is 13")


MADE = Made(
    kind="odd",
    share=0.1,
    names=("ä", ""),
    sure=True,
    n=None,
    mark="b",
    guards=(Guard("g", 1.0, 2e-17, passed=False, sentence="s"),),
    by_name={"b": (1, 2), "a": ()},
    anything={"x": [{"y": None}]},
    inputs=(Input("features", Path("f.h5"), "00"),),
)
CONTENT = {
    "schema": "covcal.made/1",
    "kind": "odd",
    "inside": {"share": 0.1, "names": ["ä", ""]},
    "sure": True,
    "n": None,
    "mark": "b",
    "guards": [{"name": "g", "value": 1.0, "threshold": 2e-17, "passed": False, "sentence": "s"}],
    "by_name": {"b": [1, 2], "a": []},
    "anything": {"x": [{"y": None}]},
    "inputs": [{"role": "features", "path": "../f.h5", "sha256": "00"}],
    "later": "as before",
}


def read(path: Path) -> Made:
    return read_document(Made, path, remedy="make it", again="make it again")


def test_a_document_is_written_key_by_key_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys in the order of the fields, paths relative to the document's folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    path = Path("out") / "made.json"
    write_document(MADE, path, force=False)
    assert path.read_text() == json.dumps(CONTENT, indent=2) + "\n"
    again = read(path)
    assert again.inputs[0].path.resolve() == MADE.inputs[0].path.resolve()
    assert (again.guards, again.share, again.names) == (MADE.guards, MADE.share, MADE.names)
    assert (again.by_name, again.anything) == (MADE.by_name, MADE.anything)
    write_document(again, path, force=True)
    assert json.loads(path.read_text()) == CONTENT


def test_what_a_later_version_adds_is_passed_over_and_what_an_earlier_lacks_filled_in(
    tmp_path: Path,
) -> None:
    path = tmp_path / "made.json"
    content = CONTENT | {"more": 1, "inside": {"share": 2, "names": [], "more": {}}}
    del content["later"]
    path.write_text(json.dumps(content))
    found = read(path)
    assert (found.later, found.share) == ("as before", 2.0)
    assert isinstance(found.share, float)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "strange"}, "kind is not one of plain, odd"),
        ({"inside": []}, "inside is a list, not an object"),
        ({"inside": {"share": True, "names": []}}, "inside.share is true, not a number"),
        ({"inside": {"share": 0, "names": [None]}}, "inside.names[0] is null, not a text"),
        ({"inside": {"share": 0}}, "inside.names is missing"),
        ({"inside": {"share": 10**400, "names": []}}, "it holds a number of 401 digits"),
        ({"sure": 1}, "sure is a number, not true or false"),
        ({"n": 1.0}, "n is a number, not a whole number"),
        ({"n": False}, "n is false, not a whole number"),
        ({"n": 13}, "n is 13"),
        ({"mark": ["a"]}, "mark is not one of a, b"),
        ({"guards": {}}, "guards is an object, not a list"),
        ({"guards": [{"name": 0}]}, "guards[0].name is a number, not a text"),
        ({"guards": ["fine"]}, "guards[0] is a text, not an object"),
        ({"by_name": {"b": [0, "1"]}}, "by_name.b[1] is a text, not a whole number"),
        ({"anything": 3}, "anything is a number, not an object"),
        ({"inputs": [{"role": "x", "path": 1, "sha256": ""}]}, "inputs[0].path is a number"),
    ],
)
def test_a_damaged_field_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    path.write_text(json.dumps(CONTENT | change))
    with pytest.raises(CovcalError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path} is damaged ({words}")
    assert str(caught.value).endswith("): make it again")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty (0 bytes): make it"),
        ("{", "is not JSON: make it"),
        ("[" * 100_000, "is damaged (it is nested too deeply): make it"),
        ("[]", "has schema None; this version reads covcal.made/1: make it"),
        ('{"schema": ["covcal.made/1"]}', "has schema ['covcal.made/1']; this version reads"),
        ('{"schema": "covcal.made/2"}', "has schema 'covcal.made/2'; this version reads"),
        ('{"schema": "covcal.made/1"}', "is damaged (kind is missing): make it again"),
    ],
)
def test_any_other_file_is_refused_by_what_it_is(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    path.write_text(text)
    with pytest.raises(CovcalError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path} {words}")


def test_a_number_that_json_lacks_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_document({"x": float("nan")}, tmp_path / "x.json", force=False)
    assert not list(tmp_path.iterdir())


HOSTILE = {
    "[" * 70 + "]" * 70: "is nested too deeply",
    "[" * 100_000: "is nested too deeply",
    '{"a":' * 100_000: "is nested too deeply",
    '{"a": 1, "b": {"x": 1, "y": 2, "x": 3}}': "names 'x' twice",
    "[1e999]": "holds 1e999, which is no finite number",
    "[-1e999]": "holds -1e999, which is no finite number",
    "[NaN]": "holds NaN, which is no finite number",
    "[Infinity]": "holds Infinity, which is no finite number",
    f"[{'9' * 300}]": "holds a number of 300 digits",
    f"[{'9' * 9000}]": "holds a number of 9000 digits",
    r'["\ud800"]': r"holds '\ud800', which is no Unicode text",
    r'{"\udc00x": 1}': r"holds '\udc00x', which is no Unicode text",
}


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_json_that_is_no_use_to_anyone(text: str) -> None:
    """Depth, keys, numbers and texts are checked once, for all that reads JSON."""
    with pytest.raises(ValueError, match=re.escape(HOSTILE[text])):
        parsed_json(text)


def test_json_of_a_usual_kind_is_as_the_standard_library_has_it() -> None:
    content = {"a": [1, -2.5e-3, 2**63, True, None, {"ä": "\U0001f600"}], "b": {"a": []}}
    text = json.dumps(content)
    assert parsed_json(text) == parsed_json(text.encode()) == content
    assert parsed_json("[" * 60 + "]" * 60) == json.loads("[" * 60 + "]" * 60)


def test_no_other_module_reads_json() -> None:
    """A place that reads JSON without these checks would fail on such a file in its own way."""
    root = Path(covcal_cli.__file__).parent
    found = [
        path.name
        for path in sorted(root.rglob("*.py"))
        if re.search(r"\bjson\.loads?\(", path.read_text())
    ]
    assert found == ["records.py"]
