"""``covcal pick``: draw target rows for a person to label."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli import options, tables
from covcal_cli.cli.console import Console, file_to_read, usage
from covcal_cli.errors import CovcalError, in_points, interval, printable
from covcal_cli.files import as_word

if TYPE_CHECKING:
    from covcal_cli.labels.pick import PickReport


def pick(
    file: options.InputFile = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Rows to pick.")] = 50,
    output: Annotated[
        Path,
        options.output(
            "CSV to write, with an empty column for labels. With -o -, CSV is printed. A name in "
            ".json gives tasks for Label Studio, and a name in .jsonl gives tasks for doccano.",
            printed=True,
        ),
    ] = Path("to-label.csv"),
    calibration: Annotated[
        Path | None,
        options.calibration(
            "Calibration that gives the confidence. Rows with a low confidence are drawn more "
            "often. Default: a temperature fitted to the source."
        ),
    ] = None,
    after: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="CSV",
            help="An earlier CSV from covcal pick whose labels are not in FILE yet. Rows of this "
            "CSV are not drawn again. May be repeated.",
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="HTML",
            help="Also write a page on which a person labels the rows, by keys or by touch.",
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="TARGET",
            help="The target images that you gave to extract: the page shows these images, and the "
            "CSV gets a column with their paths.",
        ),
    ] = None,
    split: Annotated[
        list[options.SplitName] | None,
        typer.Option(
            help="Draw rows of this split. May be repeated. Default: train and validation. With "
            "test alone, the labels are for covcal evaluate, and all rows are equally likely.",
            show_default=False,
        ),
    ] = None,
    decision: Annotated[
        Path | None,
        typer.Option(
            "--for",
            metavar="DECIDE.JSON",
            help="Draw the rows that best help to prove the promise of this decision.",
        ),
    ] = None,
    labellers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Write a CSV (and a page) for each of N people, who share the rows. "
            "Default: 1, or 2 with --overlap.",
            show_default=False,
        ),
    ] = None,
    overlap: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Number of rows that all labellers get, to measure how far they agree. "
            "Default: 10 with several labellers.",
            show_default=False,
        ),
    ] = None,
    predictions: Annotated[
        bool,
        typer.Option(
            "--predictions",
            help="Show the classifier's answer in the CSV, and behind a button on the page.",
        ),
    ] = False,
    networks: options.NetworksOfFeatures = None,
    seed: options.Seed = 0,
    force: options.Force = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Pick the target rows whose labels are most useful.

    Rows are drawn at random. Rows with a low confidence are drawn with a higher probability.
    Because the CSV also holds the probability of each draw, estimates from the labels are unbiased.
    The CSV shows the texts and other columns that covcal extract stored. Fill in the column
    "label", and run covcal label. Rows that were picked before are not drawn again. If rows can
    have several labels, the CSV has a column label_NAME for each label: write 1 or 0.

    The page works offline and on a phone: open it in any browser, label the rows, save the CSV.
    The CSV and the page do not show the classifier's answer unless you ask for it, because people
    tend to agree with an answer that they see.

    \b
    Examples:
      covcal pick -n 50
      covcal pick -n 60 --page label.html --images target/
      covcal pick adapted.h5 -n 50 -o to-label.csv --images target/
      covcal pick -n 50 --labellers 2 --overlap 10 --page label.html
      covcal pick -n 50 -o tasks.json
      covcal pick -n 80 --for decide.json
      covcal pick features.h5 -n 20 -c cal.json --after to-label.csv -o more.csv
      covcal pick -n 100 --split test -o test.csv
    """
    from covcal_cli.formats.decision import ROLES_OF_ROWS, input_of
    from covcal_cli.formats.features import ALL, SPLITS
    from covcal_cli.formats.lineage import labels_of
    from covcal_cli.labels.pick import PickSettings
    from covcal_cli.labels.pick import pick as draw
    from covcal_cli.labels.sheet import sheet_text
    from covcal_cli.labels.tasks import DOCCANO, LABEL_STUDIO
    from covcal_cli.maths.source_accuracy import METRICS_COMMAND
    from covcal_cli.multilabel import for_first_label
    from covcal_cli.records import json_of

    names = [name.value for name in split or []]
    people = labellers or (2 if overlap else 1)
    if people > 1 and str(output) == "-":
        raise typer.BadParameter(
            "several CSV files cannot be printed: give a file name with -o",
            param_hint="--labellers",
        )
    if overlap and people == 1:
        raise typer.BadParameter(
            "needs several labellers: give at least --labellers 2", param_hint="--overlap"
        )
    with usage():
        settings = PickSettings(
            rows=count,
            labellers=people,
            overlap=min(10, count) if overlap is None and people > 1 else overlap or 0,
            seed=seed,
            splits=SPLITS if ALL in names else tuple(dict.fromkeys(names)),
        )
    if output.suffix.lower() in (".html", ".htm"):
        raise typer.BadParameter(
            "the CSV cannot be a page: pass --page FILE.html to write a page", param_hint="--output"
        )
    console = Console(quiet=quiet, verbose=verbose)
    if file is None and decision is not None:
        labels = labels_of(None, [decision], remedy="make it with covcal decide")
        file = for_first_label(labels, partial(input_of, decision, *ROLES_OF_ROWS))
        console.note(f"covcal pick reads {file}, because {decision} was made from this file")
    path = file_to_read(file, console)
    to_stdout = str(output) == "-"
    with console.progress() as progress:
        picked = draw(
            path,
            None if to_stdout else output,
            settings,
            calibration=calibration,
            networks=networks,
            earlier=after or (),
            images=images,
            page=page,
            decision=decision,
            predictions=predictions,
            force=force,
            progress=progress,
        )
    if to_stdout:
        console.result(sheet_text(picked.sheet))
    else:
        files = [str(place) for place in picked.pages or [sheet.path for sheet in picked.sheets]]
        now = _known_range(path, calibration or Path("cal.json"))
        console.screen(_summary(picked, " and ".join(files), now))
        depends = f"the probability of drawing a row depends on its {picked.sheet.batch.score}"
        if picked.sheet.batch.is_for_evaluate:
            depends = "all rows have the same probability of being drawn"
        console.detail(f"{depends}; seed {seed}")
    console.warn(
        f"the page cannot show {row_id}: {reason}" for row_id, reason in picked.unreadable.items()
    )
    sheet = picked.sheet
    decisions = [] if decision is None else [json_of(decision)]
    if sheet.several:
        decisions = [entry for content in decisions for entry in content["labels"].values()]
    needed = max((entry["labels_needed"] for entry in decisions), default=0)
    if decisions and all(entry["is_promise"] for entry in decisions):
        console.note(
            f"{decision} is a promise already. With more labels, the promise stays valid but "
            "covers only a few more rows"
        )
    elif not decisions and (rare := _rarely_drawn(picked)):
        console.note(
            f"{rare}. To draw more rows of this class, run covcal decide --error 0.2 --promise-by "
            f"predicted -o rare.json, and covcal pick -n {count} --for rare.json -o rare.csv. "
            f"Label these rows, and run {METRICS_COMMAND} --labels marked"
        )
    elif count < needed:
        console.note(
            f"{decision} suggests {needed} labels: with {count} labels, a "
            "promise is less likely or covers fewer rows"
        )
    if page is not None and images is None and not set(sheet.cells) - set(sheet.answers):
        console.note(
            "the page shows only the ids of the rows. To show images, pass --images TARGET. To "
            "show columns of a table, extract the table again with --keep COLUMN"
        )
    if sheet.answers and not predictions:
        console.note(
            f"columns left out, because they seem to hold the classifier's answer: "
            f"{printable(', '.join(sheet.answers))}. To show these columns, pass --predictions"
        )
    read = f"covcal label {as_word(path)}"
    saved = " ".join(as_word(sheet.path.name) for sheet in picked.sheets)
    outputs = " ".join(as_word(sheet.path) for sheet in picked.sheets)
    fill = "columns label_NAME with 1 or 0" if sheet.several else "column label"
    next_step = f"fill in the {fill}, keep the other columns, then {read} {outputs}"
    interface = output.with_suffix(".xml")
    if output.suffix.lower() == LABEL_STUDIO:
        next_step = (
            f"import {outputs} into a Label Studio project. The labelling interface is in "
            f"{as_word(interface)}. Export your labels as JSON, then {read} EXPORT.json"
        )
    elif output.suffix.lower() == DOCCANO:
        next_step = (
            f"import {outputs} into a text classification project of doccano. Export your "
            f"labels as JSONL, then {read} EXPORT.jsonl"
        )
    if picked.pages:
        next_step = f"open the page in a browser, label the rows, save {saved}, then {read} {saved}"
        if people > 1:
            next_step = (
                "each person opens one page in a browser, labels the rows and saves the CSV; then "
                f"{read} {saved}"
            )
    places = [*([] if to_stdout else [sheet.path for sheet in picked.sheets]), *picked.pages]
    if output.suffix.lower() == LABEL_STUDIO:
        console.wrote(interface)
    for place in places:
        console.wrote(place, next_step if place == places[-1] else None)


def _known_range(path: Path, document: Path) -> str:
    """Return the estimated accuracy in cal.json as text, if cal.json was fitted on this file."""
    from covcal_cli.formats.calibration import read_calibration
    from covcal_cli.formats.features import FeatureFile

    try:
        calibration = read_calibration(document)
        with FeatureFile(path) as file:
            sha256 = file.sha256()
    except CovcalError:
        return ""
    estimates = calibration.estimates.get("labelled", calibration.estimates)
    if "accuracy_low" not in estimates or sha256 not in {e.sha256 for e in calibration.inputs}:
        return ""
    return interval(estimates["accuracy_low"], estimates["accuracy_high"])


def _rarely_drawn(picked: "PickReport") -> str:
    """Return a sentence if one of two classes is predicted for few of the drawn rows, or ""."""
    from covcal_cli.labels.metrics import LEAST_LABELS
    from covcal_cli.maths.source_accuracy import RIGHT, WRONG

    predicted, classes = picked.sheet.predicted, picked.classes
    if not predicted or picked.sheet.several or len(classes) != 2 or classes == (RIGHT, WRONG):
        return ""
    count, rarest = min((predicted.count(name), name) for name in classes)
    if count >= min(LEAST_LABELS, len(predicted) / 20):
        return ""
    verb = "is" if count == 1 else "are"
    return f"{count} of these {len(predicted)} rows {verb} predicted as {printable(rarest)}"


def _summary(picked: "PickReport", where: str, now: str) -> str:
    from covcal_cli.data.classes import listed
    from covcal_cli.labels.score import region_of

    batch = picked.sheet.batch
    these = f"these {batch.drawn} rows" if batch.drawn > 1 else "this row"
    half, worst = (
        f"{100 * width:.0f}" for width in (picked.half_width_of_all, picked.half_width_at_worst)
    )
    points = in_points(half) + (f" (worst case: {worst})" if worst != half else "")
    accuracy = "the accuracy of a label" if picked.sheet.several else "the accuracy"
    known = f"{accuracy} is known to about +/- {points}"
    before = f" and the {picked.before} labels of earlier batches" if picked.before else ""
    precision = f"with these labels{before}, {known}"
    if now:
        precision = f"the estimate is {now} now; with only these labels{before}, {known}"
    least = 100 * picked.mean_error
    first = (
        f"Label {these} in {where}, drawn from {batch.population} {' and '.join(batch.splits)} rows"
    )
    facts: dict[str, str] = {}
    if region_of(batch.score) is not None:
        facts["Promise"] = "covcal decide will test the promise with these labels"
    else:
        facts["Accuracy"] = precision
    if batch.is_for_evaluate:
        facts["Use"] = "covcal evaluate will read these labels; covcal calibrate will not"
    elif region_of(batch.score) is None:
        facts["ECE"] = (
            f"a calibration with these labels has an ECE of at least {in_points(f'{least:.0f}')}"
            if least >= 1
            else "a calibration with these labels can have an ECE below 1 point"
        )
    if len(picked.sheets) > 1:
        share, sizes = picked.sheets[0].share, [len(sheet) for sheet in picked.sheets]
        overlap = 0 if share is None else share.overlap
        most = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else f"{sizes[0]}"
        facts["Sharing"] = (
            f"{most} rows for each of {len(sizes)} labellers; {overlap} of these rows go to "
            "every labeller"
        )
    facts["Labels" if picked.sheet.several else "Classes"] = listed(picked.classes)
    return f"{first}\n{tables.aligned(facts)}"
