"""Tar shards in WebDataset's layout: keys, labels, any order of reading, damage."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from covcal_cli.arrays import ModelInput
from covcal_cli.data.classes import choose_classes, named_classes, numbered_classes
from covcal_cli.data.domain import DomainData
from covcal_cli.data.folder import TarData
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.errors import CovcalError
from tests.made_rows import opened, png, write_tar

GREY = ModelInput("x", (None, 1, 4, 4), np.dtype(np.float32))


def first_pixels(data: DomainData, rows: list[int]) -> list[int]:
    """Return the grey value of each row's image, as it was written."""
    assert data.holds_images
    pipeline = Preprocessing().resolve(GREY.shape, GREY.dtype)
    batches = list(data.batches(pipeline, np.array(rows), size=2, threads=2))
    found = np.concatenate([batch.inputs["x"] for batch in batches])
    assert np.concatenate([batch.rows for batch in batches]).tolist() == rows
    return [round(float(value) * 255) for value in found[:, 0, 0, 0]]


def test_samples_are_members_with_one_key(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "shard-0.tar",
        {
            "./0001.png": png(10),
            "./0001.cls": "2\n",
            "0002.json": {"label": 0, "url": "x"},
            "0002.thumb.png": png(20),
            "more/0001.PNG": png(30),
            "more/0001.txt": "a caption",
            "0003.cls": "1",
            "README": "no sample",
        },
    )
    data = opened(path, GREY)
    assert data.ids == ["shard-0/0001", "shard-0/0002", "shard-0/more/0001"]
    assert data.labels(numbered_classes(3)).tolist() == [2, 0, -1]
    assert data.given_split is None
    assert data.notes == (f"{path}: 1 samples without an image are left out",)
    assert first_pixels(data, [0, 1, 2]) == [10, 20, 30]
    assert first_pixels(data, [2]) == [30]


def test_labels_may_be_names(tmp_path: Path) -> None:
    members: dict[str, bytes | str] = {}
    for number, name in enumerate(("eel", "cat", "eel")):
        members |= {f"{number}.png": png(number), f"{number}.cls": name}
    data = opened(write_tar(tmp_path / "a.tar", members), GREY)
    assert data.class_folders == ("cat", "eel")
    assert data.labels(choose_classes(None, None, [data], 2)).tolist() == [1, 0, 1]
    assert data.labels(named_classes(("eel", "cow", "cat"))).tolist() == [0, 2, 0]
    with pytest.raises(CovcalError, match="label 'eel' is not a class of the model"):
        data.labels(named_classes(("cat", "cow")))


def test_a_folder_of_shards_is_read_in_order(tmp_path: Path) -> None:
    for shard in (10, 2, 1):
        members = {f"{i}.png": png(10 * shard + i) for i in range(3)}
        write_tar(tmp_path / f"s-{shard:03d}.tar", members)
    (tmp_path / "._s-001.tar").write_bytes(b"left by a Mac")
    data = opened(tmp_path, GREY)
    assert isinstance(data, TarData)
    assert data.ids[:4] == ["s-001/0", "s-001/1", "s-001/2", "s-002/0"]
    assert first_pixels(data, [0, 3, 5, 8]) == [10, 20, 22, 102]


def test_split_folders_of_shards_give_the_split(tmp_path: Path) -> None:
    for folder in ("train", "val", "test"):
        write_tar(tmp_path / folder / "0.tar", {"a.png": png(1), "a.cls": "0"})
    data = opened(tmp_path, GREY)
    assert data.ids == ["test/0/a", "train/0/a", "val/0/a"]
    assert data.given_split is not None
    assert data.given_split.tolist() == [2, 0, 1]
    write_tar(tmp_path / "stray.tar", {"a.png": png(1)})
    with pytest.raises(CovcalError, match="has shards beside its test folder: move the shards"):
        opened(tmp_path, GREY)


def test_long_names_and_pax_headers_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    for layout in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(path, "w", format=layout) as archive:
            for value in (1, 2):
                entry = tarfile.TarInfo(f"{'långt/' * 40}{value}.png")
                entry.size = len(png(value))
                archive.addfile(entry, io.BytesIO(png(value)))
        data = opened(path, GREY)
        assert data.ids == [f"a/{'långt/' * 40}{value}" for value in (1, 2)]
        assert first_pixels(data, [0, 1]) == [1, 2]


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.75])
def test_a_truncated_shard_is_named(share: float, tmp_path: Path) -> None:
    path = write_tar(tmp_path / "cut.tar", {f"{i}.png": png(i) for i in range(20)})
    whole = 20 * 1024 + 1024  # headers, images and the closing blocks, without padding
    path.write_bytes(path.read_bytes()[: int(whole * share)])
    with pytest.raises(CovcalError, match=r"cut\.tar is (cut short|not a readable \.tar file)"):
        opened(path, GREY)


def test_a_shard_cut_between_two_members_is_named(tmp_path: Path) -> None:
    """What is left is a readable archive but for its end."""
    path = write_tar(tmp_path / "cut.tar", {f"{i}.png": png(i) for i in range(4)})
    path.write_bytes(path.read_bytes()[: 2 * 1024])
    with pytest.raises(CovcalError, match=r"cut\.tar is cut short: it has 2048 bytes but needs"):
        opened(path, GREY)


def test_one_damaged_image_is_skipped_and_named(tmp_path: Path) -> None:
    """As rom1504/clip-retrieval#257 has it: one truncated image must not hang the run."""
    members = {"a.png": png(1), "b.png": png(2)[:30], "c.png": png(3)}
    data = opened(write_tar(tmp_path / "a.tar", members), GREY)
    pipeline = Preprocessing().resolve(GREY.shape, GREY.dtype)
    (batch,) = data.batches(pipeline, np.arange(3), size=3, threads=2)
    assert batch.rows.tolist() == [0, 2]
    assert [row for row, _ in batch.skipped] == [1]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.txt": "b"}, "holds no images: save each image as KEY.jpg"),
        ({"a.png": b"", "a.seg.png": b""}, r"sample a has two images \(png, seg.png\): keep only"),
        ({"a.png": b"", "a.json": "{"}, "a.json is not readable"),
        ({"a.png": b"", "a.cls": b"\xff"}, "a.cls is not readable"),
    ],
)
def test_a_shard_that_makes_no_sense_is_refused(
    members: dict[str, bytes | str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CovcalError, match=message) as caught:
        opened(write_tar(tmp_path / "odd.tar", dict(members)), GREY)
    assert "odd.tar" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_same_member_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.tar"
    with tarfile.open(path, "w") as archive:
        for value in (1, 2):
            entry = tarfile.TarInfo("a.png")
            entry.size = len(png(value))
            archive.addfile(entry, io.BytesIO(png(value)))
    with pytest.raises(
        CovcalError, match=r"twice\.tar holds a\.png twice: give each sample its own"
    ):
        opened(path, GREY)


def test_images_for_a_model_of_several_inputs_are_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"a.png": png(1)})
    with pytest.raises(CovcalError, match=r"the model has 2 inputs \(x, state\): save one array"):
        opened(path, GREY, ModelInput("state", (None, 2), np.dtype(np.float32)))


@pytest.mark.parametrize("labelled", [False, True])
def test_folders_within_a_shard_are_no_labels_and_that_is_said(
    labelled: bool, tmp_path: Path
) -> None:
    members: dict[str, bytes | str | dict[str, object]] = {
        "ant/1.png": png(1),
        "bee/1.png": png(2),
    }
    if labelled:
        members["bee/1.cls"] = "bee"
    data = opened(write_tar(tmp_path / "folders.tar", members), GREY)
    noted = any("does not read classes from folders in a .tar file" in note for note in data.notes)
    assert noted is not labelled
