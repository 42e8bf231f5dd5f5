"""HDF5 files of any origin: what they name elsewhere is not read, and damage is one line."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from covcal_cli.errors import CovcalError
from covcal_cli.hdf5 import Dataset, File, Group
from tests.cli_runner import covcal
from tests.made_files import edited

ROWS = 300


def external_link(file: Any, name: str) -> None:
    file[name] = h5py.ExternalLink("other.h5", "/x")


def soft_link(file: Any, name: str) -> None:
    file[name] = h5py.SoftLink("/somewhere/else")


def external_storage(file: Any, name: str) -> None:
    file.create_dataset(name, shape=(8,), dtype="u1", external=[("/etc/hostname", 0, 8)])


def virtual(file: Any, name: str) -> None:
    layout = h5py.VirtualLayout(shape=(4, 3), dtype="f4")
    layout[:] = h5py.VirtualSource("gone.h5", "x", shape=(4, 3))
    file.create_virtual_dataset(name, layout)


def unwritten(file: Any, name: str) -> None:
    file.create_dataset(name, shape=(4, 3), dtype="f4")


def half_written(file: Any, name: str) -> None:
    file.create_dataset(name, shape=(40, 3), chunks=(10, 3), dtype="f4")[:10] = 1


def bomb(file: Any, name: str) -> None:
    made = file.create_dataset(
        name, shape=(3000, 1 << 20), chunks=(1, 1 << 20), dtype="u1", compression="gzip"
    )
    packed = made.id
    made[0] = 0
    _, content = packed.read_direct_chunk((0, 0))
    for row in range(1, 3000):
        packed.write_direct_chunk((row, 0), content)


MAKERS: dict[Callable[[Any, str], None], str] = {
    external_link: r"is a link to other\.h5:/x, but covcal does not follow links",
    soft_link: "is a link to /somewhere/else, but covcal does not follow links",
    external_storage: "is stored in another file, but covcal reads only values in the file itself",
    virtual: "is virtual, but covcal reads only values in the file itself",
    unwritten: "was not written completely",
    half_written: "was not written completely",
    bomb: r"needs 3\.1 GB, but only \d+ bytes are stored",
}


@pytest.mark.parametrize("name", ["x", "deep/in/x"])
@pytest.mark.parametrize("make", MAKERS)
def test_what_is_elsewhere_or_nowhere(
    make: Callable[[Any, str], None], name: str, tmp_path: Path
) -> None:
    """An array outside the file, or never written, is refused at opening, wherever it is."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        make(file, name)
    with pytest.raises(CovcalError, match=f"a.h5: /{name} {MAKERS[make]}"):
        File(path, remedy="make it")


def replaced(path: Path, name: str, make: Callable[[Any, str], None]) -> None:
    with edited(path) as file:
        del file[name]
        make(file, name)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *((external_link, "target/logits"), (soft_link, "target/ids"), (virtual, "source/labels")),
        *((external_storage, "target/ids"), (unwritten, "target/logits")),
    ],
)
def test_every_command_refuses_it(
    make: Callable[[Any, str], None], name: str, adapted: Path, small_files: Path
) -> None:
    """No number comes of it and no file is written."""
    folder = adapted.parent
    shutil.copy(small_files / "fl+temp.json", folder / "cal.json")
    replaced(adapted, name, make)
    before = sorted(folder.iterdir())
    for command in (
        ("inspect", "adapted.h5"),
        ("calibrate", "adapted.h5", "-o", "new.json"),
        ("estimate", "adapted.h5"),
        ("evaluate", "adapted.h5", "-c", "cal.json"),
        ("apply", "adapted.h5", "-c", "cal.json", "-o", "-"),
        ("report", "adapted.h5", "-c", "cal.json", "-o", "new.html"),
        ("merge", "adapted.h5", "-o", "new.h5"),
    ):
        line = covcal(*command, cwd=folder).error_line()
        assert line.startswith(f"adapted.h5: /{name} ")
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("make", [external_link, soft_link, external_storage, virtual, unwritten])
def test_data_of_others_refuses_it_too(
    make: Callable[[Any, str], None], digits: Path, tmp_path: Path
) -> None:
    """Ids of another file do not come to lie in ours."""
    shutil.copy(digits / "digits.onnx", tmp_path)
    with np.load(digits / "target.npz") as data, h5py.File(tmp_path / "t.h5", "w") as file:
        for name in set(data) - {"id"}:
            file[name] = data[name] if data[name].dtype.kind != "U" else data[name].astype("S")
        make(file, "id")
    line = covcal("extract", "digits.onnx", "--target", "t.h5", cwd=tmp_path).error_line()
    assert line.startswith("t.h5: /id ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits.onnx", "t.h5"]


def test_a_group_within_itself_ends(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a/x"] = [1, 2]
        file["a/again"] = file["a"]
        file["b"] = file["a/x"]
    with File(tmp_path / "a.h5", remedy="make it") as found:
        assert list(found.datasets) == ["a/x"]
        assert found["a/again/again/x"][:].tolist() == [1, 2]


@pytest.mark.parametrize("byte", [0x00, 0xFF])
def test_a_heap_that_never_ends_is_refused(byte: int, features: Path) -> None:
    """HDF5 would read texts of size 0 or beyond the heap forever."""
    content = bytearray(features.read_bytes())
    start = content.index(b"GCOL") + 16
    content[start : start + 16] = bytes([byte] * 16)
    features.write_bytes(content)
    for command in ("inspect", "evaluate", "calibrate"):
        done = covcal(command, features.name, cwd=features.parent)
        assert "is not a readable HDF5 file" in done.error_line()


def test_wrong_kinds_are_named(tmp_path: Path) -> None:
    """A group in a dataset's place, a dataset in a group's, and nothing at all."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g/x"] = [1, 2]
        file["t"] = np.array([b"a", b"\xff"])
        file.attrs["schema"] = np.arange(3)
    with File(tmp_path / "a.h5", remedy="make it") as found:
        assert isinstance(found["g"], Group)
        assert isinstance(found["g/x"], Dataset)
        assert dict(found.attrs) == {}
        for read, words in (
            (lambda: found["g"][:], "/g is a group, not a dataset"),
            (lambda: found["g/x"]["y"], "/g/x is a dataset, not a group"),
            (lambda: found["z"], "/z is missing"),
            (lambda: found["t"].texts(), "/t is not UTF-8"),
            (lambda: found["g/x"].texts(), "/g/x is not a list of texts"),
        ):
            with pytest.raises(CovcalError, match=words):
                read()


@pytest.mark.parametrize("seed", range(8))
def test_random_damage_is_one_line(seed: int, adapted: Path, small_files: Path) -> None:
    """Bytes overwritten, most of them where the structure of the file is told."""
    rng = np.random.default_rng(seed)
    content = bytearray(adapted.read_bytes())
    marks = [b"TREE", b"HEAP", b"SNOD", b"OHDR", b"GCOL"]
    at = [i for mark in marks for i in _places(content, mark)] + [96, 800]
    for _ in range(int(rng.integers(1, 12))):
        start = int(rng.choice(at)) + int(rng.integers(0, 120))
        if start < len(content):
            content[start] = int(rng.integers(0, 256))
    adapted.write_bytes(content)
    shutil.copy(small_files / "fl+temp.json", adapted.parent / "cal.json")
    for command in (("inspect",), ("evaluate", "-c", "cal.json"), ("calibrate", "-f")):
        done = covcal(command[0], "adapted.h5", *command[1:], cwd=adapted.parent)
        assert done.code in (0, 1)
        assert "this is a bug" not in done.err
        if done.code:
            done.error_line()


def _places(content: bytearray, mark: bytes) -> list[int]:
    found, start = [], 0
    while (start := content.find(mark, start)) >= 0:
        found.append(start)
        start += 1
    return found


def test_labels_beyond_64_bits_are_not_unknown(features: Path) -> None:
    """2^64 - 1 is no -1."""
    with edited(features) as file:
        labels = file["source/labels"][:].astype(np.uint64)
        labels[121] = 2**64 - 1
        del file["source/labels"]
        file["source/labels"] = labels
    line = covcal("calibrate", features.name, "-o", "new.json", cwd=features.parent).error_line()
    assert "is 18446744073709551615: write 0 to" in line
