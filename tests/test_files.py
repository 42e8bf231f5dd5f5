"""Output files appear whole or not at all, and never replace another unasked."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covcal_cli import files
from covcal_cli.errors import CovcalError, OutputExistsError
from covcal_cli.files import (
    as_word,
    atomic_output,
    check_output,
    leaves_folder_of,
    moved_together,
    relative_to_folder_of,
    require_file,
    require_hdf5_name,
    sha256_of,
    write_text,
)
from tests.cli_runner import covcal, covcal_process

NOBODY = 65534


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def write_half(path: Path, error: type[BaseException]) -> None:
    """Write half an output, then fail."""
    with atomic_output(path, force=True) as partial:
        partial.write_text("half")
        raise error("in the middle")


class TestAtomicOutput:
    def test_the_file_appears_when_the_block_ends(self, tmp_path: Path) -> None:
        """Nothing carries the output's name until the block has succeeded."""
        path = tmp_path / "out.txt"
        with atomic_output(path, force=False) as partial:
            partial.write_text("whole")
            assert not path.exists()
        assert path.read_text() == "whole"
        assert names(tmp_path) == ["out.txt"]

    @pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
    def test_an_error_leaves_nothing(self, tmp_path: Path, error: type[BaseException]) -> None:
        """After any error, Ctrl-C included, there is neither an output nor a partial file."""
        with pytest.raises(error):
            write_half(tmp_path / "out", error)
        assert names(tmp_path) == []

    def test_an_error_keeps_the_old_file(self, tmp_path: Path) -> None:
        """With --force, an error leaves the file that was to be replaced as it was."""
        path = tmp_path / "out"
        path.write_text("old")
        with pytest.raises(ValueError, match="middle"):
            write_half(path, ValueError)
        assert path.read_text() == "old"
        assert names(tmp_path) == ["out"]

    def test_a_killed_writer_leaves_the_old_file(self, tmp_path: Path) -> None:
        """SIGKILL in the middle keeps the old file; the next run clears what was left behind."""
        path = tmp_path / "out"
        path.write_text("old")
        script = (
            "import sys, time\n"
            "from pathlib import Path\n"
            "from covcal_cli.files import atomic_output\n"
            "with atomic_output(Path(sys.argv[1]), force=True) as partial:\n"
            "    partial.write_text('half')\n"
            "    print('ready', flush=True)\n"
            "    time.sleep(60)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.kill()
            assert process.wait() == -signal.SIGKILL
        assert path.read_text() == "old"
        write_text(path, "new", force=True)
        assert path.read_text() == "new"
        assert names(tmp_path) == ["out"]


class TestOverwritePolicy:
    def test_an_existing_file_is_refused(self, tmp_path: Path) -> None:
        """Without --force an existing file is an error that names both remedies."""
        path = tmp_path / "out"
        path.write_text("old")
        with pytest.raises(OutputExistsError) as caught:
            write_text(path, "new", force=False)
        assert str(caught.value) == (
            f"{path} exists already: pass --force to replace it, or another -o"
        )
        assert path.read_text() == "old"

    def test_force_replaces(self, tmp_path: Path) -> None:
        """With --force the new content takes the old one's place."""
        path = tmp_path / "out"
        path.write_text("old")
        write_text(path, "new", force=True)
        assert path.read_text() == "new"

    @pytest.mark.parametrize("force", [False, True])
    def test_a_folder_is_refused(self, tmp_path: Path, force: bool) -> None:
        """A folder is never an output file, whatever is forced."""
        with pytest.raises(CovcalError) as caught:
            check_output(tmp_path, force=force)
        assert str(caught.value) == f"{tmp_path} is a folder, not a file: give -o a file name"

    def test_a_message_names_the_option_of_the_file(self, tmp_path: Path) -> None:
        """Another -o does not help if another option named the file."""
        path = tmp_path / "out"
        path.touch()
        for place in (path, tmp_path, tmp_path / "no" / "out"):
            with pytest.raises(CovcalError, match="--plot") as caught:
                check_output(place, force=False, option="--plot")
            assert "-o" not in str(caught.value).split()

    def test_a_missing_folder_is_refused(self, tmp_path: Path) -> None:
        """The folder of an output must exist; the message names a missing folder."""
        path = tmp_path / "no" / "out"
        with pytest.raises(CovcalError) as caught:
            check_output(path, force=False)
        assert str(caught.value) == (
            f"the folder {path.parent} does not exist: create it, or pass another -o"
        )

    def test_hdf5_under_the_name_of_a_table_is_refused(self) -> None:
        require_hdf5_name(Path("features.h5"))
        require_hdf5_name(Path("features"))
        with pytest.raises(
            CovcalError, match=r"x\.csv would hold HDF5, not \.csv: name the file x\.h5"
        ):
            require_hdf5_name(Path("x.csv"))

    def test_a_pipe_or_device_is_never_replaced(self, tmp_path: Path) -> None:
        """--force on a FIFO or on /dev/null must not put a plain file in its place."""
        path = tmp_path / "pipe"
        os.mkfifo(path)
        with pytest.raises(CovcalError, match="pipe"):
            check_output(path, force=True)

    @pytest.mark.parametrize("length", [256, 300])
    def test_a_name_too_long_is_one_line(self, features: Path, length: int) -> None:
        """A name too long for the file system is a plain error."""
        done = covcal("calibrate", features, "-o", features.with_name("x" * length))
        assert "too long" in done.error_line()


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder that others than root cannot write to."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "old").write_text("old")
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs POSIX users")
def test_no_permission_is_explained(closed_folder: Path) -> None:
    """A folder that cannot be written to is one line with the remedy, and stays as it was."""
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from covcal_cli.errors import CovcalError\n"
        "from covcal_cli.files import write_text\n"
        f"if os.geteuid() == 0: os.seteuid({NOBODY})\n"
        "try: write_text(Path(sys.argv[1]), 'new', force=True)\n"
        "except CovcalError as error: print(error)\n"
    )
    for name in ("new", "old"):
        path = closed_folder / name
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"no permission to write {path}: choose another path\n"
    assert names(closed_folder) == ["old"]
    assert (closed_folder / "old").read_text() == "old"


class TestDiskFull:
    """A limit on the file size stands in for a full disk: writing fails half-way."""

    @staticmethod
    def limited(size: int) -> str:
        return f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"

    @pytest.mark.parametrize("old", [None, "old"])
    def test_json(self, features: Path, old: str | None) -> None:
        """calibrate on a full disk: one line, exit 1, the old file untouched, nothing partial."""
        path = features.with_name("cal.json")
        if old is not None:
            path.write_text(old)
        before = names(path.parent)
        arguments = ("calibrate", features, "-q", "-f", "--method", "temp", "-o", path)
        done = covcal_process(*arguments, before=self.limited(500))
        assert done.error_line() == (
            f"no space left to write {path}: free some space, or choose another folder"
        )
        assert names(path.parent) == before
        assert old is None or path.read_text() == old

    @pytest.mark.parametrize("size", [0, 100_000])
    def test_hdf5(self, tmp_path: Path, digits: Path, size: int) -> None:
        """extract on a disk that fills at once or late: one line, the old file untouched."""
        path = tmp_path / "features.h5"
        path.write_text("old")
        done = covcal_process(
            *("extract", digits / "digits.onnx", digits / "source.npz", digits / "target.npz"),
            *("-f", "-o", path),
            before=self.limited(size),
        )
        assert done.error_line() == (
            f"no space left to write {path}: free some space, or choose another folder"
        )
        assert names(tmp_path) == ["features.h5"]
        assert path.read_text() == "old"


class TestInputs:
    def test_missing_folder_and_empty_files_are_named(self, tmp_path: Path) -> None:
        """What is wrong with an input is said in one line that ends in the remedy."""
        empty = tmp_path / "empty"
        empty.touch()
        for path, what in (
            (tmp_path / "no", "does not exist"),
            (tmp_path, "is a folder, not a file"),
            (empty, "is empty (0 bytes)"),
        ):
            with pytest.raises(CovcalError) as caught:
                require_file(path, remedy="do this")
            assert str(caught.value) == f"{path} {what}: do this"

    def test_sha256(self, tmp_path: Path) -> None:
        """A file's hash is that of its bytes, longer than one block included."""
        path = tmp_path / "long"
        path.write_bytes(b"abc" * 1_000_000)
        assert sha256_of(path) == hashlib.sha256(b"abc" * 1_000_000).hexdigest()

    def test_a_file_that_changed_is_hashed_again(self, tmp_path: Path) -> None:
        """Also if the file system gives both versions the same times and the same place."""
        path = tmp_path / "short"
        for number in range(100):
            path.write_bytes(b"%03d" % number)
            assert sha256_of(path) == hashlib.sha256(b"%03d" % number).hexdigest()

    def test_a_file_that_did_not_change_is_read_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second hash of a file costs nothing, once its last change is over."""
        path = tmp_path / "old"
        path.write_bytes(b"abc")
        later = path.stat().st_ctime_ns + 10_000_000_000
        monkeypatch.setattr(time, "time_ns", lambda: later)
        digest = sha256_of(path)
        monkeypatch.delattr(hashlib, "file_digest")  # nothing can be hashed from here on
        assert sha256_of(path) == digest

    def test_relative_paths(self, tmp_path: Path) -> None:
        """An input is named relative to the document's folder, so that both can move together."""
        assert relative_to_folder_of(tmp_path / "a/b.h5", tmp_path / "c/cal.json") == "../a/b.h5"
        assert relative_to_folder_of(tmp_path / "b.h5", tmp_path / "cal.json") == "b.h5"

    def test_a_link_in_the_folder_is_named_itself(self, tmp_path: Path) -> None:
        """A link in this folder to another folder's file counts as a file of this folder."""
        (tmp_path / "here").mkdir()
        (tmp_path / "away").mkdir()
        (tmp_path / "away/b.h5").write_text("b")
        (tmp_path / "here/b.h5").symlink_to(tmp_path / "away/b.h5")
        document = tmp_path / "here/cal.json"
        assert relative_to_folder_of(tmp_path / "here/b.h5", document) == "b.h5"
        (tmp_path / "link").symlink_to(tmp_path / "away")  # so that link/.. is not what it seems
        assert relative_to_folder_of(tmp_path / "link/../here/b.h5", document) == "b.h5"
        assert relative_to_folder_of(tmp_path / "link/b.h5", document) == "../away/b.h5"

    @pytest.mark.parametrize("document", ["cal.json", "a/cal.json", "../cal.json", "/a/cal.json"])
    @pytest.mark.parametrize(
        ("named", "leaves"),
        [
            ("features.h5", False),
            ("./b/features.h5", False),
            ("..features.h5", False),
            ("../features.h5", True),
            ("b/../../features.h5", True),
            ("b/../features.h5", True),  # b may be a link
            ("/etc/passwd", True),
            ("..", True),
        ],
    )
    def test_paths_that_leave_the_folder(self, document: str, named: str, leaves: bool) -> None:
        path = Path(document)
        assert leaves_folder_of(path.parent / named, path) is leaves


WRITING = """
import sys, time
from pathlib import Path
from covcal_cli.files import atomic_output
with atomic_output(Path(sys.argv[1]), force=True) as partial:
    print("there", flush=True)
    sys.stdin.read()
    partial.write_text("first")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs record locks")
def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    """The second is refused in one line and leaves the first's unfinished file alone."""
    output = tmp_path / "out"
    with subprocess.Popen(
        [sys.executable, "-c", WRITING, str(output)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        assert first.stdout.readline() == b"there\n"
        with pytest.raises(CovcalError, match=r"another process writes .*out now: wait for it"):
            write_text(output, "second", force=True)
        first.stdin.close()
        assert first.wait() == 0
    assert output.read_text() == "first"
    write_text(output, "second", force=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_takes_no_files_is_named() -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("needs /proc")
    with pytest.raises(
        CovcalError, match=r"^/proc/f cannot be written \(.*\): choose another path$"
    ):
        write_text(Path("/proc/f"), "text", force=True)


@pytest.mark.parametrize("length", [246, 247, 250, 255])
def test_the_longest_names_can_be_written(features: Path, length: int) -> None:
    """If a name is too long for a suffix, the temporary file gets another name."""
    path = features.with_name("x" * (length - 5) + ".json")
    for force in ((), ("-f",)):
        covcal("calibrate", features, "-o", path, "--method", "temp", *force).require_success()
    assert names(features.parent) == sorted([features.name, path.name])


def test_a_replaced_file_hands_down_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write_text(path, "old", force=False)
    usual = path.stat().st_mode & 0o777
    for mode in (0o640, 0o600, 0o666):
        path.chmod(mode)
        write_text(path, "new", force=True)
        assert path.stat().st_mode & 0o777 == mode
    write_text(tmp_path / "other", "new", force=False)
    assert (tmp_path / "other").stat().st_mode & 0o777 == usual


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
def test_what_lies_in_the_way_is_neither_followed_nor_waited_for(kind: str, tmp_path: Path) -> None:
    """In a folder that many people write to, anybody may have put a link or a pipe there."""
    path, partial, victim = tmp_path / "out", tmp_path / ".out.partial", tmp_path / "victim"
    victim.write_text("precious")
    if kind == "pipe":
        os.mkfifo(partial)
    elif kind == "folder":
        partial.mkdir()
    else:
        partial.symlink_to(victim if kind == "link" else tmp_path / "none")
    with pytest.raises(CovcalError, match=r"\.out\.partial is not a plain file"):
        write_text(path, "new", force=True)
    assert victim.read_text() == "precious"
    assert not path.exists()
    assert not (tmp_path / "none").exists()


def test_a_hard_link_in_the_way_keeps_its_content(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    os.link(victim, tmp_path / ".out.partial")
    write_text(tmp_path / "out", "new", force=True)
    assert victim.read_text() == "precious"
    assert (tmp_path / "out").read_text() == "new"


RACING = """
import sys
from pathlib import Path
from covcal_cli.errors import CovcalError
from covcal_cli.files import atomic_output
path, text = Path(sys.argv[1]), sys.argv[2] * 200_000
for _ in range(250):
    try:
        with atomic_output(path, force=True) as partial, partial.open("w") as handle:
            handle.write(text[:100_000])
            handle.flush()
            handle.write(text[100_000:])
    except CovcalError as error:
        assert "another process writes" in str(error), error
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs file locks")
def test_writers_that_race_leave_whole_files_alone(tmp_path: Path) -> None:
    """Whatever reads the output meanwhile sees the text of one writer, and all of it."""
    path = tmp_path / "out"
    write_text(path, "a" * 200_000, force=False)
    writers = [subprocess.Popen([sys.executable, "-c", RACING, str(path), text]) for text in "ab"]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        content = path.read_text()
        assert content == content[:1] * 200_000
        seen += 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen > 20
    assert names(tmp_path) == ["out"]


class TestTogether:
    """Outputs of one command."""

    def test_none_appears_before_all_are_whole(self, tmp_path: Path) -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        with moved_together():
            write_text(one, "1", force=False)
            assert not one.exists()
            write_text(two, "2", force=False)
        assert (one.read_text(), two.read_text()) == ("1", "2")
        assert names(tmp_path) == ["one", "two"]

    def test_one_that_fails_keeps_the_others_back(self, tmp_path: Path) -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        one.write_text("old")

        def write_both() -> None:
            with moved_together():
                write_text(one, "new", force=True)
                write_half(two, ValueError)

        with pytest.raises(ValueError, match="middle"):
            write_both()
        assert one.read_text() == "old"
        assert names(tmp_path) == ["one"]

    @pytest.mark.parametrize("old", [(), ("one",), ("two",), ("one", "two", "three")])
    def test_a_kill_at_any_moment_leaves_no_old_one_beside_a_new_one(
        self, old: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The state after each step of the system is one that a kill may leave."""
        written = ("one", "two", "three")
        for name in old:
            (tmp_path / name).write_text("old")
        states: list[set[str]] = []

        def watch(method: str) -> None:
            real = getattr(Path, method)

            def step(self: Path, *arguments: Any, **options: Any) -> Any:
                try:
                    return real(self, *arguments, **options)
                finally:
                    found = [tmp_path / name for name in written if (tmp_path / name).exists()]
                    states.append({path.read_text() for path in found})

            monkeypatch.setattr(Path, method, step)

        for method in ("replace", "unlink", "hardlink_to"):
            watch(method)
        with moved_together():
            for name in written:
                write_text(tmp_path / name, "new", force=True)
        assert len(states) > len(written)
        assert {"old", "new"} not in states
        assert names(tmp_path) == sorted(written)

    @pytest.mark.parametrize("at", [1, 2, 3])
    @pytest.mark.parametrize("links", [True, False])
    def test_a_rename_that_the_system_refuses_leaves_all_as_it_was(
        self, at: int, links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("one", "three"):
            (tmp_path / name).write_text("old")
        real, count = Path.replace, 0

        def replace(self: Path, target: Path) -> Path:
            nonlocal count
            count += self.name.endswith(".partial")
            if self.name.endswith(".partial") and count == at:
                raise OSError(errno.EIO, "input/output error", str(self))
            return real(self, target)

        def refuse(self: Path, target: Path) -> None:
            raise PermissionError(errno.EPERM, f"no links here, not to {target}", str(self))

        monkeypatch.setattr(Path, "replace", replace)
        if not links:
            monkeypatch.setattr(Path, "hardlink_to", refuse)

        def write_all() -> None:
            with moved_together():
                for name in ("one", "two", "three"):
                    write_text(tmp_path / name, "new", force=True)

        with pytest.raises(OSError, match=r"error: .*/one"):
            write_all()
        assert {name: (tmp_path / name).read_text() for name in names(tmp_path)} == {
            "one": "old",
            "three": "old",
        }


def test_an_output_that_is_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(CovcalError, match=r"one is a link that leads to itself: pass another -o"):
        write_text(tmp_path / "one", "new", force=True)


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("-a.h5", "./-a.h5"),
        ("a b.h5", "'a b.h5'"),
        ("-a b", "'./-a b'"),
        ("d/-a.h5", "d/-a.h5"),
        ("f\udcff's.h5", r"$'f\xff\x27s.h5'"),  # bytes that are no UTF-8
        ("-\x1b[1m", r"$'./-\x1b[1m'"),
    ],
)
def test_a_path_in_a_command_is_no_option(path: str, word: str) -> None:
    assert as_word(Path(path)) == word
    shown = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert Path(os.fsdecode(shown.stdout)) == Path(path)


def test_a_pipe_in_the_place_of_an_input_is_named(tmp_path: Path) -> None:
    """A pipe is not empty, and reading it might never end."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CovcalError, match=r"pipe is not a plain file"):
        require_file(tmp_path / "pipe", remedy="do this")


@pytest.mark.skipif(sys.platform == "win32", reason="signals cannot be delayed on Windows")
def test_ctrl_c_while_the_sibling_is_created_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal waits until the sibling is sure to be removed."""
    locked = files._locked

    def interrupted(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return locked(*arguments)

    monkeypatch.setattr(files, "_locked", interrupted)
    # A shell lets jobs in the background ignore Ctrl-C, tests too.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            atomic_output(tmp_path / "out.json", force=False) as partial,
        ):
            partial.write_text("never")
    finally:
        signal.signal(signal.SIGINT, handler)
    assert names(tmp_path) == []
