"""The command line's contract: exit codes, the two streams, short forms, one spelling per idea."""

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from covcal_cli import __version__
from covcal_cli.cli.app import app
from tests.cli_runner import command_line, covcal, covcal_process, interrupted
from tests.forked import Forked
from tests.made_files import edited

GROUP: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = GROUP.commands
ESCAPE, COLOUR = "\x1b", re.compile(r"\x1b\[[0-9;]*[34][0-9]")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@cache
def examples() -> list[tuple[str, list[str]]]:
    """Return every example of every help page: the command and its arguments."""
    found = []
    for name in COMMANDS:
        text = covcal(name, "--help").out
        for line in text[text.index("Example") :].splitlines()[1:]:
            if not line.strip().startswith("covcal "):
                break
            words = shlex.split(line.partition("|")[0])
            found.append((words[1], words[2:]))
    return found


class TestHelp:
    def test_the_commands(self) -> None:
        """The help lists the commands by group: main steps, labels, over time, research."""
        assert list(COMMANDS) == [
            "run",
            "extract",
            "calibrate",
            "estimate",
            "decide",
            "evaluate",
            "apply",
            "export",
            "report",
            "inspect",
            "merge",
            "demo",
            "pick",
            "label",
            "watch",
            "adapt",
            "compare",
        ]

    @pytest.mark.parametrize("name", ["", *COMMANDS])
    def test_every_page_goes_to_stdout_and_fits(self, name: str) -> None:
        """Help is the result: on stdout, exit 0, plain text of at most 80 columns or so."""
        done = covcal(*name.split(), "--help").require_success()
        assert done.err == ""
        assert ESCAPE not in done.out
        assert done.out.startswith("Usage: covcal")

    def test_every_page_has_examples_that_can_be_parsed(self) -> None:
        """The options in the examples exist and take the values shown."""
        assert {command for command, _ in examples()} == set(COMMANDS)
        for command, arguments in examples():
            COMMANDS[command].make_context(command, list(arguments))

    @pytest.mark.parametrize("name", COMMANDS)
    def test_every_option_is_explained(self, name: str) -> None:
        """Every option and argument has a help text that ends like a sentence."""
        for parameter in COMMANDS[name].params:
            if parameter.name != "help":
                assert parameter.help, parameter.name
                assert parameter.help.endswith("."), parameter.name

    def test_version(self) -> None:
        """--version prints the name and the version, nothing else."""
        done = covcal("--version").require_success()
        assert (done.out, done.err) == (f"covcal {__version__}\n", "")

    def test_the_console_script_and_the_module_are_the_same(self) -> None:
        """``covcal`` and ``python -m covcal_cli`` start the same program."""
        script = Path(sys.executable).with_name("covcal")
        found = [
            subprocess.run([*start, "--help"], capture_output=True, text=True, check=True).stdout
            for start in ([str(script)], [sys.executable, "-m", "covcal_cli"])
        ]
        assert found[0] == found[1]


class TestSpelling:
    def test_one_spelling_per_idea(self) -> None:
        """An option that several commands have is spelled and typed the same in each."""
        spellings: dict[str, set[tuple[str, ...]]] = {}
        for command in COMMANDS.values():
            for parameter in command.params:
                if parameter.param_type_name == "option":
                    spellings.setdefault(parameter.opts[0], set()).add(tuple(parameter.opts))
        assert {name: found for name, found in spellings.items() if len(found) > 1} == {}
        for long, short in (
            ("--output", "-o"),
            ("--calibration", "-c"),
            ("--force", "-f"),
            ("--quiet", "-q"),
            ("--verbose", "-v"),
        ):
            assert spellings[long] == {(long, short)}

    def test_a_letter_means_one_thing(self) -> None:
        """No short option stands for two ideas in two commands."""
        meaning: dict[str, set[str]] = {}
        for command in COMMANDS.values():
            for parameter in command.params:
                for option in parameter.opts:
                    if re.fullmatch("-[a-z]", option):
                        meaning.setdefault(option, set()).add(parameter.name)
        assert all(len(found) == 1 for found in meaning.values()), meaning

    @pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("inspect", "demo")])
    def test_what_writes_files_can_be_forced_and_silenced(self, name: str) -> None:
        """Every step has -o, -f, -q and -v."""
        found = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        assert found >= {"-o", "-f", "-q", "-v"}


class TestExitCodes:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("nosuch",),
            ("--nosuch",),
            ("extract",),
            ("extract", "model.onnx"),
            ("extract", "model.onnx", "source"),
            ("extract", "model.onnx", "source", "target", "--target", "other"),
            ("extract", "model.onnx", "s", "t", "--size", "big"),
            ("extract", "model.onnx", "s", "t", "--mean", "a,b"),
            ("extract", "model.onnx", "s", "t", "--fractions", "0.5,0.5"),
            ("extract", "model.onnx", "s", "t", "--fractions", "0.5,0.6,0.1"),
            ("extract", "model.onnx", "s", "t", "--threads", "0"),
            ("adapt", "a", "b"),
            ("adapt", "--members", "0"),
            ("adapt", "--weight-decay", "1"),
            ("adapt", "--preset", "other"),
            ("adapt", "--seed", "-1"),
            ("calibrate", "--method", "best"),
            ("calibrate", "--max-weight", "0.5"),
            ("calibrate", "--max-weight", "nan"),
            ("calibrate", "--seed", "x"),
            ("calibrate", "--method", "temp", "--target-prior", "uniform"),
            ("estimate", "a", "b"),
            ("estimate", "-o", "-", "--format", "github"),
            ("estimate", "--max-weight", "nan"),
            ("calibrate", "--labels", "0"),
            ("evaluate", "--bins", "0"),
            ("evaluate", "--split", "some"),
            ("evaluate", "--format", "xml"),
            ("evaluate", "-c"),
            ("evaluate", "-o", "--force"),
            ("pick", "--page", "-f"),
            ("adapt", "-o", "-"),
            ("label", "a", "b", "-o", "-"),
            ("report", "-o", "-"),
            ("inspect",),
            ("inspect", "a", "b"),
        ],
        ids=" ".join,
    )
    def test_usage_errors_are_2(self, tmp_path: Path, arguments: tuple[str, ...]) -> None:
        """Options and arguments that make no sense: exit 2, usage on stderr, nothing written."""
        done = covcal(*arguments, cwd=tmp_path)
        assert done.usage_error().startswith("Error: ")
        assert names(tmp_path) == []

    def test_an_infinite_limit_of_the_weights(self, features: Path) -> None:
        """--max-weight must be a number that JSON can hold."""
        covcal("calibrate", features, "--max-weight", "inf", "-o", "-").usage_error()

    def test_no_arguments_show_the_help(self) -> None:
        """``covcal`` alone shows its help and does not pretend to have done anything."""
        done = covcal()
        assert done.code == 2
        assert "Main steps:" in done.out + done.err

    def test_the_short_option_for_help(self) -> None:
        """``-h`` shows what ``--help`` shows, for covcal and for its commands."""
        for words in ((), ("calibrate",)):
            helps = [covcal(*words, option).require_success().out for option in ("-h", "--help")]
            assert helps[0] == helps[1]

    def test_an_exceeded_limit_is_3(self, features: Path) -> None:
        """A limit exceeded is 3, as a process too."""
        done = covcal_process("evaluate", features, "--fail-above", "ece=0", "-q")
        assert done.code == 3
        assert done.err == ""

    def test_an_uncaught_exception_is_ours(
        self, features: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A bug exits with 1 and says what to report: the version and the lines above."""

        def fail(_: Path) -> str:
            raise ZeroDivisionError("made by the test")

        monkeypatch.setattr("covcal_cli.inspect.describe", fail)
        done = covcal("inspect", features)
        assert (done.code, done.out) == (1, "")
        assert "ZeroDivisionError: made by the test" in done.err
        last = done.err.splitlines()[-1]
        assert last.startswith("error: this is a bug in covcal ")
        assert __version__ in last
        assert "report" in last

    @pytest.mark.parametrize(
        ("module", "packages"),
        [
            ("h5py", "h5py"),
            ("numpy.linalg", "numpy"),
            ("torch", "torch"),
            ("PIL", "onnx onnxruntime pillow"),
            ("onnxruntime", "onnx onnxruntime pillow"),
        ],
    )
    def test_a_missing_package_is_named_with_what_installs_it(
        self, module: str, packages: str, features: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those of extraction are installed together, every other on its own."""

        def fail(_: Path) -> str:
            raise ModuleNotFoundError(name=module)

        monkeypatch.setattr("covcal_cli.inspect.describe", fail)
        line = covcal("inspect", features).error_line()
        assert line == f"this needs {module.partition('.')[0]}: pip install {packages}"


class TestInterrupt:
    def test_adapt(self, features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ctrl-C in the middle of training: exit 130, one line, the old file untouched."""
        old = features.with_name("adapted.h5")
        old.write_text("old")

        def interrupt(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("covcal_cli.adapt.training.train", interrupt)
        done = covcal("adapt", "-f", "-q", "--members", 5, cwd=features.parent)
        assert (done.code, done.err) == (130, "interrupted: no partial output was left\n")
        assert names(features.parent) == ["adapted.h5", "features.h5"]
        assert old.read_text() == "old"

    def test_extract(self, few_digits: Path, tmp_path: Path) -> None:
        """Ctrl-C between two domains: exit 130, and what was done is kept for --resume alone."""
        hook = (
            "import sys, time\n"
            "from covcal_cli.extract.domain import DomainExtraction\n"
            "write = DomainExtraction.write\n"
            "def told(self, *args, **kwargs):\n"
            "    write(self, *args, **kwargs)\n"
            "    print('ready', file=sys.stderr, flush=True)\n"
            "    time.sleep(60)\n"
            "DomainExtraction.write = told\n"
        )
        inputs = [few_digits / name for name in ("digits.onnx", "source.npz", "target.npz")]
        code, err = interrupted(hook, "extract", *inputs, cwd=tmp_path)
        assert (code, err) == (
            130,
            "interrupted: the finished rows are kept beside features.h5: pass --resume to "
            "continue\n",
        )
        assert names(tmp_path) == [".features.h5.parts"]

    def test_in_compiled_code_that_makes_another_error_of_it(
        self, few_digits: Path, tmp_path: Path
    ) -> None:
        """As frameworks do: it is no failure of the model."""
        hook = (
            "import sys, time, onnxruntime\n"
            "def run(*args, **kwargs):\n"
            "    print('ready', file=sys.stderr, flush=True)\n"
            "    try:\n"
            "        time.sleep(60)\n"
            "    except KeyboardInterrupt:\n"
            "        raise RuntimeError('from compiled code') from None\n"
            "onnxruntime.InferenceSession.run = run\n"
        )
        inputs = [few_digits / name for name in ("digits.onnx", "source.npz", "target.npz")]
        code, err = interrupted(hook, "extract", *inputs, cwd=tmp_path, modules=["onnxruntime"])
        assert (code, err) == (130, "interrupted: no partial output was left\n")
        assert "features.h5" not in names(tmp_path)


class TestStreams:
    def test_stdout_is_one_document(self, small_files: Path) -> None:
        """What -o - prints can be piped into a JSON reader, whatever is noted on stderr."""
        done = covcal_process("calibrate", "-o", "-", cwd=small_files).require_success()
        assert json.loads(done.out)["schema"] == "covcal.calibration/1"
        assert "note: reading adapted.h5\n" in done.err
        assert not (small_files / "cal.json").exists()

    @pytest.mark.parametrize("command", [("estimate",), ("calibrate", "-o", "-")])
    def test_no_stdout_at_all(self, command: tuple[str, ...], small_files: Path) -> None:
        """Without stdout (``>&-`` in a shell) the result is lost, which is an error in one line."""
        closed = "import os, sys; os.close(1); sys.stdout = None"
        done = covcal_process(*command, cwd=small_files, before=closed)
        assert done.code == 1
        assert done.err.splitlines()[-1].startswith("error: the output: bad file descriptor")
        assert "Traceback" not in done.err

    def test_hints_go_to_stderr(self, features: Path) -> None:
        """What was written and what to do next is said on stderr, the summary on stdout."""
        done = covcal("calibrate", features, "-o", "cal.json", cwd=features.parent)
        done.require_success()
        assert "wrote cal.json " in done.err
        assert f"next: covcal evaluate {features} -c cal.json\n" in done.err
        assert "wrote" not in done.out
        assert done.out.startswith("Verdict ")

    @pytest.mark.parametrize("labelled", [True, False])
    def test_hints_can_be_pasted(self, features: Path, labelled: bool) -> None:
        """A suggested command works as it stands, blanks in names and rows without labels too."""
        folder = features.parent / "two words"
        folder.mkdir()
        if not labelled:
            with edited(features) as file:
                file["target/labels"][...] = -1
        shutil.move(features, folder / "my features.h5")
        done = covcal("calibrate", "my features.h5", "-o", "my cal.json", cwd=folder)
        (hint,) = [line for line in done.err.splitlines() if line.startswith("next: covcal ")]
        covcal(*shlex.split(hint, comments=True)[2:], cwd=folder).require_success()

    def test_every_next_step_runs(self, small_files: Path, tmp_path: Path) -> None:
        """The outputs of the steps before are replaced; what a comment says is not run."""
        folder = shutil.copytree(small_files, tmp_path / "next")
        covcal("calibrate", "features.h5", "-q", cwd=folder).require_success()
        commands = [
            ("estimate", "features.h5"),
            ("evaluate", "features.h5"),
            ("evaluate", "features.h5", "-c", "cal.json"),
            ("decide", "features.h5", "--error", "0.2", "-f"),
        ]
        for command in commands:
            done = covcal(*command, cwd=folder).require_success()
            (hint,) = re.findall("^next: covcal (.*)$", done.err, re.MULTILINE)
            covcal(*shlex.split(hint, comments=True), cwd=folder).require_success()

    @pytest.mark.parametrize("method", ["temp", "iw+temp"])
    def test_quiet(self, features: Path, method: str) -> None:
        """-q leaves the result and warnings alone, and no notes or hints."""
        folder = features.parent
        loud = covcal("calibrate", "--method", method, "-o", "a.json", cwd=folder).require_success()
        done = covcal("calibrate", "--method", method, "-q", "-o", "b.json", cwd=folder)
        assert done.require_success().out == loud.out
        warnings = [line for line in loud.err.splitlines() if line.startswith("warning: ")]
        assert done.err.splitlines() == warnings

    def test_verbose_adds_detail(self, features: Path) -> None:
        """-v shows more, such as the candidates, after the same answer."""
        folder = features.parent
        plain = covcal("calibrate", "-o", "plain.json", cwd=folder).require_success()
        verbose = covcal("calibrate", "-v", cwd=folder).require_success()
        assert verbose.out.splitlines()[0] == plain.out.splitlines()[0]
        assert "candidate " in verbose.out
        assert "candidate " not in plain.out

    @pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}])
    def test_no_escape_sequences_off_a_terminal(
        self, small_files: Path, env: dict[str, str]
    ) -> None:
        """Into a pipe or file goes plain text."""
        arguments = ("evaluate", "adapted.h5", "-c", "temp.json")
        done = covcal_process(*arguments, cwd=small_files, env=env).require_success()
        assert ESCAPE not in done.out + done.err
        wrong = covcal_process("evaluate", "--split", "x", cwd=small_files, env=env)
        assert ESCAPE not in wrong.err

    def test_no_color_on_a_terminal(self, few_digits: Path, tmp_path: Path) -> None:
        """On a terminal NO_COLOR leaves the progress bar without colours."""
        inputs = [few_digits / name for name in ("digits.onnx", "source.npz", "target.npz")]
        command = ["extract", *map(str, inputs)]
        shown = {}
        for name, env in (("plain", {"NO_COLOR": "1"}), ("coloured", {})):
            master, slave = pty.openpty()
            environment = {"TERM": "xterm-256color", **env}
            folder = tmp_path / name
            folder.mkdir()
            with (
                Path(os.devnull).open("w") as nothing,
                Forked(
                    command,
                    stdout=nothing.fileno(),
                    stderr=slave,
                    env=environment,
                    cwd=folder,
                    modules=["onnx", "onnxruntime"],
                ) as process,
            ):
                os.close(slave)
                pieces = []
                try:
                    while piece := os.read(master, 1 << 16):
                        pieces.append(piece)
                except OSError:  # the terminal's other end was closed
                    pass
            os.close(master)
            assert process.wait() == 0
            shown[name] = b"".join(pieces).decode()
        assert ESCAPE in shown["plain"]
        assert not COLOUR.search(shown["plain"])
        assert COLOUR.search(shown["coloured"])

    def test_a_reader_that_goes_away(self, small_files: Path) -> None:
        """``covcal evaluate -o - | head -1`` complains about nothing."""
        command = command_line("evaluate", "adapted.h5", "--bins", 10_000, "-o", "-", "-q")
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=small_files,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "{\n"
            process.stdout.close()
            assert process.stderr.read() == ""

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    @pytest.mark.parametrize("unbuffered", ["", "1"])
    def test_a_full_disk_behind_stdout(self, unbuffered: str, small_files: Path) -> None:
        """A redirection onto a full disk is an error in one line, and no success."""
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                command_line("inspect", "adapted.h5"),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                cwd=small_files,
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
                check=False,
            )
        assert done.returncode == 1
        assert done.stderr == "error: the output: no space left on device: free some space\n"


class TestShortForms:
    """Every short form runs as it is printed; test_demo.py runs extract and adapt."""

    def test_calibrate_prefers_the_adapted_file(self, adapted: Path, features: Path) -> None:
        """``covcal calibrate`` takes adapted.h5 if there is one, else features.h5, and says so."""
        folder = adapted.parent
        assert features.parent == folder
        done = covcal("calibrate", cwd=folder).require_success()
        assert "note: reading adapted.h5\n" in done.err
        assert json.loads((folder / "cal.json").read_text())["inputs"][0]["path"] == "adapted.h5"
        adapted.unlink()
        done = covcal("calibrate", "-f", cwd=folder).require_success()
        assert "note: reading features.h5\n" in done.err
        assert json.loads((folder / "cal.json").read_text())["inputs"][0]["path"] == "features.h5"

    def test_calibrate_with_nothing_here(self, tmp_path: Path) -> None:
        """Without either file it says what it looked for."""
        line = covcal("calibrate", cwd=tmp_path).error_line()
        assert line == (
            "there is no adapted.h5 or features.h5 here: name the file to read, or make one with "
            "covcal extract"
        )

    def test_calibrate_then_evaluate(self, features: Path) -> None:
        """``covcal calibrate features.h5 -o cal.json`` and then ``covcal evaluate`` alone."""
        folder = features.parent
        covcal("calibrate", "features.h5", "-o", "cal.json", cwd=folder).require_success()
        covcal("evaluate", cwd=folder).require_success()

    def test_adapt_with_nothing_here(self, tmp_path: Path) -> None:
        """``covcal adapt`` reads features.h5 and names the step that makes it."""
        line = covcal("adapt", cwd=tmp_path).error_line()
        assert line == "features.h5 does not exist: make it with covcal extract"

    def test_the_input_is_never_the_output(self, features: Path) -> None:
        """Even with --force, a step does not replace the very file that it reads."""
        before = features.read_bytes()
        done = covcal("calibrate", features, "-o", features, "-f", "--method", "temp")
        assert features.read_bytes() == before
        assert done.code == 1


class TestInterruptedCode:
    """Ctrl-C where compiled code makes another error of it, or a module is half loaded."""

    @pytest.mark.parametrize(
        "error", ["ImportError('initialization failed')", "TypeError('fromfile')", "OSError(5)"]
    )
    def test_another_error_of_it_is_ctrl_c(self, error: str, features: Path) -> None:
        hook = (
            "import sys, time, covcal_cli.inspect as inspect\n"
            "def told(path):\n"
            "    print('ready', file=sys.stderr, flush=True)\n"
            "    try:\n"
            "        time.sleep(60)\n"
            "    except KeyboardInterrupt:\n"
            f"        raise {error}\n"
            "inspect.describe = told\n"
        )
        found = interrupted(hook, "inspect", features, cwd=features.parent)
        assert found == (130, "interrupted: no partial output was left\n")

    def test_a_module_is_loaded_to_its_end_first(self, features: Path) -> None:
        """One that would break where it is interrupted, as compiled ones do."""
        (features.parent / "fragile.py").write_text(
            "import sys, time\n"
            "try:\n"
            "    print('ready', file=sys.stderr, flush=True)\n"
            "    time.sleep(1)\n"
            "except KeyboardInterrupt:\n"
            "    print('broken', file=sys.stderr, flush=True)\n"
        )
        hook = (
            "import sys, time, covcal_cli.inspect as inspect\n"
            "sys.path.insert(0, '.')\n"
            "def load(path):\n"
            "    import fragile\n"
            "    time.sleep(60)\n"
            "inspect.describe = load\n"
        )
        found = interrupted(hook, "inspect", features, cwd=features.parent)
        assert found == (130, "interrupted: no partial output was left\n")  # not "broken"
