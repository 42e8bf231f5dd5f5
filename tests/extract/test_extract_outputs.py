"""Outputs from elsewhere, without the model: ``--logits``, ``--probabilities``, or no option."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.special import softmax

from covcal_cli.extract.extract import extract
from covcal_cli.files import sha256_of
from covcal_cli.formats.features import FeatureFile
from tests.cli_runner import covcal, covcal_process
from tests.made_files import Arrays, made_domain


@pytest.fixture(scope="module")
def domains() -> dict[str, Arrays]:
    """A made source and a shifted target."""
    return {name: made_domain(name, shift=0.7) for name in ("source", "target")}


def save(
    path: Path, domain: Arrays, *, features: bool = False, probabilities: bool = False
) -> None:
    """Save a domain as a table of outputs in an .npz."""
    logits = domain["logits"]
    outputs = {"probabilities": softmax(logits.astype(np.float64), axis=1)} if probabilities else {}
    arrays = outputs or {"logits": logits}
    if features:
        arrays = {**arrays, "features": domain["features"]}
    np.savez(path, y=domain["labels"], split=domain["split"], **arrays)


def write_csv(path: Path, domains: dict[str, Arrays]) -> None:
    """Save both domains as one CSV with a column domain, rows in turn."""
    width = domains["source"]["logits"].shape[1]
    lines = [
        (index, [name, str(label), str(split), *(repr(float(z)) for z in logits)])
        for name, domain in domains.items()
        for index, (label, split, logits) in enumerate(
            zip(
                domain["labels"],
                np.array(["train", "val", "test"])[domain["split"]],
                domain["logits"],
                strict=True,
            )
        )
    ]
    header = ["domain", "label", "split", *(f"logit_{k}" for k in range(width))]
    ordered = [cells for _, cells in sorted(lines, key=lambda line: line[0])]
    path.write_text("\n".join(",".join(cells) for cells in [header, *ordered]) + "\n")


def test_without_features(domains: dict[str, Arrays], tmp_path: Path) -> None:
    """The file holds what the tables hold; temp, estimate and evaluate work, adapt says why not."""
    for name, domain in domains.items():
        save(tmp_path / f"{name}.npz", domain)
    arguments = ("extract", "--logits", "source.npz", "target.npz")
    done = covcal(*arguments, cwd=tmp_path).require_success()
    assert "model     none, the tables hold logits; no features\n" in done.out
    assert "note: a table does not name its model: use this calibration only with" in done.err
    assert "next: covcal calibrate features.h5" in done.err
    with FeatureFile(tmp_path / "features.h5") as file:
        assert (file.attributes["model_name"], file.attributes["model_sha256"]) == ("logits", "")
        for name, domain in domains.items():
            group = file.handle[name]
            assert "features" not in group
            for dataset in ("logits", "labels", "split"):
                np.testing.assert_array_equal(group[dataset][:], domain[dataset])
    covcal("estimate", cwd=tmp_path).require_success()
    for method in ("temp", "auto"):
        covcal("calibrate", "-f", "--method", method, cwd=tmp_path).require_success()
        covcal("evaluate", cwd=tmp_path).require_success()
    line = covcal("adapt", cwd=tmp_path).error_line()
    assert "features" in line
    line = covcal(
        "calibrate", "features.h5", "-f", "--method", "iw+temp", cwd=tmp_path
    ).error_line()
    assert "features" in line


def test_with_features(domains: dict[str, Arrays], tmp_path: Path) -> None:
    """Features in the table make adapt possible, and the methods that need them."""
    for name, domain in domains.items():
        save(tmp_path / f"{name}.npz", domain, features=True)
    done = covcal("extract", "--logits", "source.npz", "target.npz", cwd=tmp_path)
    assert "next: covcal calibrate features.h5" in done.require_success().err
    with FeatureFile(tmp_path / "features.h5") as file:
        found = file.handle["target/features"][:]
        np.testing.assert_array_equal(found, domains["target"]["features"])
    covcal("calibrate", "--method", "iw+temp", cwd=tmp_path).require_success()
    covcal("evaluate", cwd=tmp_path).require_success()


def test_probabilities_become_logits_that_give_them_back(
    domains: dict[str, Arrays], tmp_path: Path
) -> None:
    """softmax(log p) = p, so that temp finds the temperature it finds on the logits."""
    for kind in ("logits", "probabilities"):
        for name, domain in domains.items():
            save(tmp_path / f"{name}.npz", domain, probabilities=kind == "probabilities")
        covcal(
            "extract", f"--{kind}", "source.npz", "target.npz", "-o", f"{kind}.h5", cwd=tmp_path
        ).require_success()
    with h5py.File(tmp_path / "probabilities.h5") as file:
        found = softmax(file["target/logits"][:].astype(np.float64), axis=1)
    expected = softmax(domains["target"]["logits"].astype(np.float64), axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    lines = []
    for kind in ("logits", "probabilities"):
        done = covcal("calibrate", f"{kind}.h5", "--method", "temp", "-o", "-", cwd=tmp_path)
        lines.append(
            [
                float(line.split(": ")[1].rstrip(","))
                for line in done.out.splitlines()
                if '"forecaster_temperature"' in line
            ]
        )
    assert lines[0] == pytest.approx(lines[1], rel=1e-3)


def test_one_table_with_both_domains(domains: dict[str, Arrays], tmp_path: Path) -> None:
    """A column domain says which rows are whose; ids are the rows of the table."""
    write_csv(tmp_path / "both.csv", domains)
    covcal("extract", "--logits", "both.csv", cwd=tmp_path).require_success()
    with h5py.File(tmp_path / "features.h5") as file:
        for name, domain in domains.items():
            np.testing.assert_allclose(file[f"{name}/logits"][:], domain["logits"], rtol=1e-6)
            np.testing.assert_array_equal(file[f"{name}/labels"][:], domain["labels"])
            np.testing.assert_array_equal(file[f"{name}/split"][:], domain["split"])


def test_the_target_alone(domains: dict[str, Arrays], tmp_path: Path) -> None:
    """One table without a column domain is the target."""
    save(tmp_path / "t.npz", domains["target"])
    covcal("extract", "--logits", "t.npz", cwd=tmp_path).require_success()
    with FeatureFile(tmp_path / "features.h5") as file:
        assert file.source is None
        assert file.require_target().n == len(domains["target"]["labels"])


def test_tables_take_shards_like_data(domains: dict[str, Arrays], tmp_path: Path) -> None:
    """Shards of tables merge to the bytes of one run."""
    for name, domain in domains.items():
        save(tmp_path / f"{name}.npz", domain, features=True)
    arguments = ("extract", "--logits", "source.npz", "target.npz")
    covcal(*arguments, cwd=tmp_path).require_success()
    parts = []
    for index in (1, 2, 3):
        parts.append(f"{index}.h5")
        extra = ("--shard", f"{index}/3", "-o", parts[-1])
        done = covcal(*arguments, *extra, cwd=tmp_path).require_success()
        assert "(all 3 shards)" in done.err
    covcal("merge", *parts, "-o", "m.h5", cwd=tmp_path).require_success()
    assert sha256_of(tmp_path / "m.h5") == sha256_of(tmp_path / "features.h5")


def test_what_does_not_go_together(domains: dict[str, Arrays], tmp_path: Path) -> None:
    """Usage errors, and tables of different classifiers."""
    save(tmp_path / "s.npz", domains["source"])
    save(tmp_path / "t.npz", domains["target"], features=True)
    for arguments in (
        ("--logits",),
        ("--logits", "m.onnx", "s.npz", "t.npz"),
        ("--logits", "--probabilities", "s.npz", "t.npz"),
        ("--logits", "t.npz", "--target", "t.npz"),
    ):
        covcal("extract", *arguments, cwd=tmp_path).usage_error()
    line = covcal("extract", "--logits", "s.npz", "t.npz", cwd=tmp_path).error_line()
    assert line.startswith("s.npz and t.npz have different features (none and ")
    line = covcal("extract", "--logits", "t.npz", "--size", 8, cwd=tmp_path).error_line()
    assert "leave out --size" in line
    line = covcal("extract", "--probabilities", "t.npz", cwd=tmp_path).error_line()
    assert line.startswith("t.npz")


@pytest.mark.parametrize("features", [False, True])
def test_training_rows_are_missed_only_where_something_is_trained(
    features: bool, domains: dict[str, Arrays], tmp_path: Path
) -> None:
    """adapt and the discriminator read features; a temperature needs validation rows alone."""
    for name, domain in domains.items():
        held_out = np.maximum(domain["split"], 1).astype(np.uint8)
        save(tmp_path / f"{name}.npz", domain | {"split": held_out}, features=features)
    done = covcal("extract", "--logits", "source.npz", "target.npz", cwd=tmp_path)
    missed = "has no source train rows" in done.require_success().err
    assert missed == features
    assert "no source validation rows" not in done.err


def test_tables_of_outputs_need_no_image_package(tmp_path: Path) -> None:
    """In an installation for jobs that run no model."""
    rows = "\n".join(f"0.{row % 9},{1 - row % 9 / 10:.1f},{row % 2}" for row in range(90))
    for name in ("source.csv", "target.csv"):
        (tmp_path / name).write_text(f"prob_0,prob_1,label\n{rows}\n")
    without = "import sys\nfor name in ('PIL', 'onnx', 'torch'): sys.modules[name] = None\n"
    arguments = ("extract", "--probabilities", "source.csv", "target.csv", "-q")
    covcal_process(*arguments, cwd=tmp_path, before=without, fresh=True).require_success()


def _chat(row: int, best: str, shares: dict[str, float], label: str | None) -> Any:
    """Return a line as OpenAI's client dumps a chat completion, with a label beside it."""
    listed = [{"token": t, "logprob": math.log(p), "bytes": [65]} for t, p in shares.items()]
    message = {"content": best, "refusal": None, "role": "assistant", "tool_calls": None}
    token = {"token": best, "bytes": [65], "logprob": math.log(shares[best])}
    choice = {
        "finish_reason": "stop",
        "index": 0,
        "logprobs": {"content": [token | {"top_logprobs": listed}], "refusal": None},
        "message": message,
    }
    line = {"id": f"c{row}", "choices": [choice], "created": 1, "model": "m", "usage": None}
    return line if label is None else line | {"label": label}


def _task(row: int, best: str, shares: dict[str, float], label: str | None) -> Any:
    """Return a task as Label Studio exports it, with a prediction."""

    def choice(name: str) -> list[Any]:
        value = {"choices": [name]}
        return [{"from_name": "c", "to_name": "t", "type": "choices", "value": value}]

    answers = [] if label is None else [{"was_cancelled": False, "result": choice(label)}]
    prediction = {"model_version": "m", "score": shares[best], "result": choice(best)}
    data = {"text": f"text {row}"}
    return {"id": row, "data": data, "annotations": answers, "predictions": [prediction]}


def _detection(row: int, best: str, shares: dict[str, float], label: str | None) -> Any:
    """Return a detection in COCO form, with its matched correctness in the source."""
    box = {"image_id": row // 3, "category_id": ord(best), "bbox": [1.5, 2.0, 8.0, 8.0]}
    matched = {} if label is None else {"correct": int(label == best)}
    return box | {"score": shares[best] / 3, "id": row + 1} | matched


# The seven files that users have most often: a line of each, and the kind that it is read as.
# The forms of chats, pipelines, tasks and detections were compared with what openai, transformers,
# label_studio_sdk and pycocotools write, and that of samples with the code of lm_eval.
COMMON: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "columns": (
        ".csv",
        "probabilities",
        lambda row, _, shares, label: (
            {f"prob_{k}": p for k, p in shares.items()} | {"id": row, "label": label}
        ),
    ),
    "lines": (
        ".jsonl",
        "probabilities",
        lambda row, _, shares, label: {"id": row, "label": label, "probs": shares},
    ),
    "samples of lm_eval": (
        ".jsonl",
        "logits",
        lambda row, _, shares, label: {
            "doc_id": row,
            "target": None if label is None else str("ABC".index(label)),
            "resps": [[[str(math.log(p)), "False"]] for p in shares.values()],
            "filtered_resps": [[str(math.log(p)), "False"] for p in shares.values()],
            "metrics": ["acc"],
        },
    ),
    "chats": (".jsonl", "probabilities", _chat),
    "pipeline": (
        ".jsonl",
        "probabilities",
        lambda _row, _, shares, label: (
            [{"label": k, "score": p} for k, p in shares.items()]
            if label is None
            else {"y_true": label, "scores": [{"label": k, "score": p} for k, p in shares.items()]}
        ),
    ),
    "top answers of a pipeline": (
        ".json",
        "confidence",
        lambda _, best, shares, label: (
            {"label": best, "score": shares[best]} | ({} if label is None else {"y_true": label})
        ),
    ),
    "tasks": (".json", "confidence", _task),
    "detections": (".json", "confidence", _detection),
}


@pytest.mark.parametrize("name", COMMON)
def test_common_files_are_read_without_an_option(name: str, tmp_path: Path) -> None:
    suffix, kind, line_of = COMMON[name]
    rng = np.random.default_rng(0)
    for domain in ("old", "new"):
        lines: list[Any] = []
        for row in range(60):
            chances = rng.dirichlet(np.ones(3)) * 0.99 + 0.003
            shares = dict(zip("ABC", chances.tolist(), strict=True))
            label = str(rng.choice(list("ABC"), p=chances / chances.sum()))
            best = max(shares, key=lambda k: shares[k])
            lines.append(line_of(row, best, shares, label if domain == "old" else None))
        path = tmp_path / f"{domain}{suffix}"
        if suffix == ".csv":
            texts = [list(lines[0]), *([str(v or "") for v in line.values()] for line in lines)]
            path.write_text("".join(",".join(text) + "\n" for text in texts))
        elif suffix == ".json":
            path.write_text(json.dumps(lines))
        else:
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = extract(
        None, tmp_path / f"old{suffix}", tmp_path / f"new{suffix}", tmp_path / "features.h5"
    )
    assert f"the tables hold {kind}" in report.facts["model"]
    assert report.source_accuracy is not None
    assert 0.5 < report.source_accuracy.share < 0.9
    with FeatureFile(tmp_path / "features.h5") as file:
        assert json.loads(file.attributes["options"]) == [f"--{kind}"]
        assert file.require_target().n == 60


def test_names_tell_what_a_table_holds(domains: dict[str, Arrays], tmp_path: Path) -> None:
    """The command needs neither a model nor an option; what is unclear is an error."""
    save(tmp_path / "s.npz", domains["source"])
    save(tmp_path / "t.npz", domains["target"])
    covcal("extract", "s.npz", "t.npz", cwd=tmp_path).require_success()
    covcal("extract", "--target", "t.npz", "-f", cwd=tmp_path).require_success()
    (tmp_path / "none.csv").write_text("id,size\n1,2\n")
    line = covcal("extract", "none.csv", "none.csv", "-f", cwd=tmp_path).error_line()
    assert "no column looks like an output of a classifier; the file has id, size" in line
    np.savez(tmp_path / "ensemble.npz", logits=np.zeros((3, 9, 4)), y=np.zeros(9))
    line = covcal("extract", "ensemble.npz", "t.npz", "-f", cwd=tmp_path).error_line()
    assert "the file has logits [3, 9, 4], y." in line
    assert "prob_NAME or logit_NAME, one column per class" in line
    (tmp_path / "both.csv").write_text("prob_a,prob_b,logit_a,logit_b\n0.5,0.5,0,0\n")
    line = covcal("extract", "both.csv", "both.csv", "-f", cwd=tmp_path).error_line()
    assert "pass --logits or --probabilities" in line
    covcal("extract", "s.npz", "t.npz", "t.npz", "-f", cwd=tmp_path).error_line()
