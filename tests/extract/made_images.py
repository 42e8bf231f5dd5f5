"""A classifier with image files of which one is corrupt, and arrays, as sharded runs read them."""

from pathlib import Path

import numpy as np
from PIL import Image

from tests.classifiers.onnx.onnx_graphs import SIDE, grey_classifier


def write_model_and_domains(folder: Path, count: int, corrupt: str) -> Path:
    """Write model.onnx, `count` source images below src, and tgt.npz of 41 rows; return `folder`.

    The image `corrupt`, a path below src, is left empty.
    """
    grey_classifier(folder)
    rng = np.random.default_rng(0)
    for i in range(count):
        path = folder / "src" / f"{i % 3}" / f"{i:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)).save(path)
    (folder / "src" / corrupt).write_bytes(b"")
    x = rng.integers(0, 256, (41, SIDE, SIDE), dtype=np.uint8)
    np.savez(folder / "tgt.npz", x=x, y=np.arange(41) % 3)
    return folder
