"""``covcal pick``: target rows for a person to label, drawn by a known design.

No target label is read, and the file stays as it is: the sheet that is written says all that
`label` must know. Rows that earlier batches drew, as the marks of the file and earlier sheets tell,
are not drawn again. `draws` has what the design of batches allows to say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Float64s, Integers, Labels, Rows
from covcal_cli.errors import CovcalError, UnusedOptionError
from covcal_cli.estimators.inputs import Z
from covcal_cli.files import check_output, moved_together, write_text
from covcal_cli.forecast.forecaster import ScaledLogits, read_named, scaled_logits
from covcal_cli.formats.features import SPLITS, Domain, FeatureFile
from covcal_cli.labels.accuracy import NEAREST
from covcal_cli.labels.batches import rows_of, with_batch
from covcal_cli.labels.design import drawn, inclusion_probabilities
from covcal_cli.labels.draws import Batch, Draw, frame_rows, read_draw
from covcal_cli.labels.score import score
from covcal_cli.labels.sheet import DrawnRow, Sheet, SheetDraw, fingerprint, read_sheet, sheet_text
from covcal_cli.pick.page import write_page
from covcal_cli.progress import ProgressCallback, silent
from covcal_cli.records import require_at_least, require_one_of

_UNSEEN = ("train", "validation")  # splits whose rows evaluate does not judge
_UNWRITTEN = Path("to-label.csv")  # what a page calls a sheet that has no file
_BANDS = 5  # of the forecast, in each of which rows are in order of their predicted class
_MEAN_OF_SIZE = float(np.sqrt(2 / np.pi))  # mean size of a normal number, in standard deviations


@dataclass(frozen=True, kw_only=True)
class PickSettings:
    """What ``covcal pick`` can be told."""

    rows: int = 50  # how many to draw
    seed: int = 0
    splits: tuple[str, ...] = ()  # to draw from; those of earlier batches, else `_UNSEEN`

    def __post_init__(self) -> None:
        require_at_least("rows", self.rows, 1)
        require_at_least("seed", self.seed, 0)
        for name in self.splits:
            require_one_of("split", name, SPLITS)


_AS_IT_COMES = PickSettings()


@dataclass(frozen=True)
class Picked:
    """The rows drawn, and what their labels will tell."""

    sheet: Sheet
    classes: tuple[str, ...]  # what may be written in the column of labels
    before: int  # rows drawn by earlier batches
    # Half the 95 % interval that the labels of this batch, and of all batches, will give for the
    # accuracy on the rows of `splits`, if the forecast is about right: else it is wider.
    half_width: float
    half_width_of_all: float
    unreadable: Mapping[str, str]  # why an image is not on the page, by the row's id

    @property
    def mean_error(self) -> float:
        """The mean error of the accuracy, below which no ECE of a T matched to it falls."""
        return self.half_width_of_all / Z * _MEAN_OF_SIZE


def pick(
    path: str | Path,
    output: str | Path | None,
    settings: PickSettings = _AS_IT_COMES,
    *,
    calibration: str | Path | None = None,
    networks: str | Path | None = None,
    earlier: Sequence[str | Path] = (),
    images: str | Path | None = None,
    page: str | Path | None = None,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> Picked:
    """Draw rows to be labelled and write their sheet; the same input and seed draw the same rows.

    Parameters
    ----------
    path : str or Path
        A features or adapted file with a target.
    output : str or Path, optional
        The CSV to write; None: `Picked.sheet` holds its rows.
    settings : PickSettings
    calibration : str or Path, optional
        The cal.json whose confidence is leant on.
    networks : str or Path, optional
        For a calibration of aligned logits on a features file: the adapted file with the networks.
    earlier : sequence of str or Path
        Sheets of earlier batches whose labels are not in the file yet.
    images : str or Path, optional
        The images that the target's rows come from, as extract took them: for `page`, and for the
        column ``path`` if they lie in a folder that the ids are relative to.
    page : str or Path, optional
        An HTML file to write, on which a person can label the rows.
    force : bool
        Replace existing outputs.
    progress : callable, optional
        Called with a `Progress` for every block.

    Raises
    ------
    CovcalError
        If there are fewer rows left, a sheet or the calibration belongs to another file, images
        are those of other rows, or an output cannot be written.
    """
    if networks is not None and calibration is None:
        raise UnusedOptionError("--networks", "only a calibration has a use for it")
    path, output = Path(path), None if output is None else Path(output)
    read = [Path(one) for one in (calibration, networks, images, *earlier) if one is not None]
    for one in (output, page):
        if one is not None:
            check_output(Path(one), force=force, inputs=[path, *read])
    if page is not None and output is not None and Path(page).resolve() == output.resolve():
        raise CovcalError(f"{page} cannot be both the CSV and the page: give one another name")
    with FeatureFile(path) as file:
        target = file.require_target()
        before = _before(file, [read_sheet(Path(one)) for one in earlier])
        splits = _splits(path, before, settings.splits)
        frame = frame_rows(target, splits)
        is_left = ~np.isin(frame, before.rows, assume_unique=True)
        n, left = settings.rows, int(np.count_nonzero(is_left))
        if left < n:
            others = f", and {len(before.rows)} were drawn before" if before.batches else ""
            raise CovcalError(
                f"{path} has {left} target {' and '.join(splits)} rows left to label{others}: ask "
                f"for at most {left}"
            )
        given = None if calibration is None else _scaled(file, Path(calibration), networks)
        found = score(file, frame, given, seed=settings.seed, progress=progress or silent)
        # Probabilities first: they know nothing of the order, nor of chance.
        rows, right = frame[is_left], found.right[is_left]
        predictions = found.predictions[is_left]
        probabilities = inclusion_probabilities(right, n)
        rng = np.random.default_rng([settings.seed, len(before.batches)])
        order = _order(right, predictions)
        taken = order[drawn(probabilities[order], rng)]
        ids = _ids(target, rows[taken])
        batch = Batch(n, left, settings.seed, splits, found.score)
        drawn_rows = [
            DrawnRow(
                id=ids[stratum],
                path="" if images is None else _path(Path(images), ids[stratum]),
                predicted=file.classes[predictions[row]],
                confidence=float(right[row]),
                inclusion=float(probabilities[row]),
                stratum=stratum,
            )
            # Who stops early has then labelled some of every kind.
            for stratum, row in sorted(enumerate(taken.tolist()), key=lambda _: rng.random())
        ]
        sheet = Sheet(
            output or _UNWRITTEN,
            SheetDraw(len(before.batches), batch, fingerprint(file)),
            drawn_rows,
        )
        rows_of(target, sheet)  # refuses ids that are not unique, before anybody labels them
        classes = tuple(file.classes)
        unreadable: Mapping[str, str] = {}
        with moved_together():
            if output is not None:
                write_text(output, sheet_text(sheet), force=force)
            if page is not None:
                unreadable = write_page(Path(page), sheet, classes, images, force=force)
        # No forecast is as sure as it may look, and the estimate by labels takes none to be.
        doubtful = np.clip(found.right, NEAREST, 1 - NEAREST)
        variance = _variance(doubtful[is_left], probabilities)
        earlier_ones = _earlier_variances(before, frame, doubtful)
        return Picked(
            sheet,
            classes,
            len(before.rows),
            Z * float(np.sqrt(variance)) / len(frame),
            Z * _combined_deviation([*earlier_ones, (n, variance)]) / len(frame),
            unreadable,
        )


def _scaled(file: FeatureFile, document: Path, networks: str | Path | None) -> ScaledLogits:
    given = None if networks is None else Path(networks)
    (found,) = scaled_logits(file, read_named([document], given), [document], given).values()
    return found


def _splits(path: Path, before: Draw, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the splits to draw from: estimates are of the same rows in all batches."""
    if not before.batches:
        return asked or _UNSEEN
    drawn_from = before.batches[0].splits
    if asked and set(asked) != set(drawn_from):
        raise CovcalError(
            f"the earlier batches of {path} were drawn from its {' and '.join(drawn_from)} rows: "
            "leave --split out to draw from those again"
        )
    return drawn_from


def _before(file: FeatureFile, sheets: Sequence[Sheet]) -> Draw:
    """Return all that was drawn before: the marks of the file, and the rows of earlier sheets."""
    draw = read_draw(file)
    for sheet in sorted(sheets, key=lambda one: one.draw.number):
        draw = with_batch(file, draw, sheet)
    return draw


def _order(right: Float64s, predictions: Labels) -> Integers:
    """Return rows in an order of likeness: bands of the forecast, predicted classes within.

    Every other band runs backwards, so that neighbours are alike across its ends too.
    """
    band = np.argsort(np.argsort(right, kind="stable"), kind="stable") * _BANDS // len(right)
    forth = np.where(band % 2, -1, 1)
    return np.lexsort((forth * right, forth * predictions, band))


def _variance(right: Float64s, probabilities: Float64s) -> float:
    """Return the variance that the difference estimator of a total has on average.

    That is sum (1 / pi - 1) s (1 - s) over all rows, if the forecast s is right (Isaki & Fuller
    1982); what the order of the rows gains is not in it.
    """
    return float(((1 / probabilities - 1) * right * (1 - right)).sum())


def _earlier_variances(before: Draw, frame: Rows, right: Float64s) -> list[tuple[int, float]]:
    """Return size and `_variance` of each earlier batch, estimated from the rows that it drew."""
    found = []
    for number, batch in enumerate(before.batches):
        held = before.batch == number
        s, pi = right[np.searchsorted(frame, before.rows[held])], before.inclusion[held]
        found.append((batch.drawn, float(((1 / pi - 1) / pi * s * (1 - s)).sum())))
    return found


def _combined_deviation(batches: Sequence[tuple[int, float]]) -> float:
    """Return the standard deviation of the mean of batches' estimates, weighed by their sizes."""
    total = sum(size for size, _ in batches)
    return float(np.sqrt(sum((size / total) ** 2 * variance for size, variance in batches)))


def _ids(target: Domain, rows: Rows) -> list[str]:
    """Return the ids of rows in any order."""
    order = np.argsort(rows)
    found = np.empty(len(rows), dtype=object)
    found[order] = target.ids(rows[order])
    return list(found)


def _path(images: Path, known: str) -> str:
    """Return the file of an id below a folder, empty where there is none of that name."""
    return str(images / known) if (images / known).is_file() else ""
