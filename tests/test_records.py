"""Documents: what is written is read back, and what is not what it must be is named."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

import covcal_cli
from covcal_cli.errors import CovcalError
from covcal_cli.records import (
    DIGEST,
    Count,
    Difference,
    Document,
    Guard,
    Input,
    Number,
    Positive,
    Share,
    at,
    digest_of,
    parsed_json,
    read_document,
    require_ascending,
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
    signed = CONTENT | {DIGEST: digest_of(CONTENT)}
    assert path.read_text() == json.dumps(signed, indent=2) + "\n"
    again = read(path)
    assert again.inputs[0].path.resolve() == MADE.inputs[0].path.resolve()
    assert (again.guards, again.share, again.names) == (MADE.guards, MADE.share, MADE.names)
    assert (again.by_name, again.anything) == (MADE.by_name, MADE.anything)
    write_document(again, path, force=True)
    assert json.loads(path.read_text()) == signed


def test_what_a_later_version_adds_is_passed_over_and_what_an_earlier_lacks_filled_in(
    tmp_path: Path,
) -> None:
    path = tmp_path / "made.json"
    content = CONTENT | {"more": 1, "inside": {"share": 2, "names": [], "more": {}}}
    del content["later"]
    write_document(content, path, force=True)
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
        ({"inside": {"share": 10**400, "names": []}}, "a number has 401 digits"),
        ({"kind": None}, "kind is not one of plain, odd"),
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
    write_document(CONTENT | change, path, force=True)
    with pytest.raises(CovcalError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path} is damaged ({words}")
    assert str(caught.value).endswith("): make it again")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty (0 bytes): make it"),
        ("{", "is not JSON: make it"),
        ("[" * 100_000, "is damaged (the JSON is nested too deeply): make it"),
        ("[]", "has schema None, but this version reads covcal.made/1: make it"),
        ('{"schema": ["covcal.made/1"]}', "has schema ['covcal.made/1'], but this version reads"),
        ('{"schema": "covcal.made/2"}', "has schema 'covcal.made/2', but this version reads"),
        ('{"schema": "covcal.made/1"}', "is damaged (content_sha256 is missing): make it again"),
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


EDITS = {
    "a number": lambda text: text.replace("0.1", "0.2"),
    "a text": lambda text: text.replace("before", "after"),
    "a key": lambda text: text.replace('"later"', '"latest"'),
    "a list": lambda text: text.replace("1,\n", "2,\n", 1),
    "the digest": lambda text: text.replace('_sha256": "', '_sha256": "0'),
    "no digest": lambda text: text.replace(DIGEST, "other"),
    "more": lambda text: text.replace("{", '{"more": 1,', 1),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_document_is_refused(edit: Callable[[str], str], tmp_path: Path) -> None:
    """Any change of a key or a value, also to another that a document may hold."""
    path = tmp_path / "made.json"
    write_document(MADE, path, force=False)
    text = path.read_text()
    assert edit(text) != text
    path.write_text(edit(text))
    with pytest.raises(
        CovcalError, match=rf"made.json is damaged \(.*{DIGEST}.*\): make it again$"
    ):
        read(path)


def test_a_document_may_be_laid_out_anew(tmp_path: Path) -> None:
    """Spaces, line ends and the order of keys are not content."""
    path = tmp_path / "made.json"
    write_document(MADE, path, force=False)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(content.items())), separators=(",", ":")) + "\r\n\n")
    assert read(path).names == MADE.names


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_an_editor_may_save_it_in_another_encoding(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    write_document(MADE, path, force=False)
    path.write_bytes(path.read_text().encode(encoding))
    assert read(path).names == MADE.names


@dataclass(frozen=True)
class Ranged(Document):
    """A document whose numbers have ranges, and must fit each other."""

    schema: ClassVar[str] = "covcal.ranged/1"

    low: Share = 0.1
    value: Share = 0.5
    high: Share | None = 0.9
    change: Difference = -1.0
    scale: Positive = 1e-300
    rows: Number = 1
    counts: tuple[Count, ...] = (0, 3)
    by_name: Mapping[str, Share | None] = field(default_factory=lambda: {"a": None, "b": 1.0})

    def __post_init__(self) -> None:
        require_ascending(low=self.low, value=self.value, high=self.high)


@dataclass(frozen=True)
class Nested(Document):
    """A document with a list of ranged records."""

    schema: ClassVar[str] = "covcal.nested/1"

    entries: tuple[Ranged, ...]


@dataclass(frozen=True)
class WithInputs(Document):
    """A document that names files."""

    schema: ClassVar[str] = "covcal.inputs/1"

    inputs: tuple[Input, ...]


RANGES: dict[str, dict[str, Any]] = {
    "low is -0.1, outside 0 to 1": {"low": -0.1},
    "value is 1.00001, outside 0 to 1": {"value": 1.00001},
    "high is 100, outside 0 to 1": {"high": 100},
    "change is -2, outside -1 to 1": {"change": -2},
    "scale is 0, but must be above 0": {"scale": 0},
    "rows is 0, below 1": {"rows": 0},
    "counts[1] is -1, below 0": {"counts": [0, -1]},
    "by_name.b is 3.5e+38, outside 0 to 1": {"by_name": {"b": 3.5e38}},
    "low (0.6) is more than value (0.5)": {"low": 0.6},
    "value (0.5) is more than high (0.4)": {"high": 0.4},
}


@pytest.mark.parametrize("name", ["a" * 256, "ä" * 128, "a/" * 2100])
def test_a_path_that_no_file_can_have_is_damage(name: str, tmp_path: Path) -> None:
    """Else every look at that file would end with the whole path as the message."""
    keys = {"role": "features", "path": name, "sha256": ""}
    path = tmp_path / "inputs.json"
    write_document({"schema": WithInputs.schema, "inputs": [keys]}, path, force=False)
    with pytest.raises(CovcalError, match=r"\(inputs\[0\].path is a path of \d+ characters, wh"):
        read_document(WithInputs, path, remedy="make it")


@pytest.mark.parametrize("words", RANGES)
def test_a_number_out_of_range_is_named(words: str, tmp_path: Path) -> None:
    """In the document itself, and at its place within another."""
    path = tmp_path / "ranged.json"
    keys = {"schema": Ranged.schema} | RANGES[words]
    write_document(keys, path, force=False)
    with pytest.raises(CovcalError, match=re.escape(f"is damaged ({words})")):
        read_document(Ranged, path, remedy="make it")
    write_document({"schema": Nested.schema, "entries": [keys]}, path, force=True)
    with pytest.raises(CovcalError, match=rf"is damaged \(entries\[0\](\.|: ){re.escape(words)}\)"):
        read_document(Nested, path, remedy="make it")


def test_numbers_within_their_range_are_read(tmp_path: Path) -> None:
    """The ends too, and what rounding to 32 bits adds to them."""
    path = tmp_path / "ranged.json"
    ranged = Ranged(low=0, value=0, high=None, change=1, by_name={})
    write_document(ranged, path, force=False)
    assert read_document(Ranged, path, remedy="make it") == ranged
    write_document({"schema": Ranged.schema, "high": 1 + 1e-7, "low": 0.5 + 1e-8}, path, force=True)
    assert read_document(Ranged, path, remedy="make it").high == 1 + 1e-7


HOSTILE = {
    "[" * 70 + "]" * 70: "is nested too deeply",
    "[" * 100_000: "is nested too deeply",
    '{"a":' * 100_000: "is nested too deeply",
    '{"a": 1, "b": {"x": 1, "y": 2, "x": 3}}': "the key 'x' occurs twice",
    "[1e999]": "1e999 is not a finite number",
    "[-1e999]": "-1e999 is not a finite number",
    "[NaN]": "NaN is not a finite number",
    "[Infinity]": "Infinity is not a finite number",
    f"[{'9' * 300}]": "a number has 300 digits",
    f"[{'9' * 9000}]": "a number has 9000 digits",
    r'["\ud800"]': r"'\ud800' is not Unicode text",
    r'{"\udc00x": 1}': r"'\udc00x' is not Unicode text",
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
        if re.search(r"\bjson\.(loads?|JSONDecoder)\(", path.read_text())
    ]
    # Lines of other people's JSON may hold NaN. Their reader has a limit and an error of its own.
    assert found == ["json_lines.py", "records.py"]
