"""Image folders: order, ids, classes by name, splits by folder or by a hash that never moves."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covcal_cli.data.classes import ClassMap, classes_from_folders, numbered_classes
from covcal_cli.data.rows import RowNumbers, SplitHashes, check_fractions, hashed_split
from covcal_cli.errors import CovcalError
from covcal_cli.formats.writer import utf8
from tests.made_rows import opened

THIRDS = (0.5, 0.25, 0.25)


def put(folder: Path, *names: str) -> Path:
    """Write a tiny grey PNG under each name; a name that ends with a slash makes a folder."""
    for name in names:
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), len(name)).save(path)
    return folder


def test_rows_are_sorted_and_hidden_or_other_files_left_out(tmp_path: Path) -> None:
    """As open-mmlab/mmpretrain#507 has it: .ipynb_checkpoints must not become class 0."""
    put(tmp_path, "b/2.png", "b/1.png", "a/sub/9.JPG", ".ipynb_checkpoints/x.png", "a/._1.png")
    put(tmp_path, "__MACOSX/b/._1.png")  # a Mac adds this folder to a zip file
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / ".DS_Store").write_text("")
    data = opened(tmp_path)
    assert data.ids == ["a/sub/9.JPG", "b/1.png", "b/2.png"]
    assert data.split_names == ["sub/9.JPG", "1.png", "2.png"]
    assert data.class_folders == ("a", "b")
    assert data.given_split is None
    assert data.notes == (f"{tmp_path}: notes.txt is not an image and is left out",)


def test_split_folders_give_the_split(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "valid/a/1.png", "val/b/2.png", "test/b/3.png", "test/4.png")
    data = opened(tmp_path)
    assert data.ids == [
        "test/4.png",
        "test/b/3.png",
        "train/a/1.png",
        "val/b/2.png",
        "valid/a/1.png",
    ]
    assert data.given_split is not None
    assert data.given_split.tolist() == [2, 2, 0, 1, 1]
    classes = ClassMap(("a", "b"), by_number=False)
    assert data.labels(classes).tolist() == [-1, 1, 0, 1, 0]


def test_a_class_called_train_beside_others_is_a_class(tmp_path: Path) -> None:
    data = opened(put(tmp_path, "bus/1.png", "train/2.png"))
    assert data.class_folders == ("bus", "train")
    assert data.given_split is None


def test_images_beside_split_folders_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "stray.png")
    with pytest.raises(CovcalError, match="has images beside its train folder"):
        opened(tmp_path)


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    data = opened(put(tmp_path, "2.png", "10.png"))
    assert data.ids == ["10.png", "2.png"]
    assert data.class_folders == ()
    assert data.labels(numbered_classes(3)).tolist() == [-1, -1]


@pytest.mark.parametrize("names", [(), ("a/", "b/")])
def test_an_empty_folder_is_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    put(tmp_path, *names)
    (tmp_path / "read.me").write_text("nothing here")
    with pytest.raises(CovcalError, match="holds no images, only 1 other files: give a folder"):
        opened(tmp_path)


def test_a_link_back_up_ends(tmp_path: Path) -> None:
    put(tmp_path, "a/1.png")
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")
    assert opened(tmp_path).ids == ["a/1.png"]


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a/1.png")
    bad = os.fsencode(tmp_path / "a") + b"/\xff.png"
    try:
        Path(os.fsdecode(bad)).write_bytes(b"")
    except OSError:
        pytest.skip("this file system has only UTF-8 names")
    with pytest.raises(CovcalError, match="not UTF-8: rename the file"):
        opened(tmp_path)


def test_a_path_that_is_no_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CovcalError, match="does not exist: give a folder of images"):
        opened(tmp_path / "none")
    (tmp_path / "x.mat").write_bytes(b"MATLAB")
    with pytest.raises(CovcalError, match="is not a kind of file that covcal reads"):
        opened(tmp_path / "x.mat")


@pytest.mark.parametrize(
    ("folders", "count", "names", "indices"),
    [
        # Numbers within 0..K-1 are the class index, whatever is missing.
        (["0", "2"], 3, ("0", "1", "2"), {"0": 0, "2": 2, "1": 1}),
        (["00", "01", "10"], 11, tuple(map(str, range(11))), {"01": 1, "1": 1, "10": 10}),
        # Other numbers are ordered as numbers, not as text (pytorch/vision#714).
        (["90", "0", "270"], 3, ("0", "90", "270"), {"270": 2, "90": 1}),
        (["1", "2", "10"], 3, ("1", "2", "10"), {"10": 2}),
        # Words are sorted.
        (["dog", "Cat", "ant"], 3, ("Cat", "ant", "dog"), {"ant": 1}),
        (["1", "b"], 2, ("1", "b"), {"b": 1}),
    ],
)
def test_classes_are_found_by_name(
    folders: list[str], count: int, names: tuple[str, ...], indices: dict[str, int]
) -> None:
    classes = classes_from_folders(Path("src"), folders, count)
    assert classes.names == names
    assert {name: classes.index(name) for name in indices} == indices


@pytest.mark.parametrize(
    ("folders", "count", "message"),
    [
        (["a", "b"], 3, r"2 class folders \(a, b\) but the model has 3 classes: add an empty"),
        (
            ["1", "2", "3"],
            2,
            r"3 class folders \(1, 2, 3\) but the model has 2 classes: put a dot before",
        ),
        (["1", "01"], 5, "two class names mean the same number"),
        ([f"c{i:02d}" for i in range(20)], 3, r"c11, and 8 more\) but the model has 3"),
    ],
)
def test_classes_that_do_not_fit_the_model_are_refused(
    folders: list[str], count: int, message: str
) -> None:
    with pytest.raises(CovcalError, match=message):
        classes_from_folders(Path("src"), folders, count)


def test_an_empty_class_folder_counts_as_a_class(tmp_path: Path) -> None:
    data = opened(put(tmp_path, "cat/1.png", "dog/1.png", "eel/"))
    assert data.class_folders is not None
    assert classes_from_folders(tmp_path, data.class_folders, 3).names == ("cat", "dog", "eel")


def test_a_class_missing_from_the_target_shifts_nothing(tmp_path: Path) -> None:
    """As ultralytics/ultralytics#13936 has it: an absent folder moves all labels after it."""
    source = ClassMap(("ant", "bee", "cat"), by_number=False)
    target = opened(put(tmp_path, "cat/1.png", "ant/1.png"))
    assert target.labels(source).tolist() == [0, 2]


def test_a_target_folder_that_is_no_class_is_named(tmp_path: Path) -> None:
    source = classes_from_folders(Path("src"), ["0", "90", "270"], 3)
    target = opened(put(tmp_path, "180/1.png", "90/1.png"))
    with pytest.raises(
        CovcalError, match=r"folder '180' is not a class of the source \(0, 90, 270\)"
    ):
        target.labels(source)


def test_labelling_or_adding_files_moves_no_row(tmp_path: Path) -> None:
    flat = opened(put(tmp_path / "flat", *(f"{i}.png" for i in range(60))))
    labelled = opened(
        put(
            tmp_path / "labelled",
            *(f"{i % 3}/{i}.png" for i in range(60)),
            *(f"{i % 3}/new{i}.png" for i in range(40)),
        )
    )
    old = dict(zip(flat.split_names, hashed_split(flat.split_names, THIRDS, 0), strict=True))
    new = dict(
        zip(labelled.split_names, hashed_split(labelled.split_names, THIRDS, 0), strict=True)
    )
    assert {name: new[name] for name in old} == old


def test_the_seed_and_the_fractions_decide_the_split() -> None:
    names = [f"{i}.png" for i in range(20_000)]
    first, again, other = (hashed_split(names, THIRDS, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.5
    np.testing.assert_allclose(np.bincount(first) / len(names), THIRDS, atol=0.01)
    assert not hashed_split(names, (1.0, 0.0, 0.0), 0).any()
    assert set(hashed_split(names, (0.7, 0.3, 0.0), 0)) == {0, 1}
    assert set(hashed_split(names, (0.0, 0.0, 1.0), 0)) == {2}


@pytest.mark.parametrize("sizes", [(50, 80), (80, 50), (80, 80)])
def test_domains_with_the_same_row_numbers_share_hashes(sizes: tuple[int, int]) -> None:
    hashes = SplitHashes(3)
    for names in (RowNumbers(range(size)) for size in sizes):
        shared = hashed_split(names, THIRDS, 3, hashes)
        np.testing.assert_array_equal(shared, hashed_split(list(names), THIRDS, 3))
    others = [f"r{row}" for row in range(60)]
    shared = hashed_split(others, THIRDS, 3, hashes)
    np.testing.assert_array_equal(shared, hashed_split(others, THIRDS, 3))


@pytest.mark.parametrize("n", [0, 1, 10, 11, 1001])
def test_row_numbers_are_their_texts(n: int) -> None:
    """Row numbers, and slices of them, have the bytes of their texts."""
    for start in (0, n // 3):
        numbers, texts = RowNumbers(range(n))[start:], [str(row) for row in range(start, n)]
        assert numbers == texts
        assert [*numbers[-2:]] == texts[-2:]
        assert numbers.encoded().dtype == utf8(texts).dtype
        assert numbers.encoded().tolist() == utf8(texts).tolist()


def test_the_split_is_the_documented_hash() -> None:
    """The first 8 bytes of sha256("SEED:NAME"), as a share of 2**64: frozen for ever."""
    names = [f"{letter}.png" for letter in "abcdefgh"]
    assert hashed_split(names, (0.6, 0.2, 0.2), 0).tolist() == [1, 0, 0, 0, 1, 0, 2, 0]


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ((0.6, 0.2, 0.1), "add up to 0.9, not 1"),
        ((1.2, -0.2, 0.0), "between 0 and 1"),
        ((float("nan"), 0.5, 0.5), "between 0 and 1"),
    ],
)
def test_fractions_that_make_no_sense_are_refused(
    fractions: tuple[float, float, float], message: str
) -> None:
    with pytest.raises(CovcalError, match=message):
        check_fractions(fractions)


@pytest.mark.parametrize(
    ("loose", "note"),
    [
        ((), None),
        (("x.png",), "1 image outside the class folders has no label"),
        (("x.png", "y.png"), "2 images outside the class folders have no label"),
    ],
)
def test_images_beside_class_folders_are_counted(
    loose: tuple[str, ...], note: str | None, tmp_path: Path
) -> None:
    """Without a count, nobody would notice that these images have no label."""
    put(tmp_path, "a/1.png", "b/1.png", *loose)
    assert opened(tmp_path).notes == (() if note is None else (f"{tmp_path}: {note}",))


def test_a_flat_folder_has_no_labels_by_its_nature(tmp_path: Path) -> None:
    put(tmp_path, "1.png", "2.png")
    assert opened(tmp_path).notes == ()
