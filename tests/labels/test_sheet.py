"""Sheets that went through a spreadsheet: each is read rightly, or refused in one line."""

import csv
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.filled_sheet import read_sheet
from covcal_cli.labels.label import label
from covcal_cli.labels.pick import PickSettings, pick
from covcal_cli.labels.picked_labels import labelled_draw
from covcal_cli.labels.sheet import COLUMNS, sheet_text
from tests.labels.labelling import Lines, lines_of, truth, write_lines
from tests.made_files import made_domain, write_features

N = 24


@pytest.fixture(scope="module")
def picked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a features file and a filled sheet of N rows of 10 classes."""
    folder = tmp_path_factory.mktemp("sheet")
    target = made_domain("target", sizes=(200, 60, 20), classes=10, width=12, sharpness=3.0)
    source = made_domain("source", sizes=(200, 60, 20), classes=10, width=12, sharpness=3.0)
    path = write_features(folder / "features.h5", source=source, target=target)
    pick(path, folder / "filled.csv", PickSettings(rows=N), predictions=True)
    known = truth(path)
    lines = lines_of(folder / "filled.csv")
    write_lines(folder / "filled.csv", [line | {"label": known[line["id"]]} for line in lines])
    return folder


@pytest.fixture
def lines(picked: Path) -> Lines:
    return lines_of(picked / "filled.csv")


def put_in(picked: Path, sheet: Path, *, partial: bool = False) -> Path:
    """Put the labels of a sheet into a new file, and return it."""
    output = sheet.with_suffix(".h5")
    label(picked / "features.h5", [sheet], output, force=True, partial=partial)
    return output


def require_right(path: Path) -> None:
    """Check that every row has its own label, stratum and exact probability."""
    known = truth(path)
    with FeatureFile(path) as file:
        draw = labelled_draw(file)
        assert draw is not None
        ids = file.require_target().ids(draw.rows)
        labels = [file.classes[index] for index in draw.labels]
    assert labels == [known[row_id] for row_id in ids]


def sorted_by(lines: Lines, columns: Sequence[str], key: str, *, down: bool = False) -> Lines:
    """Return the lines with some of their columns sorted and the others left."""
    order = sorted(range(len(lines)), key=lambda line: lines[line][key], reverse=down)
    return [
        line | {name: lines[place][name] for name in columns}
        for line, place in zip(lines, order, strict=True)
    ]


SUBSETS = [
    subset
    for size in (1, 2, 5, 6)
    for subset in itertools.combinations([name for name in COLUMNS if name != "path"], size)
    if size != 2 or "label" in subset
]


@pytest.mark.parametrize("subset", SUBSETS, ids="+".join)
def test_columns_sorted_without_the_others(
    picked: Path, tmp_path: Path, lines: Lines, subset: tuple[str, ...]
) -> None:
    """Whatever columns are sorted, by whichever of them: no label goes into another row."""
    for place, key in enumerate(subset):
        down = (place + len(subset)) % 2 == 0
        write_lines(tmp_path / "x.csv", sorted_by(lines, subset, key, down=down))
        try:
            output = put_in(picked, tmp_path / "x.csv")
        except CovcalError as error:
            refusal = str(error)
        else:
            require_right(output)
            continue
        assert "sort" in refusal
        assert len(subset) < 6, "whole lines may be sorted"


def test_whole_lines_may_be_sorted(picked: Path, tmp_path: Path, lines: Lines) -> None:
    """And lines whose order nothing vouches for are right once they are sorted by draw."""
    few = [line | {"label": "" if place > 2 else line["label"]} for place, line in enumerate(lines)]
    write_lines(tmp_path / "x.csv", sorted_by(few, list(few[0]), "id"))
    with pytest.raises(CovcalError, match="sort whole lines by the column 'draw'"):
        put_in(picked, tmp_path / "x.csv", partial=True)
    write_lines(tmp_path / "x.csv", sorted_by(few, list(few[0]), "draw"))
    put_in(picked, tmp_path / "x.csv", partial=True)


def test_labels_sorted_by_themselves_are_noticed(
    picked: Path, tmp_path: Path, lines: Lines
) -> None:
    write_lines(tmp_path / "x.csv", sorted_by(lines, ["label"], "label"))
    with pytest.raises(CovcalError, match="the column label was sorted without the other columns"):
        put_in(picked, tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("step", "how_far"),
    [
        (1, "one line too high"),
        (-1, "one line too low"),
        (2, "2 lines too high"),
        (-3, "3 lines too low"),
    ],
)
def test_labels_that_moved_by_some_lines_are_noticed(
    step: int, how_far: str, picked: Path, tmp_path: Path, lines: Lines
) -> None:
    """Cells were deleted or inserted above them."""
    moved = [
        line | {"label": lines[(place + step) % N]["predicted"]} for place, line in enumerate(lines)
    ]
    write_lines(tmp_path / "x.csv", moved)
    with pytest.raises(CovcalError, match=how_far):
        put_in(picked, tmp_path / "x.csv")


def test_labels_in_random_order_are_doubted(picked: Path, tmp_path: Path, lines: Lines) -> None:
    """Nothing proves that they are wrong, so they are taken. By chance, some orders fit a bit.

    The last labels are the first label in every line, as after a click on the fill handle.
    """
    rng = random.Random(0)
    doubted = []
    for share in [1.0] * 10 + [0.0] * 10 + [-1.0]:
        labels = [line["predicted"] for line in lines]
        if share == 1:
            rng.shuffle(labels)
        elif share == -1:
            labels = labels[:1] * len(labels)
        with_labels = zip(lines, labels, strict=True)
        write_lines(tmp_path / "x.csv", [line | {"label": label} for line, label in with_labels])
        done = label(picked / "features.h5", [tmp_path / "x.csv"], tmp_path / "x.h5", force=True)
        doubted.append(
            any("agree with the predicted class" in sentence for sentence in done.doubts)
        )
    assert sum(doubted[:10]) >= 8
    assert not any(doubted[10:20])
    assert doubted[20]


def changed(name: str, change: Callable[[str], str]) -> Callable[[Lines], Lines]:
    return lambda lines: [line | {name: change(line[name])} for line in lines]


READ: dict[str, Callable[[Lines], Lines]] = {
    "decimal commas": lambda lines: changed("inclusion", lambda cell: cell.replace(".", ","))(
        changed("confidence", lambda cell: cell.replace(".", ","))(lines)
    ),
    "four digits": changed("inclusion", lambda cell: f"{float(cell):.4g}"),
    "two decimals": changed("confidence", lambda cell: f"{float(cell):.2f}"),
    "percent": changed("confidence", lambda cell: f"{100 * float(cell):.2f}%"),
    "no columns for reading": lambda lines: [
        {name: line[name] for name in ("id", "label", "inclusion", "draw")} for line in lines
    ],
    "columns in upper case": lambda lines: [
        {name.upper(): cell for name, cell in line.items()} for line in lines
    ],
    "a column of one's own": lambda lines: [line | {"remark": "a; b"} for line in lines],
    "class numbers": changed("label", lambda cell: cell.removeprefix("class ")),
    "class numbers by pandas": changed("label", lambda cell: f"{cell.removeprefix('class ')}.0"),
    "class numbers with commas": changed("label", lambda cell: f"{cell[-1]},00"),
    "blanks and capitals": changed("label", lambda cell: f" {cell.upper()} "),
    "choice": lambda lines: [
        {name: cell for name, cell in line.items() if name != "label"} | {"choice": line["label"]}
        for line in lines
    ],
    "choice beside": lambda lines: [
        line | {"choice": line["label"], "label": ""} for line in lines
    ],
}


@pytest.mark.parametrize("kind", READ)
def test_what_a_spreadsheet_changes_is_read(
    picked: Path, tmp_path: Path, lines: Lines, kind: str
) -> None:
    expected = read_sheet(picked / "filled.csv")
    write_lines(tmp_path / "x.csv", READ[kind](lines))
    sheet = read_sheet(tmp_path / "x.csv")
    assert sheet.inclusion.tolist() == expected.inclusion.tolist()
    assert sheet.stratum.tolist() == expected.stratum.tolist()
    require_right(put_in(picked, tmp_path / "x.csv"))


@pytest.mark.parametrize(
    ("encoding", "delimiter", "above"),
    [
        ("utf-8-sig", ",", ""),
        ("utf-8-sig", ";", ""),
        ("utf-16", "\t", ""),
        ("utf-16-le", ";", ""),
        ("utf-8-sig", ";", "sep=;\r\n"),
        ("utf-8", ",", "SEP=,\n"),
    ],
)
def test_encodings_and_separators(
    picked: Path, tmp_path: Path, lines: Lines, encoding: str, delimiter: str, above: str
) -> None:
    """Excel may write a line with the separator above the names of the columns."""
    sheet = tmp_path / "x.csv"
    with sheet.open("w", encoding=encoding, newline="") as file:
        file.write(above)
        writer = csv.DictWriter(file, list(lines[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(lines)
    require_right(put_in(picked, sheet))


def test_empty_columns_and_lines_are_left_out(picked: Path, tmp_path: Path, lines: Lines) -> None:
    """A spreadsheet writes them beside and below a table."""
    sheet, width = tmp_path / "x.csv", len(lines[0])
    with sheet.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*lines[0], "", ""])
        writer.writerows([*line.values(), "", ""] for line in lines)
        writer.writerows([[""] * (width + 2)] * 3)
    require_right(put_in(picked, sheet))


def shuffled(lines: Lines, name: str) -> Lines:
    cells = [line[name] for line in lines]
    random.Random(0).shuffle(cells)
    return [line | {name: cell} for line, cell in zip(lines, cells, strict=True)]


REFUSALS: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "a line gone": (lambda lines: lines[1:], "the first line, which says how rows were drawn"),
    "another gone": (lambda lines: lines[:-1], f"1 of the {N} picked rows are missing"),
    "ids moved": (lambda lines: shuffled(lines, "id"), "belong to different rows"),
    "draws moved": (lambda lines: shuffled(lines, "draw"), "belong to different rows"),
    "inclusions moved": (lambda lines: shuffled(lines, "inclusion"), "covcal pick wrote"),
    "half the inclusion": (changed("inclusion", lambda cell: f"{float(cell) / 2}"), "pick wrote"),
    "1 % more": (changed("inclusion", lambda cell: f"{float(cell) * 1.01}"), "pick wrote"),
    "confidences moved": (lambda lines: shuffled(lines, "confidence"), "covcal pick wrote"),
    "predictions moved": (lambda lines: shuffled(lines, "predicted"), "belongs to another row"),
    "label and choice": (
        lambda lines: [line | {"choice": "class 1"} for line in lines],
        "the columns 'label' and 'choice' differ",
    ),
    "a decimal class": (changed("label", lambda _: "1.5"), "the label '1.5' of"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_what_cannot_be_read_rightly_is_refused(
    picked: Path, tmp_path: Path, lines: Lines, kind: str
) -> None:
    change, said = REFUSALS[kind]
    write_lines(tmp_path / "x.csv", change(lines))
    with pytest.raises(CovcalError) as caught:
        put_in(picked, tmp_path / "x.csv")
    assert said in str(caught.value)


@pytest.mark.parametrize("factor", [0.5, 0.997, 0.9995, 1.0005, 1.003, 1.5])
def test_rounding_of_the_inclusion_column_is_small(
    tmp_path: Path, lines: Lines, factor: float
) -> None:
    """The exact probability is in draw; the column may differ by a thousandth, not by more."""
    near = changed("inclusion", lambda cell: repr(float(cell) * factor))(lines)
    write_lines(tmp_path / "x.csv", near)
    if abs(factor - 1) < 0.001:
        read_sheet(tmp_path / "x.csv")
    else:
        with pytest.raises(CovcalError, match="inclusion in line"):
            read_sheet(tmp_path / "x.csv")


@pytest.mark.parametrize("factor", [0.3, 0.5, 8.0])
def test_probabilities_that_the_design_cannot_have(
    picked: Path, tmp_path: Path, factor: float
) -> None:
    """Signed or not: the inverses of all probabilities add up to about the population."""
    sheet = read_sheet(picked / "filled.csv")
    forged = replace(sheet, inclusion=np.minimum(1, sheet.inclusion * factor))
    (tmp_path / "x.csv").write_text(sheet_text(forged), encoding="utf-8")
    with pytest.raises(CovcalError, match="'inclusion' cannot come from a draw"):
        read_sheet(tmp_path / "x.csv")


def test_every_line_is_short(lines: Lines) -> None:
    assert max(len(line["draw"]) for line in lines[1:]) < 40
    assert len(lines[0]["draw"]) < 100


def test_a_sheet_of_another_population(picked: Path, tmp_path: Path) -> None:
    """A draw from fewer or more rows than the file holds is refused, its hashes right or not."""
    sheet = read_sheet(picked / "filled.csv")
    other = replace(sheet, batch=replace(sheet.batch, population=sheet.batch.population + 1))
    (tmp_path / "x.csv").write_text(sheet_text(other), encoding="utf-8")
    with pytest.raises(CovcalError, match="picked before other rows of"):
        put_in(picked, tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("row_id", "said"),
    [
        ("target/x.png", r"has no target row 'target/x.png' \(the first row is 'target/0.png'\)"),
        (
            "target/279.png",
            "is a test row of .*, but rows were picked only from train and validation",
        ),
    ],
)
def test_an_id_that_was_not_drawn(picked: Path, tmp_path: Path, row_id: str, said: str) -> None:
    sheet = read_sheet(picked / "filled.csv")
    other = replace(sheet, ids=[row_id, *sheet.ids[1:]])
    (tmp_path / "x.csv").write_text(sheet_text(other), encoding="utf-8")
    with pytest.raises(CovcalError, match=said):
        put_in(picked, tmp_path / "x.csv")


def test_ids_that_lost_their_zeros(tmp_path: Path) -> None:
    """pandas and spreadsheets make numbers of ids such as 007; the hash tells which id it was."""
    target = made_domain("target", sizes=(200, 60, 20))
    target["ids"] = np.array([f"{row:04d}" for row in range(280)], dtype="S4")
    path = write_features(tmp_path / "features.h5", target=target)
    pick(path, tmp_path / "x.csv", PickSettings(rows=N))
    known = truth(path)
    lines = [line | {"label": known[line["id"]]} for line in lines_of(tmp_path / "x.csv")]
    for change in (lambda cell: str(int(cell)), lambda cell: f"{int(cell)}.0"):
        write_lines(tmp_path / "x.csv", changed("id", change)(lines))
        label(path, [tmp_path / "x.csv"], tmp_path / "y.h5", force=True)
        require_right(tmp_path / "y.h5")
    other = [line | {"id": str(int(line["id"]) + 1)} for line in lines]
    write_lines(tmp_path / "x.csv", other)
    with pytest.raises(CovcalError, match="belong to different rows"):
        label(path, [tmp_path / "x.csv"], tmp_path / "y.h5", force=True)
