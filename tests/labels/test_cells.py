"""Texts and columns of tables: on the sheet and on the page, and labelled by keys and by touch."""

import csv
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from covcal_cli.formats.features import FeatureFile
from covcal_cli.formats.writer import utf8
from covcal_cli.labels.picked_labels import draw_with_labels
from covcal_cli.labels.sheet import answer_columns, escaped, kept_cells, unescaped
from tests.browser import Browser, needs_browser
from tests.cli_runner import covcal
from tests.labels.labelling import fill, lines_of, truth, write_lines
from tests.labels.pages import data_of, require_silence, saved, text_of
from tests.made_files import edited, write_features

FORMULA = '=HYPERLINK("http://x.invalid","click")'
REVIEWS = ("fine", FORMULA, "<img src=x onerror=alert(1)>\nsecond line", "long " * 300, "-3", "")


def with_columns(path: Path, *, texts: bool = True, numbers: int = 3) -> Path:
    """Write a features file whose target has texts, a category and numbers."""
    write_features(path)
    with edited(path) as file:
        n = len(file["target/labels"])
        if texts:
            reviews = [f"{REVIEWS[row % len(REVIEWS)]}" for row in range(n)]
            file["target/columns/review"] = utf8(reviews)
        file["target/columns/site"] = utf8([f"site {row % 3}" for row in range(n)])
        for number in range(numbers):
            values = np.arange(n) / 4 + number
            values[3] = np.nan
            file[f"target/columns/n{number:02d}"] = values
    return path


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("@x", "'@x"),
        ("\tx", "'\tx"),
        ("+49 170", "'+49 170"),
        ("'=x", "''=x"),
        ("-3.5", "-3.5"),
        ("+1e5", "+1e5"),
        ("- no", "'- no"),
        ("a=b", "a=b"),
        ("'quoted'", "'quoted'"),
        ("", ""),
    ],
)
def test_no_cell_is_a_formula(text: str, cell: str) -> None:
    assert escaped(text) == cell
    assert unescaped(cell) == text


def test_numbers_are_written_as_a_person_reads_them(tmp_path: Path) -> None:
    with FeatureFile(with_columns(tmp_path / "x.h5")) as file:
        cells = kept_cells(file.require_target(), np.array([8, 3, 1]))
    assert cells["n00"] == ["2", "", "0.25"]
    assert cells["site"] == ["site 2", "site 0", "site 1"]


def test_columns_that_hold_the_classifiers_answer_are_told_apart() -> None:
    names = ("y_pred", "Prediction (x)", ".pred_class", "predicted", "confidence", "Scored Labels")
    others = ("credit_score", "predecessor", "text", "probe", "confirmed", "review score")
    cells = {name: ["a", "b"] for name in (*names, *others)} | {"guess": ["c", "d"]}
    assert answer_columns(cells, ["c", "d"]) == [*names, "guess"]


def test_the_sheet_has_the_kept_columns_and_no_answer(tmp_path: Path) -> None:
    """With --predictions it has; both are read back to the same file."""
    path = with_columns(tmp_path / "x.h5")
    with edited(path) as file:
        file["target/columns/y_pred"] = np.arange(len(file["target/labels"]))
        file["target/columns/draw"] = utf8(["red"] * len(file["target/labels"]))
    sheet = tmp_path / "to-label.csv"
    run = covcal("pick", path, "-n", 30, "-o", sheet).require_success()
    assert "they seem to hold the classifier's answer: y_pred" in run.err
    names = [
        "id",
        "group_draw",
        "n00",
        "n01",
        "n02",
        "review",
        "site",
        "label",
        "inclusion",
        "draw",
    ]
    assert list(lines_of(sheet)[0]) == names
    assert {line["review"] for line in lines_of(sheet)} <= {escaped(text) for text in REVIEWS}
    fill(sheet, path)
    covcal("label", path, sheet, "-o", tmp_path / "y.h5").require_success()
    shown = tmp_path / "shown.csv"
    covcal("pick", path, "-n", 30, "--predictions", "-o", shown).require_success()
    assert list(lines_of(shown)[0])[6:] == ["site", "y_pred", "predicted", "confidence", *names[7:]]
    fill(shown, path)
    covcal("label", path, shown, "-o", tmp_path / "z.h5").require_success()
    assert (tmp_path / "y.h5").read_bytes() == (tmp_path / "z.h5").read_bytes()


def test_texts_sorted_with_the_labels_alone_are_refused(tmp_path: Path) -> None:
    """The labels belong to the texts then, and not to the ids beside them."""
    path = with_columns(tmp_path / "x.h5")
    with edited(path) as file:
        del file["target/columns/review"]
        n = len(file["target/labels"])
        file["target/columns/review"] = utf8([f"review {row}" for row in range(n)])
    sheet = tmp_path / "x.csv"
    covcal("pick", path, "-n", 20, "-o", sheet).require_success()
    fill(sheet, path)
    lines = lines_of(sheet)
    order = sorted(lines, key=lambda line: line["review"])
    names = ("review", "label")
    moved = [a | {name: b[name] for name in names} for a, b in zip(lines, order, strict=True)]
    write_lines(sheet, moved)
    line = covcal("label", path, sheet).error_line()
    assert "the cell review in the row" in line
    assert "belongs to another row" in line


def test_numbers_may_be_rounded_to_those_of_other_rows(tmp_path: Path) -> None:
    path, sheet = with_columns(tmp_path / "x.h5"), tmp_path / "x.csv"
    covcal("pick", path, "-n", 20, "-o", sheet).require_success()
    other = lines_of(sheet)[0]["n00"]
    fill(sheet, path, lambda lines: [line | {"n00": other} for line in lines])
    covcal("label", path, sheet).require_success()


def test_a_page_without_columns_says_how_to_keep_some(tmp_path: Path) -> None:
    path = write_features(tmp_path / "x.h5")
    run = ("pick", path, "-n", 4, "-o", tmp_path / "x.csv", "--page", tmp_path / "x.html")
    assert "extract the table again with --keep COLUMN" in covcal(*run).require_success().err
    path = with_columns(tmp_path / "y.h5")
    run = ("pick", path, "-n", 4, "-o", tmp_path / "y.csv", "--page", tmp_path / "y.html")
    assert "--keep" not in covcal(*run).require_success().err


PHONE, SCREEN = (390, 844), (1280, 800)
WAYS = {
    "texts-touch-390": (True, True, PHONE),
    "table-keys-1280": (False, False, SCREEN),
    "texts-keys-1280": (True, False, SCREEN),
    "table-touch-390": (False, True, PHONE),
}


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize(
    ("n", "texts", "touch", "size"),
    [
        *(pytest.param(6, *WAYS[name], id=name) for name in ("texts-touch-390", "table-keys-1280")),
        *(
            pytest.param(40, *way, id=f"40-{name}", marks=pytest.mark.campaign)
            for name, way in WAYS.items()
        ),
    ],
)
def test_texts_and_table_rows_are_labelled(
    n: int,
    texts: bool,
    touch: bool,
    size: tuple[int, int],
    chromium: Browser,
    downloads: Path,
    tmp_path: Path,
) -> None:
    """Each row is shown as it is; one answer is undone; what is saved is read back equal."""
    path, place = with_columns(tmp_path / "x.h5", texts=texts, numbers=14), tmp_path / "x.html"
    covcal("pick", path, "-n", n, "-o", tmp_path / "x.csv", "--page", place).require_success()
    lines, known = lines_of(tmp_path / "x.csv"), truth(path)
    with FeatureFile(path) as file:
        classes = file.classes
    tab = chromium.tab(*size)
    if touch:
        tab.send("Emulation.setTouchEmulationEnabled", enabled=True)
    tab.open(place.as_uri())

    def act(key: str, control: str) -> None:
        if touch:
            tab.tap(f"document.querySelector({control!r})")
        else:
            tab.press(key)

    for row, line in enumerate(lines):
        assert f"{row + 1} of {n}" in text_of(tab, "status")
        numbers = [f"n{number:02d}" for number in range(14)]
        cells = [line[name] for name in (*numbers, "site") if line[name]]
        review = unescaped(line.get("review", ""))
        values = "[...document.querySelectorAll('#numbers td')].map((d) => d.textContent)"
        assert tab.value(values) == cells[:12]
        if row == 1:
            act("2", "#classes button:nth-child(2)")
            act("u", "#undo")
            assert f"{row + 1} of {n}" in text_of(tab, "status")
        act(".", "#unfold")
        assert tab.value(values) == cells
        paragraphs = "[...document.querySelectorAll('.text')].map((d) => d.textContent)"
        assert tab.value(paragraphs) == ([review] if review else [])
        assert tab.value("document.querySelectorAll('main img').length") == 1
        assert tab.value("document.documentElement.scrollWidth") <= size[0]
        number = classes.index(known[line["id"]]) + 1
        act(str(number), f"#classes button:nth-child({number})")
    assert text_of(tab, "count") == f"{n} labelled, 0 left empty."
    act("s", "#save")
    content = saved(chromium, downloads)
    expected = [line | {"label": known[line["id"]]} for line in lines]
    assert list(csv.DictReader(StringIO(content, newline=""))) == expected
    require_silence(tab)
    tab.close()
    (tmp_path / "saved.csv").write_text(content, encoding="utf-8", newline="")
    covcal("label", path, tmp_path / "saved.csv").require_success()
    with FeatureFile(path) as file:
        draw = draw_with_labels(file)
        labels = [file.classes[label] for label in draw.labels]
        assert labels == [known[row_id] for row_id in file.require_target().ids(draw.rows)]


@pytest.mark.browser
@needs_browser
def test_a_long_text_is_folded_and_a_short_row_is_not(chromium: Browser, tmp_path: Path) -> None:
    """An answer of the classifier under another name is shown with its answer, on demand."""
    path, place = with_columns(tmp_path / "x.h5"), tmp_path / "x.html"
    with edited(path) as file:
        file["target/columns/y_pred"] = utf8(["their answer"] * len(file["target/labels"]))
    covcal("pick", path, "-n", 12, "-o", tmp_path / "x.csv", "--page", place).require_success()
    data = data_of(place)
    review = data["columns"].index("review")
    tab = chromium.tab(390, 844)
    tab.open(place.as_uri())
    for row in data["rows"]:
        is_long = len(row[review]) > 700
        assert tab.value("document.getElementById('unfold').checkVisibility()") == is_long
        if is_long:
            height = "document.querySelector('.text').getBoundingClientRect().height"
            folded = tab.value(height)
            tab.press(".")
            assert tab.value(height) > 1.5 * folded
        tab.press("ArrowRight")
    assert "their answer" not in tab.value("document.body.innerText")
    tab.press("p")
    assert "their answer" in tab.value("document.body.innerText")
    require_silence(tab)
    tab.close()


def test_json_of_the_page_holds_texts_as_they_are(tmp_path: Path) -> None:
    """Only the CSV has an apostrophe before a formula; no text ends the script."""
    path, place = with_columns(tmp_path / "x.h5"), tmp_path / "x.html"
    covcal("pick", path, "-n", 40, "-o", tmp_path / "x.csv", "--page", place).require_success()
    data = data_of(place)
    assert data["texts"] == [data["columns"].index("review")]
    assert [data["columns"][index] for index in data["numbers"]] == ["n00", "n01", "n02", "site"]
    cells = {unescaped(row[data["texts"][0]]) for row in data["rows"]}
    assert FORMULA in cells
    assert cells <= set(REVIEWS)
    assert "<img src=x" not in place.read_text(encoding="utf-8")
    assert json.dumps(data["answers"]["predicted"])
