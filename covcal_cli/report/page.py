"""The page: HTML and CSS in one file that opens on a phone and on paper, without a network."""

from collections.abc import Iterable
from html import escape

from covcal_cli import __version__
from covcal_cli.report.content import ReportContent, commands
from covcal_cli.report.figures import DEFINITIONS, reliability_diagram
from covcal_cli.report.tables import (
    candidates_table,
    class_table,
    estimates_table,
    guards_table,
    metrics_table,
    provenance_table,
    weights_table,
)
from covcal_cli.report.verdict import verdict

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1rem; color: #1f2933; background: #fff;
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .4rem 0; max-width: 44rem; } .origin { color: #52606d; }
.verdict { border-left: .5rem solid; padding: .5rem 1rem; margin: 1rem 0; background: #f5f7fa; }
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
@media print { body { max-width: none; font-size: 11px; padding: 0; }
  .table, pre { overflow: visible; } pre { white-space: pre-wrap; }
  figure, tr { break-inside: avoid; } h2 { break-after: avoid; } }
"""


def page(content: ReportContent) -> str:
    """Return the whole page; the same content gives the same bytes."""
    title = f"Is the confidence honest? {content.path.name}"
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="origin">{escape(_origin(content))}</p>',
        _verdict(content),
        *_measured(content),
        *_expected(content),
        *_calibrations(content),
        _section("Where it comes from", provenance_table(content)),
        _section("Commands", f"<pre>{escape(chr(10).join(commands(content)))}</pre>"),
        f'<p class="origin">covcal {escape(__version__)}</p>',
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _origin(content: ReportContent) -> str:
    classes = len(content.calibration.classes)
    model = content.attributes.get("model_name") or "a classifier that is not recorded"
    rows = "; ".join(f"{name}: {text}" for name, text in content.rows.items())
    return f"{model}, {classes} classes. {rows}."


def _verdict(content: ReportContent) -> str:
    found = verdict(content)
    sentences = "".join(f"<p>{escape(text)}</p>" for text in found.sentences)
    return (
        f'<div class="verdict {found.tone}"><strong>{escape(found.headline)}</strong>'
        f"{sentences}</div>"
    )


def _measured(content: ReportContent) -> Iterable[str]:
    evaluation = content.evaluation
    if evaluation is None:
        return
    diagrams = "\n".join(
        f"<figure><figcaption>{escape(name)}: ECE {100 * entry.ece:.2f} %</figcaption>"
        f"{reliability_diagram(name, entry)}</figure>"
        for name, entry in evaluation.metrics.items()
    )
    yield _section(
        "Before and after",
        f'{DEFINITIONS}<p class="key">{_swatch("over")}over-confident</span>'
        f"{_swatch('under')}under-confident</span></p>"
        f'<div class="diagrams">{diagrams}</div>'
        "<p>Rows are grouped by how sure the model was. A bar shows how often it was right; an "
        "honest confidence ends on the dashed line.</p>",
    )
    note = (
        f"<p>Target {escape(evaluation.split)} rows. In parentheses 95 % intervals"
        f"{f' from {evaluation.resamples} resamples' if evaluation.resamples else ''}; an ECE "
        "holds the part of chance that its interval takes away.</p>"
    )
    yield _section("Metrics", metrics_table(evaluation) + note)
    groups = evaluation.classes.get(content.name)
    if groups:
        table, left_out = class_table(groups)
        more = f" The {left_out} classes with the least over-confidence are left out." * bool(
            left_out
        )
        small = "<p>* fewer than 100 rows: its ECE is mostly noise." + escape(more) + "</p>"
        yield _section(f"By class, with {content.name}", table + small)


def _expected(content: ReportContent) -> Iterable[str]:
    if content.estimation is None:
        return
    yield _section(
        "What is expected without labels",
        "<p>Estimates of the target accuracy; no target label was read for any of them.</p>"
        + estimates_table(content.estimation),
    )


def _calibrations(content: ReportContent) -> Iterable[str]:
    for name, found in content.calibrations.items():
        tables = [weights_table(found), candidates_table(found), guards_table(found.guards)]
        texts = [f"Method {found.method_used}: {found.reason}"]
        if found.method != found.method_used:
            texts[0] = f"Asked for {found.method}. {texts[0]}"
        texts += [f"Warning: {text}" for text in found.warnings]
        texts += [f"Note: {text}" for text in found.notes]
        body = "".join(f"<p>{escape(text)}</p>" for text in texts)
        yield _section(f"The calibration: {name}", body + "".join(filter(None, tables)))


def _swatch(kind: str) -> str:
    return (
        f'<span><svg viewBox="0 0 24 14" aria-hidden="true"><rect width="24" height="14" '
        f'fill="url(#{kind})" stroke="#52606d"/></svg> '
    )


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>\n{body}</section>"
