"""Make the features file of a shift, unless the file exists."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covcal_cli.extract.extract import extract
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.files import write_text
from reproduction.datasets import LabelledRows, MissingDataError, Reader, find_digits
from reproduction.office import STAND_IN, find_office, train_linear_head
from reproduction.shifts import PAPER, Shift


@dataclass(frozen=True)
class Data:
    """Folders and files with the data of the experiments."""

    folder: Path  # Folder with the data sets, and with classifiers in ``models``.
    features: Path  # Folder for features files.
    # A ResNet-50 for Office31. If None, Office-Caltech10 replaces Office31.
    office31_model: Path | None = None


@dataclass(frozen=True)
class Extracted:
    """Features file of a shift, with texts about the origin of its data."""

    shift: Shift
    path: Path
    source: str  # origins in words
    target: str
    classifier: str
    comparable: str  # differences from the paper's shift, or "one to one" if there are none


def find_shift(shift: Shift, data: Data) -> tuple[Reader, Reader]:
    """Check that the data and the classifier of a shift exist. Return functions that read the data.

    Raises
    ------
    MissingDataError
        If files are missing. The message says where to get the files.
    """
    if shift.model is None:
        source, target = (
            find_office(name, data.folder, data.office31_model, data.features)
            for name in (shift.source, shift.target)
        )
        return source, target
    readers = find_digits(shift.source, data.folder), find_digits(shift.target, data.folder)
    model = data.folder / "models" / shift.model
    if not model.is_file():
        raise MissingDataError(
            f"{shift.name} needs the classifier {model}. Export park2020_lenet_*.onnx from the "
            "weights in github.com/sangdon/calibration-under-covariateshift (input [n, 1, 28, 28] "
            "with values in 0..1). As svhnnet.onnx, use any SVHN classifier (input [n, 3, 32, 32])"
        )
    return readers


def extracted(shift: Shift, data: Data) -> Extracted:
    """Return the features file of a shift, and make the file if it does not exist."""
    stem = shift.name if data.office31_model is None or shift.model else f"{shift.name}-office31"
    path, note = data.features / f"{stem}.h5", data.features / f"{stem}.json"
    if path.is_file() and note.is_file():
        return Extracted(shift, path, **json.loads(note.read_text("utf-8")))
    read_source, read_target = find_shift(shift, data)
    source, target = read_source(), read_target()
    with tempfile.TemporaryDirectory(dir=data.features) as folder:
        temporary = Path(folder)
        for name, rows in (("source", source), ("target", target)):
            np.savez(temporary / f"{name}.npz", x=rows.x, y=rows.y, split=rows.split)
        if shift.model is None:
            model = temporary / f"linear_{shift.source}.onnx"
            train_linear_head(source, model)
        else:
            model = data.folder / "models" / shift.model
        inputs = temporary / "source.npz", temporary / "target.npz"
        extract(model, *inputs, path, ExtractSettings(threads=1), force=True)
    words = {
        "source": source.origin,
        "target": target.origin,
        "classifier": shift.model or "linear classifier, trained by run.py",
        "comparable": comparability(shift, source, target),
    }
    write_text(note, json.dumps(words, indent=2) + "\n", force=True)
    return Extracted(shift, path, **words)


def comparability(shift: Shift, source: LabelledRows, target: LabelledRows) -> str:
    """Return a text that says how data and classifier of a shift differ from the paper's."""
    if shift.name not in PAPER:
        return "not in the paper"
    if STAND_IN in source.origin:
        return "stand-in (Office-Caltech10), other classifier"
    differing = [] if shift.paper_classifier else ["other classifier"]
    differing += [] if source.official and target.official else ["other rows"]
    return ", ".join(differing) or "one to one"
