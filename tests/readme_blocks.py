"""The console blocks of README.md and of two pages of examples/: run, compared, and written anew.

A block is fenced as ``console``. Its lines that start with ``$ `` are commands. All commands of a
page run in one folder, which ``covcal demo`` makes, with two logs of a language model. What follows
a command is its output, stdout and stderr as a terminal shows them.

``python -m tests.readme_blocks`` replaces the blocks that have changed. Numbers differ a little
between machines, so a block whose numbers are nearly the same is left unchanged. With ``--all``
every block is replaced. If the README changes, the picture that its commands draw is replaced too.
"""

import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from covcal_cli.cli import console
from covcal_cli.cli.app import LIMIT_EXCEEDED, run
from covcal_cli.demo import MODEL, write_demo
from tests import REPOSITORY
from tests.made_rows import write_logs

README = REPOSITORY / "README.md"
WORKED_EXAMPLE = REPOSITORY / "examples" / "README.md"
LANGUAGE_MODEL = REPOSITORY / "examples" / "language_model.md"
PICTURE = REPOSITORY / "examples" / "reliability.svg"
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")
HASH = re.compile(r"\b[0-9a-f]{12}\b")
# A whole number before one of these words is rounded, and is no count.
ROUNDED = re.compile(r"(?: to \d+)? ?(?:%|points?\b)")
TRAINED = ("covcal adapt", "adapted.h5")  # in blocks whose numbers depend on the training
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def live(page: str, keep: Path | None = None) -> str:
    """Return a page with every console block replaced by what its commands print now.

    `keep` is a folder that receives the picture, if the commands draw it.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "demo"
        if MODEL in page:
            write_demo(place)
        else:
            place.mkdir()
        write_logs(place)
        # A slow machine must print no line of progress either.
        with chdir(place), mock.patch.object(console, "_SECONDS", float("inf")):
            printed = BLOCK.sub(lambda match: _fenced(_run_block(match[1])), page)
        if keep is not None and (place / PICTURE.name).exists():
            shutil.copy(place / PICTURE.name, keep)
        return printed


def renewed(page: str, printed: str) -> str:
    """Return a page with the blocks of `printed`, its new form, that do not agree."""
    blocks = iter(BLOCK.findall(printed))

    def chosen(match: re.Match[str]) -> str:
        now = next(blocks)
        return match[0] if agree(match[1], now) else _fenced(now)

    return BLOCK.sub(chosen, page)


def agree(shown: str, printed: str) -> bool:
    """Return whether two blocks have the same words, and numbers that are nearly the same."""
    same_words = without_numbers(shown) == without_numbers(printed)
    return same_words and not different_numbers(shown, printed)


def different_numbers(shown: str, printed: str) -> list[tuple[str, str]]:
    """Return the numbers of a block that differ: counts at all, measured numbers by over 1 %.

    The last digit of a measured number may differ by one. In a block whose numbers depend on the
    training, no numbers are compared: two machines train different networks.
    """
    if any(word in shown for word in TRAINED):
        return []
    pairs = zip(_numbers(shown), _numbers(printed), strict=False)
    return [
        (one, other) for (one, most), (other, _) in pairs if abs(float(one) - float(other)) > most
    ]


def _numbers(text: str) -> list[tuple[str, float]]:
    """Return every number of a text, and how much another number may differ from it."""
    text = HASH.sub("", text)
    found = []
    for match in NUMBER.finditer(text):
        number = match[0].replace(",", "")
        decimals = len(number.partition("e")[0].partition(".")[2])
        is_count = not decimals and not ROUNDED.match(text, match.end())
        most = 0.0 if is_count else 1.01 * 10.0**-decimals + 0.01 * float(number)
        found.append((number, most))
    return found


def without_numbers(text: str) -> str:
    """Return text in which numbers, hashes, bars and the width of columns no longer matter.

    Two machines may train slightly different networks; words, files and layout stay. A hash is
    taken whole, before its digits: what is left of it would be letters that differ.
    """
    text = NUMBER.sub("0", HASH.sub("0", text))
    text = text.replace("0 to 0", "0")  # a range whose ends are equal is printed as one number
    text = re.sub(r"[#<>]{1,40}\s*$", "", text, flags=re.MULTILINE)
    return re.sub(r"[ ─]+", " ", text)


def _fenced(block: str) -> str:
    return f"```console\n{block}```"


def _run_block(block: str) -> str:
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    return "\n".join(f"$ {command}\n{_output(command)}" for command in commands)


def _output(command: str) -> str:
    name, *arguments = shlex.split(command, comments=True)
    assert name == "covcal", f"the page runs {name}"
    page = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    before = {name: os.environ.get(name) for name in ("COLUMNS", "TERMINAL_WIDTH")}
    os.environ.update(COLUMNS="88", TERMINAL_WIDTH="88")
    try:
        with redirect_stdout(page), redirect_stderr(page):
            code = run(arguments)
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
    page.seek(0)
    text = page.read()
    assert code in (0, LIMIT_EXCEEDED), text  # an error must never become the page's truth
    return text


def write_anew(*, every: bool) -> None:
    """Write both pages anew, and the picture where README changes; or `every` block and it."""
    for path in (README, WORKED_EXAMPLE, LANGUAGE_MODEL):
        shown = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            printed = live(shown, Path(folder))
            page = printed if every else renewed(shown, printed)
            if page == shown and not every:
                continue
            path.write_text(page, encoding="utf-8")
            if (Path(folder) / PICTURE.name).exists():
                shutil.copy(Path(folder) / PICTURE.name, PICTURE)


if __name__ == "__main__":
    write_anew(every=sys.argv[1:] == ["--all"])
