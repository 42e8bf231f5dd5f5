"""The page: HTML, CSS and SVG in one file, without scripts, fonts or the network.

It is readable on a phone and on paper. A diagram shows the direction of a gap by colour and by
hatching, so that colour-blind readers and black-and-white printers keep it. An empty bin is not
drawn.
"""

from collections.abc import Iterable

from covcal_cli import __version__
from covcal_cli.evaluate.bins import SMALL_GROUP
from covcal_cli.report.content import ReportContent, commands
from covcal_cli.report.figures import (
    DEFINITIONS,
    estimate_diagram,
    reliability_diagram,
    swatch,
)
from covcal_cli.report.tables import (
    candidates_table,
    checks_table,
    class_table,
    differences_table,
    estimates_table,
    metrics_table,
    provenance_table,
    safe,
    weights_table,
)
from covcal_cli.report.verdict import Verdict, verdict


def page(content: ReportContent) -> str:
    """Return the whole page; the same content gives the same bytes."""
    result = verdict(content)
    title = f"Can the confidence be trusted? {content.path.name}"
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{safe(title)}</title>",
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{safe(title)}</h1>",
        f'<p class="origin">{safe(_origin(content))}</p>',
        _verdict_box(result),
        "" if content.reading is None else f"<p>{safe(content.reading)}</p>",
        *_measured(content),
        *_estimated(content),
        *_calibrations(content),
        section("Make this page again", f"<pre>{chr(10).join(map(safe, commands(content)))}</pre>"),
        folded("Files, hashes and settings", provenance_table(content)),
        f'<p class="origin">covcal {safe(__version__)}</p>',
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _origin(content: ReportContent) -> str:
    classes = len(content.calibration.classes)
    model = content.attributes.get("model_name") or "a classifier without a recorded name"
    rows = "; ".join(f"{name}: {text}" for name, text in content.rows.items())
    return f"{model}, {classes} classes. Rows of the {rows}."


def _verdict_box(result: Verdict) -> str:
    sentences = "".join(f"<p>{safe(text)}</p>" for text in result.sentences)
    return (
        f'<div class="verdict {result.tone}"><strong>{safe(result.headline)}.</strong>'
        f"{sentences}</div>"
    )


def _measured(content: ReportContent) -> Iterable[str]:
    evaluation = content.evaluation
    if evaluation is None:
        return
    diagrams = "\n".join(
        f"<figure><figcaption>{safe(name)}: ECE {100 * metrics.ece:.2f} %</figcaption>"
        f"{reliability_diagram(name, metrics)}</figure>"
        for name, metrics in evaluation.metrics.items()
    )
    yield section(
        "Before and after",
        f'{DEFINITIONS}<p class="key">{swatch("over")}over-confident</span>'
        f"{swatch('under')}under-confident</span></p>"
        f'<div class="diagrams">{diagrams}</div>'
        "<p>Rows are grouped by confidence. The height of a bar is the share of right answers. If "
        "the confidence is right, the bar ends on the dashed line.</p>",
    )
    level = f"{100 * evaluation.level:.4g} %"
    texts = [f"Target {evaluation.split} rows.", *(f"Note: {text}." for text in evaluation.notes)]
    if evaluation.resamples:
        texts[0] += (
            f" Parentheses hold {level} intervals from {evaluation.resamples} resamples. They do "
            "not include the noise of the calibration's own fit. Chance raises a measured ECE "
            "above 0, and its interval accounts for that."
        )
    notes = "".join(f"<p>{safe(text)}</p>" for text in texts)
    yield section("Metrics", metrics_table(evaluation) + notes)
    if evaluation.differences:
        note = f"<p>Paired differences with {level} intervals.</p>"
        yield section("Differences on the same rows", differences_table(evaluation) + note)
    groups = evaluation.classes.get(content.name)
    if groups:
        table, left_out = class_table(groups)
        more = f" The {left_out} least over-confident classes are not shown."
        small = f"* fewer than {SMALL_GROUP} rows: its ECE is mostly noise."
        note = f"<p>{small}{more if left_out else ''}</p>"
        yield section(f"By predicted class, with {content.name}", table + note)


def _estimated(content: ReportContent) -> Iterable[str]:
    if content.estimation is None:
        return
    heading = "Confidence and estimated accuracy"
    if content.evaluation is None:
        yield section(
            heading,
            f'<figure class="wide">{estimate_diagram(content)}</figure>'
            "<p>The grey bar is the range of the estimated accuracy. The confidence should be in "
            "it.</p>",
        )
    yield section(
        "Estimates without labels",
        "<p>Estimates of the target accuracy. None of them read a target label.</p>"
        + estimates_table(content.estimation),
    )


def _calibrations(content: ReportContent) -> Iterable[str]:
    for name, calibration in content.calibrations.items():
        tables = [
            weights_table(calibration),
            candidates_table(calibration),
            checks_table(calibration.guards),
        ]
        chosen = "" if calibration.method == calibration.method_used else ", chosen by auto"
        texts = [f"Method {calibration.method_used}{chosen}: {calibration.reason}"]
        texts += [f"Warning: {text}" for text in calibration.warnings]
        texts += [f"Note: {text}" for text in calibration.notes]
        body = "".join(f"<p>{safe(text)}</p>" for text in texts)
        details = "".join(filter(None, tables))
        if details:
            body += folded("Candidates, checks and weights", details)
        yield section(f"The calibration: {name}", body)


STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1rem; color: #1f2933; background: #fff;
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .4rem 0; max-width: 44rem; } .origin { color: #52606d; }
.verdict { border-left: .5rem solid; padding: .5rem 1rem; margin: 1rem 0; background: #f5f7fa;
  max-width: 48rem; }
.verdict strong { font-size: 1.2rem; }
.good { border-color: #007a5e; } .mixed { border-color: #b07d00; } .bad { border-color: #b3261e; }
.diagrams { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); }
figure { margin: 0; max-width: 26rem; } figcaption { font-weight: 600; }
.diagram { display: block; width: 100%; height: auto; }
.diagram text { font-size: 11px; fill: #3e4c59; }
.definitions { position: absolute; }
.key span { white-space: nowrap; margin-right: 1rem; }
.key svg { width: 1.6em; height: 1em; vertical-align: -.12em; }
.table { overflow-x: auto; margin: .5rem 0 1rem; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid #d9dee4;
  vertical-align: top; min-width: 4.5rem; }
th:first-child, td:first-child { min-width: 7.5rem; }
td:last-child:not(.number) { min-width: 15rem; }
.long td { overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { background: #f5f7fa; padding: .7rem; overflow-x: auto; font-size: .85rem; }
figure.wide { max-width: 40rem; }
details { margin: 2rem 0 .5rem; } summary { font-weight: 600; cursor: pointer; }
@media screen and (max-width: 40rem) {
  .stack thead { display: none; }
  .stack table, .stack tbody { display: block; }
  .stack tr { display: block; padding: .4rem 0; border-bottom: 1px solid #d9dee4; }
  .stack td { display: grid; grid-template-columns: 8.5rem 1fr; gap: .5rem; border: 0;
    padding: .1rem 0; text-align: left; min-width: 0; white-space: normal; }
  .stack td:last-child:not(.number), .stack td:first-child { min-width: 0; }
  .stack td::before { content: attr(data-label); color: #52606d; } }
@media print { body { max-width: none; font-size: 11px; padding: 0; }
  .table, pre { overflow: visible; } pre { white-space: pre-wrap; }
  figure, tr { break-inside: avoid; } h2 { break-after: avoid; } }
"""


def section(heading: str, body: str) -> str:
    """Return a section of a page; `body` is HTML."""
    return f"<section><h2>{safe(heading)}</h2>\n{body}</section>"


def folded(heading: str, body: str) -> str:
    """Return a section that is closed until the reader opens it; `body` is HTML."""
    return f"<details><summary>{safe(heading)}</summary>\n{body}</details>"
