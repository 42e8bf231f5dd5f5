"""The style sheet of covcal's pages, and their sections."""

from covcal_cli.report.tables import safe

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
