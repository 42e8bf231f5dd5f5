"""The same made rows in every format that covcal reads, for tests of the readers."""

import csv
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from covcal_cli.arrays import ModelInput
from covcal_cli.data.domain import DomainData, ImagePipeline
from covcal_cli.data.open import open_domains

SPLIT_WORDS = ("train", "validation", "test")
WORDS = ("cat", "dog", "eel")


@dataclass(frozen=True)
class MadeRows:
    """Feature rows with everything that can be said of them."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    split: NDArray[np.uint8]
    ids: list[str]
    site: list[str]

    @property
    def names(self) -> list[str]:
        """The labels as words; empty where unknown."""
        return ["" if label < 0 else WORDS[label] for label in self.y]


def made_rows(n: int = 50, width: int = 4) -> MadeRows:
    """Draw rows of `width` features, three classes and some unknown labels."""
    rng = np.random.default_rng(7)
    return MadeRows(
        x=rng.normal(size=(n, width)).astype(np.float32),
        y=rng.integers(-1, 3, size=n),
        split=rng.integers(0, 3, size=n).astype(np.uint8),
        ids=[f"räw {row}" for row in range(n)],
        site=[("Bern", "Rome")[row % 2] for row in range(n)],
    )


def opened(path: Path, *wanted: ModelInput) -> DomainData:
    """Open one domain for the inputs of a model; any numbers side by side where none is given."""
    anything = ModelInput("x", (None, None), np.dtype(np.float32))
    return open_domains({"target": path}, wanted or (anything,))[0]["target"]


def row_of(pipeline: ImagePipeline, image: Image.Image) -> NDArray[Any]:
    """Return one image as a row of a model's input."""
    row: NDArray[Any] = np.empty(pipeline.row_shape, dtype=pipeline.dtype)
    pipeline.write(image, row)
    return row


def parquet() -> Any:
    """Return ``pyarrow.parquet``, or skip where it is missing."""
    return pytest.importorskip("pyarrow.parquet", reason="Parquet needs covcal[parquet]")


def write_csv(path: Path, columns: Mapping[str, Any]) -> Path:
    """Write columns as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def write_json_lines(path: Path, columns: Mapping[str, Any]) -> Path:
    """Write columns as a file with one JSON object per line."""
    rows = (dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, columns: dict[str, Any], rows_per_group: int = 16) -> Path:
    """Write columns as a Parquet file of several row groups."""
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs covcal[parquet]")
    parquet().write_table(arrow.table(columns), path, row_group_size=rows_per_group)
    return path


def write_hdf5(path: Path, arrays: dict[str, Any], *, chunks: bool = False) -> Path:
    """Write arrays as datasets."""
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            texts = isinstance(values, list)
            data = [text.encode() for text in values] if texts else values
            wide = chunks and not texts and np.ndim(values) > 1
            if wide:
                file.create_dataset(name, data=data, chunks=(7, 2), compression="gzip")
            else:
                file.create_dataset(name, data=data)
    return path


def write_rows(kind: str, folder: Path, rows: MadeRows, *, words: bool = False) -> Path:
    """Write the rows as a file of one kind; labels as `words` or numbers."""
    label: Any = rows.names if words else rows.y
    features = {f"f{index}": rows.x[:, index] for index in range(rows.x.shape[1])}
    if kind == "npz":
        path = folder / "rows.npz"
        np.savez(path, x=rows.x, y=label, split=rows.split, id=rows.ids, site=rows.site)
        return path
    if kind == "h5":
        arrays = {"x": rows.x, "label": label, "split": rows.split}
        more = {"id": rows.ids, "site": rows.site}
        return write_hdf5(folder / "rows.h5", {**arrays, **more}, chunks=True)
    if kind == "jsonl":
        return write_json_lines(
            folder / "rows.jsonl",
            {
                "id": rows.ids,
                **{name: values.astype(float).tolist() for name, values in features.items()},
                "label": [None if y == -1 else name for name, y in zip(label, rows.y, strict=True)]
                if words
                else [None if y == -1 else y for y in rows.y.tolist()],
                "split": [SPLIT_WORDS[code] for code in rows.split],
                "site": rows.site,
            },
        )
    if kind == "csv":
        texts = ["" if value == -1 else str(value) for value in label]
        numbers = {name: [repr(float(v)) for v in values] for name, values in features.items()}
        return write_csv(
            folder / "rows.csv",
            {
                "id": rows.ids,
                **numbers,
                "label": texts,
                "split": [SPLIT_WORDS[code] for code in rows.split],
                "site": rows.site,
            },
        )
    empty = [None if known == -1 else value for value, known in zip(label, rows.y, strict=True)]
    plain = [value if value is None or words else int(value) for value in empty]
    return write_parquet(
        folder / "rows.parquet",
        {"label": plain, **features, "split": rows.split, "id": rows.ids, "site": rows.site},
        rows_per_group=max(16, len(rows.ids) // 8),
    )


def png(value: int) -> bytes:
    """Return a 4 x 4 grey PNG of one value."""
    buffer = io.BytesIO()
    Image.new("L", (4, 4), value).save(buffer, "PNG")
    return buffer.getvalue()


def write_tar(path: Path, members: Mapping[str, bytes | str | dict[str, Any]]) -> Path:
    """Write members as a .tar; text and JSON are encoded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            text = json.dumps(content) if isinstance(content, dict) else content
            data = text.encode() if isinstance(text, str) else text
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def write_logs(folder: Path) -> None:
    """Write old.jsonl and new.jsonl, logs of a language model that is asked harder questions."""
    for name, n, margin, seed in (("old", 800, 3.0, 1), ("new", 600, 1.6, 2)):
        rng, lines = np.random.default_rng(seed), []
        for number in range(n):
            right, scores = int(rng.integers(4)), rng.normal(size=4)
            scores[right] += rng.normal(margin, 1.5)
            rest = 2 * scores.max() - rng.uniform(3, 9, size=4)
            logs = np.append(2 * scores, rest)
            logs -= np.log(np.exp(logs).sum())
            tokens = ["A", "B", "C", "D", "The", " A", "**", "I"]
            top = [
                {"token": tokens[k], "logprob": float(logs[k])} for k in np.argsort(-logs).tolist()
            ]
            choice = {"logprobs": {"content": [top[0] | {"top_logprobs": top}]}}
            line = {"id": f"{name}-{number}", "response": {"choices": [choice]}}
            lines.append(line | ({"label": "ABCD"[right]} if name == "old" else {}))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
