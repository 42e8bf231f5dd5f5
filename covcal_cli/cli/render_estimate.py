"""The estimates of ``covcal estimate`` as text: percent with one decimal, fractions in JSON."""

import json
from collections.abc import Callable
from pathlib import Path

from covcal_cli.cli import tables
from covcal_cli.estimation import Estimation, estimation_document
from covcal_cli.labelfree.estimate import Estimate
from covcal_cli.tables import Table

_COLUMNS = ("estimate", "accuracy", "interval", "trusted", "assumption")
_TEXTS = (0, 3, 4)


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
    source, target = estimation.rows
    assumptions = [(row[0], row[-1]) for row in rows]
    width = max(len(name) for name, _ in assumptions)
    return "\n".join(
        [
            f"accuracy on the target: {best.accuracy:.1%} ({best.low:.1%} to {best.high:.1%}), "
            f"from {source} source and {target} target rows",
            "",
            tables.text(Table(_COLUMNS[:-1], [row[:-1] for row in rows], _TEXTS)),
            "",
            "each is right if",
            *(f"{name:<{width}}  {text}" for name, text in assumptions),
        ]
    )


def _as_markdown(estimation: Estimation) -> str:
    return tables.markdown(Table(_COLUMNS, _rows(estimation), _TEXTS))


def _as_json(estimation: Estimation) -> str:
    document = estimation_document(estimation, Path("estimate.json"))
    return json.dumps(document, indent=2, allow_nan=False)


RENDERERS: dict[str, Callable[[Estimation], str]] = {
    "table": _as_table,
    "json": _as_json,
    "markdown": _as_markdown,
}
