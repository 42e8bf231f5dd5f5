"""The README tells the truth: its commands run, and print what it shows."""

import re
import time
from dataclasses import dataclass

import pytest

from tests.readme_blocks import BLOCK, README, live, without_numbers


@dataclass(frozen=True)
class Run:
    """What all commands of the README printed, and the processor time that they took."""

    text: str
    seconds: float


@pytest.fixture(scope="module")
def readme() -> str:
    return README.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def run(readme: str) -> Run:
    start = time.process_time()
    return Run(live(readme), time.process_time() - start)


@pytest.fixture(scope="module")
def live_readme(run: Run) -> str:
    return run.text


def test_every_help_page_in_the_readme_is_the_live_one(readme: str, live_readme: str) -> None:
    """Blocks that show --help are equal to the letter."""
    shown = [block for block in BLOCK.findall(readme) if "--help" in block]
    printed = [block for block in BLOCK.findall(live_readme) if "--help" in block]
    assert len(shown) >= 6
    assert shown == printed


def test_the_worked_example_prints_what_the_readme_shows(readme: str, live_readme: str) -> None:
    """Every other block agrees in all but its numbers, which differ a little between machines."""
    pairs = zip(BLOCK.findall(readme), BLOCK.findall(live_readme), strict=True)
    examples = [(shown, printed) for shown, printed in pairs if "--help" not in shown]
    assert examples
    for shown, printed in examples:
        assert without_numbers(shown) == without_numbers(printed)


def test_the_worked_example_shows_a_real_improvement(live_readme: str) -> None:
    """In the last table of the example the chosen method's ECE is below that of none."""
    command = "$ covcal evaluate adapted.h5"
    table = next(block for block in BLOCK.findall(live_readme) if command in block)
    errors = {
        line.split()[0]: float(line.split()[5].rstrip("%"))
        for line in table.splitlines()
        if re.match(r"(none|temp|cot|fl\+\S+) ", line)
    }
    before, (*_, chosen) = errors.pop("none"), errors.values()
    assert before > max(errors.values()) > 0
    assert chosen < 0.8 * before


def test_it_is_done_within_a_minute(run: Run) -> None:
    """It takes less than a minute of processor time, and ``covcal demo`` is a part of it."""
    assert run.seconds < 60


def test_a_made_up_line_would_be_noticed(readme: str, live_readme: str) -> None:
    """The comparison can fail: another word or a missing file does not pass."""
    changed = live_readme.replace("wrote adapted.h5", "wrote adopted.h5")
    assert without_numbers(changed) != without_numbers(readme)


def test_a_hash_of_another_machine_does_not_matter() -> None:
    """A network trained elsewhere differs in its last bits, and its hash in every letter."""
    shown, printed = "adapted  adapted.h5 ba1037089cbe", "adapted  adapted.h5 99323da85cf3"
    assert without_numbers(shown) == without_numbers(printed)
    assert without_numbers("adapted  adapted.h5") != without_numbers(shown)
