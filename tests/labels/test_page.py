"""The page to label rows on: its text, and what a person does with it in a browser."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest
from PIL import Image

from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.page import data_uri, page, pictures_of
from covcal_cli.labels.picked_labels import draw_with_labels
from covcal_cli.labels.sheet import csv_line
from tests.browser import Browser, Tab, needs_browser
from tests.cli_runner import covcal
from tests.labels.labelling import lines_of, truth
from tests.labels.pages import (
    Parsed,
    data_of,
    require_silence,
    saved,
    text_of,
)

ANIMALS = ("bird", "cat", "deer", "dog", "frog", "horse", "newt", "owl", "pig", "rat", "toad")
STRANGE = (
    "</script><img src=x onerror=alert(1)>",
    '<!--<script> "quoted", with a comma',
    "two\nlines",
    "a\rb",
    "שלום",
    "قط\u202egip",
    "👩‍👩‍👧 é\u0301 & &amp; \\u003c",
    "__SCRIPT__ __TITLE__ ${name}",
    "'--><style>*{display:none}</style>",
)


@dataclass(frozen=True)
class Sheet:
    """Rows to label."""

    ids: Sequence[str]
    classes: Sequence[str] = ANIMALS
    name: str = "a.csv"

    def text(self, labels: Sequence[str] = ()) -> str:
        """The CSV with these labels, as the sheet of a draw is written."""
        rows = [["id", "label", "inclusion"]]
        for row, known in enumerate(self.ids):
            rows.append([known, labels[row] if labels else "", "0.5"])
        text = "".join(map(csv_line, rows))
        assert list(csv.reader(StringIO(text, newline=""))) == rows
        return text

    def page(self, pictures: Sequence[str | None] = ()) -> str:
        n, classes = len(self.ids), self.classes
        answers = {
            "predicted": [classes[row % len(classes)] for row in range(n)],
            "confidence": ["0.75"] * n,
        }
        pictures = pictures or [None] * n
        return page(self.text(), classes, pictures, name=self.name, answers=answers)


def test_foreign_texts_stay_data() -> None:
    """Whatever they hold, a page has the elements of a plain one, and its data read back."""
    plain = Parsed(Sheet(["a"] * 9).page())
    sheet = Sheet(STRANGE, STRANGE, name=f"{STRANGE[0]}.csv")
    found = Parsed(sheet.page())
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain.tags]
    data = json.loads(found.scripts[0])
    assert data["classes"] == list(STRANGE)
    assert [row[0] for row in data["rows"]] == list(STRANGE)
    assert data["name"] == sheet.name
    assert found.scripts[1] == plain.scripts[1]


def test_nothing_outside_is_named() -> None:
    """No address but of data within; and the same sheet gives the same bytes."""
    text = Sheet(["a", "b"]).page([None, ""])
    loads = [
        value
        for _, attributes in Parsed(text).tags
        for name, value in attributes.items()
        if name in ("src", "href", "action", "data")
    ]
    assert loads == ["data:,"]
    assert "://" not in text
    assert Sheet(["a", "b"]).page([None, ""]) == text


def test_answers_of_another_table_are_kept_apart() -> None:
    """The name under which a browser keeps them changes with every cell and class, not the file."""
    sheets = [
        Sheet(["a", "b"]),
        Sheet(["a", "c"]),
        Sheet(["a", "b"], ANIMALS[::-1]),
        Sheet(["a", "b"], name="other.csv"),
    ]
    digests = [json.loads(Parsed(sheet.page()).scripts[0])["digest"] for sheet in sheets]
    assert len(set(digests)) == 3
    assert digests[0] == digests[3]


def test_a_picture_per_row_is_asked_for() -> None:
    with pytest.raises(ValueError, match="1 pictures for 2 rows"):
        Sheet(["a", "b"]).page([None])


def test_pick_writes_it_beside_the_csv(adapted: Path, tmp_path: Path) -> None:
    """Without images the rows are named; both files are written, or none."""
    arguments = ("pick", adapted, "-n", 4, "-o", tmp_path / "x.csv", "--page")
    run = covcal(*arguments, tmp_path / "x.html").require_success()
    assert "To show images, pass --images TARGET" in run.err
    assert (
        f"wrote {tmp_path / 'x.html'}\nnext: open the page in a browser, label the rows, save"
        in run.err
    )
    data = data_of(tmp_path / "x.html")
    lines = lines_of(tmp_path / "x.csv")
    assert [data["columns"], *data["rows"]] == [list(lines[0]), *(list(x.values()) for x in lines)]
    before = (tmp_path / "x.csv").read_bytes()
    line = covcal(*arguments, tmp_path / "y.html", "--seed", 1).error_line()
    assert "x.csv exists already" in line
    for place, complaint in ((tmp_path / "x.html", "exists already"), (adapted, "exists already")):
        (tmp_path / "x.csv").unlink()
        assert complaint in covcal(*arguments, place).error_line()
        assert not (tmp_path / "x.csv").exists()
        (tmp_path / "x.csv").write_bytes(before)
    (tmp_path / "x.csv").unlink()
    line = covcal(*arguments, tmp_path / "x.csv").error_line()
    assert line.endswith("x.csv is the name of both the CSV and the page: give two names")


def test_images_of_other_rows_make_no_page(adapted: Path, tmp_path: Path) -> None:
    """Nothing is written then; an image that cannot be read is named, and the rest shown."""
    folder = tmp_path / "images"
    (folder / "target").mkdir(parents=True)
    for known in truth(adapted):
        (folder / known).write_bytes(b"no image")
    arguments = ("pick", adapted, "-n", 2, "-o", tmp_path / "x.csv", "--page", tmp_path / "x.html")
    line = covcal(*arguments, "--images", folder / "target").error_line()
    assert "has no row 'target/" in line
    assert not (tmp_path / "x.csv").exists()
    assert not (tmp_path / "x.html").exists()
    run = covcal(*arguments, "--images", folder).require_success()
    assert run.err.count("warning: the page cannot show target/") == 2


def opened(
    chromium: Browser,
    place: Path,
    sheet: Sheet,
    images: Sequence[str | None] = (),
    size: tuple[int, int] = (1280, 800),
) -> Tab:
    """A tab with the page of a sheet."""
    place.write_text(sheet.page(images), encoding="utf-8")
    tab = chromium.tab(*size)
    tab.open(place.as_uri())
    return tab


@pytest.fixture(scope="module")
def images(small_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image for every target row of the small files, no two alike."""
    folder = tmp_path_factory.mktemp("images")
    for number, known in enumerate(truth(small_files / "adapted.h5")):
        (folder / known).parent.mkdir(exist_ok=True)
        Image.new("RGB", (20 + number % 7, 20), (number % 256, number // 256, 99)).save(
            folder / known
        )
    return folder


@pytest.mark.browser
@needs_browser
def test_a_keyboard_alone_labels_images(
    adapted: Path,
    images: Path,
    chromium: Browser,
    downloads: Path,
    tmp_path: Path,
) -> None:
    """From pick to label: one answer is undone, one is given later, and all are in the file."""
    place = tmp_path / "label.html"
    arguments = ("-n", 24, "-o", tmp_path / "x.csv", "--page", place, "--images", images)
    covcal("pick", adapted, *arguments).require_success()
    lines, known = lines_of(tmp_path / "x.csv"), truth(adapted)
    ids = [line["id"] for line in lines]
    uris = pictures_of(images, ids).uris
    assert len(set(uris)) == 24
    with FeatureFile(adapted) as file:
        keys = {name: str(number) for number, name in enumerate(file.classes, 1)}
    tab = chromium.tab(390, 844)
    tab.open(place.as_uri())
    for row, row_id in enumerate(ids):
        assert f"{row + 1} of 24" in text_of(tab, "status")
        picture = tab.value("{const p = document.getElementById('picture'); [p.src, p.alt]}")
        assert picture == [uris[row], f"Image {row + 1} of 24"]
        if row == 8:
            tab.press("2", "Backspace")
            assert "9 of 24" in text_of(tab, "status")
        tab.press("x" if row == 14 else keys[known[row_id]])
    assert text_of(tab, "count") == "23 labelled, 1 left empty."
    tab.press(*["ArrowLeft"] * 10, keys[known[ids[14]]])
    assert text_of(tab, "count") == "24 labelled, 0 left empty."
    # With nothing left to answer the focus is on saving.
    tab.press("Enter")
    content = saved(chromium, downloads)
    expected = [line | {"label": known[line["id"]]} for line in lines]
    assert list(csv.DictReader(StringIO(content, newline=""))) == expected
    assert tab.value("document.documentElement.scrollWidth") <= 390
    require_silence(tab)
    tab.close()
    (tmp_path / "saved.csv").write_text(content, encoding="utf-8")
    covcal("label", adapted, tmp_path / "saved.csv").require_success()
    with FeatureFile(adapted) as file:
        draw = draw_with_labels(file)
        labels = [file.classes[label] for label in draw.labels]
        assert labels == [known[row_id] for row_id in file.require_target().ids(draw.rows)]
        assert len(labels) == 24


@pytest.mark.browser
@needs_browser
def test_a_closed_tab_loses_nothing(chromium: Browser, downloads: Path, tmp_path: Path) -> None:
    """A page opened again has the answers and the steps to undo; another table starts empty."""
    sheet = Sheet(["a", "b", "c"], name="closed.csv")
    tab = opened(chromium, tmp_path / "closed.html", sheet)
    tab.press("2", "x")
    tab.close()
    tab = opened(chromium, tmp_path / "closed.html", sheet)
    assert text_of(tab, "status") == "Your earlier answers are here again. 3 of 3."
    tab.press("u", "4", "s")
    assert saved(chromium, downloads) == sheet.text(["cat", "dog", ""])
    assert text_of(tab, "status").startswith("Saved closed.csv; 1 rows are still open.")
    other = opened(chromium, tmp_path / "other.html", Sheet(["a", "b", "d"]))
    assert text_of(other, "status") == "1 of 3."
    for one in (tab, other):
        require_silence(one)
        one.close()


@pytest.mark.browser
@needs_browser
def test_a_browser_that_keeps_nothing_is_named(chromium: Browser, tmp_path: Path) -> None:
    """As one that was told so; the page can be used all the same."""
    tab = opened(chromium, tmp_path / "kept.html", Sheet(["a", "b"]))
    assert text_of(tab, "notice") == ""
    tab.value("{Storage.prototype.setItem = () => { throw new Error('full'); }}")
    tab.press("1")
    assert "save the CSV before you close the page" in text_of(tab, "notice")
    assert text_of(tab, "status") == "Row 1: bird. 2 of 2."
    require_silence(tab)
    tab.close()


@pytest.mark.browser
@needs_browser
def test_foreign_names_are_shown_and_saved_as_they_are(
    chromium: Browser, downloads: Path, tmp_path: Path
) -> None:
    """Before an answer is given the file is that which the sheet came from."""
    sheet = Sheet(STRANGE, STRANGE)
    tab = opened(chromium, tmp_path / "strange.html", sheet)
    tab.press("s")
    assert saved(chromium, downloads) == sheet.text([""] * len(STRANGE))
    for key in "123456789":
        tab.press(key)
    tab.press("s")
    assert saved(chromium, downloads) == sheet.text(list(STRANGE))
    names = tab.value("[...document.querySelectorAll('#classes bdi')].map((b) => b.textContent)")
    assert names[:5] == [*STRANGE[:2], "two\\u000alines", "a\\u000db", "שלום"]
    assert names[5] == "قط\\u202egip"
    assert tab.value("document.querySelectorAll('main img').length") == 1
    require_silence(tab)
    tab.close()


@pytest.mark.browser
@needs_browser
def test_the_classifiers_answer_is_shown_on_demand(chromium: Browser, tmp_path: Path) -> None:
    """Of an image its name too, which may tell its class; a row without one shows its name."""
    sheet = Sheet(["00.png", "01.png", "no image", "spoilt"])
    uri = data_uri(Image.new("RGB", (5, 5)))
    uris = (uri, uri, None, "")
    tab = opened(chromium, tmp_path / "hidden.html", sheet, uris)
    facts = "[...document.querySelectorAll('dd')].filter((d) => d.checkVisibility())"
    values = f"{facts}.map((d) => d.textContent)"
    assert tab.value(values) == []
    # A small image is drawn smoothly, not as blocks.
    drawn = "getComputedStyle(document.getElementById('picture')).imageRendering"
    assert tab.value(drawn) == "auto"
    tab.press("p")
    assert tab.value(values) == ["00.png", "bird", "0.75"]
    tab.press("p", "ArrowRight", "ArrowRight")
    assert tab.value(values) == ["no image"]
    tab.press("ArrowRight")
    assert tab.value(values) == ["spoilt"]
    assert "could not be read" in text_of(tab, "shown")
    require_silence(tab)
    tab.close()


@pytest.mark.browser
@needs_browser
def test_many_classes_are_searched(chromium: Browser, downloads: Path, tmp_path: Path) -> None:
    """Enter takes the whole name, then a beginning, then any part; accents do not matter."""
    classes = (*(f"class {number}" for number in range(300)), "Café", "a class 1")
    sheet = Sheet(["a", "b", "c", "d"], classes)
    tab = opened(chromium, tmp_path / "many.html", sheet)
    for sought in ("class 1", "CAFE", "a cl", "no such thing"):
        tab.press("/")
        tab.send("Input.insertText", text=sought)
        tab.press("Enter")
    assert tab.value("document.querySelectorAll('#classes button:not([hidden])').length") == 0
    tab.press("Escape", "x", "s")
    assert saved(chromium, downloads) == sheet.text(["class 1", "Café", "a class 1", ""])
    require_silence(tab)
    tab.close()


@pytest.mark.browser
@needs_browser
def test_a_key_held_down_answers_once(chromium: Browser, tmp_path: Path) -> None:
    tab = opened(chromium, tmp_path / "held.html", Sheet([*"held"]))
    one = {"type": "keyDown", "key": "1", "code": "Digit1", "text": "1"}
    for repeated in (False, True, True):
        tab.send("Input.dispatchKeyEvent", autoRepeat=repeated, **one)
    assert "2 of 4" in text_of(tab, "status")
    # A key of another script goes by its place, one that writes a letter by that; a follows 0.
    tab.send("Input.dispatchKeyEvent", type="keyDown", key="é", code="Digit2", text="é")
    assert text_of(tab, "status") == "Row 2: cat. 3 of 4."
    tab.send("Input.dispatchKeyEvent", type="keyDown", key="z", code="KeyA", text="z")
    assert "3 of 4" in text_of(tab, "status")
    tab.press("a")
    assert text_of(tab, "status") == "Row 3: toad. 4 of 4."
    tab.close()


@pytest.mark.browser
@needs_browser
def test_a_class_that_is_called_like_a_key_has_it(chromium: Browser, tmp_path: Path) -> None:
    """The others have the keys that are left, in order; none has one with another meaning."""
    classes = ("0", "1", "2", "A", "a", "s", "none")
    tab = opened(chromium, tmp_path / "keys.html", Sheet(["a"] * 7, classes))
    shown = tab.value("[...document.querySelectorAll('#classes kbd')].map((k) => k.textContent)")
    assert shown == ["0", "1", "2", "a", "3", "4", "5"]
    tab.press("0", "a", "4")
    assert text_of(tab, "status") == "Row 3: s. 4 of 7."
    tab.close()


# The contrast of what is written with what it stands on, the least of all that is shown.
CONTRAST = """{
const part = (value) => (value /= 255) <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4;
const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(part)
  .reduce((sum, value, index) => sum + value * [.2126, .7152, .0722][index], 0);
const ground = (element) => {
  const colour = getComputedStyle(element).backgroundColor;
  return colour === "rgba(0, 0, 0, 0)" ? ground(element.parentElement) : colour;
};
Math.min(...[...document.querySelectorAll("h1, p, bdi, kbd, button:enabled, summary")]
  .filter((element) => element.checkVisibility()).map((element) => {
    const [low, high] = [getComputedStyle(element).color, ground(element)].map(light)
      .sort((one, other) => one - other);
    return (high + .05) / (low + .05);
  }));
}"""


@pytest.mark.browser
@needs_browser
def test_it_can_be_read_and_the_focus_is_seen(chromium: Browser, tmp_path: Path) -> None:
    """The contrast meets WCAG 2.2 (AA); Tab goes to every control and outlines it."""
    tab = opened(chromium, tmp_path / "read.html", Sheet(["a", "b"]), size=(390, 844))
    tab.press("3", "p")
    tab.press("ArrowLeft")  # shows a chosen class in its colours
    for scheme in ("light", "dark"):
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        tab.send("Emulation.setEmulatedMedia", features=media)
        assert tab.value(CONTRAST) >= 4.5
    found = []
    for _ in range(20):
        tab.press("Tab")
        seen = tab.value(
            "{const one = document.activeElement, style = getComputedStyle(one);"
            "const box = one.getBoundingClientRect();"
            "[one.id || one.value || one.localName, style.outlineStyle, box.top >= 0,"
            "one.localName === 'summary' || Math.min(box.width, box.height) >= 44]}"
        )
        found.append(seen[0])
        assert seen[0] == "body" or seen[1:] == ["solid", True, True], seen
    enabled = ("save", *ANIMALS, "reveal", "undo", "skip", "next", "summary")
    assert set(enabled) <= set(found)
    require_silence(tab)
    tab.close()
