"""The example data: a tiny digit classifier and two sets of real handwriting.

``examples/research/make_demo_data.py`` made the files from scikit-learn's ``load_digits``. The
source is one half of the digits. The target is the other half, turned clockwise by about 10 degrees
and drawn with bolder lines.
"""

import shutil
from importlib.resources import files
from pathlib import Path

import numpy as np

from covcal_cli.errors import CovcalError
from covcal_cli.files import hidden_sibling
from covcal_cli.formats.features import DOMAINS, SPLITS

MODEL = "digits.onnx"
_UNFINISHED = ".unfinished"


def write_demo(folder: Path) -> bool:
    """Write the model to `folder`, and both domains as folders of PNG files.

    Return whether the files exist already, from an interrupted demo.
    """
    if (folder / _UNFINISHED).is_file():
        return True
    if folder.is_symlink() and not folder.exists():
        raise CovcalError(f"{folder} is a link that leads nowhere: name another folder with -o")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CovcalError(f"{folder} exists already: remove it, or name another folder with -o")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = hidden_sibling(folder.resolve(), "partial")
    # An interrupted demo may have left the temporary folder.
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _fill(partial)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return False


def end_demo(folder: Path) -> None:
    """Record that the demo in `folder` is complete."""
    (folder / _UNFINISHED).unlink()


def _fill(folder: Path) -> None:
    from PIL import Image

    package = files(__name__)
    folder.mkdir()
    (folder / _UNFINISHED).touch()
    (folder / MODEL).write_bytes(package.joinpath(MODEL).read_bytes())
    for domain in DOMAINS:
        with package.joinpath(f"{domain}.npz").open("rb") as handle, np.load(handle) as arrays:
            rows = zip(*(arrays[name] for name in ("x", "y", "split", "id")), strict=True)
            for pixels, label, split, name in rows:
                place = folder / domain / SPLITS[split] / str(label)
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(place / f"{name}.png")
