"""Token log-probabilities: the place of the answer, its probabilities, and logs of servers."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from covcal_cli.data.outputs import OutputTable, open_outputs
from covcal_cli.data.stores.json_layouts import Choices, Token, find_tokens
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import FeatureFile
from tests.cli_runner import covcal


def place(text: str, shares: Mapping[str, float]) -> Token:
    return Token(text, {name: math.log(share) for name, share in shares.items()})


def entry(text: str, shares: Mapping[str, float]) -> dict[str, Any]:
    """Return a token as OpenAI writes it."""
    top = [{"token": name, "logprob": math.log(share)} for name, share in shares.items()]
    return {"token": text, "logprob": math.log(shares[text]), "top_logprobs": top}


def chat(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    text = "".join(entry["token"] for entry in entries)
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": {"content": list(entries)}}
    return {"id": "chatcmpl-7", "object": "chat.completion", "choices": [choice], **more}


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def table(path: Path, *choices: str) -> OutputTable:
    return open_outputs(None, path, "probabilities", choices=choices)["target"]


def rows(read: OutputTable) -> NDArray[np.float64]:
    numbers = np.arange(len(read.ids), dtype=np.int64)
    batches = list(read.batches(None, numbers, size=7, threads=1))
    logits = np.concatenate([batch.inputs["logits"] for batch in batches])
    return np.asarray(np.exp(logits), dtype=np.float64)


def test_spellings_of_an_answer_are_added_and_the_rest_is_elsewhere() -> None:
    answer = Choices("AB").answer_of([place("A", {"A": 0.5, " A": 0.1, "B": 0.3, "The": 0.1})])
    assert answer.probabilities == pytest.approx({"A": 2 / 3, "B": 1 / 3})
    assert answer.elsewhere == pytest.approx(0.1)
    assert answer.unlisted == 0


def test_a_missing_answer_gets_half_of_what_is_left_to_it() -> None:
    by_least = Choices("ABC").answer_of([place("A", {"A": 0.9, "B": 0.02})])
    assert by_least.probabilities["C"] == pytest.approx(0.01 / 0.93)
    by_rest = Choices("ABC").answer_of([place("A", {"A": 0.6, "B": 0.39})])
    assert by_rest.probabilities["C"] == pytest.approx(0.005 / 0.995)
    assert by_rest.unlisted == 1


def test_an_answer_of_several_tokens_is_the_product_of_them() -> None:
    tokens = [
        place("New", {"New": 0.8, "London": 0.15}),
        place(" York", {" York": 0.7, " Jersey": 0.2}),
    ]
    answer = Choices(["New York", "New Jersey", "London"]).answer_of(tokens)
    shares = np.array([0.8 * 0.7, 0.8 * 0.2, 0.15])
    assert list(answer.probabilities.values()) == pytest.approx(list(shares / shares.sum()))
    assert answer.elsewhere == pytest.approx(1 - shares.sum())


@pytest.mark.parametrize(
    "before",
    ["The answer is", "A cat sits there, so B is wrong. Answer:", "**", "I think that it is"],
)
def test_the_answer_is_found_behind_other_text(before: str) -> None:
    tokens = [place(before, {before: 0.3, "B": 0.6}), place(" B", {" B": 0.9, " A": 0.1})]
    answer = Choices("AB").answer_of(tokens)
    assert answer.probabilities == pytest.approx({"A": 0.1, "B": 0.9})
    assert answer.follows_text == (before != "**")


@pytest.mark.parametrize("end", ["0", "."])
def test_the_next_token_decides_between_an_answer_and_a_longer_one(end: str) -> None:
    """If a model writes 10 as two tokens, 1 is the answer only if no 0 follows."""
    tokens = [place("1", {"1": 0.9, "2": 0.1}), place(end, {"0": 0.8, ".": 0.15, " 0": 0.05})]
    answer = Choices(["1", "2", "10"]).answer_of(tokens)
    assert answer.probabilities == pytest.approx({"1": 0.18, "2": 0.1, "10": 0.72})
    words = [place("new", {"new": 1.0}), place(" york", {" york": 0.7, "\n": 0.3})]
    answer = Choices(["new", "new york"]).answer_of(words)
    assert answer.probabilities == pytest.approx({"new": 0.3, "new york": 0.7})


def test_answers_without_a_listed_token_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [chat(entry("a", {"a": 0.9, "b": 0.1}))] * 3)
    with pytest.raises(
        CovcalError, match=r"no line has a probability for any of the answers A, B: spell"
    ):
        table(path, "A", "B")
    records = [
        chat(entry("e\u0301", {"e\u0301": 0.9, "b": 0.1}), label=name) for name in (" b", "\u00e9")
    ]
    read = open_outputs(None, write(path, records), "probabilities")["target"]
    assert read.class_names == ("b", "\u00e9")
    np.testing.assert_allclose(rows(read), [[0.1, 0.9]] * 2, rtol=1e-6)


def test_words_are_read_in_any_case_and_letters_are_not() -> None:
    assert Choices(["Yes", "No"]).answer_of([place("yes", {"yes": 0.9, "NO": 0.1})]).unlisted == 0
    assert Choices("AB").answer_of([place("a", {"a": 0.9, "b": 0.1})]).unlisted == 2


@pytest.mark.parametrize(
    "record",
    [
        lambda shares: chat(entry("A", shares)),
        lambda shares: {"answer": "A", "top_logprobs": entry("A", shares)["top_logprobs"]},
        lambda shares: {"custom_id": "q", "response": {"body": chat(entry("A", shares))}},
        lambda shares: {
            "choices": [
                {
                    "text": "A",
                    "logprobs": {
                        "tokens": ["A"],
                        "token_logprobs": [math.log(shares["A"])],
                        "top_logprobs": [{name: math.log(p) for name, p in shares.items()}],
                    },
                }
            ]
        },
        lambda shares: {
            "prompt_logprobs": [{"9": {"logprob": -1.0, "decoded_token": "B"}}],
            "outputs": [
                {
                    "logprobs": [
                        {
                            str(number): {"logprob": math.log(p), "decoded_token": name}
                            for number, (name, p) in enumerate(shares.items())
                        }
                    ]
                }
            ],
        },
        lambda shares: {
            "output": [{"content": [{"text": "A", "logprobs": [entry("A", shares)]}]}],
        },
    ],
    ids=["chat", "list", "batch", "completions", "vLLM", "responses"],
)
def test_logs_of_servers_are_read_alike(record: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", [record({"A": 0.75, "B": 0.25})] * 3)
    read = table(path, "A", "B")
    np.testing.assert_allclose(rows(read), [[0.75, 0.25]] * 3, rtol=1e-6)
    assert read.class_names == ("A", "B")


def test_labels_name_the_answers_and_ids_are_the_users(tmp_path: Path) -> None:
    lines = [
        {"id": "batch_1", "custom_id": f"q{row}", "label": label} | {"response": chat(shares)}
        for row, (label, shares) in enumerate(
            [("yes", entry("yes", {"yes": 0.8, "no": 0.2})), ("no", entry("No", {"No": 1.0}))] * 3
        )
    ]
    read = table(write(tmp_path / "log.jsonl", lines))
    assert read.class_names == ("no", "yes")
    assert read.ids[:2] == ["q0", "q1"]
    np.testing.assert_allclose(rows(read)[0], [0.2, 0.8], rtol=1e-6)
    with pytest.raises(CovcalError, match="the possible answers, for example --choices A"):
        table(write(tmp_path / "bare.jsonl", [chat(entry("A", {"A": 1.0}))] * 3))
    lines[1]["label"] = "No"
    with pytest.raises(CovcalError, match="labels No, no differ only in case"):
        table(write(tmp_path / "case.jsonl", lines))
    lines[1] = {"label": "no", "response": {"choices": [{"logprobs": None}]}}
    with pytest.raises(CovcalError, match=r"1 of 6 rows have no token log-probabilities.* line 2"):
        table(write(tmp_path / "gap.jsonl", lines))


def test_notes_say_what_a_log_lacks(tmp_path: Path) -> None:
    cut = entry("A", {"A": 0.9, "B": 0.1})
    cut["top_logprobs"].append({"token": "C", "logprob": -9999.0})
    lines = [
        chat(entry("A", {"A": 0.5, "no": 0.5}), request={"temperature": 0.7}),
        chat(entry("I", {"I": 0.9, "Sorry": 0.1})),
        chat(cut),
    ]
    notes = " ".join(table(write(tmp_path / "log.jsonl", lines), "A", "B").notes)
    assert "50.0 % of the probability is on texts other than A, B" in notes
    assert "1 of 3 lines do not list every answer" in notes
    assert "1 of 3 lines contain no name in --choices" in notes
    assert "sampled with temperature 0.7" in notes
    lines = [chat(entry("A", {"A": 0.9, "B": 0.0999})), chat(entry("B", {"B": 0.8, "A": 0.2}))]
    notes = " ".join(table(write(tmp_path / "log.jsonl", lines), "A", "B").notes)
    assert "of the probability is on" not in notes
    quiet = table(write(tmp_path / "log.jsonl", [chat(entry("A", {"A": 0.5, "B": 0.5}))]), "A", "B")
    assert not any("sampled" in note or "list" in note for note in quiet.notes)


def test_the_command_takes_choices_up_to_the_next_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shares = {"New York": 0.7, "Rome": 0.3}
    lines = [chat(entry("Rome", shares), label=["Rome", "New York"][row % 2]) for row in range(30)]
    write(tmp_path / "log.jsonl", lines)
    command = ("extract", "--probabilities", "log.jsonl", "log.jsonl", "--choices", "Rome")
    assert covcal(*command, "New York", "-o", "log.h5").code == 0
    with FeatureFile(tmp_path / "log.h5") as file:
        assert file.classes == ["Rome", "New York"]
        options = str(file.attributes["options"])
    assert "--choices=New York" in options
    assert covcal(*command, "-o", "other.h5").code == 2
    assert covcal(*command[:4], "--choices").code == 2


def test_choices_need_logprobs(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"probs": {"A": 0.5, "B": 0.5}}] * 3)
    with pytest.raises(CovcalError, match=r"rows\.jsonl holds no token log-probabilities"):
        table(path, "A", "B")


def test_probabilities_instead_of_their_logarithms_are_refused(tmp_path: Path) -> None:
    lines = [chat(entry("A", {"A": 0.6, "B": 0.3})) | {"label": "AB"[row % 2]} for row in range(9)]
    text = write(tmp_path / "rows.jsonl", lines).read_text().replace(str(math.log(0.3)), "0.3")
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(
        CovcalError, match=r"line 1 has the logprob 0\.3 of the token 'B'.*give nat"
    ):
        table(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    "value",
    [
        [{"token": "A", "logprob": None, "top_logprobs": 3}],
        [{"token": None, "logprob": 10**400, "top_logprobs": [1, {"token": []}]}],
        {"tokens": ["A"], "token_logprobs": ["x"], "top_logprobs": [[]]},
        [{"1": {"logprob": float("nan")}}],
    ],
)
def test_damaged_lists_say_nothing(value: Any) -> None:
    tokens = find_tokens(value)
    assert tokens is not None
    answer = Choices("AB").answer_of(tokens)
    assert sum(answer.probabilities.values()) == pytest.approx(1)
