"""Pictures of rows: small, as a person sees them, from whatever images covcal reads."""

import base64
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covcal_cli.errors import CovcalError
from covcal_cli.labels.page import LONGEST_SIDE, data_uri, pictures_of

RED, BLUE, WHITE = (200, 30, 30), (30, 30, 200), (255, 255, 255)


def decoded(uri: str | None) -> Image.Image:
    kind, _, content = (uri or "").partition(";base64,")
    image = Image.open(BytesIO(base64.b64decode(content)))
    assert kind == f"data:image/{str(image.format).lower()}"
    return image


def plain(colour: tuple[int, int, int], size: tuple[int, int] = (40, 20)) -> Image.Image:
    return Image.new("RGB", size, colour)


def folder_of(path: Path) -> Path:
    (path / "a" / "b").mkdir(parents=True)
    plain(RED).save(path / "a" / "0.png")
    plain(BLUE).save(path / "a" / "b" / "1.png")
    return path


def shards_of(path: Path) -> Path:
    path.mkdir()
    with tarfile.open(path / "a.tar", "w") as shard:
        for name, colour in (("0", RED), ("b/1", BLUE)):
            stream = BytesIO()
            plain(colour).save(stream, "png")
            member = tarfile.TarInfo(f"{name}.png")
            member.size = len(stream.getvalue())
            shard.addfile(member, BytesIO(stream.getvalue()))
    return path


def arrays_of(path: Path) -> Path:
    x = np.stack([np.asarray(plain(RED)), np.asarray(plain(BLUE))])
    np.savez(path.with_suffix(".npz"), x=x)
    return path.with_suffix(".npz")


def table_of(path: Path) -> Path:
    folder_of(path)
    (path / "t.csv").write_text("path\na/0.png\na/b/1.png\n")
    return path / "t.csv"


@pytest.mark.parametrize(
    ("make", "ids"),
    [
        (folder_of, ("a/0.png", "a/b/1.png")),
        (shards_of, ("a/0", "a/b/1")),
        (arrays_of, ("0", "1")),
        (table_of, ("a/0.png", "a/b/1.png")),
    ],
)
def test_they_come_from_what_extract_read(
    make: Callable[[Path], Path], ids: tuple[str, str], tmp_path: Path
) -> None:
    """By the ids that it gave, in any order, one of them twice."""
    found = pictures_of(make(tmp_path / "data"), [ids[1], ids[0], ids[1]])
    assert not found.unreadable
    seen = [decoded(uri).convert("RGB").getpixel((3, 3)) for uri in found.uris]
    assert seen == [BLUE, RED, BLUE]


def test_one_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The other pictures are read anyway."""
    folder = folder_of(tmp_path / "data")
    (folder / "a" / "0.png").write_bytes(b"no image")
    found = pictures_of(folder, ["a/0.png", "a/b/1.png"])
    assert found.uris[0] == ""
    assert decoded(found.uris[1]).size == (40, 20)
    assert found.unreadable == {"a/0.png": "this is not an image, or its format is unknown"}


def test_ids_of_other_images_are_refused(tmp_path: Path) -> None:
    """A path that leads out of the folder is refused too, because it cannot be an id."""
    folder = folder_of(tmp_path / "data")
    plain(RED).save(tmp_path / "secret.png")
    for strange in ("2.png", "../secret.png", "a/../a/0.png"):
        with pytest.raises(CovcalError) as raised:
            pictures_of(folder, ["a/0.png", strange])
        assert str(raised.value) == (
            f"{folder} has no row {strange!r} (its first row is 'a/0.png'): give the images of "
            "the target rows"
        )


def test_data_without_images_are_refused(tmp_path: Path) -> None:
    """Tables of numbers and missing folders are refused."""
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 5), dtype=np.float32))
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    for name in ("x.npz", "x.csv"):
        with pytest.raises(CovcalError, match=f"{name} holds no images: give image"):
            pictures_of(tmp_path / name, ["0"])
    with pytest.raises(CovcalError, match="does not exist"):
        pictures_of(tmp_path / "nowhere", ["0"])


@pytest.mark.parametrize("size", [(1, 1), (256, 256), (3000, 20), (500, 900), (20, 5000)])
def test_they_are_small(size: tuple[int, int]) -> None:
    """At most 256 pixels a side, never enlarged, their ratio kept; noise in 24 000 bytes too."""
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    uri = data_uri(Image.fromarray(noise))
    longest = max(size)
    scale = min(1, LONGEST_SIDE / longest)
    assert decoded(uri).size == tuple(max(1, round(side * scale)) for side in size)
    assert len(uri) < 32_100


def test_a_person_sees_them_upright_and_on_white() -> None:
    """By EXIF, and where they are transparent; 16 bits are shown by their range."""
    image = plain(RED, (40, 20))
    image.paste(BLUE, (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise to see it
    stream = BytesIO()
    image.save(stream, "png", exif=exif)
    upright = decoded(data_uri(Image.open(stream)))
    assert upright.size == (20, 40)
    assert upright.getpixel((10, 5)) == BLUE

    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    assert decoded(data_uri(clear)).getpixel((1, 1)) == WHITE
    palette = Image.new("P", (4, 4))
    palette.info["transparency"] = 0
    assert decoded(data_uri(palette)).getpixel((1, 1)) == WHITE

    deep = Image.fromarray(np.full((4, 4), 257 * 90, dtype=np.uint16))
    assert decoded(data_uri(deep)).getpixel((1, 1)) == 90
    for mode, black in (("L", 0), ("1", 0), ("LA", 255), ("CMYK", WHITE)):
        made = decoded(data_uri(Image.new(mode, (4, 4))))
        assert made.getpixel((1, 1)) in (black, (black,) * 3)
