"""Checksums: no flipped byte of a features or adapted file changes a number."""

import csv
import random
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import FeatureFile
from covcal_cli.formats.writer import HDF5Writer, utf8
from covcal_cli.hdf5 import ATTRIBUTES_SHA256, CRC32, File
from tests.cli_runner import covcal
from tests.made_files import edited, made_domain, write_adapted, write_features

FLIPS = 300


def read(path: Path) -> dict[str, Any]:
    """Return the values of every dataset that a file holds."""
    with FeatureFile(path) as file:
        return {name: dataset[()] for name, dataset in file.handle.datasets.items()}


def is_same(first: Any, second: Any) -> bool:
    return first.dtype == second.dtype and np.array_equal(first, second)


def fill_labels(sheet: Path, label: str) -> None:
    """Write the same label into every row of a label sheet."""
    with sheet.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with sheet.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(row | {"label": label} for row in rows)


def stored_bytes(path: Path, name: str) -> tuple[int, int]:
    """Return where a dataset lies in the file, and its size."""
    with h5py.File(path) as file:
        return file[name].id.get_offset(), file[name].nbytes


def flip(path: Path, place: int, change: int = 0xFF) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= change
    path.write_bytes(content)


def places_of_every_kind(path: Path, rng: random.Random) -> tuple[list[int], list[int]]:
    """Return random bytes: one in every dataset, and others between the datasets."""
    size = path.stat().st_size
    between = np.ones(size, dtype=bool)
    places = []
    with File(path, remedy="") as file:
        names = list(file.datasets)
    for name in names:
        start, length = stored_bytes(path, name)
        between[start : start + length] = False
        places.append(start + rng.randrange(length))
    rest = max(FLIPS // 3 - len(places), FLIPS // 6)
    return places, rng.choices(np.flatnonzero(between).tolist(), k=rest)


def test_a_flipped_byte_is_refused_or_changes_no_number(tmp_path: Path) -> None:
    """Anywhere in the file: in numbers, ids, names, types, shapes and checksums."""
    path = write_adapted(tmp_path / "a.h5")
    whole, content = read(path), path.read_bytes()
    rng = random.Random(2)
    refused = set()
    in_datasets, between = places_of_every_kind(path, rng)
    for place in in_datasets + between:
        damaged, change = bytearray(content), 1 << rng.randrange(8)
        damaged[place] ^= change
        path.write_bytes(damaged)
        try:
            values = read(path)
        except CovcalError:
            refused.add(place)
            continue
        # A dataset that lost its name is missing, and is refused by the command that needs it.
        changed = [
            name for name in values if name in whole and not is_same(values[name], whole[name])
        ]
        assert not changed, (place, change)
    assert refused.issuperset(in_datasets)


@pytest.mark.parametrize("old", [b"\x00\x00", b"\xff\xff", b"\x80\x3f", None])
@pytest.mark.parametrize("new", [b"\x00\x00", b"\xff\xff"])
def test_overwritten_words_are_refused(old: bytes | None, new: bytes, tmp_path: Path) -> None:
    """Also words that are equal modulo 65535: a label -1 that became 0, or an erased sector.

    Without `old`, all words of a dataset are overwritten.
    """
    path, other, n_changed = write_adapted(tmp_path / "a.h5"), tmp_path / "other.h5", 0
    content = path.read_bytes()
    for name in read(path):
        place, size = stored_bytes(path, name)
        before = content[place : place + size]
        after = before.replace(old, new) if old else (new * size)[:size]
        other.write_bytes(content[:place] + after + content[place + size :])
        if after != before:
            n_changed += 1
            with pytest.raises(CovcalError, match=rf"other\.h5: /{name} was changed after cov"):
                read(other)
    assert n_changed or old == new


@pytest.mark.parametrize("rows", [10, 300_000])
def test_chunks_that_were_written_as_zeros_are_read(rows: int, tmp_path: Path) -> None:
    """Labels of one class, also a copy of them, and rows that come in blocks of any size."""
    path, copied = tmp_path / "a.h5", tmp_path / "b.h5"
    labels = np.zeros(rows, dtype=np.int64)
    labels[-1:] = 1 if rows > 10 else 0
    with HDF5Writer(path, schema="x/1", classes=["a"], attributes={}) as writer:
        writer.write("labels", labels)
        writer.allocate("blocks", (rows, 2))
        for start in range(0, rows, 7001):
            writer.fill("blocks", np.zeros((min(7001, rows - start), 2)))
        writer.complete()
    with (
        File(path, remedy="") as file,
        HDF5Writer(copied, schema="x/1", classes=[], attributes={}) as w,
    ):
        w.copy("labels", file["labels"])
        w.complete()
    for written in (path, copied):
        with File(written, remedy="") as file:
            assert is_same(file["labels"][()], labels)
    with File(path, remedy="") as file:
        assert not file["blocks"][()].any()


class TestRightChecksumsOfOtherNumbers:
    """Chunks that were exchanged or rewritten, with checksums that fit the numbers."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        rows = np.arange(262_144, dtype=np.float32)
        with HDF5Writer(tmp_path / "a.h5", schema="s", classes=["a"], attributes={"seed": 1}) as w:
            for name, values in (("source/x", rows), ("target/x", -rows), ("target/y", rows[::-1])):
                w.write(name, values)
            w.complete()
        return tmp_path / "a.h5"

    @pytest.mark.parametrize(
        "pair", [("source/x 0", "target/x 0"), ("target/x 0", "target/x 1"), ("source/x 0",) * 2]
    )
    def test_exchanged_chunks(self, pair: tuple[str, str], path: Path) -> None:
        """Between two datasets, and within a dataset."""
        content, places = bytearray(path.read_bytes()), []
        for name, number in (text.split() for text in pair):
            place, size = stored_bytes(path, name)
            places.append(slice(start := place + int(number) * size // 2, start + size // 2))
        first, second = places
        content[first], content[second] = content[second], content[first]
        path.write_bytes(content)
        if first == second:
            assert len(read_all(path)) == 4
            return
        with pytest.raises(CovcalError, match=r"/x was changed after covcal .*make it again"):
            read_all(path)

    @pytest.mark.parametrize(
        "name", ["source/x", "target/y", "classes", "attributes", "groups", "new"]
    )
    def test_a_file_that_another_program_changed(self, name: str, path: Path) -> None:
        """The message names the attribute to delete if the change is wanted."""
        with h5py.File(path, "r+") as file:
            if name == "attributes":
                file.attrs["seed"] = 2
            elif name == "new":
                del file["target/x"]
                file["target/x"] = np.zeros(262_144, dtype=np.float32)
            elif name == "groups":
                file.move("source", "old")
                file.move("target", "source")
            else:
                file[name][-1:] = file[name][:1] if name != "classes" else b"b"
        with pytest.raises(
            CovcalError,
            match=r"changed after covcal wrote|has no attribute",
        ):
            read_all(path)
        with edited(path):
            pass
        assert read_all(path)


def read_all(path: Path) -> dict[str, Any]:
    with File(path, remedy="") as file:
        return {name: dataset[()] for name, dataset in file.datasets.items()}


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with features, a calibration and a filled label sheet; not to be changed."""
    folder = tmp_path_factory.mktemp("whole")
    write_features(folder / "features.h5")
    covcal("calibrate", "--method", "temp", cwd=folder).require_success()
    covcal("pick", "features.h5", "-n", 9, "-o", "sheet.csv", cwd=folder).require_success()
    fill_labels(folder / "sheet.csv", "class 0")
    return folder


@pytest.mark.parametrize(
    "name", ["target/logits", "source/features", "target/labels", "target/split", "target/ids"]
)
def test_every_command_refuses_a_flipped_byte(name: str, whole_files: Path, tmp_path: Path) -> None:
    """Also the commands that would copy it into another file; no output is left."""
    shutil.copytree(whole_files, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "features.h5"
    place, size = stored_bytes(path, name)
    flip(path, place + size // 2)
    before = sorted(tmp_path.iterdir())
    reads = {
        "estimate": (),
        "apply": ("-c", "cal.json", "-o", "new.csv"),
        "label": ("sheet.csv", "-o", "new.h5"),
    }
    refused = 0
    for command, options in reads.items():
        done = covcal(command, "features.h5", *options, cwd=tmp_path)
        if done.code == 0:  # it does not read this dataset
            assert command in ("estimate", "apply")
            assert name not in ("target/logits", "target/split")
            for written in set(tmp_path.iterdir()) - set(before):
                written.unlink()
            continue
        refused += 1
        line = done.error_line()
        assert line.startswith(f"features.h5: /{name} was changed after"), line
        assert sorted(tmp_path.iterdir()) == before
    assert refused


def test_copies_get_checksums_of_their_own(tmp_path: Path) -> None:
    """A file from elsewhere may have none."""
    path = write_features(tmp_path / "a.h5")
    bare = tmp_path / "bare.h5"
    with h5py.File(path) as old, h5py.File(bare, "w") as new:
        for name in old.attrs.keys() - {ATTRIBUTES_SHA256}:
            new.attrs[name] = old.attrs[name]
        with File(path, remedy="") as file:
            for name, dataset in file.datasets.items():
                new[name] = dataset[()]
    with HDF5Writer(tmp_path / "copy.h5", schema="s", classes=["a"], attributes={}) as writer:
        with FeatureFile(bare) as file:
            for name, dataset in file.handle.datasets.items():
                if name != "classes":
                    writer.copy(name, dataset)
        writer.complete()
    copied, values = read_all(tmp_path / "copy.h5"), read(path)
    del copied["classes"], values["classes"]
    with h5py.File(tmp_path / "copy.h5") as copy, h5py.File(path) as old:
        for name in values:
            assert is_same(copied[name], values[name])
            assert is_same(copy[name].attrs[CRC32], old[name].attrs[CRC32])


@pytest.mark.parametrize(
    ("shape", "axis"), [((70_000, 3), 0), ((3, 50_000, 4), 1), ((300_000,), 0)]
)
def test_rows_are_cut_into_blocks_and_come_back(
    shape: tuple[int, ...], axis: int, tmp_path: Path
) -> None:
    """Whatever blocks they are written in."""
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    path = tmp_path / "a.h5"
    with HDF5Writer(path, schema="s", classes=["a"], attributes={}) as writer:
        writer.allocate("x", shape, axis=axis)
        for start in range(0, shape[axis], 9_999):
            rows = np.take(values, range(start, min(start + 9_999, shape[axis])), axis=axis)
            writer.fill("x", rows)
        writer.write("nothing", np.empty((0, 4)))
        writer.write("number", np.array(3))
        writer.complete()
    with File(path, remedy="") as file:
        blocks = file["x"].chunks
    assert 128 << 10 < np.prod(blocks) * 4 <= 512 << 10
    assert [blocks[i] for i in range(len(shape)) if i != axis] == [
        shape[i] for i in range(len(shape)) if i != axis
    ]
    with File(path, remedy="") as file:
        assert is_same(file["x"][()], values)
        assert file["nothing"].shape == (0, 4)
        assert file["number"][()] == 3


class TestUnwritten:
    """Rows that nobody wrote read as zeros, and are refused."""

    def test_a_dataset_that_grew_without_being_written(self, tmp_path: Path) -> None:
        """Within its last chunk, where HDF5 has nothing to miss."""
        path = tmp_path / "a.h5"
        write_features(path)
        with edited(path) as file:
            for name, dataset in list(file["target"].items()):
                values, shape = dataset[()], dataset.shape
                del file["target"][name]
                more = (None, *shape[1:])
                file["target"].create_dataset(
                    name, data=values, maxshape=more, chunks=(4000, *shape[1:]), fletcher32=True
                )
                file["target"][name].resize(shape[0] + 50, axis=0)
        line = covcal("estimate", path).error_line()
        assert "is not final, so some rows may be missing" in line

    def test_rows_that_are_missing(self, tmp_path: Path) -> None:
        with HDF5Writer(tmp_path / "a.h5", schema="s", classes=["a"], attributes={}) as writer:
            writer.allocate("x", (300_000,))
            writer.fill("x", np.ones(200_000, np.float32))
            with pytest.raises(ValueError, match="200000 of 300000 rows were written"):
                writer.complete()


def test_numbers_in_another_order_of_bytes(tmp_path: Path) -> None:
    """A flipped bit of the type would exchange the bytes of every number."""
    domain = made_domain("target")
    domain["logits"] = domain["logits"].astype(">f4")
    path = write_features(tmp_path / "b.h5", target=domain)
    with pytest.raises(CovcalError, match="/target/logits is damaged"):
        FeatureFile(path)


def test_ids_are_kept_as_bytes(tmp_path: Path) -> None:
    """Fixed-length texts have checksums too."""
    with HDF5Writer(tmp_path / "a.h5", schema="s", classes=["a"], attributes={}) as writer:
        writer.write("ids", utf8(["ä", "b"]))
        writer.complete()
    place, _ = stored_bytes(tmp_path / "a.h5", "ids")
    shutil.copy(tmp_path / "a.h5", tmp_path / "b.h5")
    flip(tmp_path / "b.h5", place, 1)
    with File(tmp_path / "a.h5", remedy="") as file:
        assert file["ids"].texts() == ["ä", "b"]
    with File(tmp_path / "b.h5", remedy="") as file, pytest.raises(CovcalError, match="/ids"):
        file["ids"].texts()
