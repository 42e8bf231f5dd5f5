"""``covcal pick``: draw target rows for a person to label, with known probabilities.

The classes of target labels are not used, and the features file is not changed. Test rows that
already have a label are not drawn. The sheet (a CSV or tasks of an annotation tool) tells `covcal
label` how the rows were drawn (see `labels.draws`). Rows of earlier batches are not drawn again.
The memory holds only a score and a predicted class per row.

If rows can have several labels, a person labels the same rows for all labels.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import AnyArray, Float64s, Floats, Integers, Rows
from covcal_cli.errors import (
    CovcalError,
    UnusedOptionError,
    checked_settings,
    require_at_least,
    require_one_of,
)
from covcal_cli.estimators.inputs import ESTIMATED, Z
from covcal_cli.files import check_output, moved_together, write_text
from covcal_cli.forecast import ScaledLogits, read_named, scaled_logits
from covcal_cli.formats.calibration import read_calibration
from covcal_cli.formats.decision import Decision, beliefs_of, input_of, read_decision
from covcal_cli.formats.features import SPLITS, FeatureFile, labels_in
from covcal_cli.formats.groups import numbered_groups
from covcal_cli.labels.draws import (
    FOR_EVALUATE,
    NO_DRAW,
    Batch,
    Draw,
    drawn_along,
    frame_rows,
    inclusion_rule,
    inclusions_of_groups,
    order_of_likeness,
    read_draw,
    rows_of_fit,
)
from covcal_cli.labels.filled_sheet import read_sheets, with_batches
from covcal_cli.labels.metrics import NEAREST
from covcal_cli.labels.page import pictures_of, write_page
from covcal_cli.labels.score import (
    RANDOM,
    Scored,
    blocks_of_labels,
    forecasters_of,
    in_order,
    in_words,
    predicted_names,
    region_of,
    words_of_labels,
    words_of_region,
)
from covcal_cli.labels.sheet import (
    SHEET,
    Share,
    Sheet,
    answer_columns,
    fingerprint,
    kept_cells,
    predicted_texts,
    rows_of,
    sheet_text,
    tasks_text,
)
from covcal_cli.labels.target_labels import labelled_rows
from covcal_cli.labels.tasks import DOCCANO, LABEL_STUDIO, SUFFIXES, label_studio_interface
from covcal_cli.maths.acceptance import BELIEFS, Ranking, best_region, level_of_look
from covcal_cli.maths.source_accuracy import RIGHT, WRONG
from covcal_cli.multilabel import for_each_label, for_first_label
from covcal_cli.progress import Progress, ProgressCallback, silent

_MEAN_OF_SIZE = float(np.sqrt(2 / np.pi))  # Mean absolute value of a standard normal variable.
_EXACT_ROWS = 1 << 20  # Above this number of rows, scores are stored in 32 bits.
_CHUNK = 1 << 18
# Maps scores and positions of rows to inclusion probabilities.
_Inclusion = Callable[[Float64s, AnyArray], Float64s]


@checked_settings
@dataclass(frozen=True, kw_only=True)
class PickSettings:
    """The settings of ``covcal pick``."""

    rows: int = 50  # Number of rows to draw.
    labellers: int = 1  # Number of people who label.
    overlap: int = 0  # Number of rows that every person labels.
    seed: int = 0
    # Splits to draw from. Default: the splits of earlier batches, else train and validation. Labels
    # of test rows alone are for `evaluate`.
    splits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_at_least("rows", self.rows, 1)
        require_at_least("labellers", self.labellers, 1)
        require_at_least("overlap", self.overlap, 0)
        if self.overlap + (0 if self.overlap else self.labellers) > self.rows:
            raise CovcalError(
                f"{self.rows} rows are too few for {self.labellers} labellers with an overlap "
                f"of {self.overlap}: pick more rows (-n)"
            )
        require_at_least("seed", self.seed, 0)
        for name in self.splits:
            require_one_of("split", name, SPLITS)

    @property
    def are_for_evaluate(self) -> bool:
        """Whether the rows are drawn for `evaluate`, with equal probabilities."""
        return self.splits == FOR_EVALUATE


DEFAULTS = PickSettings()


@dataclass(frozen=True)
class PickReport:
    """The drawn rows, and how precisely their labels will estimate the accuracy.

    A half width is half the width of the 95 % interval of the accuracy. If rows can have several
    labels, the half width is the root mean square over the labels.
    """

    sheet: Sheet  # All drawn rows.
    sheets: tuple[Sheet, ...]  # The sheet of each labeller.
    pages: tuple[Path, ...]  # The written pages, in the order of the sheets.
    classes: tuple[
        str, ...
    ]  # The names of the classes, or of the labels if rows can have several labels.
    before: int  # Number of rows in earlier batches that were not drawn for a decision.
    # Expected half width with the labels of this batch, and with the labels of all batches.
    half_width: float
    half_width_of_all: float
    # Half width in the worst case, when scores are useless and the accuracy is 1/2.
    half_width_at_worst: float
    unreadable: Mapping[str, str]  # The reason for each unreadable image, by row id.

    @property
    def mean_error(self) -> float:
        """The expected absolute error of the estimated accuracy."""
        return self.half_width_of_all / Z * _MEAN_OF_SIZE


def pick(
    path: str | Path,
    output: str | Path | None,
    settings: PickSettings = DEFAULTS,
    *,
    calibration: str | Path | None = None,
    networks: str | Path | None = None,
    earlier: Sequence[str | Path] = (),
    images: str | Path | None = None,
    page: str | Path | None = None,
    decision: str | Path | None = None,
    predictions: bool = False,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> PickReport:
    """Draw rows to label, and write their sheet. Equal inputs and seeds give equal rows.

    Parameters
    ----------
    path : str or Path
        A features or adapted file with a target.
    output : str or Path, optional
        The file to write: .csv, .json (tasks for Label Studio) or .jsonl (tasks for doccano). None
        writes nothing. Several labellers get numbered files, such as ``to-label-1.csv``.
    settings : PickSettings
    calibration : str or Path, optional
        A cal.json. The score of each row is then the confidence after this calibration.
    networks : str or Path, optional
        The adapted file with the networks. Needed if `path` is a features file and the calibration
        needs networks.
    earlier : sequence of str or Path
        Sheets of earlier batches whose labels are not in the file yet.
    images : str or Path, optional
        The target images, in the same form as for `extract`. The page shows the images. If the
        images are files in a folder, the sheet has a column ``path``.
    page : str or Path, optional
        An HTML file to write, on which a person can label the rows.
    decision : str or Path, optional
        A decide.json with a promise that the labels must prove. Rows that the decision may accept
        are then drawn more often.
    predictions : bool
        Whether the CSV shows the classifier's answers. The page always hides the answers until the
        user asks to see an answer.
    force : bool
        Replace existing outputs.
    progress : callable, optional
        A function that is called with a `Progress` after every block of rows.

    Raises
    ------
    CovcalError
        If too few rows are left, an input belongs to another file, or an output cannot be written.
    """
    path, output = Path(path), None if output is None else Path(output)
    page = None if page is None else Path(page)
    images = None if images is None else Path(images)
    if settings.are_for_evaluate and decision is not None:
        raise CovcalError(
            f"labels of test rows cannot prove the promise of {decision}, because covcal "
            "evaluate --decide measures the promise with these labels: leave out --for or --split"
        )
    names = labels_in(path)
    if names:
        _require_csv(path, output, page)
    made_for: Decision | None = None
    if decision is not None:
        fitted = partial(input_of, decision, "calibration")
        calibration = calibration or for_first_label(names, fitted)
        promise = partial(_promise_of, decision, calibration)
        made_for = next(iter(for_each_label(names, promise).values()))
    if networks is not None and calibration is None:
        raise UnusedOptionError("--networks", "needs a calibration (-c)")
    inputs = [Path(name) for name in (calibration, networks, images, decision, *earlier) if name]
    outputs = _Outputs(output, page, images, settings.labellers)
    outputs.check([path, *inputs], force=force)
    with ExitStack() as stack:

        def opened() -> tuple[FeatureFile, ScaledLogits | None]:
            file = stack.enter_context(FeatureFile(path))
            return file, None if calibration is None else _scaled(file, Path(calibration), networks)

        of_labels = list(for_each_label(names, opened).values())
        file, scaled = of_labels[0]
        target = file.require_target()
        sheets_before = [
            sheet
            for name in earlier
            for sheet in read_sheets(Path(name))
            if sheet.batch.is_for_evaluate == settings.are_for_evaluate
        ]
        if settings.are_for_evaluate:
            before, drawn_before = NO_DRAW, _known_test_rows(file, sheets_before)
        else:
            before = with_batches(file, read_draw(file), sheets_before)
            drawn_before = before.rows
        splits = _splits(path, before, settings.splits)
        n, population = settings.rows, target.count(*splits)
        left = population - len(drawn_before)
        _require_left(path, left, settings, splits, len(drawn_before))
        if decision is not None and calibration is not None:
            frame_of_draw, document = frame_rows(target, splits), Path(calibration)
            check = partial(_require_own_labels, file, frame_of_draw, before, document)
            for_first_label(names, check)

        # Step 1: score all rows, and draw.
        scored: Scored = [(part, forecasters_of(part, s, settings.seed)) for part, s in of_labels]
        of_draw: Scored = scored
        if made_for is not None and scaled is not None and not names:
            of_draw = [(file, [scaled])]
        frame = _Frame(of_draw, splits, drawn_before, left, progress or silent)
        if made_for is not None and scaled is not None:
            words, probabilities = frame.rule_for(made_for, n, before.batches)
        elif settings.are_for_evaluate:
            words, probabilities = RANDOM, frame.at_random(n)
        else:
            words = words_of_labels(len(names)) if names else in_words(scored[0][1])
            probabilities = frame.by_score(n)
        # Later draws need other random numbers than earlier draws.
        later = len(drawn_before) if settings.are_for_evaluate else len(before.batches)
        rng = np.random.default_rng([settings.seed, later])
        rows, right, inclusion = frame.drawn(probabilities, rng)

        # Step 2: shuffle the lines, so that the first labels are useful if a person stops early.
        strata = np.array(sorted(range(n), key=lambda _: rng.random()), dtype=np.int64)
        rows, right, inclusion = rows[strata], right[strata], inclusion[strata]
        ids = [str(row_id) for row_id in in_order(rows, target.ids)]
        by_file = zip(names or ("",), of_labels, strict=True)
        predicted = predicted_texts(
            {name: predicted_names(part, rows) for name, (part, _) in by_file}
        )
        cells = kept_cells(target, rows)
        sheet = Sheet(
            output or SHEET,
            len(before.batches),
            Batch(n, left, settings.seed, splits, words),
            fingerprint(file),
            ids,
            inclusion,
            strata,
            predicted,
            right,
            [""] * n,
            np.arange(n),
            ["" if images is None else _path(images, row_id) for row_id in ids],
            cells,
            # A person who says whether a prediction is right must see the prediction.
            [] if file.is_forecast_of_right else answer_columns(cells, predicted),
            predictions,
            several={name: [""] * n for name in names},
        )
        rows_of(target, sheet)  # raise an error for repeated ids before anybody labels rows
        classes = names or ((RIGHT, WRONG) if file.is_forecast_of_right else tuple(file.classes))
        sheets = _dealt(sheet, settings)
        unreadable = outputs.write(sheets, classes, force=force)

        # Step 3: compute the expected precision of the accuracy.
        of_before = np.concatenate(
            [right for _, right in blocks_of_labels(scored, before.rows)] or [np.empty(0)]
        )
        batches = [*_variances_before(before, of_before), (n, frame.variance)]
        half_width = Z * math.sqrt(frame.variance) / population
        of_all = Z * _combined_deviation(batches) / population
        labels = sum(size for size, _ in batches)
        at_worst = Z * math.sqrt((1 / labels - 1 / population) / 4)
        if settings.are_for_evaluate:  # `evaluate` measures a plain mean, for future rows.
            accuracy, labels = float(right.mean()), len(drawn_before) + n
            half_width, of_all, at_worst = (
                Z * math.sqrt(share * (1 - share) / count)
                for share, count in ((accuracy, n), (accuracy, labels), (0.5, labels))
            )
        return PickReport(
            sheet,
            sheets,
            tuple(outputs.pages),
            classes,
            labels - n,
            half_width,
            of_all,
            max(of_all, at_worst),
            unreadable,
        )


class _Outputs:
    def __init__(
        self, output: Path | None, page: Path | None, images: Path | None, labellers: int
    ) -> None:
        self._output, self._page, self._images = output, page, images
        self._sheets = [] if output is None else _numbered(output, labellers)
        self.pages = [] if page is None else _numbered(page, labellers)
        is_for_label_studio = output is not None and output.suffix.lower() == LABEL_STUDIO
        self._interfaces = [output.with_suffix(".xml")] if output and is_for_label_studio else []

    def check(self, inputs: Sequence[Path], *, force: bool) -> None:
        suffix = "" if self._output is None else self._output.suffix.lower()
        if suffix in SUFFIXES and self._page is not None:
            raise CovcalError(
                f"the page saves labels as CSV, not as tasks such as {self._output}: give "
                "--output a name that ends in .csv, or leave out --page"
            )
        if suffix == DOCCANO and self._images is not None:
            raise CovcalError(
                "doccano shows texts, not pictures: write tasks for Label Studio (-o tasks.json)"
            )
        for written in (*self._sheets, *self.pages, *self._interfaces):
            option = "--page" if written in self.pages else "-o"
            check_output(written, force=force, inputs=inputs, option=option)
        if self._page and self._output and self._page.resolve() == self._output.resolve():
            raise CovcalError(
                f"{self._page} is the name of both the CSV and the page: give two names"
            )

    def write(
        self, sheets: Sequence[Sheet], classes: tuple[str, ...], *, force: bool
    ) -> dict[str, str]:
        """Write all files, or none. Return the reason for each unreadable image, by row id."""
        unreadable: dict[str, str] = {}
        with moved_together():
            for place, sheet in zip(self._sheets, sheets, strict=False):
                if place.suffix.lower() in SUFFIXES:
                    pictures = pictures_of(self._images, sheet.ids)
                    unreadable |= pictures.unreadable
                    write_text(place, tasks_text(sheet, pictures.uris), force=force)
                else:
                    write_text(place, sheet_text(sheet), force=force)
            for place in self._interfaces:
                setup = label_studio_interface(classes, has_images=self._images is not None)
                write_text(place, setup, force=force)
            for place, sheet in zip(self.pages, sheets, strict=False):
                unreadable |= write_page(place, sheet, classes, self._images, force=force)
        return unreadable


class _Frame:
    """The rows that can be drawn, with their scores and predicted classes."""

    def __init__(
        self,
        scored: Scored,
        splits: tuple[str, ...],
        before: Rows,
        left: int,
        progress: ProgressCallback,
    ) -> None:
        self._scored, self._splits, self._before = scored, splits, before
        self._file = scored[0][0]
        self._is_exact = left <= _EXACT_ROWS
        # Most scores are near 1, so store 1 - score, which is more exact in 32 bits.
        self._less = 0.0 if self._is_exact else 1.0
        # The order of rows before the draw: random, by score, or by similarity if both flags are
        # False.
        self._is_random, self._is_by_score = False, False
        self._groups: Integers = np.empty(0, dtype=np.int64)  # The group of each row.
        self.variance = 0.0  # The sum of `_variance` over all rows, which `drawn` computes.
        self._keys: Floats = np.empty(left, dtype=np.float64 if self._is_exact else np.float32)
        number = np.min_scalar_type(-max(len(self._file.classes), len(scored) + 1))
        self._predictions: NDArray[Any] = np.empty(left, dtype=number)
        start = 0
        for rows in self._row_blocks():
            for predictions, right in blocks_of_labels(scored, rows):
                part = slice(start, start + len(right))
                self._keys[part], self._predictions[part] = right - self._less, predictions
                start = part.stop
                progress(Progress("forecast", start, left))

    def _row_blocks(self) -> Iterator[Rows]:
        for rows in self._file.require_target().split_blocks(*self._splits):
            yield rows[~np.isin(rows, self._before)] if len(self._before) else rows

    def _scores(self, places: AnyArray | slice) -> Float64s:
        return self._keys[places].astype(np.float64) + self._less

    def score_parts(self) -> Iterator[Float64s]:
        size = len(self._keys) if self._is_exact else _CHUNK
        for start in range(0, len(self._keys), size):
            yield self._scores(slice(start, start + size))

    def drawn(
        self, probabilities: _Inclusion, rng: np.random.Generator
    ) -> tuple[Rows, Float64s, Float64s]:
        """Draw rows, and return their numbers, scores and inclusion probabilities."""

        def parts() -> Iterator[tuple[Integers, Float64s]]:
            for band in self._order(rng):
                for start in range(0, len(band), _CHUNK):
                    places = band[start : start + _CHUNK]
                    scores = self._scores(places)
                    inclusion = probabilities(scores, places)
                    self.variance += _variance(scores, inclusion)
                    yield places, inclusion

        places = drawn_along(parts(), rng)
        rows, start = np.empty(len(places), dtype=np.int64), 0
        for block in self._row_blocks():
            inside = (places >= start) & (places < start + len(block))
            rows[inside] = block[places[inside] - start]
            start += len(block)
        right = self._scores(places)
        if not self._is_exact:
            order = np.argsort(rows)
            blocks = blocks_of_labels(self._scored, rows[order])
            right[order] = np.concatenate([scores for _, scores in blocks])
        return rows, right, probabilities(right, places)

    def _order(self, rng: np.random.Generator) -> Iterable[Integers]:
        if self._is_random:
            return [rng.permutation(len(self._keys))]
        if self._is_by_score:
            return [np.lexsort((-self._keys, self._groups))]
        return order_of_likeness(self._keys, self._predictions)

    def by_score(self, n: int) -> _Inclusion:
        """Return the rule that draws rows with a low score more often."""
        rule = inclusion_rule(self.score_parts, n)
        return lambda scores, _: rule(scores)

    def at_random(self, n: int) -> _Inclusion:
        """Return the rule with equal inclusion probabilities."""
        self._is_random = True
        share = n / len(self._keys)
        return lambda scores, _: np.full(len(scores), share)

    def rule_for(
        self, decision: Decision, n: int, batches: Sequence[Batch]
    ) -> tuple[str, _Inclusion]:
        """Return the name of the score for a decision, and the rule for inclusion probabilities.

        For prediction sets, and if rows have several labels, all rows are equally likely.
        For a limited error, rows are sorted by score before the draw. If each group has a promise,
        all groups get the same number of labels. `batches` are the earlier batches.
        """
        if decision.error is None or len(self._scored) > 1:
            if decision.error is None and any(region_of(batch.score) != -1.0 for batch in batches):
                raise CovcalError(
                    f"{self._file.path}: some labelled rows were not picked for prediction "
                    "sets: extract the data to another file, and run covcal pick on that file"
                )
            return words_of_region(-1.0), self.at_random(n)
        self._is_by_score = True
        scores = self._scores(slice(None))
        rows, target = np.concatenate(list(self._row_blocks())), self._file.require_target()
        _, self._groups = numbered_groups(target, decision.promise_by, rows, self._file.classes)
        look = 1 + sum(region_of(batch.score) is not None for batch in batches)
        beliefs = beliefs_of(decision.planned, BELIEFS[look > 1])
        ranking = Ranking(np.sort(scores), beliefs)
        numbers = np.unique(self._groups)
        parts = [ranking.part(scores[self._groups == number]) for number in numbers]
        level = level_of_look(decision.certainty, look) / len(parts)
        per_group = -(-n // len(parts))
        best = best_region(ranking, per_group, decision.error, level, groups=parts[1:] and parts)
        if best is None:
            raise CovcalError(
                f"{n} labels are too few to promise at most {100 * decision.error:.4g} % "
                f"wrong rows: ask for {decision.labels_needed or 'more'} labels (-n), or run "
                "covcal decide with a larger --error"
            )
        threshold = best[0]
        p, q = inclusions_of_groups(n, scores > threshold, self._groups).T

        def inclusion(scores: Float64s, places: AnyArray) -> Float64s:
            of_rows = self._groups[places]
            return np.asarray(np.where(scores > threshold, p[of_rows], q[of_rows]))

        return words_of_region(threshold), inclusion


def _variance(scores: Float64s, inclusion: Float64s) -> float:
    """Return the anticipated variance of the number of right rows (Isaki & Fuller 1982)."""
    # Clip the scores in the same way as the estimate of the accuracy.
    doubtful = np.clip(scores, NEAREST, 1 - NEAREST)
    return float(((1 / inclusion - 1) * doubtful * (1 - doubtful)).sum())


def _promise_of(decision: str | Path, calibration: str | Path) -> Decision:
    made_for = read_decision(decision, calibration)
    if made_for.error is None and made_for.sets is None:
        raise CovcalError(
            f"{decision} was made with --cost, which makes no promise: run covcal decide with "
            "--error or --set, and give the new decide.json to --for"
        )
    return made_for


def _require_own_labels(file: FeatureFile, rows: Rows, before: Draw, document: Path) -> None:
    fitted = read_calibration(document).labelled_rows
    if fitted is None:
        return
    of_fit = rows[rows_of_fit(file.require_target(), rows, fitted)]
    if others := len(np.setdiff1d(of_fit, before.rows)):
        raise CovcalError(
            f"{document} was fitted to {others} labels that are not in {file.path}: give the file "
            "that covcal label wrote, or decide with a calibration from covcal calibrate --labels "
            "none"
        )


def _known_test_rows(file: FeatureFile, sheets: Sequence[Sheet]) -> Rows:
    """Return the test rows that have a label, or that earlier sheets contain, ascending."""
    draws = [
        with_batches(file, NO_DRAW, [sheet for sheet in sheets if sheet.batch == batch])
        for batch in {sheet.batch for sheet in sheets}
    ]
    labelled = labelled_rows(file.require_target(), "test")
    return np.unique(np.concatenate([labelled, *(draw.rows for draw in draws)]))


def _require_left(
    path: Path, left: int, settings: PickSettings, splits: tuple[str, ...], before: int
) -> None:
    if left < settings.rows:
        already = "have a label or " if settings.are_for_evaluate else ""
        others = f", because {before} rows {already}were drawn before" if before else ""
        remedy = f"ask for at most {left}" if left else "extract more rows"
        raise CovcalError(
            f"{path} has only {left} target {' and '.join(splits)} rows left to "
            f"label{others}: {remedy}"
        )


def _require_csv(path: Path, output: Path | None, page: Path | None) -> None:
    suffix = "" if output is None else output.suffix.lower()
    if page is not None or suffix in SUFFIXES:
        what = "--page" if page is not None else f"a file of tasks ({suffix})"
        raise CovcalError(
            f"{path} has several labels per row, but {what} needs one label per row: write the "
            "labels into the CSV of covcal pick instead"
        )


def _numbered(path: Path, labellers: int) -> list[Path]:
    if labellers == 1:
        return [path]
    return [
        path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(1, labellers + 1)
    ]


def _dealt(sheet: Sheet, settings: PickSettings) -> tuple[Sheet, ...]:
    if settings.labellers == 1:
        return (sheet,)
    shares = [
        Share(labeller, settings.labellers, settings.overlap)
        for labeller in range(settings.labellers)
    ]
    paths = _numbered(sheet.path, settings.labellers)
    return tuple(sheet.of_labeller(share, path) for share, path in zip(shares, paths, strict=True))


def _scaled(file: FeatureFile, document: Path, networks: str | Path | None) -> ScaledLogits:
    networks_path = None if networks is None else Path(networks)
    (scaled,) = scaled_logits(file, read_named([document], networks_path), networks_path).values()
    return scaled


def _splits(path: Path, before: Draw, asked: tuple[str, ...]) -> tuple[str, ...]:
    if not before.batches:
        return asked or ESTIMATED
    drawn_from = before.batches[0].splits
    if asked and set(asked) != set(drawn_from):
        raise CovcalError(
            f"the earlier batches of {path} were drawn from its {' and '.join(drawn_from)} rows: "
            "leave out --split to draw from the same rows"
        )
    return drawn_from


def _variances_before(before: Draw, right: Float64s) -> list[tuple[int, float]]:
    """Return sizes and variances of the earlier batches that were not drawn for a decision."""
    variances = []
    doubtful = np.clip(right, NEAREST, 1 - NEAREST)
    for number, batch in enumerate(before.batches):
        if True in batch.are_for_decision:
            continue
        in_batch = before.batch == number
        s, pi = doubtful[in_batch], before.inclusion[in_batch]
        variances.append((batch.drawn, float(((1 / pi - 1) / pi * s * (1 - s)).sum())))
    return variances


def _combined_deviation(batches: Sequence[tuple[int, float]]) -> float:
    """Return the standard deviation of the weighted mean of all batches."""
    total = sum(size for size, _ in batches)
    return float(np.sqrt(sum((size / total) ** 2 * variance for size, variance in batches)))


def _path(images: Path, row_id: str) -> str:
    return str(images / row_id) if (images / row_id).is_file() else ""
