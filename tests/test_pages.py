"""Every Markdown page: its links lead somewhere, its commands exist, its tables are complete."""

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from covcal_cli.classifiers import ENDINGS
from covcal_cli.cli.app import app
from covcal_cli.data.stores import SUFFIXES
from tests import REPOSITORY
from tests.readme_blocks import README

GROUP: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = GROUP.commands
PATTERNS = ("*.md", ".github/*.md", "covcal_cli/**/*.md", "examples/**/*.md", "tests/**/*.md")
PAGES = sorted({page for pattern in PATTERNS for page in REPOSITORY.glob(pattern)})
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|\b(?:src|href)=\"([^\"]+)\"")
LOOP = re.compile(r"\bfor (\w+) in ([^;]+); do (.*?); done")
SHELLS = ("", "console", "sh", "bash")

every_page = pytest.mark.parametrize(
    "page", PAGES, ids=[page.relative_to(REPOSITORY).as_posix() for page in PAGES]
)


def dead_links(page: Path, text: str) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    links = [one or other for one, other in LINK.findall(FENCED.sub("", text))]
    paths = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:|#", link)]
    return [path for path in paths if not (page.parent / path).exists()]


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every covcal command in the fenced blocks of a page."""
    for language, block in FENCED.findall(text):
        if language not in SHELLS:
            continue
        lines = block.replace("\\\n", " ").splitlines()
        if language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        for line in lines:
            yield from _commands_of(LOOP.sub(_unrolled, line))


def _unrolled(loop: re.Match[str]) -> str:
    return "; ".join(loop[3].replace(f"${loop[1]}", value) for value in loop[2].split())


def _commands_of(line: str) -> Iterator[list[str]]:
    if "covcal" not in line:
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";&|()<>"):
            if words[:1] == ["covcal"]:
                yield words
            words = []
        else:
            words.append(word)


def require_known(words: list[str]) -> None:
    """Fail unless a command, its options and their values can be parsed."""
    _, name, *arguments = words
    assert name in COMMANDS, f"there is no command {name}: {shlex.join(words)}"
    try:
        COMMANDS[name].make_context(name, arguments)
    except Exception as error:
        pytest.fail(f"{shlex.join(words)}: {error}")


@pytest.fixture
def text() -> str:
    return README.read_text(encoding="utf-8")


@every_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    """Files and folders that a page links to exist."""
    assert dead_links(page, page.read_text(encoding="utf-8")) == []


@every_page
def test_every_command_of_a_page_can_be_parsed(page: Path) -> None:
    """Commands, their options and the values shown exist."""
    for words in commands(page.read_text(encoding="utf-8")):
        require_known(words)


@every_page
def test_no_help_page_is_copied(page: Path) -> None:
    """The program prints its own help, which a copy would only fall behind."""
    text = page.read_text(encoding="utf-8")
    assert "Usage: covcal" not in text
    assert "Show this message and exit" not in text


class TestChecksCanFail:
    def test_links(self) -> None:
        """A link to nothing is found, others and what only looks like one in code are not."""
        text = "[a](nothing.md) [b](README.md#top) [c](https://x.y) ![d](no.svg)\n"
        text += "```\nf[0](gone.md)\n```\n"
        assert dead_links(README, text) == ["nothing.md", "no.svg"]

    def test_commands(self) -> None:
        """Commands are found behind prompts, in chains, loops and continued lines."""
        text = "```\npip install . && covcal demo # once\ncovcal apply \\\n  -o - | head\n```\n"
        text += "```\nfor m in temp cot; do covcal calibrate --method $m; done\n```\n"
        text += "```console\n$ covcal adapt\ncovcal printed this\n```\n```python\ncovcal = 1\n```\n"
        assert [" ".join(words) for words in commands(text)] == [
            "covcal demo",
            "covcal apply -o -",
            "covcal calibrate --method temp",
            "covcal calibrate --method cot",
            "covcal adapt",
        ]

    @pytest.mark.parametrize(
        "line", ["covcal guess", "covcal adapt --fast", "covcal calibrate --method tmep"]
    )
    def test_unknown_words(self, line: str) -> None:
        """A command, an option or a value that does not exist is named."""
        with pytest.raises(AssertionError if "guess" in line else pytest.fail.Exception):
            require_known(line.split())


class TestReadme:
    def test_it_is_one_page(self, text: str) -> None:
        """At most 200 lines and 12 kB: more belongs beside the code that it is about."""
        assert len(text.splitlines()) <= 200
        assert len(text.encode()) <= 12_000

    def test_its_table_has_every_command(self, text: str) -> None:
        """The table has one line per command, and no line for a command that does not exist."""
        assert re.findall(r"^\| `covcal ([\w-]+)` \|", text, re.MULTILINE) == list(COMMANDS)

    def test_its_results_stand_in_the_pages_that_make_them(self, text: str) -> None:
        """Every figure of the table of results is one of examples/research."""
        sources = "".join(
            (REPOSITORY / "examples" / "research" / name / "README.md").read_text(encoding="utf-8")
            for name in ("benchmark", "paper")
        )
        table = text[text.index("\n## Results") :].partition("\n\n| ")[2].partition("\n\n")[0]
        figures = re.findall(r"\d+\.\d\d(?: ± \d\.\d\d)?", table)
        assert len(figures) > 30
        assert [figure for figure in figures if figure not in sources] == []


def wrongly_cited(page: str, code: str, name: str = "MATHEMATICS") -> list[str]:
    """Return the citations of a page that name no heading of it, or are spelled otherwise."""
    headings = set(re.findall(r"^#+ (\d+)\. ", page, re.MULTILINE))
    code = re.sub(r"\s+(?:# )?", " ", code)  # a citation may be on two lines
    cited = re.findall(rf"{name}(?!\.md)[^)]{{0,60}}", code)
    right = re.compile(rf"{name},\s+sections? ((?:\d+(?:, | and )?)+)")
    return [
        text
        for text in cited
        if re.search(r"\d", text)
        and not (
            (citation := right.match(text)) and set(re.findall(r"\d+", citation[1])) <= headings
        )
    ]


@pytest.mark.parametrize("name", ["ARCHITECTURE", "MATHEMATICS"])
def test_the_sections_that_code_cites_are_there(name: str) -> None:
    """A section that a docstring names by its number has a heading on the page."""
    page = (REPOSITORY / "covcal_cli" / f"{name}.md").read_text(encoding="utf-8")
    cited = 0
    for folder in ("covcal_cli", "examples"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            code = path.read_text(encoding="utf-8")
            assert wrongly_cited(page, code, name) == [], path
            cited += f"{name}, section" in code
    assert cited


def test_a_wrong_citation_would_be_found() -> None:
    page = "## 1. The discriminator\n## 2. Weights\n"
    assert wrongly_cited(page, "(MATHEMATICS, sections 1 and 2)") == []
    assert wrongly_cited(page, "# (MATHEMATICS, section\n# 2)") == []
    assert len(wrongly_cited(page, "MATHEMATICS, section 9")) == 1
    assert len(wrongly_cited(page, "see MATHEMATICS 1")) == 1


def packages_of(page: str) -> set[str]:
    """Return the packages that the plan on a page lists."""
    cells = re.findall(r"^\| ((?:`\w+/`(?:, )?)+) \|", page, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)/`", cell)}


def test_the_plan_names_every_package() -> None:
    """Whoever adds or renames a package says what it holds."""
    page = (REPOSITORY / "covcal_cli" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    folders = (REPOSITORY / "covcal_cli").glob("*/__init__.py")
    assert packages_of(page) == {path.parent.name for path in folders}


def test_a_package_that_the_plan_lacks_would_be_found() -> None:
    assert packages_of("| `maths/` | x |\n| `apply/`, `export/` | y |\n| (root) | z |") == {
        "maths",
        "apply",
        "export",
    }


def undocumented_endings(page: str, endings: Iterable[str]) -> list[str]:
    return [ending for ending in endings if f"`{ending}`" not in page]


def test_every_ending_that_is_read_is_on_the_page() -> None:
    """A new format of data, or kind of model, needs its words on the page for users."""
    page = (REPOSITORY / "covcal_cli" / "data" / "README.md").read_text(encoding="utf-8")
    assert undocumented_endings(page, (*SUFFIXES, *ENDINGS)) == []
    assert undocumented_endings(page, (".feather",)) == [".feather"]
