"""What a command picks by itself belongs together; what is named may be anything, with a note."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from covcal_cli.labels.draws import Batch, Draw
from tests.classifiers.onnx.onnx_graphs import SIDE, grey_classifier
from tests.cli_runner import covcal
from tests.made_files import edited, put_in
from tests.short_training import short_training

STALE = "was not made from"
DRAW = Draw(
    rows=np.array([0, 1]),
    inclusion=np.array([0.5, 0.25]),
    batch=np.zeros(2, dtype=np.int64),
    stratum=np.array([0, 1]),
    labels=np.array([1, 2]),
    batches=(Batch(2, 150, 0, ("train", "validation", "test"), "confidence"),),
)


def extract(folder: Path, seed: int, name: str = "features.h5") -> None:
    """Extract made arrays of that seed, replacing what was extracted before."""
    rng = np.random.default_rng(seed)
    for domain, count in (("source", 200), ("target", 150)):
        x = rng.integers(0, 256, (count, SIDE, SIDE), dtype=np.uint8)
        np.savez(folder / f"{domain}.npz", x=x, y=np.arange(count) % 3)
    arguments = ("model.onnx", "source.npz", "target.npz", "-o", name, "-f", "-q")
    covcal("extract", *arguments, cwd=folder).require_success()


def adapt(folder: Path, features: str = "features.h5", adapted: str = "adapted.h5") -> None:
    with short_training(20):
        arguments = (features, "-o", adapted, "--members", 1, "-f", "-q")
        covcal("adapt", *arguments, cwd=folder).require_success()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the bare commands leave: not to be changed."""
    folder = tmp_path_factory.mktemp("lineage")
    grey_classifier(folder)
    extract(folder, 0)
    adapt(folder)
    covcal("calibrate", "--method", "temp", "-q", "--force", cwd=folder).require_success()
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "work"))


BARE = {
    "calibrate": ("calibrate", "-o", "new.json"),
    "estimate": ("estimate",),
    "apply": ("apply", "-o", "new.csv"),
    "evaluate": ("evaluate", "-o", "metrics.json"),
    "report": ("report", "-o", "new.html"),
    "export": ("export", "model.onnx", "-o", "new.onnx"),
}


def require_in_order(folder: Path) -> None:
    """Require that no command which picks its files finds fault with them."""
    for command in BARE.values():
        done = covcal(*command, cwd=folder).require_success()
        assert STALE not in done.err
        assert "has changed" not in done.err


def test_labels_for_calibration_make_nothing_stale(folder: Path) -> None:
    """Files that hold labels now are still what the others were made from, and of."""
    for name in ("features.h5", "adapted.h5"):
        put_in(folder / name, DRAW)
    require_in_order(folder)
    assert "changed" not in covcal("inspect", "cal.json", cwd=folder).require_success().out


def test_a_new_extraction_makes_its_neighbour_stale(folder: Path) -> None:
    """Yesterday's adapted.h5 is not read in the place of today's features.h5."""
    extract(folder, 1)
    before = sorted(folder.iterdir())
    for command in BARE.values():
        line = covcal(*command, cwd=folder).error_line()
        assert line.startswith(
            "adapted.h5 was not made from the current features.h5: run covcal adapt"
        )
        assert sorted(folder.iterdir()) == before
    # The remedy works, from the first step on.
    adapt(folder)
    covcal("calibrate", "--method", "temp", "-f", cwd=folder).require_success()
    for name in ("estimate", "apply", "export"):
        covcal(*BARE[name], cwd=folder).require_success()


def test_a_calibration_of_an_earlier_file(folder: Path) -> None:
    """Where all was made anew but cal.json, it is not picked; named, it is taken."""
    extract(folder, 1)
    adapt(folder)
    before = sorted(folder.iterdir())
    for command in ("apply", "evaluate", "report", "export"):
        bare = BARE[command]
        line = covcal(*bare, cwd=folder).error_line()
        assert line.startswith("adapted.h5 has changed since cal.json was fitted on it")
        if command in ("apply", "report"):  # which pick cal.json beside a file, too
            assert "has changed since" in covcal(*bare, "adapted.h5", cwd=folder).error_line()
        named = (*bare, "-c", "cal.json", *([] if command == "export" else ["adapted.h5"]))
        done = covcal(*named, cwd=folder).require_success()
        told = (
            "and 256 that the calibration was fitted on" if command == "export" else "has changed"
        )
        assert (told in done.err) == (command != "export")
        assert "that the calibration was fitted on" not in done.out
        for path in set(folder.iterdir()) - set(before):
            path.unlink()


def test_files_of_any_name_and_age(folder: Path) -> None:
    """The file that an adapted one names counts too; without a content hash, the file's own."""
    extract(folder, 0, "a.h5")
    with edited(folder / "a.h5") as file:
        del file.attrs["content_sha256"]  # as in a file of an old version
    adapt(folder, "a.h5", "b.h5")
    covcal("calibrate", "b.h5", "--method", "temp", "-f", cwd=folder).require_success()
    covcal("apply", "-o", "p.csv", cwd=folder).require_success()
    extract(folder, 1, "a.h5")
    line = covcal("apply", "-o", "p.csv", "-f", cwd=folder).error_line()
    assert line.startswith("b.h5 was not made from the current a.h5: run covcal adapt")
    assert line.endswith("or pass b.h5 -c cal.json to apply this file anyway")


NAMED: dict[str, Callable[[str], tuple[str | int, ...]]] = {
    "calibrate": lambda file: ("calibrate", file, "--method", "temp", "-o", "new.json"),
    "estimate": lambda file: ("estimate", file),
    "apply": lambda file: ("apply", file, "-c", "cal.json"),
    "evaluate": lambda file: ("evaluate", file, "-c", "cal.json"),
    "report": lambda file: ("report", file, "-c", "cal.json"),
    "inspect": lambda file: ("inspect", file),
}


def test_a_file_that_is_named_is_read_with_a_note(folder: Path) -> None:
    def outputs() -> dict[str, str]:
        """Return what each command says that names the adapted file."""
        said = {}
        for command, arguments in NAMED.items():
            force = ("-f",) if command in ("calibrate", "apply", "report") else ()
            done = covcal(*arguments("adapted.h5"), *force, cwd=folder).require_success()
            said[command] = done.err + done.out
        return said

    assert not any(STALE in text for text in outputs().values())
    extract(folder, 1)
    for command, text in outputs().items():
        assert f"adapted.h5 {STALE} the current features.h5" in text, command


def test_the_same_content_is_the_same(folder: Path) -> None:
    """An extraction that is repeated, or moved with what was made from it, changes nothing."""
    extract(folder, 0)
    covcal("estimate", cwd=folder).require_success()
    moved = folder.rename(folder.with_name("elsewhere"))
    covcal("estimate", cwd=moved).require_success()
    covcal("apply", cwd=moved).require_success()


def test_shards_have_the_content_of_a_whole(folder: Path) -> None:
    """What is merged is what one run extracts, to the hash that tells it from others."""
    parts = [f"part{i}.h5" for i in (1, 2)]
    for i, part in enumerate(parts, 1):
        arguments = ("model.onnx", "source.npz", "target.npz", "--shard", f"{i}/2", "-o", part)
        covcal("extract", *arguments, cwd=folder).require_success()
    covcal("merge", *parts, "-f", cwd=folder).require_success()
    covcal("estimate", cwd=folder).require_success()


def test_inspect_tells_what_has_changed(folder: Path) -> None:
    out = covcal("inspect", "cal.json", cwd=folder).require_success().out
    assert "changed since then" not in out
    assert "(not found)" not in out
    extract(folder, 1)
    adapt(folder)
    assert "changed since then" in covcal("inspect", "cal.json", cwd=folder).out
    (folder / "adapted.h5").unlink()
    assert "(not found)" in covcal("inspect", "cal.json", cwd=folder).out


def test_inspect_finds_a_renamed_calibration_by_its_hash(folder: Path) -> None:
    covcal("decide", "--error", "0.9", cwd=folder).require_success()
    (folder / "cal.json").rename(folder / "first.json")
    for name in ("first.json", "cal.json"):
        (folder / name).touch()  # without the file, then with a namesake
        out = covcal("inspect", "decide.json", cwd=folder).require_success().out
        assert "(now called first.json)" in out
        assert " -c first.json --decide decide.json  # writes the decision for every row" in out
    # The next step names only files that are there.
    (folder / "first.json").unlink()
    assert "next" not in covcal("inspect", "decide.json", cwd=folder).require_success().out
