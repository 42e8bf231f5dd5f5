"""Make the shifts between domains of Office31, or of Office-Caltech10 as a replacement.

The paper's fine-tuned ResNet-50 classifiers are not available. So a linear classifier is trained on
the features of source training rows, and saved as an ONNX model.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.extract.extract import extract
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.formats.features import FeatureFile
from reproduction.datasets import LabelledRows, MissingDataError, Reader

STAND_IN = "office_caltech10_efflite0.npz"
DOMAINS = ("amazon", "dslr", "webcam")
SIZE = 224
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_SPLIT_SEED = 0
_ENDINGS = {".jpg", ".jpeg", ".png"}


def find_office(name: str, data: Path, model: Path | None, cache: Path) -> Reader:
    """Find the files of one domain, and return a function that reads the files.

    With a `model`, the domain is in Office31, otherwise in Office-Caltech10.

    Parameters
    ----------
    name : {"amazon", "dslr", "webcam"}
    data : Path
        Folder with ``office_caltech10_efflite0.npz``, or with folders such as
        ``amazon/images/<class>`` or ``office31/amazon/<class>``.
    model : Path, optional
        An ONNX classifier of 224 x 224 RGB images, such as a ResNet-50. The features are the inputs
        of its last linear layer.
    cache : Path
        Folder to store the features of Office31.

    Raises
    ------
    MissingDataError
        If files are missing. The message says where to get the files.
    """
    if model is None:
        path = data / STAND_IN
        if path.is_file():
            return lambda: _stand_in(path, name)
        raise MissingDataError(
            f"Office-Caltech10 is not in {data}: put {STAND_IN} there. The file has the features "
            f"of any image network, as arrays NAME_x and NAME_y for {', '.join(DOMAINS)}. The "
            "images are on the pages of Gong et al. 2012 (GFK). To use Office31 instead, add "
            "--office31-model"
        )
    folders = [data / base / name for base in ("", "office31", "Office31")]
    found = next((f for f in folders if f.is_dir()), None)
    if found is None or not model.is_file():
        lacking = f"the model {model}" if found else f"the folder {name} in {data}"
        raise MissingDataError(
            f"Office31 lacks {lacking}: add the folders amazon, dslr and webcam with a folder for "
            "each class (from the page 'Domain Adaptation Project' of Saenko et al. 2010). Also "
            "add a ResNet-50 as an ONNX file, such as the torchvision model exported with "
            "torch.onnx.export"
        )
    images = found / "images" if (found / "images").is_dir() else found
    return lambda: _from_folders(images, name, model, cache)


def _stand_in(path: Path, name: str) -> LabelledRows:
    with np.load(path, allow_pickle=False) as arrays:
        x, y = arrays[f"{name}_x"].astype(np.float32), arrays[f"{name}_y"].astype(np.int64)
    origin = f"{path.name}, {name} ({len(y)} rows)"
    return LabelledRows(x, y, random_split(len(y), name), origin, official=False)


def _from_folders(folder: Path, name: str, model: Path, cache: Path) -> LabelledRows:
    files = sorted(f for f in folder.glob("*/*") if f.suffix.lower() in _ENDINGS)
    classes = sorted({file.parent.name for file in files})
    y = np.array([classes.index(file.parent.name) for file in files], np.int64)
    stored = cache / f"office31-{name}.h5"
    if not stored.is_file():
        pixels = cache / f"office31-{name}.npz"
        np.savez(pixels, x=np.stack([_pixels(file) for file in files]))
        normalised = Preprocessing(size=(SIZE, SIZE), mean=_IMAGENET[0], std=_IMAGENET[1])
        settings = ExtractSettings(preprocessing=normalised, threads=1)
        extract(model, None, pixels, stored, settings)
        pixels.unlink()
    with FeatureFile(stored) as file:
        target = file.require_target()
        x = target.features(np.arange(target.n, dtype=np.int64))
    origin = f"Office31 {name} by {model.name} ({len(y)} rows, {len(classes)} classes)"
    return LabelledRows(x, y, random_split(len(y), name), origin, official=len(classes) == 31)


def _pixels(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def random_split(n: int, name: str) -> NDArray[np.uint8]:
    """Return a random 70/15/15 split of `n` rows. The same domain always has the same split."""
    rng = np.random.default_rng([_SPLIT_SEED, DOMAINS.index(name)])
    split = np.searchsorted([int(0.7 * n), int(0.85 * n)], rng.permutation(n), side="right")
    return split.astype(np.uint8)


def train_linear_head(rows: LabelledRows, path: Path) -> None:
    """Train a softmax regression on the training rows, and save it as an ONNX model.

    Parameters
    ----------
    rows : LabelledRows
        Labelled rows of the source domain.
    path : Path
        The ONNX file, with features [n, d] as input and logits [n, K] as output.
    """
    from sklearn.linear_model import LogisticRegression

    train = rows.split == 0
    absent = np.setdiff1d(rows.y, rows.y[train])
    if len(absent):
        raise MissingDataError(f"{rows.origin} has no training row of class {absent[0]}")
    # Scale the features, so one ridge penalty suits the features of any network.
    scale = float(rows.x[train].std())
    head = LogisticRegression(max_iter=1000)
    head.fit(rows.x[train] / scale, rows.y[train])
    weight, bias = head.coef_ / scale, head.intercept_
    if len(weight) == 1:  # scikit-learn has one row of weights for two classes
        weight, bias = np.vstack([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    path.write_bytes(linear_model(weight, bias))


def linear_model(weight: NDArray[Any], bias: NDArray[Any]) -> bytes:
    """Return a serialised ONNX model with logits = features W' + b."""
    from onnx import TensorProto, helper, numpy_helper

    classes, width = weight.shape
    graph = helper.make_graph(
        [
            helper.make_node("Identity", ["x"], ["features"]),
            helper.make_node("Gemm", ["features", "weight", "bias"], ["logits"], transB=1),
        ],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", classes])],
        [
            numpy_helper.from_array(values.astype(np.float32), name)
            for name, values in (("weight", weight), ("bias", bias))
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content
