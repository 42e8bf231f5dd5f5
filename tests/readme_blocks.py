"""The README's console blocks: read, run, and (``python -m tests.readme_blocks``) written anew.

A block is fenced as ``console``. Its lines that start with ``$ `` are commands, run in one folder
that starts as ``covcal demo`` makes it; what follows a command is its output, stdout and stderr as
a terminal shows them. The commands ``covcal``, ``ls`` and ``cat`` are known.
"""

import io
import os
import re
import shlex
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

from covcal_cli.cli.app import LIMIT_EXCEEDED, run
from covcal_cli.demo import write_demo

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def live(readme: str) -> str:
    """Return the README with every console block replaced by what its commands print now."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "demo"
        write_demo(place)
        with chdir(place):
            return BLOCK.sub(lambda match: f"```console\n{_run_block(match[1])}```", readme)


def without_numbers(text: str) -> str:
    """Return text in which numbers, hashes, bars and the width of columns no longer matter.

    Two machines may train slightly different networks; words, files and layout stay. A hash is
    taken whole, before its digits: what is left of it would be letters that differ.
    """
    text = re.sub(r"\b[0-9a-f]{12}\b", "0", text)
    text = re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "0", text)
    text = re.sub(r"[#<>]{1,40}\s*$", "", text, flags=re.MULTILINE)
    return re.sub(r"[ ─]+", " ", text)


def _run_block(block: str) -> str:
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    return "\n".join(f"$ {command}\n{_output(command)}" for command in commands)


def _output(command: str) -> str:
    name, *arguments = shlex.split(command, comments=True)
    if name == "ls":
        return "  ".join(sorted(path.name for path in Path.cwd().iterdir())) + "\n"
    assert name == "covcal", f"the README runs {name}"
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
    assert code in (0, LIMIT_EXCEEDED), text  # an error must never become the README's truth
    return text


if __name__ == "__main__":
    README.write_text(live(README.read_text(encoding="utf-8")), encoding="utf-8")
