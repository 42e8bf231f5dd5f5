"""Bring a line that another tool wrote into columns.

Known are the answers of Hugging Face pipelines, the samples of lm-evaluation-harness, and logs with
token log-probabilities (`logprobs`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

PROBABILITIES = "probabilities"
CHOICES = "logits"  # the log-likelihoods of the choices of a question, which may be few
# What servers write beside an answer and its id.
_OF_SERVERS = ("object", "created", "system_fingerprint", "service_tier", "usage", "error")


def columns_of(record: Any) -> Any:
    """Return the columns of one line, whichever tool wrote it.

    Pipelines of Hugging Face answer with ``top_k=None``, or by zero-shot classification. In samples
    of lm-evaluation-harness the log-likelihoods of the choices are logits. Another line is returned
    as it is.
    """
    if isinstance(record, list):
        answers = record[0] if len(record) == 1 and isinstance(record[0], list) else record
        return {PROBABILITIES: _scores(answers)} if _are_scores(answers) else record
    if not isinstance(record, dict):
        return record
    choices = record.get("filtered_resps")
    if isinstance(choices, list) and choices and all(map(_is_likelihood, choices)):
        return {
            "id": record.get("doc_id"),
            "label": record.get("target"),
            CHOICES: [float(choice[0]) for choice in choices],
        }
    if isinstance(record.get("predictions"), list):
        return _label_studio(record)
    labels, scores = record.get("labels"), record.get("scores")
    if isinstance(labels, list) and isinstance(scores, list) and len(labels) == len(scores):
        rest = {key: record[key] for key in record if key not in ("labels", "scores")}
        return rest | {PROBABILITIES: dict(sorted(zip(map(str, labels), scores, strict=True)))}
    lists = [name for name, value in record.items() if type(value) is list and _are_scores(value)]
    if len(lists) == 1:
        # The answer of a pipeline in a line of one's own: its name need not be a known one.
        record = {key: value for key, value in record.items() if key != lists[0]} | {
            PROBABILITIES: _scores(record[lists[0]])
        }
    return record


def _label_studio(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the prediction, its score and the label of a task that Label Studio exports."""
    columns = {name: value for name, value in task.items() if not isinstance(value, (dict, list))}
    data = task.get("data")
    for name, value in (data if isinstance(data, dict) else {}).items():
        if not isinstance(value, (dict, list)):
            columns.setdefault(name, value)
    for prediction in task["predictions"]:
        choice = _choice(prediction)
        if choice is not None:
            columns |= {"prediction": choice[0], "confidence": choice[1]}
    annotations = task.get("annotations")
    for annotation in annotations if isinstance(annotations, list) else ():
        choice = _choice(annotation)
        if choice is not None and not annotation.get("was_cancelled"):
            columns["y_true"] = choice[0]
    return columns


def _choice(answer: Any) -> tuple[str, Any] | None:
    """Return the first choice of an annotation or prediction, and its score."""
    results = answer.get("result") if isinstance(answer, dict) else None
    for result in results if isinstance(results, list) else ():
        value = result.get("value") if isinstance(result, dict) else None
        choices = value.get("choices") if isinstance(value, dict) else None
        if isinstance(choices, list) and choices:
            return str(choices[0]), result.get("score", answer.get("score"))
    return None


def beside_answer(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the id, label and groups in a line whose answer is read from token log-probabilities.

    A batch has its own ids beside those that the user gave.
    """
    columns = {
        name: value
        for name, value in record.items()
        if name not in _OF_SERVERS and not isinstance(value, (dict, list))
    }
    if "custom_id" in columns:
        columns["id"] = columns.pop("custom_id")
    return columns


def _are_scores(value: Any) -> bool:
    """Return whether a value is a list of pairs of a label and its score."""
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(pair, dict) and {"label", "score"} <= pair.keys() for pair in value)
    )


def _scores(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scores by label, in the order of the labels; pipelines sort them by score."""
    return dict(sorted((str(pair["label"]), pair["score"]) for pair in pairs))


def _is_likelihood(value: Any) -> bool:
    """Return whether a value is a log-likelihood, and whether decoding would give this choice."""
    if not (isinstance(value, list) and len(value) == 2):
        return False
    try:
        return math.isfinite(float(value[0])) and str(value[1]) in ("True", "False")
    except (TypeError, ValueError, OverflowError):
        return False
