"""Read lines of JSON in the formats of other tools.

The tools are Hugging Face pipelines, lm-evaluation-harness, Label Studio, Prodigy, and servers of
language models such as OpenAI and vLLM.

A server logs the log-probabilities of every generated token and of the most probable alternatives.
The probability of an answer is the product over its tokens. If a log does not list an answer,
covcal takes half of the smaller of two probabilities:

- the probability of the least probable listed token
- the probability that no listed token has, divided by the number of unlisted answers
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any
from unicodedata import normalize

from covcal_cli.errors import percent

PROBABILITIES = "probabilities"
# The column with the log-likelihoods of the possible answers.
CHOICES = "logits"
# Keys of a server's log that do not become columns.
_SAMPLING = ("temperature", "top_p")
_OF_SERVERS = (
    *("object", "created", "system_fingerprint", "service_tier", "usage", "error"),
    *("created_at", "completed_at", "top_logprobs", *_SAMPLING),
)
_DEPTH = 12  # Maximum depth of the search for tokens.
_BEFORE = " \t\r\n\"'`([{*_#"  # Characters that may precede the answer in a token.
_ENDS = "\r\n.,:;!?)]}*_\"'`"
# Servers write -9999 or -inf for a token that top-p or top-k excluded.
_CUT = -9000.0
_HIGHEST = 0.01  # Rounding may raise a log-probability above 0, up to this value.
# Spaces in tokenizers.
_SPACES = str.maketrans({"\u0120": " ", "\u2581": " ", "\u010a": "\n"})
_ROUNDING = 1e-7  # Maximum rounding error of a sum of probabilities.
_LITTLE, _MUCH = 0.001, 0.25  # Limits for the probability of texts that are not an answer.
# JSON keys of class names and of scores, in lower case and without underscores.
_NAMES = {"label", "name", "class", "classe", "classname", "tagname", "displayname", "category"}
_SCORES = {
    **dict.fromkeys(("score", "prob", "proba", "probability", "confidence"), PROBABILITIES),
    **dict.fromkeys(("probabilitie", "cat"), PROBABILITIES),
    # log-probabilities are logits
    **dict.fromkeys(("logit", "logprob", "logprobability", "logprobabilitie"), CHOICES),
}
# JSON keys whose value is an object with the outputs of all classes.
_COLUMNS = {"prob", "proba", "probability", "probabilitie", "logit"}
_NO_NUMBERS = frozenset((type(None),))
_NUMBERS = _NO_NUMBERS | {int, float}
_DEEPEST = 3  # Maximum depth of the search for outputs.
_ANSWERS = {"accept": 1, "reject": 0, "ignore": None}  # Prodigy's answers.


def columns_of(record: Any) -> Any:
    """Convert a line to columns if a known tool wrote it; return any other line unchanged."""
    if isinstance(record, list):
        scores = _scores(_unwrapped(record))
        return record if scores is None else {PROBABILITIES: scores}
    if not isinstance(record, dict) or _is_plain(record):
        return record
    choices = record.get("filtered_resps")
    if isinstance(choices, list) and choices and all(map(_is_likelihood, choices)):
        return {
            "id": record.get("doc_id"),
            "label": record.get("target"),
            CHOICES: [float(choice[0]) for choice in choices],
        }
    record = {name: _unwrapped(value) for name, value in record.items()}
    tasks = record.get("predictions")
    if isinstance(tasks, list) and all(isinstance(t, dict) and "result" in t for t in tasks):
        return _label_studio(record)
    if str(answer := record.get("answer")) in _ANSWERS and "label" in record:
        record |= {"answer": None, "correct": _ANSWERS[str(answer)]}
    outputs = list(_outputs(record))
    if len(outputs) != 1:  # If a line has several outputs, the user must choose.
        return record
    ((keys, column, values),) = outputs
    if record.get(column) is values:
        return record
    return {key: value for key, value in record.items() if key not in keys} | {column: values}


def _outputs(
    record: Mapping[str, Any], depth: int = _DEEPEST
) -> Iterator[tuple[set[str], str, Any]]:
    """Yield the keys, the column and the values of the outputs in a line and its inner objects."""
    inner_values = [(key, value) for key, value in record.items() if type(value) in (dict, list)]
    names = [key for key, value in inner_values if may_name_classes(key) and _are_names(value)]
    by_number = record.get("id2label")
    for key, value in inner_values:
        column = _SCORES.get(_word(key))
        scores = _scores(value)
        if scores is not None:
            yield {key}, PROBABILITIES, scores
        elif column is not None and isinstance(value, dict) and _are_numbers(value.values()):
            yield {key}, key if depth == _DEEPEST and _word(key) in _COLUMNS else column, value
        elif column is not None and isinstance(value, list) and _are_numbers(value):
            count, own = len(value), [name for name in names if len(record[name]) == len(value)]
            if len(own) == 1:
                yield {key, *own}, column, dict(sorted(zip(record[own[0]], value, strict=True)))
            elif isinstance(by_number, dict) and by_number.keys() == {*map(str, range(count))}:
                of_classes = {str(by_number[str(place)]): value[place] for place in range(count)}
                yield {key, "id2label"}, column, of_classes
            else:
                yield {key}, key if depth == _DEEPEST else column, value
        elif depth and (inner := value[0] if _is_single(value) else value):
            for _, column, values in _outputs(inner, depth - 1) if isinstance(inner, dict) else ():
                yield {key}, column, values


def may_name_classes(key: str) -> bool:
    """Return whether a list under `key` may contain class names."""
    return _word(key) in _NAMES


@lru_cache(maxsize=1 << 12)
def _word(key: str) -> str:
    word = key.lower().replace("_", "")
    return word if word.endswith("ss") else word.removesuffix("s")


def _are_names(value: Any) -> bool:
    are_texts = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return are_texts and len({*value}) == len(value) > 1


def _are_numbers(values: Iterable[Any]) -> bool:
    kinds = {*map(type, values)}
    return kinds <= _NUMBERS and not kinds <= _NO_NUMBERS


def _is_single(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict)


def _is_plain(record: Mapping[str, Any]) -> bool:
    """Return whether a line has only texts, numbers and one JSON object with the outputs."""
    objects = 0
    for key, value in record.items():
        kind = type(value)
        if kind is dict:
            objects += 1
            if _word(key) not in _COLUMNS or not _are_numbers(value.values()):
                return False
        elif kind is list:
            return False
    return objects < 2 and "answer" not in record


def _unwrapped(value: Any) -> Any:
    """Remove the outer list from a list with one inner list; return any other value unchanged."""
    is_batch = isinstance(value, list) and len(value) == 1 and isinstance(value[0], list)
    return value[0] if is_batch else value


def _label_studio(task: Mapping[str, Any]) -> dict[str, Any]:
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
    """Return the first choice in an annotation or prediction, and its score."""
    results = answer.get("result") if isinstance(answer, dict) else None
    for result in results if isinstance(results, list) else ():
        value = result.get("value") if isinstance(result, dict) else None
        choices = value.get("choices") if isinstance(value, dict) else None
        if isinstance(choices, list) and choices:
            return str(choices[0]), result.get("score", answer.get("score"))
    return None


def beside_answer(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the id, label and groups of a line with token log-probabilities."""
    columns = {
        name: value
        for name, value in record.items()
        if name not in _OF_SERVERS and not isinstance(value, (dict, list))
    }
    if "custom_id" in columns:
        columns["id"] = columns.pop("custom_id")
    return columns


def _scores(value: Any) -> dict[str, Any] | None:
    """Return the scores by class, in the order of class names.

    `value` is a list of pairs (class, score), or of objects with a class and a score.
    """
    if not isinstance(value, list) or not value:
        return None
    pairs: list[list[Any]] = []
    for item in value:
        if isinstance(item, dict):
            words = {_word(key): key for key in item}
            keys = [words[word] for word in words if word in _NAMES]
            keys += [words[word] for word in words if _SCORES.get(word) == PROBABILITIES]
            pairs.append([item[key] for key in keys])
        else:
            pairs.append(item if isinstance(item, list) and len(value) > 1 else [])
    if not all(len(pair) == 2 and isinstance(pair[0], (str, int)) for pair in pairs):
        return None
    scores = {str(name): score for name, score in sorted(pairs, key=lambda pair: str(pair[0]))}
    return scores if len(scores) == len(pairs) and _are_numbers(scores.values()) else None


def _is_likelihood(value: Any) -> bool:
    if not (isinstance(value, list) and len(value) == 2):
        return False
    try:
        return math.isfinite(float(value[0])) and str(value[1]) in ("True", "False")
    except (TypeError, ValueError, OverflowError):
        return False


@dataclass(frozen=True)
class Token:
    """A generated token, and the log-probabilities of the token and of its alternatives."""

    text: str
    logs: dict[str, float]


@dataclass(frozen=True)
class Answer:
    """The probabilities of the possible answers in one line."""

    probabilities: dict[str, float]
    elsewhere: float  # Probability of texts that are not an answer.
    unlisted: int  # Number of unlisted answers.
    follows_text: bool  # Whether text precedes the answer.
    is_cut: bool  # Whether top-p or top-k excluded tokens.


@dataclass
class AnswerCounts:
    """Numbers of lines in a log, which covcal reports in notes."""

    lines: int = 0
    unlisted: int = 0  # Number of lines that do not list every answer.
    without: int = 0  # Number of lines that list no answer.
    behind: int = 0  # Number of lines with text before the answer.
    cut: int = 0  # Number of lines where top-p or top-k excluded tokens.
    elsewhere: float = 0.0  # Total probability of texts that are not an answer.
    # Temperature and top_p of the sampling, if they are not the defaults.
    settings: dict[str, float] = field(default_factory=dict)

    def add(self, answer: Answer, settings: dict[str, float]) -> None:
        """Count a line."""
        self.lines += 1
        self.unlisted += 0 < answer.unlisted < len(answer.probabilities)
        self.without += answer.unlisted == len(answer.probabilities)
        self.behind += answer.follows_text
        self.cut += answer.is_cut
        self.elsewhere += answer.elsewhere
        self.settings |= {
            name: value
            for name, value in settings.items()
            if value != 1 and not (name == "temperature" and value == 0)
        }

    def notes(self, choices: Sequence[str]) -> Iterator[str]:
        """Yield notes for the user."""
        of_lines = f"of {self.lines} lines"
        mean = self.elsewhere / max(1, self.lines)
        much = (
            ". The confidence says little about rows where all possible answers are unlikely"
            if mean >= _MUCH
            else ""
        )
        if mean >= _LITTLE:
            yield (
                f"on average, {percent(mean, 1)} of the probability is on texts other than "
                f"{', '.join(choices)}, so each row is scaled to the sum 1{much}"
            )
        if self.unlisted:
            yield (
                f"{self.unlisted} {of_lines} do not list every answer. To have all "
                "probabilities, log more tokens (top_logprobs=20)"
            )
        if self.without:
            yield (
                f"{self.without} {of_lines} contain no name in --choices, so all these names get "
                "the same probability: check the names in --choices, and check that the model did "
                "not refuse to answer"
            )
        if self.behind:
            yield (
                f"in {self.behind} {of_lines}, the model wrote other text before the answer, "
                "which changes the probabilities"
            )
        if self.settings or self.cut:
            named = ", ".join(f"{name} {value:g}" for name, value in self.settings.items())
            sampled = f"sampled with {named}" if named else "cut off by top-p or top-k"
            yield (
                f"the answers were {sampled}, which can change the probabilities: sample at "
                "temperature 1 with top_p 1"
            )


def find_tokens(record: Any, depth: int = _DEPTH) -> list[Token] | None:
    """Return the first list of tokens with log-probabilities in a line, or None.

    Raises `ValueError` for a log-probability above 0.
    """
    tokens = _tokens(record)
    if tokens or depth == 0:
        return tokens or None
    inner = record.items() if isinstance(record, dict) else enumerate(record)
    for key, value in inner:
        if key == "top_logprobs" and (alternatives := _tokens(value)):
            # A list ``top_logprobs`` beside an answer has the alternatives of one token.
            logs = {text: log for token in alternatives for text, log in token.logs.items()}
            return [Token(max(logs, key=lambda text: logs[text]), logs)] if logs else None
        if isinstance(value, (dict, list)) and key != "prompt_logprobs":
            inner_tokens = find_tokens(value, depth - 1)
            if inner_tokens:
                return inner_tokens
    return None


def find_sampling(record: Any, depth: int = _DEPTH) -> dict[str, float]:
    """Return the temperature and top_p of the sampling, if logged."""
    settings: dict[str, float] = {}
    inner = record.items() if isinstance(record, dict) else enumerate(record)
    for key, value in inner:
        if isinstance(value, (dict, list)) and depth and "logprobs" not in str(key):
            settings |= find_sampling(value, depth - 1)
        elif key in _SAMPLING and isinstance(value, (int, float)):
            settings[key] = float(value)
    return settings


def _tokens(value: Any) -> list[Token]:
    if isinstance(value, dict) and isinstance(value.get("tokens"), list):
        logs, tops = value.get("token_logprobs"), value.get("top_logprobs")
        if not isinstance(logs, list) or len(logs) != len(value["tokens"]):
            return []
        tops = tops if isinstance(tops, list) and len(tops) == len(logs) else [None] * len(logs)
        return [
            _token(str(text), log, top.items() if isinstance(top, dict) else ())
            for text, log, top in zip(value["tokens"], logs, tops, strict=True)
        ]
    if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
        return []
    if all("token" in v and "logprob" in v for v in value):
        return [
            _token(str(v["token"]), v["logprob"], _pairs(v.get("top_logprobs"), "token"))
            for v in value
        ]
    if all(v and all(isinstance(t, dict) and "logprob" in t for t in v.values()) for v in value):
        # In vLLM, the first token is the generated token.
        return [
            _token(
                str(next(iter(v.values())).get("decoded_token")),
                next(iter(v.values()))["logprob"],
                _pairs(list(v.values()), "decoded_token"),
            )
            for v in value
        ]
    return []


def _pairs(listed: Any, name: str) -> Iterator[tuple[Any, Any]]:
    for token in listed if isinstance(listed, list) else ():
        if isinstance(token, dict):
            yield token.get(name), token.get("logprob")


def _token(text: str, log: Any, others: Iterable[tuple[Any, Any]]) -> Token:
    logs = {text: log} | {str(name): other for name, other in others}
    for name, value in logs.items():
        if isinstance(value, (int, float)) and _HIGHEST < value < 1e308:
            raise ValueError(f"has the logprob {value:g} of the token {name!r}, which is above 0")
    return Token(
        text.translate(_SPACES),
        {
            name.translate(_SPACES): min(float(value), 0.0)
            for name, value in logs.items()
            if isinstance(value, (int, float)) and (-1e308 < value < 1e308 or value == -math.inf)
        },
    )


class Choices:
    """The possible answers to a question."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        folded = {name.casefold() for name in names}
        # A single letter such as "a" may be a word instead of the answer A.
        self._fold = len(folded) == len(names) and all(len(name) > 1 for name in names)
        self._texts = [self._folded(name) for name in names]

    def _folded(self, text: str) -> str:
        return normalize("NFC", text.casefold() if self._fold else text)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._texts, key=len, reverse=True)
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)")

    def answer_of(self, tokens: Sequence[Token]) -> Answer:
        """Return the probabilities of the answers, from the tokens of one line."""
        texts = [self._folded(token.text) for token in tokens]
        start, answer, follows = self._place(texts)
        shares = dict.fromkeys(range(len(self.names)), 0.0)
        # The upper limit of the probability of each unlisted answer.
        bounds: dict[int, float] = {}
        # For each possible answer, the part of its text that the next tokens must contain.
        rest = dict(enumerate(self._texts))
        path, is_cut, first = 1.0, False, True
        ended: int | None = None  # The answer that is complete before this token, if any.
        for number in range(start, len(tokens)):
            token, text = tokens[number], texts[number]
            is_cut |= any(log < _CUT for log in token.logs.values())
            listed: dict[str, float] = {}
            for name, log in token.logs.items():
                folded = self._folded(name)
                listed[folded] = listed.get(folded, 0.0) + math.exp(log)
            left = max(_ROUNDING, 1 - sum(listed.values()))
            if ended is not None:  # For example, the answer "1" is complete if no digit follows.
                longer = [name for name in listed if name[:1].isalnum() or _reached(name, rest)]
                shares[ended] += path * max(0.0, 1 - sum(map(listed.__getitem__, longer)))
            generated = text.lstrip(_BEFORE) if first else text
            on_path = {
                place: remaining[len(generated) :]
                for place, remaining in rest.items()
                if answer is not None
                and remaining.startswith(generated)
                and len(remaining) > len(generated)
            }
            # The next token decides between an answer such as "1" and a longer one such as "10".
            shorter = [place for place, remaining in rest.items() if remaining == generated]
            ended = shorter[0] if shorter and on_path and number + 1 < len(tokens) else None
            reached = {*shorter}
            for name, share in listed.items():
                other = name.lstrip(_BEFORE) if first else name
                places = _reached(other, rest)
                if name == text and answer is not None:
                    if ended is not None:
                        continue
                    places = [answer]
                    if len(rest[answer]) > len(generated):  # More tokens of the answer follow.
                        continue
                for place in places:
                    shares[place] += path * share / len(places)
                reached.update(places)
            unlisted = [place for place in rest if place not in reached and place not in on_path]
            least = min(listed.values(), default=1.0)
            for place in unlisted:
                bounds[place] = path * min(least, left / len(unlisted))
            if answer not in on_path and ended is None:
                for place in on_path:  # The answer is the beginning of another answer.
                    bounds[place] = path * least
                break
            path *= listed.get(text, 0.0)
            rest, first = on_path, False
            answer = answer if answer in rest else None
        missing = [place for place, share in shares.items() if share == 0]
        total = min(1.0, sum(shares.values()))
        parts = [shares[place] or bounds.get(place, 0.0) / 2 for place in shares]
        whole = math.fsum(parts)
        probabilities = {
            name: part / whole if whole > 0 else 1 / len(parts)
            for name, part in zip(self.names, parts, strict=True)
        }
        return Answer(probabilities, 1 - total, len(missing), follows, is_cut)

    def _place(self, texts: Sequence[str]) -> tuple[int, int | None, bool]:
        """Return the token of the answer, the answer's number, and whether text precedes it.

        An answer at the start of the text has priority, then an answer after the word "answer",
        then the last answer. If the text has no answer, the first token is returned.
        """
        whole = "".join(texts)
        matches = list(self._pattern.finditer(whole))
        if not matches:
            return 0, None, False
        chosen = matches[-1]
        after = whole.casefold().rfind("answer")
        behind = [match for match in matches if match.start() > after >= 0]
        chosen = behind[0] if behind else chosen
        begin = matches[0]
        if not whole[: begin.start()].strip(_BEFORE) and whole[begin.end() :][:1] in ("", *_ENDS):
            chosen = begin
        starts = [0]
        for text in texts:
            starts.append(starts[-1] + len(text))
        token = bisect_right(starts, chosen.start()) - 1
        follows = bool(whole[: chosen.start()].strip(_BEFORE))
        # A token such as "=B" has other characters before the answer.
        before = texts[token][: chosen.start() - starts[token]]
        if before.strip(_BEFORE):
            return token, None, follows
        return token, self._texts.index(chosen[0]), follows


def _reached(text: str, rest: dict[int, str]) -> list[int]:
    """Return the answers that a token completes, or else the answers that it begins."""
    if not text.strip():
        return []
    whole = [
        place
        for place, remaining in rest.items()
        if text.startswith(remaining) and not text[len(remaining) :][:1].isalnum()
    ]
    if whole:
        return [max(whole, key=lambda place: len(rest[place]))]
    return [place for place, remaining in rest.items() if remaining.startswith(text)]
