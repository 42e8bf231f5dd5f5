"""The estimates of ``covcal estimate`` as text: percent with one decimal, fractions in JSON."""

from collections.abc import Callable
from pathlib import Path

from covcal_cli.cli.render import markdown_table, table
from covcal_cli.estimation import Estimation
from covcal_cli.labelfree.estimate import Estimate
from covcal_cli.records import document_text

_COLUMNS = ("estimate", "accuracy", "interval", "trusted", "assumption")
_TEXTS = ("trusted", "assumption")


def _rows(estimation: Estimation) -> list[list[str]]:
    return [
        [
            one.name,
            f"{one.accuracy:.1%}",
            f"{one.low:.1%} to {one.high:.1%}",
            trust(one),
            one.assumption,
        ]
        for one in estimation.estimates
    ]


def trust(estimate: Estimate) -> str:
    """Return ``yes``, or the guards that failed."""
    failed = [guard.name for guard in estimate.guards if not guard.passed]
    return f"no: {', '.join(failed)}" if failed else "yes"


def _as_table(estimation: Estimation) -> str:
    rows = _rows(estimation)
    best = estimation.estimates[0]
    assumptions = [(row[0], row[-1]) for row in rows]
    width = max(len(name) for name, _ in assumptions)
    return "\n".join(
        [
            f"accuracy on the target: {best.accuracy:.1%} ({best.low:.1%} to {best.high:.1%}), "
            f"from {estimation.source_rows} source and {estimation.target_rows} target rows",
            "",
            table(_COLUMNS[:-1], [row[:-1] for row in rows], texts=_TEXTS),
            "",
            "each is right if",
            *(f"{name:<{width}}  {text}" for name, text in assumptions),
        ]
    )


def _as_markdown(estimation: Estimation) -> str:
    return markdown_table(_COLUMNS, _rows(estimation), texts=_TEXTS)


def _as_json(estimation: Estimation) -> str:
    return document_text(estimation, Path("estimate.json"))


RENDERERS: dict[str, Callable[[Estimation], str]] = {
    "table": _as_table,
    "json": _as_json,
    "markdown": _as_markdown,
}
