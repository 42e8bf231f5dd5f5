"""Several labellers of one draw: what each gets, how far they agree, and where they differ."""

from pathlib import Path

import numpy as np
import pytest

from covcal_cli.files import sha256_of
from covcal_cli.labels.filled_sheet import read_sheet
from covcal_cli.labels.sheet import Share, sheet_text
from tests.cli_runner import covcal
from tests.labels.labelling import Lines, fill, lines_of, truth, write_lines

OTHER = {"class 0": "class 1", "class 1": "class 2", "class 2": "class 0"}
N, OVERLAP = 30, 10


def sheets_of(folder: Path, labellers: int) -> list[Path]:
    return [folder / f"to-label-{number}.csv" for number in range(1, labellers + 1)]


@pytest.fixture
def shared(adapted: Path, tmp_path: Path) -> Path:
    """A folder with adapted.h5 and the filled sheets of two labellers who differ in five rows."""
    run = ("pick", "-n", N, "--overlap", OVERLAP, "--page", "label.html")
    done = covcal(*run, cwd=tmp_path).require_success()
    assert "20 rows for each of 2 labellers; 10 of these rows go to every labeller" in done.out
    assert "Label these 30 rows in label-1.html and label-2.html" in done.out
    assert "then covcal label adapted.h5 to-label-1.csv to-label-2.csv" in done.err

    def differing(lines: Lines) -> Lines:
        both = {line["id"] for line in lines_of(tmp_path / "to-label-1.csv")}
        places = [place for place, line in enumerate(lines) if line["id"] in both][:5]
        return [
            line | {"label": OTHER[line["label"]]} if place in places else line
            for place, line in enumerate(lines)
        ]

    fill(tmp_path / "to-label-1.csv", adapted)
    fill(tmp_path / "to-label-2.csv", adapted, differing)
    return tmp_path


@pytest.mark.parametrize(("labellers", "overlap", "n"), [(2, 10, 30), (3, 10, 30), (4, 0, 10)])
def test_shares_cover_the_draw_and_overlap_as_asked(labellers: int, overlap: int, n: int) -> None:
    shares = [Share(labeller, labellers, overlap) for labeller in range(labellers)]
    places = [set(share.places(n).tolist()) for share in shares]
    assert set.union(*places) == set(range(n))
    assert set.intersection(*places) == set(range(overlap))
    assert sum(map(len, places)) == n + (labellers - 1) * overlap
    assert max(map(len, places)) - min(map(len, places)) <= 1
    assert [Share.parse(str(share)) for share in shares] == shares
    assert Share.parse("3of2with1") is None


def test_two_labellers_with_five_disagreements(shared: Path) -> None:
    """Disagreements are named with both labels, a rule decides, and the draw stays the same."""
    sheets = ("to-label-1.csv", "to-label-2.csv")
    line = covcal("label", "adapted.h5", *sheets, cwd=shared).error_line()
    first, second = (
        {row["id"]: row["label"] for row in lines_of(shared / name)} for name in sheets
    )
    rows = [row_id for row_id in first if row_id in second]
    assert len(rows) == OVERLAP
    differ = [row_id for row_id in rows if first[row_id] != second[row_id]]
    assert len(differ) == 5
    # Cohen's kappa by its definition: observed agreement, and that of independent labels.
    classes = sorted(set(first.values()) | set(second.values()))
    table = np.zeros((len(classes), len(classes)))
    for row_id in rows:
        table[classes.index(first[row_id]), classes.index(second[row_id])] += 1 / len(rows)
    chance = float(table.sum(axis=1) @ table.sum(axis=0))
    kappa = (float(np.trace(table)) - chance) / (1 - chance)
    assert f"labellers disagree on 5 rows of 10 (Cohen's kappa {kappa:.2f})" in line
    for row_id in differ:
        said = f"'{row_id}' is '{first[row_id]}' in {sheets[0]}, '{second[row_id]}' in {sheets[1]}"
        assert said in line
    done = covcal("label", "adapted.h5", *sheets, "--resolve", "first", cwd=shared)
    assert f"on 5 of 10 rows that two people labelled; Cohen's kappa {kappa:.2f}" in (
        done.require_success().out
    )
    assert "'" in done.out
    assert f"{N} added; {N} of the {N} picked rows now have a label" in done.out


def test_the_file_is_as_from_one_sheet(adapted: Path, tmp_path: Path) -> None:
    """In any order of the sheets, and when the second follows later."""
    covcal("pick", "-n", N, "-o", "whole.csv", cwd=tmp_path).require_success()
    covcal("pick", "-n", N, "--labellers", 3, cwd=tmp_path).require_success()
    sheets = sheets_of(tmp_path, 3)
    assert [len(lines_of(sheet)) for sheet in sheets] == [17, 17, 16]
    # Nothing is filled in yet: the sheets are read back to the same bytes.
    for sheet in sheets:
        text = sheet_text(read_sheet(sheet))
        assert text == sheet.read_text(encoding="utf-8")
    fill(tmp_path / "whole.csv", adapted)
    covcal("label", "adapted.h5", "whole.csv", "-o", "whole.h5", cwd=tmp_path).require_success()
    for sheet in sheets[:2]:
        fill(sheet, adapted)
    first, second, third = (sheet.name for sheet in sheets)
    line = covcal("label", "adapted.h5", first, second, cwd=tmp_path).error_line()
    assert "give the sheets of all 3 labellers in the same command" in line
    run = ("label", "adapted.h5", third, second, first, "--partial")
    assert "of the 30 picked rows" in covcal(*run, cwd=tmp_path).require_success().out
    fill(sheets[2], adapted)
    covcal("label", "adapted.h5", third, cwd=tmp_path).require_success()
    assert sha256_of(adapted) == sha256_of(tmp_path / "whole.h5")


def test_three_labellers_have_fleiss_kappa(adapted: Path, tmp_path: Path) -> None:
    run = ("pick", "-n", 20, "--labellers", 3, "--overlap", 20)
    covcal(*run, cwd=tmp_path).require_success()
    sheets = sheets_of(tmp_path, 3)
    for number, sheet in enumerate(sheets):
        fill(sheet, adapted)
        lines = lines_of(sheet)
        lines[number]["label"] = OTHER[lines[number]["label"]]
        write_lines(sheet, lines)
    label = ("label", "adapted.h5", *(sheet.name for sheet in sheets), "--resolve", "majority")
    done = covcal(*label, cwd=tmp_path).require_success()
    known = truth(adapted)
    labels = [[line["label"] for line in lines_of(sheet)] for sheet in sheets]
    classes = sorted(set(known.values()))
    counts = np.array([[row.count(name) for name in classes] for row in zip(*labels, strict=True)])
    observed = float(((counts**2).sum(axis=1) - 3).mean() / 6)
    chance = float(((counts.sum(axis=0) / counts.sum()) ** 2).sum())
    kappa = (observed - chance) / (1 - chance)
    said = "on 17 of 20 rows that at least two of 3 people labelled; Fleiss' kappa"
    assert f"{said} {kappa:.2f}" in done.out


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("-n", 5, "--overlap", 6), "5 rows are too few for 2 labellers with an overlap of 6"),
        (("-n", 2, "--labellers", 3, "--overlap", 0), "2 rows are too few for 3 labellers"),
        (("--labellers", 1, "--overlap", 5), "give at least --labellers 2"),
        (("--labellers", 2, "-o", "-"), "several CSV files cannot be printed"),
    ],
)
def test_shares_that_cannot_be_dealt(
    options: tuple[str | int, ...], complaint: str, adapted: Path, tmp_path: Path
) -> None:
    assert complaint in covcal("pick", adapted, *options, cwd=tmp_path).usage_error()
    assert [*tmp_path.iterdir()] == [adapted]


def test_a_second_batch_goes_on_after_all_sheets_of_the_first(shared: Path) -> None:
    sheets = ("--after", "to-label-1.csv", "--after", "to-label-2.csv")
    covcal("pick", "-n", 8, *sheets, "-o", "more.csv", cwd=shared).require_success()
    drawn = {line["id"] for name in sheets[1::2] for line in lines_of(shared / name)}
    assert not drawn & {line["id"] for line in lines_of(shared / "more.csv")}
    line = covcal("pick", "adapted.h5", *sheets[:2], "-o", "less.csv", cwd=shared).error_line()
    assert "give the sheets of all 2 labellers in the same command" in line
