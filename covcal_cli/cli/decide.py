"""``covcal decide``: choose the target rows to accept, with an estimated or a promised error."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covcal_cli.cli import options, tables
from covcal_cli.cli.console import Console, to_new_sheet, usage
from covcal_cli.errors import in_percent, interval, short_percent
from covcal_cli.files import as_word, check_output

if TYPE_CHECKING:
    from covcal_cli.formats.decision import Decision

_FEW = 20  # minimum number of accepted rows of a group to show its error rate


def decide(
    file: options.JudgedFile = None,
    calibration: Annotated[
        Path | None,
        options.calibration(
            "The calibration that gives the confidence of each row; default: cal.json."
        ),
    ] = None,
    output: Annotated[
        Path, options.output("File for the decision. With -o -, JSON is printed.", printed=True)
    ] = Path("decide.json"),
    error: Annotated[
        float | None, options.share("Largest share of the accepted rows that may be wrong.")
    ] = None,
    coverage: Annotated[
        float | None,
        options.share(
            "Make sets of classes that contain the right class in this share of all rows.", "--set"
        ),
    ] = None,
    costs: options.DecisionCosts = None,
    certainty: Annotated[
        float | None,
        options.share(
            "Confidence level of a promise. Default: 0.9. Without this option, sets reach their "
            "coverage only on average."
        ),
    ] = None,
    these_rows: Annotated[
        bool, typer.Option("--these-rows", help="Make the promise only for the rows of this file.")
    ] = False,
    labels: options.Labels = options.LabelsName.auto,
    by: Annotated[
        str | None,
        options.groups(
            "Show the accepted rows and the expected error for each value of this column, or "
            "for each predicted class."
        ),
    ] = None,
    promise_by: Annotated[
        str | None,
        options.groups(
            "Make a promise for each value of this column, or for each predicted class. With "
            "the given certainty, all promises are kept."
        ),
    ] = None,
    networks: options.NetworksOfFeatures = None,
    force: options.Force = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Decide which target rows to accept, and which a person should review.

    Without labels, the error of the accepted rows is an estimate. If you label the rows from covcal
    pick --for, covcal promises that the error is at most --error, with the given certainty. The
    promise is valid for every classifier and shift, because the labelled rows are chosen at random.
    Target test rows are not used, so that covcal evaluate can measure the result on these rows.

    \b
    Examples:
      covcal decide --error 0.05
      covcal pick -n 80 --for decide.json
      covcal decide --error 0.05 --labels marked -f
      covcal decide --error 0.05 --by hospital
      covcal decide --error 0.05 --promise-by hospital
      covcal decide --cost costs.json
      covcal decide adapted.h5 -c cal.json --set 0.9
    """
    from covcal_cli.calibrate.estimate import estimate_for_decision
    from covcal_cli.decide.decide import DecideSettings
    from covcal_cli.decide.decide import decide as choose
    from covcal_cli.formats.calibration import read_calibration
    from covcal_cli.formats.lineage import file_to_judge, labels_of
    from covcal_cli.multilabel import for_each_label, gathered
    from covcal_cli.records import document_text, of_labels, write_document
    from covcal_cli.report.verdict import asks_for_labels, unmeasured_action

    document = calibration or Path("cal.json")
    with usage():
        settings = DecideSettings(
            error=error,
            coverage=coverage,
            certainty=certainty,
            these_rows=these_rows,
            labels=labels.value,
            by=by,
            promise_by=promise_by,
            costs=costs,
        )
    console = Console(quiet=quiet, verbose=verbose)
    to_stdout = str(output) == "-"

    def decided() -> "tuple[Path, list[str], Decision]":
        fitted = read_calibration(document)
        path, notes = file_to_judge(file, [fitted], purpose="decide", picked=calibration is None)
        if not to_stdout:
            check_output(output, force=force, inputs=[path, document, *([costs] if costs else [])])
        estimate, cost, doubts = estimate_for_decision(path, fitted, costs, error)
        with console.progress() as show:
            decision = choose(
                path, document, settings, estimate, cost=cost, networks=networks, progress=show
            )
        tone, advice = unmeasured_action(fitted)
        if tone == "bad" and not decision.is_promise:
            decision = replace(decision, warnings=(*decision.warnings, f"{document}: {advice}"))
        elif asks_for_labels(advice) and not decision.is_promise:
            doubts.append(f"{document}: {advice}")
        return path, [*notes, *doubts, *decision.notes], decision

    labels_of_file = labels_of(file, [document])
    for option, value in (("--set", coverage), ("--promise-by", promise_by)):
        if labels_of_file and value is not None:
            raise typer.BadParameter(
                f"each row of this file can have several labels: leave out {option}, which is "
                "for one class per row"
            )
    of_label = for_each_label(labels_of_file, decided)
    path, _, decision = next(iter(of_label.values()))
    decisions = {name: entry for name, (_, _, entry) in of_label.items()}
    written = Path("decide.json") if to_stdout else output
    content: Decision | dict[str, Any] = decision
    screen = answer(decision, str(output))
    if labels_of_file:
        from covcal_cli.cli import multilabel

        content, screen = of_labels(decisions, written), multilabel.decided(decisions, str(output))
    parts = [screen]
    for name, entry in decisions.items():
        parts += [name, _groups(entry)] if entry.groups else []
    if file is None:
        console.note(f"reading {path}")
    if to_stdout:
        console.result(document_text(content, written))
    else:
        write_document(content, output, force=force)
        console.screen("\n\n".join(filter(None, parts)))
    console.warn(gathered({name: list(entry.warnings) for name, entry in decisions.items()}))
    console.note(*gathered({name: texts for name, (_, texts, _) in of_label.items()}))
    if not to_stdout:
        rows = f" {as_word(file)}" if file else ""
        other = f" -c {as_word(calibration)}" if calibration else ""
        command = f"covcal apply{rows}{other} --decide {as_word(output)}"
        hint = f"{command}  # writes the decision for every row"
        is_of_use = any(entry.share or entry.sets for entry in decisions.values())
        console.wrote(output, hint if is_of_use else None)


def answer(decision: "Decision", output: str) -> str:
    """Return the share of accepted rows, and the error rate of these rows."""
    facts: dict[str, str] = {}
    cost, use, rule = decision.cost, decision.labels, decision.sets
    if decision.share:
        above = decision.threshold
        limit = "the threshold of their group" if above is None else short_percent(above)
        facts["Accept"] = f"{in_percent(decision.share)} % of {decision.counted}"
        if above != 0:
            facts["Accept"] += f": the rows with a confidence above {limit}"
    elif decision.accepts_rows:
        facts["Accept"] = f"none of {decision.counted}"
    if cost is not None:
        facts["Cost"] = (
            f"{cost.cost:.4g} per row ({cost.low:.4g} to {cost.high:.4g}), compared with "
            f"{cost.review:.4g} for a review of every row. This is an estimate."
        )
    if decision.error is not None:
        limit = short_percent(decision.error)
        surest = "rows with the highest confidence"
        promise = f"a promise that at most {limit} of the accepted rows are wrong"
        if decision.is_promise:
            future = "" if decision.covers == "these rows" else ", and of similar future rows,"
            basis = "" if use is None else f" ({use.labels} labels, {use.wrong} wrong)"
            promised = sum(group.threshold is not None for group in decision.groups)
            groups = f"In {promised} of {len(decision.groups)} groups: " if use is None else ""
            facts["Promise"] = (
                f"{groups}At most {limit} of these rows{future} are wrong, with "
                f"{short_percent(decision.certainty)} certainty{basis}"
            )
        elif (point := decision.expected) is not None:
            ends = interval(point.low, point.high, point.error)
            range_ = f" ({ends})" if point.low < point.high else ""
            facts["Expect"] = (
                f"{in_percent(point.error)} % of these rows to be wrong{range_}. This is an "
                "estimate, not a promise."
            )
        elif decision.share:
            facts["Expect"] = "see the table. Each error is an estimate, not a promise."
        elif use is None:
            facts["Reason"] = f"more than {limit} of the {surest} may be wrong"
        elif use.labels:
            allowed = f"at most {use.allowed} wrong rows" if use.allowed > 0 else "no wrong row"
            facts["Reason"] = (
                f"{use.wrong} of the {use.labels} labelled {surest} are wrong, but {promise} "
                f"allows {allowed}"
            )
        else:
            facts["Reason"] = f"{promise} is possible only after you label more {surest}"
        if not decision.is_promise or (use is None and decision.labels_needed):
            facts["Labels"] = _offer(decision, output)
    if rule is not None:
        basis = f"by {rule.labels} labels" if rule.labels else "an estimate"
        if rule.certainty is not None:
            basis += f", with {short_percent(rule.certainty)} certainty"
        facts["Sets"] = (
            f"{rule.mean_size:.2f} classes on average. A set contains the right class in "
            f"{short_percent(rule.coverage)} of rows ({basis})"
        )
    return tables.aligned(facts)


def _groups(decision: "Decision") -> str:
    from covcal_cli.report.tables import Table

    rows, by = [], decision.promise_by
    for group in decision.groups:
        point, use, cells = group.accepted, group.labels, ["none", ""]
        if point is not None:
            error = f"{in_percent(point.error)} % ({interval(point.low, point.high, point.error)})"
            few = point.share * group.rows < _FEW
            cells = [f"{in_percent(point.share)} %", "too few rows" if few else error]
        if by is not None:
            needs = f"needs {group.labels_needed}{' more' if use else ''} labels"
            promise = needs if group.labels_needed else "unlikely"
            if use is not None and group.threshold is not None:
                promise = f"yes ({use.labels} labels, {use.wrong} wrong)"
                # An estimate without these labels could contradict the promise.
                cells[1] = f"at most {short_percent(decision.error or 0.0)}"
            cells.append(promise if group.rows else "")
        rows.append([group.name, str(group.rows), *cells])
    columns = [by or decision.by or "", "rows", "accepted", "expected to be wrong"]
    table = Table(columns + ["promise"] * (by is not None), rows)
    about = "about all accepted rows together" if by is None else "about one group"
    return f"{tables.text(table)}\nEach error with a range is an estimate. A promise is {about}."


def _offer(decision: "Decision", output: str) -> str:
    from covcal_cli.decide.decide import LIKELY

    uses = [decision.labels, *(group.labels for group in decision.groups)]
    labels, is_first = decision.labels_needed, not any(uses)
    if not labels:
        outlook = "even with more labels, a promise would cover only a few rows"
        if is_first:
            outlook = "a promise is unlikely, even with many labels"
        return f"{outlook}: allow a larger --error, or improve the classifier"
    pick = f"covcal pick -n {labels}{to_new_sheet()} --for {as_word(output)}"
    likely = "probably" if is_first and decision.promised_chance >= LIKELY else "perhaps"
    return (
        f"a promise for about {in_percent(decision.promised_share)} % of the rows {likely} "
        f"needs {labels}{'' if is_first else ' more'} labels: {pick}"
    )
