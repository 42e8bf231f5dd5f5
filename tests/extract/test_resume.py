"""``extract --resume``: whatever stops a run, the continued run gives the same bytes."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from PIL import Image

from covcal_cli.errors import CovcalError
from covcal_cli.extract import parts
from covcal_cli.extract.extract import ExtractReport, extract
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.files import sha256_of
from covcal_cli.formats.writer import HDF5Writer
from covcal_cli.progress import Progress
from tests.classifiers.onnx.onnx_graphs import SIDE, grey_classifier
from tests.cli_runner import Argument, covcal, interrupted

BATCH = 8
SOURCE_ROWS, TARGET_ROWS = 150, 50
CORRUPT = "2/0005.png"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a source folder with a corrupt image, a target, and one undisturbed run."""
    folder = tmp_path_factory.mktemp("data")
    grey_classifier(folder)
    rng = np.random.default_rng(1)
    for i in range(SOURCE_ROWS):
        path = folder / "src" / f"{i % 3}" / f"{i:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)).save(path)
    (folder / "src" / CORRUPT).write_bytes(b"<html>")
    x = rng.integers(0, 256, (TARGET_ROWS, SIDE, SIDE), dtype=np.uint8)
    np.savez(folder / "tgt.npz", x=x)
    run(data=folder, output=folder / "undisturbed.h5")
    return folder


def run(*, data: Path, output: Path, **options: Any) -> ExtractReport:
    """Extract with the settings of this module, unless `options` say otherwise."""
    inputs = (data / "model.onnx", data / "src", data / "tgt.npz")
    how = {name: options.pop(name) for name in ("force", "resume", "progress") if name in options}
    settings = ExtractSettings(**{"batch": BATCH, "threads": 1, **options})
    return extract(*inputs, output, settings, **how)


def stop_after(batches: int) -> Callable[[Progress], None]:
    """Return a progress callback that is interrupted after some batches."""
    seen: list[Progress] = []

    def progress(step: Progress) -> None:
        seen.append(step)
        if len(seen) == batches:
            raise KeyboardInterrupt

    return progress


def stopped(data: Path, output: Path, batches: int = 7, **options: Any) -> Path:
    """Interrupt a run after some batches; return its spool."""
    with pytest.raises(KeyboardInterrupt):
        run(data=data, output=output, progress=stop_after(batches), **options)
    assert not output.exists()
    return output.with_name(f".{output.name}.parts")


@pytest.fixture(scope="module")
def interrupted_run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spool of a run that was interrupted after seven batches; not to be changed."""
    return stopped(data, tmp_path_factory.mktemp("stopped") / "f.h5")


@pytest.fixture
def spool(interrupted_run: Path, tmp_path: Path) -> Path:
    """A copy of the interrupted run's spool that a test may change."""
    return Path(copytree(interrupted_run, tmp_path / interrupted_run.name))


def require_same(data: Path, output: Path) -> None:
    """Require the bytes of the undisturbed run, and nothing beside them."""
    assert sha256_of(output) == sha256_of(data / "undisturbed.h5")
    assert not list(output.parent.glob(f".{output.name}*"))


KILLED_AT_RANDOM = textwrap.dedent(
    """
    import os, random, signal, sys, time
    from pathlib import Path
    import onnxruntime
    from covcal_cli.extract.extract import ExtractSettings, extract

    model, source, target, output = map(Path, sys.argv[1:5])
    moments = random.Random(int(sys.argv[5]))
    kills = 0
    while True:
        child = os.fork()
        if not child:
            extract(model, source, target, output, ExtractSettings(batch=8, threads=1),
                    resume=True, progress=lambda step: time.sleep(0.004))
            os._exit(0)
        if kills < 12:
            time.sleep(moments.uniform(0, 0.15))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if status == 0:
            print(kills)
            break
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        kills += 1
    """
)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.campaign
def test_killed_at_random_moments_and_resumed(seed: int, data: Path, tmp_path: Path) -> None:
    """SIGKILL after SIGKILL, and still the bytes of one undisturbed run."""
    output = tmp_path / "f.h5"
    paths = [str(data / name) for name in ("model.onnx", "src", "tgt.npz")]
    command = [sys.executable, "-c", KILLED_AT_RANDOM, *paths, str(output), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) >= 2
    require_same(data, output)


def test_only_the_rows_left_are_run(data: Path, tmp_path: Path) -> None:
    """Seven batches of eight were done; the eighth is the first that is run again."""
    output = tmp_path / "f.h5"
    stopped(data, output)
    seen: list[Progress] = []
    report = run(data=data, output=output, resume=True, progress=seen.append)
    assert [step.step for step in seen if step.stage == "source"] == [
        *range(64, SOURCE_ROWS, BATCH),
        SOURCE_ROWS,
    ]
    assert report.domains[0].skipped == (
        (CORRUPT, "this is not an image, or its format is unknown"),
    )
    require_same(data, output)


@pytest.mark.parametrize(
    ("name", "left"),
    [("source.features", 0.0), ("source.features", 0.98), ("source.logits", 0.51)]
    + [("source.journal", left) for left in (0.0, 0.3, 0.98)],
)
def test_torn_files_are_cut_back_to_the_last_whole_batch(
    name: str, left: float, data: Path, spool: Path
) -> None:
    """Whatever part of a file reached the disk, the rest is done again."""
    output, torn = spool.with_name("f.h5"), spool / name
    content = torn.read_bytes()
    torn.write_bytes(content[: int(left * len(content))])
    seen: list[Progress] = []
    run(data=data, output=output, resume=True, progress=seen.append)
    assert seen[0].step <= 56
    require_same(data, output)


def test_a_batch_that_reached_the_disk_wrong_is_done_again(data: Path, tmp_path: Path) -> None:
    """After a power cut a file can have its length and not its content."""
    output = tmp_path / "f.h5"
    path = stopped(data, output) / "source.features"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    run(data=data, output=output, resume=True)
    require_same(data, output)


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        (0, []),
        (3, None),
        (0, {}),
        (0, {"done": "8", "kept": 8, "crc": 0, "skipped": [], "affine": 0.0}),
        (3, {"done": 8, "kept": 8, "crc": 0, "skipped": {}, "affine": 0.0}),
        (3, {"done": 10**15, "kept": 10**15, "crc": 0, "skipped": [], "affine": 0.0}),
        (3, {"done": 8, "kept": 8, "crc": 0, "skipped": [], "affine": "0"}),
        (3, {"done": 1}),
        (0, {"affine": 1.0}),
        (0, {"skipped": [[3, "not so"]]}),
    ],
    ids=str,
)
def test_a_line_of_the_journal_that_is_not_as_it_was_is_done_again(
    line: int, entry: Any, data: Path, spool: Path
) -> None:
    """The line is other JSON, or one digit changed its counts, so they differ from the numbers."""
    output, path = spool.with_name("f.h5"), spool / "source.journal"
    lines = path.read_text().splitlines()
    if isinstance(entry, dict) and len(entry) == 1:
        known = json.loads(lines[line])
        more = {name: known[name] + value for name, value in entry.items()}
        entry = {**known, **more}
    lines[line] = json.dumps(entry)
    path.write_text("\n".join(lines) + "\n")
    run(data=data, output=output, resume=True)
    require_same(data, output)


def test_counts_that_do_not_add_up_are_not_believed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every finished row was run or skipped, even if the checksum of the line is right."""
    monkeypatch.setattr(parts, "_with_entry", lambda checksum, *_: checksum)
    output = tmp_path / "f.h5"
    path = stopped(data, output) / "source.journal"
    lines = path.read_text().splitlines()
    entry = json.loads(lines[-1])
    lines[-1] = json.dumps(entry | {"done": entry["done"] + 1})
    path.write_text("\n".join(lines) + "\n")
    run(data=data, output=output, resume=True)
    require_same(data, output)


@pytest.mark.parametrize("batches", [1, 19, 20])
def test_between_the_domains_too(batches: int, data: Path, tmp_path: Path) -> None:
    """The source takes 19 batches; a run that stopped there continues with the target."""
    output = tmp_path / "f.h5"
    stopped(data, output, batches)
    run(data=data, output=output, resume=True)
    require_same(data, output)


def test_stopped_while_the_output_was_written(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row was run already; the file is written from what is kept."""
    output = tmp_path / "f.h5"

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(HDF5Writer, "complete", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(data=data, output=output)
    seen: list[Progress] = []
    run(data=data, output=output, resume=True, progress=seen.append)
    assert seen == []
    require_same(data, output)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 4}, r"--seed was 0 and is now 4"),
        ({"batch": 16}, r"--batch was 8 and is now 16"),
        (
            {"fractions": (0.5, 0.3, 0.2)},
            r"--fractions was \[\[0\.6, 0\.4, 0\.0\], .* and is now \[\[0\.5",
        ),
        ({"threads": 2}, r"--threads was 1 and is now 2"),
    ],
)
def test_other_settings_are_refused(
    options: dict[str, Any], message: str, data: Path, spool: Path
) -> None:
    """What differs is named with both values, and what was done is kept."""
    output = spool.with_name("f.h5")
    with pytest.raises(CovcalError, match=f"had other settings.*{message}.*leave out --resume"):
        run(data=data, output=output, resume=True, **options)
    assert spool.is_dir()
    run(data=data, output=output, resume=True)
    require_same(data, output)


def test_other_data_and_another_model_are_refused(data: Path, tmp_path: Path) -> None:
    """A row more, or other weights: the numbers so far would not belong to the rest."""
    copy = tmp_path / "copy"
    copy.mkdir()
    grey_classifier(copy)
    for path in (data / "src").rglob("*.png"):
        (copy / path.relative_to(data)).parent.mkdir(parents=True, exist_ok=True)
        (copy / path.relative_to(data)).write_bytes(path.read_bytes())
    (copy / "tgt.npz").write_bytes((data / "tgt.npz").read_bytes())
    output = tmp_path / "f.h5"
    stopped(copy, output)
    first = copy / "src" / "0" / "0000.png"
    first.rename(first.with_name("new.png"))
    with pytest.raises(CovcalError, match=r"source was sha256 .* and is now sha256"):
        run(data=copy, output=output, resume=True)
    first.with_name("new.png").rename(first)
    model = bytearray((copy / "model.onnx").read_bytes())
    grey_classifier(copy, n_classes=4)
    with pytest.raises(CovcalError, match=r"model was sha256 .* and is now sha256"):
        run(data=copy, output=output, resume=True)
    (copy / "model.onnx").write_bytes(model)
    run(data=copy, output=output, resume=True)


def test_without_resume_the_run_starts_anew_and_says_so(data: Path, tmp_path: Path) -> None:
    """What was left behind is no obstacle, and no silent saving either."""
    output = tmp_path / "f.h5"
    stopped(data, output)
    seen: list[Progress] = []
    report = run(data=data, output=output, progress=seen.append)
    assert seen[0].step == BATCH
    assert any("To keep the rows of a stopped run, pass --resume" in note for note in report.notes)
    require_same(data, output)


def test_nothing_to_resume_is_noted(data: Path, tmp_path: Path) -> None:
    """A job script may always pass --resume."""
    report = run(data=data, output=tmp_path / "f.h5", resume=True)
    assert any("this run starts from the first row" in note for note in report.notes)
    require_same(data, tmp_path / "f.h5")


def test_an_error_keeps_what_was_done_only_for_resume(data: Path, tmp_path: Path) -> None:
    """Without --resume an error leaves nothing behind."""

    def fail(step: Progress) -> None:
        if step.step > 3 * BATCH:
            raise CovcalError("half way")

    output = tmp_path / "f.h5"
    with pytest.raises(CovcalError, match="half way"):
        run(data=data, output=output, progress=fail)
    assert not list(tmp_path.iterdir())
    with pytest.raises(CovcalError, match="half way"):
        run(data=data, output=output, progress=fail, resume=True)
    run(data=data, output=output, resume=True)
    require_same(data, output)


def test_the_spool_says_what_it_belongs_to(data: Path, tmp_path: Path) -> None:
    """Its config names the model, the rows and the options in words."""
    spool = stopped(data, tmp_path / "f.h5")
    config = json.loads((spool / "config.json").read_text())
    assert config["model"] == sha256_of(data / "model.onnx")
    assert (config["--batch"], config["--seed"], config["rows"]) == (BATCH, 0, "all")


def test_ctrl_c_on_the_command_line(data: Path, tmp_path: Path) -> None:
    """Exit 130, the words --resume, and a second command that finishes the first."""
    hook = textwrap.dedent(
        """
        import sys, time
        from covcal_cli.extract.parts import DomainSpool
        append = DomainSpool.append
        def told(self, *arguments):
            append(self, *arguments)
            print('ready', file=sys.stderr, flush=True)
            time.sleep(60)
        DomainSpool.append = told
        """
    )
    inputs = [data / name for name in ("model.onnx", "src", "tgt.npz")]
    arguments: list[Argument] = ["extract", *inputs, "--batch", BATCH, "--threads", 1]
    arguments += ["-o", "f.h5"]
    code, rest = interrupted(hook, *arguments, cwd=tmp_path)
    assert code == 130
    assert (
        rest == "interrupted: the finished rows are kept beside f.h5: pass --resume to continue\n"
    )
    assert [entry.name for entry in tmp_path.iterdir()] == [".f.h5.parts"]
    covcal(*arguments, "--resume", cwd=tmp_path).require_success()
    require_same(data, tmp_path / "f.h5")
