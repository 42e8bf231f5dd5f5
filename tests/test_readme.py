"""README.md and pages of examples/ tell the truth: their commands run, and print what they show."""

import os
import re
import shutil
import tomllib
from functools import partial
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests import REPOSITORY
from tests.readme_blocks import (
    BLOCK,
    LANGUAGE_MODEL,
    PICTURE,
    README,
    WORKED_EXAMPLE,
    agree,
    different_numbers,
    live,
    renewed,
    without_numbers,
)
from tests.short_training import short_training

LIGHT = ("typer", "rich", "numpy", "h5py")
PAGES = (README, WORKED_EXAMPLE, LANGUAGE_MODEL)
SHOWN = "intro\n```console\n$ covcal one\n12.3%  kept\n```\n```console\n$ covcal two\nwas 5\n```\n"


def undrawn(_: object, path: Path, *, force: bool) -> None:
    path.touch(exist_ok=force)


@pytest.fixture(scope="module")
def printed_pages(whole_demo: Path) -> dict[Path, str]:
    """The pages with what their commands print now.

    Diagrams are not drawn, which would take longest; tests of ``evaluate`` look at some.
    """
    with short_training(120), pytest.MonkeyPatch.context() as patch:
        # What the training finds differs, as it does between machines.
        patch.setattr("covcal_cli.evaluate.diagram.write_figure", undrawn)
        copied = partial(shutil.copytree, whole_demo, copy_function=os.link)
        patch.setattr("tests.readme_blocks.write_demo", copied)
        return {page: live(page.read_text(encoding="utf-8")) for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=["README", "examples", "language model"])
def test_the_commands_print_what_the_page_shows(page: Path, printed_pages: dict[Path, str]) -> None:
    """Every block agrees: its words, its counts, and measured numbers to 1 % or the last digit."""
    shown = BLOCK.findall(page.read_text(encoding="utf-8"))
    printed = BLOCK.findall(printed_pages[page])
    assert shown
    for one, other in zip(shown, printed, strict=True):
        assert without_numbers(one) == without_numbers(other)
        assert different_numbers(one, other) == []


def test_the_worked_example_shows_a_real_improvement(printed_pages: dict[Path, str]) -> None:
    """In the table of the long example the chosen method's ECE is far below that of none."""
    blocks = BLOCK.findall(printed_pages[WORKED_EXAMPLE])
    table = next(block for block in blocks if "--diagram" in block)
    errors = {
        line.split()[0]: float(re.split(" {2,}", line)[5].rstrip(" %"))
        for line in table.splitlines()
        if re.match(r"(none|temp|cot|consensus|fl\+\S+) ", line)
    }
    before, (*_, chosen) = errors.pop("none"), errors.values()
    assert before > max(errors.values()) > 0
    assert chosen < 0.8 * before


def test_the_light_packages_are_those_of_pyproject() -> None:
    """pip must not install a version that pyproject forbids."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    needed = [Requirement(text) for text in project["dependencies"]]
    lines = [
        line
        for path in (REPOSITORY / "README.md", *(REPOSITORY / "examples").glob("*.*"))
        if path.suffix in (".md", ".yml", ".sh")
        for line in path.read_text().splitlines()
        if "rich numpy h5py" in line
    ]
    assert len(lines) == 4
    for package in filter(lambda package: package.name in LIGHT, needed):
        caps = [str(part) for part in package.specifier if part.operator.startswith("<")]
        assert all(package.name + "".join(caps) in line for line in lines)


def test_the_picture_shows_what_readme_measured() -> None:
    """The ECE of each row of README's table stands in the picture, too."""
    page = README.read_text(encoding="utf-8")
    table = page[page.index("| calibration | T |") :].partition("\n```")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    picture = PICTURE.read_text(encoding="utf-8")
    assert rows[0][0] == "none"
    assert [row[0] for row in rows if row[5] not in picture] == []
    assert len(rows) == 2
    assert f"]({PICTURE.relative_to(README.parent).as_posix()})" in page


def test_a_made_up_line_would_be_noticed(printed_pages: dict[Path, str]) -> None:
    """The comparison can fail: another word, count or measured number does not pass."""
    printed = printed_pages[WORKED_EXAMPLE]
    changed = printed.replace("wrote adapted.h5", "wrote adopted.h5")
    assert without_numbers(changed) != without_numbers(printed)
    shown = "source  898 rows; T 1.94, 48 to 77 %, features.h5 c9f9dbd6aee0"
    for old, new in (("1.94", "1.95"), ("48", "47"), ("77", "78"), ("aee0", "aee1")):
        assert agree(shown, shown.replace(old, new)), new
    for old, new in (("898", "899"), ("1.94", "1.97"), ("48", "45"), ("77", "80")):
        assert not agree(shown, shown.replace(old, new)), new


def test_a_hash_of_another_machine_does_not_matter() -> None:
    """A network trained elsewhere differs in its last bits, and its hash in every letter."""
    shown, printed = "adapted  adapted.h5 ba1037089cbe", "adapted  adapted.h5 99323da85cf3"
    assert without_numbers(shown) == without_numbers(printed)
    assert without_numbers("adapted  adapted.h5") != without_numbers(shown)


def test_blocks_with_nearly_the_same_numbers_are_not_written_anew() -> None:
    """A changed word or count replaces its own block; figures of another machine replace none."""
    printed = SHOWN.replace("12.3%", "12.4%").replace("was 5", "is 6")
    assert renewed(SHOWN, printed) == SHOWN.replace("was 5", "is 6")
    trained = SHOWN.replace("covcal one", "covcal adapt")
    assert renewed(trained, trained.replace("12.3%", "9.87%")) == trained
