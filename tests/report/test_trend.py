"""The trend of a watch, as a page and as a picture."""

import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from covcal_cli.errors import CovcalError
from covcal_cli.records import line_text
from covcal_cli.report.trend import Timeline, page, picture, write_trend
from covcal_cli.watch.history import History
from tests.browser import Browser, needs_browser
from tests.cli_runner import covcal
from tests.report.made_history import half_a_year, period

STRANGE = "</title><script>alert(1)</script>"


def drawn(history: History) -> str:
    return page(Timeline(history.periods))


class Marks(HTMLParser):
    """The elements of a page that have a class, by it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: dict[str, list[dict[str, str | None]]] = {}
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        named = dict(attrs)
        self.found.setdefault(f"{tag}.{named.get('class')}", []).append(named)


def test_every_number_has_its_mark() -> None:
    """Counted by class; a line ends where its calibration does, or a value is not known."""
    history = half_a_year()
    marks = {name: len(found) for name, found in Marks(drawn(history)).found.items()}
    key = 1  # in the legend
    assert marks["circle.dot confidence"] == len(history.periods) == 27
    assert marks["circle.dot estimate"] == 26
    assert marks["polyline.line confidence"] == 2
    assert marks["polyline.line before"] == 2
    assert marks["polyline.line estimate"] == marks["polygon.band"] == 3
    assert marks["path.measured point"] == 4
    figures = 2
    assert marks["path.alarm"] == figures * 1 + key
    assert marks["path.alarm due"] == figures * 2 + key
    assert marks["line.change"] == figures
    assert marks["polyline.line threshold"] == marks["polyline.line evidence"] == 2


def test_marks_stand_where_the_numbers_are() -> None:
    """In percent of the width, and in pixels between the limits of the axis."""
    history = History(
        Path("watch.jsonl"),
        tuple(period(str(week), accuracy=0.7, confidence=0.7 + week / 100) for week in range(4)),
    )
    dots = Marks(drawn(history)).found["circle.dot confidence"]
    assert [dot["cx"] for dot in dots] == ["12.500%", "37.500%", "62.500%", "87.500%"]
    low, high = Timeline(history.periods).shares()
    assert (low, high) == (0.6, 0.8)
    for week, dot in enumerate(dots):
        share = (0.7 + week / 100 - low) / (high - low)
        assert float(dot["cy"] or 0) == pytest.approx(26 + 240 * (1 - share), abs=0.06)


def test_first_and_last_period_are_named_on_phones() -> None:
    text = drawn(half_a_year())
    assert re.findall(r'<text x="[^>]*>(2026-W\d+)</text>', text) == [
        *["2026-W23", "2026-W35", "2026-W48"] * 2
    ]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_axis_of_equal_numbers_has_a_length(share: float) -> None:
    one = period("a", accuracy=None, confidence=share)
    one = replace(one, measured=replace(one.measured, confidence_before=share))
    low, high = Timeline([one]).shares()
    assert 0 <= low < high <= 1
    assert low <= share <= high


def test_a_period_alone_is_seen() -> None:
    """A line of one point would be none."""
    marks = Marks(drawn(History(Path("w"), (period("a"),)))).found
    for kind in ("confidence", "before", "estimate", "evidence", "threshold"):
        assert len(marks[f"circle.dot {kind}"]) == 1
    assert len(marks["polygon.band"]) == 1


def test_foreign_texts_stay_texts() -> None:
    text = drawn(History(Path("w"), (replace(period(STRANGE), why=f"{STRANGE}\x1b[0m"),)))
    assert "script" not in Marks(text).tags
    assert "\x1b" not in text


def test_a_long_history_is_drawn_by_its_end() -> None:
    """Of 3000 periods the last 1000, in a page that a browser opens at once."""
    history = History(Path("w"), tuple(period(f"p{number:04}") for number in range(3000)))
    text = page(Timeline(history.periods[-1000:], 2000))
    assert "2000 earlier periods not drawn" in text
    assert len(text) < 1_000_000


def test_the_same_history_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("trend.html", "trend.svg"):
        contents = []
        for _ in range(2):
            write_trend(half_a_year(), tmp_path / name, force=True)
            contents.append((tmp_path / name).read_bytes())
        assert contents[0] == contents[1]
    assert "://" not in (tmp_path / "trend.html").read_text()


def test_the_picture_has_the_marks_of_the_page() -> None:
    """One drawing: the same figures, in plain colours, for programs that know no variables."""
    history = half_a_year()
    text = picture(Timeline(history.periods))
    marks, of_page = (Marks(content).found for content in (text, drawn(history)))
    for name in ("circle.dot confidence", "polygon.band", "path.alarm due", "line.change"):
        assert len(marks[name]) == len(of_page[name])
    assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in text
    assert {"#b3261e", "#005f9e", "#007a5e", "#6b3fa0"} <= set(re.findall("#[0-9a-f]{6}", text))
    strange = History(Path("w"), (replace(period(STRANGE), why=STRANGE),))
    assert "script" not in Marks(picture(Timeline(strange.periods))).tags


@pytest.mark.parametrize(
    ("name", "history", "said"),
    [
        ("trend.gif", half_a_year(), "trend.gif: the name of a trend must end in .html or .svg"),
        ("trend.html", History(Path("w.jsonl")), "w.jsonl has no period to draw"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    name: str, history: History, said: str, tmp_path: Path
) -> None:
    with pytest.raises(CovcalError, match=re.escape(said)):
        write_trend(history, tmp_path / name, force=False)
    assert not list(tmp_path.iterdir())


def test_the_command_draws_a_history(tmp_path: Path) -> None:
    """Without any file, and without a change to the history."""
    history = half_a_year()
    path = tmp_path / "watch.jsonl"
    path.write_text("".join(f"{line_text(one, path)}\n" for one in history.periods))
    before = path.read_bytes()
    arguments = ("watch", "--history", "watch.jsonl", "--plot", "trend.html")
    done = covcal(*arguments, cwd=tmp_path).require_success()
    assert done.err == "wrote trend.html\n"
    assert (tmp_path / "trend.html").read_text() == drawn(history)
    assert path.read_bytes() == before
    line = covcal(*arguments, cwd=tmp_path).error_line()
    assert "trend.html exists already: pass --force to replace it, or another --plot" in line
    usage = covcal("watch", "--plot", "trend.html", cwd=tmp_path).usage_error()
    assert "--history" in usage


# In a browser.

SEEN = """
(() => {
  const box = (part) => part.getBoundingClientRect();
  const every = (what) => [...document.querySelectorAll(what)];
  const fields = every("svg.field").map(box);
  const texts = every(".plot text").filter((part) => box(part).width > 0).map(box);
  const meet = (a, b) =>
    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const marks = every(".field .dot, .field .line, .field .band, .field .measured, .field .alarm, " +
    ".field .change, .key line, .key path, .key rect");
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const style = (part) => getComputedStyle(part);
  return {
    scroll: document.documentElement.scrollWidth,
    marks: marks.length,
    unseen: marks.filter((part) => {
      const {width, height} = box(part);
      const paint = [style(part).stroke, style(part).fill].filter((one) => one.startsWith("rgb"));
      return Math.max(width, height) < 1 || paint.length === 0;
    }).map((part) => part.outerHTML.slice(0, 80)),
    outside: every(".field .dot, .field .measured, .field .alarm, .field .band").filter((part) =>
      !fields.some((field) => box(part).left >= field.left - 8 && box(part).right <= field.right + 8
        && box(part).top >= field.top - 1 && box(part).bottom <= field.bottom)).length,
    meeting: texts.filter((a, i) => texts.some((b, j) => j > i && meet(a, b))).length,
    cut: texts.filter((one) => one.left < 0 || one.right > innerWidth).length,
    wide: every(".table").filter((one) => one.scrollWidth > one.clientWidth).length,
    tallest: Math.max(...every("td").map((one) => box(one).height)),
    smallest: Math.min(...every("p, td, .plot text").map((one) => parseFloat(style(one).fontSize))),
    widths: fields.map((field) => field.width),
    page: rgb(style(document.body).backgroundColor),
    faint: rgb(style(document.querySelector(".plot text")).fill),
    colours: ["confidence", "estimate"].map((kind) =>
      rgb(style(document.querySelector(`.line.${kind}`)).stroke)),
  };
})()
"""


def contrast(one: list[float], other: list[float]) -> float:
    """The contrast ratio of WCAG 2."""

    def luminance(colour: list[float]) -> float:
        parts = [value / 255 for value in colour[:3]]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.browser
@needs_browser
def test_a_browser_draws_every_mark(chromium: Browser, tmp_path: Path) -> None:
    """Within its figure, in colours that are seen; no text meets another, no console error."""
    path = tmp_path / "trend.html"
    write_trend(half_a_year(), path, force=False)
    tab = chromium.tab(390, 900)
    for width, scheme in itertools.product((390, 1280), ("light", "dark")):
        tab.resize(width, 900)
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        tab.send("Emulation.setEmulatedMedia", features=media)
        tab.open(path.as_uri())
        seen: dict[str, Any] = tab.value(SEEN)
        assert seen["scroll"] <= width
        assert seen["marks"] > 100
        assert seen["unseen"] == []
        assert (seen["outside"], seen["meeting"], seen["cut"]) == (0, 0, 0)
        assert seen["wide"] == 0
        assert seen["tallest"] < 160  # in pixels, some seven lines
        assert seen["smallest"] >= 12
        assert min(seen["widths"]) > 0.65 * min(width, 1088)
        assert (sum(seen["page"][:3]) > 600) == (scheme == "light")
        assert contrast(seen["page"], seen["faint"]) > 4.5
        assert all(contrast(seen["page"], colour) > 3 for colour in seen["colours"])
    assert tab.complaints() == []
    assert set(tab.requests()) == {path.as_uri()}
