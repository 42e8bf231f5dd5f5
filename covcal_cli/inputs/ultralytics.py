"""The preprocessing that Ultralytics' exported classifiers state in their metadata.

Their transforms are torchvision's: the shorter side becomes the image size, the centre is cropped,
pixels are divided by 255. They read files with OpenCV, which turns images upright by EXIF.
"""

import json
from collections.abc import Mapping

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.preprocessing import Preprocessing
from covcal_cli.inputs.resizing import Resize


def is_ultralytics(metadata: Mapping[str, str]) -> bool:
    """Return whether a model's metadata are those of an Ultralytics classifier."""
    return "imgsz" in metadata and metadata.get("task") == "classify"


def ultralytics_preprocessing(metadata: Mapping[str, str]) -> Preprocessing:
    """Return what Ultralytics does to an image before its classifier.

    Raises
    ------
    CovcalError
        If the metadata are no classifier's, or their image size is not readable.
    """
    if not is_ultralytics(metadata):
        task = metadata.get("task")
        found = f"its task is {task}" if task else "it has no imgsz and task"
        raise CovcalError(
            f"the model's metadata are not those of an Ultralytics classifier ({found}): pass "
            "another --preprocess"
        )
    try:
        size = json.loads(metadata["imgsz"])
        height, width = (size, size) if isinstance(size, int) else map(int, size)
    except (ValueError, TypeError) as error:
        raise CovcalError(
            f"the model's metadata have the image size {metadata['imgsz']!r}: pass --size"
        ) from error
    # Ultralytics keeps the ratio for square inputs only.
    square = height == width
    return Preprocessing(
        resize=Resize("short", short=height) if square else Resize("squash", size=(height, width)),
        crop=(height, width),
        crop_rule="round",
        resample="bilinear",
        scale=1 / 255,
        exif=True,
    )
