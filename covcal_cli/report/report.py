"""``covcal report``: write one HTML page about calibrations of a file."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from covcal_cli.calibrate.estimate import Estimation, expect
from covcal_cli.errors import CovcalError, TooFewRowsError, UnlabelledError
from covcal_cli.evaluate.evaluate import EvaluateSettings, evaluate
from covcal_cli.evaluate.result import Evaluation
from covcal_cli.files import check_output, write_text
from covcal_cli.forecast import read_named, source_accuracy
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.decision import read_decision
from covcal_cli.formats.features import SPLITS, FeatureFile
from covcal_cli.formats.lineage import is_unchanged, labels_of
from covcal_cli.labels.draws import read_draw
from covcal_cli.multilabel import for_each_label
from covcal_cli.report.page import page
from covcal_cli.report.verdict import DEFAULTS, ReportContent


def report(
    path: str | Path,
    documents: Sequence[str | Path],
    output: str | Path,
    settings: EvaluateSettings = DEFAULTS,
    *,
    names: Sequence[str] = (),
    networks: str | Path | None = None,
    decision: str | Path | None = None,
    force: bool = False,
) -> ReportContent:
    """Write one self-contained HTML page about calibrations of a file.

    If target rows have labels, the page shows measurements. Without labels, the page shows
    estimates with the settings of the first calibration. If a row can have several labels, the page
    also has a section for each label. The same input always gives the same bytes.

    Parameters
    ----------
    path : str or Path
        A features or adapted file.
    documents : sequence of str or Path
        Calibration files. The verdict is about the first calibration.
    output : str or Path
        The HTML file to write.
    settings, networks
        The settings and the networks file that `evaluate` uses.
    names : sequence of str
        Names of the calibrations in the page.
    decision : str or Path, optional
        A decide.json that was made with one of these calibrations.

    Raises
    ------
    CovcalError
        If an input cannot be used, or the output cannot be written.
    """
    path, output, files = Path(path), Path(output), [Path(document) for document in documents]
    networks = None if networks is None else Path(networks)
    if output.suffix.lower() not in (".html", ".htm"):
        raise CovcalError(f"{output}: a report is a web page: give -o a name that ends in .html")
    if not files:
        raise CovcalError("a report needs at least one calibration: give it with -c cal.json")
    decided = None if decision is None else Path(decision)
    check_output(output, force=force, inputs=[path, *files, *([decided] if decided else [])])

    def of_label() -> ReportContent:
        return _content(path, files, settings, names, networks, decided)

    labels = labels_of(path, files)
    contents = for_each_label(labels, of_label)
    content = next(iter(contents.values()))
    if labels:
        content = replace(content, labels=contents)
    write_text(output, page(content), force=force)
    return content


def _content(
    path: Path,
    files: Sequence[Path],
    settings: EvaluateSettings,
    names: Sequence[str],
    networks: Path | None,
    decided: Path | None,
) -> ReportContent:
    accepting = None if decided is None else read_decision(decided, *files)
    calibrations = read_named(files, networks, names)
    with FeatureFile(path) as file:
        attributes = _attributes(file)
        rows = {
            domain.name: ", ".join(f"{domain.count(name)} {name}" for name in SPLITS)
            for domain in (file.source, file.target)
            if domain is not None
        }
        accuracy = source_accuracy(file)
        batches = {path: read_draw(file).batches}
    evaluation: Evaluation | None = None
    with suppress(UnlabelledError):
        evaluation = evaluate(
            path, calibrations, settings, documents=files, networks=networks, decision=decided
        )
    estimation: Estimation | None = None
    notes = () if evaluation is None else evaluation.notes
    with suppress(TooFewRowsError):
        expectation = expect(
            path,
            files,
            names=names,
            networks=networks,
            allow_other_preprocessing=settings.allow_other_preprocessing,
        )
        estimation, notes = expectation.estimation, (*notes, *expectation.notes)
    origins = _origins(calibrations.values(), path)
    for origin in origins:
        with FeatureFile(origin) as file:
            batches[origin] = read_draw(file).batches
    return ReportContent(
        path=path,
        documents=tuple(files),
        calibrations=calibrations,
        evaluation=evaluation,
        estimation=estimation,
        attributes=attributes,
        origins=origins,
        batches=batches,
        rows=rows,
        source_accuracy=accuracy,
        settings=settings,
        networks=networks,
        notes=notes,
        decision=accepting,
        decided=decided,
        names=tuple(names),
    )


def _origins(calibrations: Iterable[Calibration], path: Path) -> dict[Path, dict[str, str]]:
    origins = {}
    for calibration in calibrations:
        fitted = calibration.inputs[0]
        if is_unchanged(fitted) and not fitted.path.samefile(path):
            with FeatureFile(fitted.path) as file:
                origins[fitted.path] = _attributes(file)
    return origins


def _attributes(file: FeatureFile) -> dict[str, str]:
    return {
        name: value.decode("utf-8") if isinstance(value, bytes) else str(value)
        for name, value in sorted(file.attributes.items())
    }
