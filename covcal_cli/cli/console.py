"""Print results to stdout, and progress, notes and warnings to stderr.

Tables fit 80 columns. On a terminal, sentences are wrapped and coloured. In a file or pipe, each
sentence is one plain line.
"""

import codecs
import io
import os
import re
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from covcal_cli.errors import CovcalError, message, printable
from covcal_cli.files import as_word
from covcal_cli.progress import Progress, ProgressCallback, silent

if TYPE_CHECKING:
    from covcal_cli.records import Guard

WIDTH = 80
_YELLOW, _RED, _PLAIN = "\x1b[33m", "\x1b[1;31m", "\x1b[0m"
_ALARMS = re.compile(r"\bFAILED\b")
# This pattern matches the first of two aligned columns.
_NAMED = re.compile(r"\S(?:\S| (?! ))* {2,}(?=\S)")
_SECONDS = 30.0  # Seconds between two lines of progress.
_LARGEST_DECISION = 1_000_000  # Larger JSON files are not read, in bytes.
_BAR, _BESIDE = 20, 38  # Widths of the progress bar and its text, in characters.


class Console:
    """Prints the output of one command to stdout and stderr."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet  # Print no progress, notes or hints, only warnings and errors.
        self.verbose = verbose  # Print details too.

    def result(self, text: str) -> None:
        """Print a machine-readable result to stdout."""
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()

    def screen(self, text: str) -> None:
        """Print a human-readable result to stdout."""
        lines = "\n".join(_wrapped(printable(line), sys.stdout) for line in text.split("\n"))
        if _coloured(sys.stdout):
            lines = _ALARMS.sub(rf"{_RED}\g<0>{_PLAIN}", lines)
        self.result(lines)

    def step(self, text: str) -> None:
        """Print a line of progress to stderr."""
        if not self.quiet:
            _to_stderr(message(text))

    def note(self, *texts: str) -> None:
        """Print notes to stderr."""
        for text in () if self.quiet else texts:
            say("note", text)

    def detail(self, text: str) -> None:
        """Print a detail to stderr, if --verbose is given."""
        if self.verbose:
            _to_stderr(message(text))

    def warn(self, texts: Iterable[str]) -> None:
        """Print warnings to stderr, even with --quiet.

        Repeated warnings are printed once, with a count.
        """
        for text, count in Counter(texts).items():
            say("warning", text if count == 1 else f"{text} ({count} times)")

    def wrote(self, path: Path, hint: str | None = None, *, about: str = "") -> None:
        """Print the name of a written file, and suggest the next command."""
        if not self.quiet:
            _to_stderr(f"wrote {message(str(path))}{f'    {message(about)}' if about else ''}")
            if hint:
                self.hint(hint)

    def hint(self, text: str) -> None:
        """Suggest the next command."""
        if not self.quiet:
            _to_stderr(f"next: {message(text)}")

    @contextmanager
    def progress(self) -> Iterator[ProgressCallback]:
        """Yield a callback that shows progress: a bar on a terminal, else lines."""
        if self.quiet:
            yield silent
        elif sys.stderr.isatty():
            with _bars() as show:
                yield show
        else:
            yield _Lines().show


@contextmanager
def _bars() -> Iterator[ProgressCallback]:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = RichConsole(stderr=True)
    bars: dict[str, TaskID] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=_BAR),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}"),
    )
    with Bars(*columns, console=console, transient=True) as display:

        def show(step: Progress) -> None:
            if step.stage not in bars:
                bars[step.stage] = display.add_task(step.stage, total=step.total, numbers="")
            display.update(
                bars[step.stage],
                completed=step.step,
                total=step.total,
                numbers=_numbers(step, console.width - _BESIDE - len(step.stage)),
            )

        yield show


class _Lines:
    def __init__(self) -> None:
        self._last = time.monotonic()

    def show(self, step: Progress) -> None:
        now = time.monotonic()
        if now - self._last < _SECONDS:
            return
        self._last = now
        share = f" ({step.step / step.total:.0%})" if step.total else ""
        numbers = _numbers(step, WIDTH)
        _to_stderr(f"{step.stage}: {step.step} of {step.total}{share}{numbers and f', {numbers}'}")


def _numbers(step: Progress, room: int) -> str:
    text = ""
    for name, value in step.losses.items():
        number = value if isinstance(value, str) else f"{value:.3f}"
        longer = f"{text}{'  ' if text else ''}{name} {number}"
        if len(longer) > room:
            break
        text = longer
    return text


def say(kind: str, text: str) -> None:
    """Print a message to stderr, after the word ``note``, ``warning`` or ``error``."""
    colour = {"warning": _YELLOW, "error": _RED, "FAILED": _RED}.get(kind)
    line = _wrapped(f"{kind}: {message(text)}", sys.stderr)
    if colour is not None and _coloured(sys.stderr):
        line = f"{colour}{kind}:{_PLAIN}{line.removeprefix(f'{kind}:')}"
    _to_stderr(line)


def _wrapped(line: str, stream: TextIO) -> str:
    if len(line) <= WIDTH or not stream.isatty():
        return line
    named = _NAMED.match(line)
    indent = named.end() if named is not None and named.end() <= WIDTH // 3 else 2
    return textwrap.fill(
        line,
        WIDTH,
        subsequent_indent=" " * indent,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )


def prepare_streams() -> None:
    """Replace characters that a stream cannot encode, so that printing never fails."""
    codecs.register_error("covcal", _spelled)
    # A closed stream is None: use a read-only stream instead.
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="covcal")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join("-" if unit == ord("─") else f"\\u{unit:04x}" for unit in codes), error.end


def _coloured(stream: TextIO) -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not plain


def file_to_read(file: Path | None, console: Console) -> Path:
    """Return the file that the user named, or adapted.h5 or features.h5 in the current folder."""
    if file is None:
        from covcal_cli.formats.lineage import file_here

        file = file_here()
        console.note(f"reading {file}")
    return file


def file_of(
    documents: Sequence[Path],
    file: Path | None,
    *,
    purpose: str,
    is_named: bool,
    names: Sequence[str] = (),
    networks: Path | None = None,
) -> tuple[Path, list[str]]:
    """Return the file to which calibrations are applied, and notes about the file.

    `is_named` says whether the user named the calibrations.
    """
    from covcal_cli.forecast import read_named
    from covcal_cli.formats.lineage import file_to_judge, labels_of
    from covcal_cli.multilabel import for_first_label

    def file_of_label() -> tuple[Path, list[str]]:
        calibrations = list(read_named(documents, networks, names).values())
        return file_to_judge(file, calibrations, purpose=purpose, picked=not is_named)

    # The calibrations of all labels were fitted on the same file.
    return for_first_label(labels_of(file, documents), file_of_label)


def to_calibrate(path: Path) -> str:
    """Return the command that calibrates a file, with --force if cal.json exists."""
    replaces = " --force  # replaces cal.json" if Path("cal.json").exists() else ""
    return f"covcal calibrate {as_word(path)}{replaces}"


def to_pick(path: Path) -> str:
    """Return the command that draws 50 rows to label."""
    return f"covcal pick {as_word(path)} -n 50{to_new_sheet()}"


def to_new_sheet() -> str:
    """Return the option that names a new CSV for covcal pick, or "" if to-label.csv is new."""
    names = ("to-label.csv", "more.csv", *(f"more-{number}.csv" for number in range(2, 100)))
    sheet = next((name for name in names if not Path(name).exists()), names[0])
    return "" if sheet == names[0] else f" -o {sheet}"


def to_decide(path: Path) -> str:
    """Return the command that repeats the newest decision, preferably about the same file."""
    from covcal_cli.formats.decision import Decision
    from covcal_cli.records import read_document

    decisions = {}
    for found in Path().glob("*.json"):
        if found.stat().st_size < _LARGEST_DECISION:
            with suppress(CovcalError):
                decisions[found] = read_document(Decision, found, remedy="")

    def order(found: Path) -> tuple[bool, int]:
        is_same = decisions[found].rows_file.resolve() == path.resolve()
        return is_same, found.stat().st_mtime_ns

    if decisions:
        found = max(decisions, key=order)
        decision = decisions[found]
        plain = decision.error is not None and decision.cost is None and decision.sets is None
        if plain and decision.covers == "future rows":
            options = f" --error {decision.error:g} --certainty {decision.certainty:g}"
            for option, column in (("--by", decision.by), ("--promise-by", decision.promise_by)):
                options += f" {option} {as_word(column)}" if column else ""
            options += "" if found.name == "decide.json" else f" -o {as_word(found)}"
            return f"covcal decide {as_word(path)}{options} --force  # replaces {found.name}"
    return f"covcal decide {as_word(path)} --force, with the options of the first decision"


def is_given(context: typer.Context, option: str) -> bool:
    """Return whether the user gave a value to an option."""
    source = context.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


@contextmanager
def usage() -> Iterator[None]:
    """Turn an error about contradicting settings into a usage error."""
    try:
        yield
    except CovcalError as error:
        raise typer.BadParameter(str(error)) from error


def _to_stderr(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


def checks(guards: Sequence["Guard"], warnings: Sequence[str] = ()) -> str:
    """Return a sentence with the number of passed checks, the problems, and advice.

    Advice that `warnings` already gives is left out.
    """
    if not guards:
        return ""
    from covcal_cli.estimators.guards import problem_of

    problems = []
    for guard in guards:
        _, _, advice = guard.sentence.partition("; ")
        if not guard.passed:
            is_silent = not advice or guard.sentence in warnings
            problems.append(problem_of(guard.name) + ("" if is_silent else f" ({advice})"))
    if not problems:
        return f"all {len(guards)} passed" if len(guards) > 1 else "passed"
    passed = f"{len(guards) - len(problems)} of {len(guards)} passed"
    return f"{passed}. Problem{'s' * (len(problems) > 1)}: {', '.join(problems)}"
