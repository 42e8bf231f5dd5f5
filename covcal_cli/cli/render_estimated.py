"""What ``covcal evaluate --estimate`` prints: every line says that it holds estimates."""

import json
from collections.abc import Callable

from covcal_cli.cli.render_estimate import trust
from covcal_cli.evaluate.estimatedevaluation import EstimatedEvaluation, estimated_document

_PREFIX = "estimate, no label read"


def _lines(evaluation: EstimatedEvaluation) -> list[str]:
    accuracy = evaluation.accuracy
    lines = [
        f"{_PREFIX}: {name} (T = {entry.temperature:.4g}, {entry.n} target {evaluation.split} "
        f"rows): confidence {entry.mean_confidence:.2%}, accuracy about {accuracy.accuracy:.1%}, "
        f"so an ECE of about {entry.least_ece:.1%} or more"
        for name, entry in evaluation.metrics.items()
    ]
    return [
        *lines,
        f"{_PREFIX}: accuracy between {accuracy.low:.1%} and {accuracy.high:.1%}; guards passed: "
        f"{trust(accuracy)}; covcal estimate shows what it rests on",
    ]


def _as_json(evaluation: EstimatedEvaluation) -> str:
    return json.dumps(estimated_document(evaluation), indent=2, allow_nan=False)


def _as_markdown(evaluation: EstimatedEvaluation) -> str:
    return "\n".join(f"- {line}" for line in _lines(evaluation))


RENDERERS: dict[str, Callable[[EstimatedEvaluation], str]] = {
    "table": lambda evaluation: "\n".join(_lines(evaluation)),
    "json": _as_json,
    "markdown": _as_markdown,
    "github": _as_markdown,
}
