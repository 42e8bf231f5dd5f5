"""Preprocess images with a function of the user: ``--preprocess module:function``.

The function takes a PIL image and returns one row of the model's input. The sha256 of the
function's source file is stored, so that a change is noticed. Several threads may call the function
at once.
"""

import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covcal_cli.arrays import AnyArray, Shape, shape_text
from covcal_cli.data.domain import RowShape
from covcal_cli.errors import CovcalError, one_line
from covcal_cli.files import sha256_of

if TYPE_CHECKING:
    from PIL import Image

RowFunction = Callable[["Image.Image"], Any]
_PROBE_SIDE = 256


@dataclass(frozen=True)
class ImageFunction:
    """A function from a PIL image to an array."""

    name: str  # ``module:function``.
    sha256: str  # Hash of the source file.
    call: RowFunction = field(compare=False)

    @property
    def origin(self) -> dict[str, str]:
        """The name and the sha256 of the function, for JSON."""
        return {"function": self.name, "sha256": self.sha256}


@dataclass(frozen=True)
class FunctionPipeline:
    """A function as an `ImagePipeline`; see `covcal_cli.data.domain`."""

    function: ImageFunction
    row_shape: RowShape  # Shape of the function's result.
    dtype: str

    @classmethod
    def fitting(
        cls, function: ImageFunction, shape: Shape, dtype: np.dtype[np.generic]
    ) -> "FunctionPipeline":
        """Return the pipeline for an input of the model.

        If the model does not declare its image size, a trial image shows the size.
        """
        declared = shape[1:]
        row_shape = tuple(size for size in declared if size is not None)
        if len(row_shape) < len(declared):
            from PIL import Image

            probe = Image.new("RGB", (_PROBE_SIDE, _PROBE_SIDE), (120, 130, 140))
            row_shape = _called(function, probe).shape
            if len(row_shape) != len(declared):
                raise _wrong_shape(function, row_shape, declared)
        return cls(function, row_shape, dtype.name)

    def describe(self) -> str:
        """Describe the function and the shape of its result."""
        shape = "x".join(map(str, self.row_shape))
        return f"{self.function.name} (sha256 {self.function.sha256[:12]}), {shape} {self.dtype}"

    def to_json(self) -> str:
        """Return the function's name and source as one line of JSON."""
        return json.dumps(
            {**self.function.origin, "dtype": self.dtype, "row_shape": list(self.row_shape)},
            sort_keys=True,
        )

    def write(self, image: "Image.Image", out: AnyArray) -> None:
        """Call the function on an image, and write the result into `out`."""
        # Detect a damaged file before the function is called.
        image.load()
        row = _called(self.function, image)
        if row.shape != self.row_shape:
            raise _wrong_shape(self.function, row.shape, self.row_shape)
        if row.dtype.kind == "f" and np.dtype(self.dtype).kind in "iu":
            raise CovcalError(
                f"{self.function.name} returns {row.dtype} but the model's input is "
                f"{self.dtype}: return integers"
            )
        if row.dtype.kind == "f" and not np.isfinite(row).all():
            raise CovcalError(
                f"{self.function.name} returns NaN or infinity for an image: return finite numbers"
            )
        out[...] = row


def load_function(text: str) -> ImageFunction:
    """Import ``module:function``. The current folder is searched first."""
    module_name, _, name = text.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        function: Any = importlib.import_module(module_name)
        for part in name.split("."):
            function = getattr(function, part)
    except Exception as error:  # The user's code can raise any error.
        missing = str(getattr(error, "name", None))
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{missing}."):
            reason = (
                f": there is no module {missing} in this folder or in the installed packages: "
                "check the name"
            )
        elif isinstance(error, AttributeError):
            reason = f": {module_name} has no {name}: check the name"
        else:
            reason = (
                f" cannot be imported ({type(error).__name__}: {one_line(error)}): correct the "
                "module"
            )
        raise CovcalError(f"--preprocess {text}{reason}") from error
    finally:
        sys.path.remove(here)
    if not callable(function):
        raise CovcalError(
            f"--preprocess {text} is not a function: give a function that takes a PIL image"
        )
    return ImageFunction(text, _source_sha256(text, function, module_name), function)


def _source_sha256(text: str, function: Any, module_name: str) -> str:
    try:
        source = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:  # Callable objects and compiled code have no source file.
        source = getattr(sys.modules[module_name], "__file__", None)
    if source is None or not Path(source).is_file():
        return hashlib.sha256(text.encode()).hexdigest()
    return sha256_of(Path(source))


def _called(function: ImageFunction, image: "Image.Image") -> AnyArray:
    try:
        row: AnyArray = np.asarray(function.call(image))
    except Exception as error:  # The user's code can raise any error.
        raise CovcalError(
            f"{function.name} failed on an {image.mode} image of {image.height}x{image.width} "
            f"pixels ({type(error).__name__}: {one_line(error)}): correct the function"
        ) from error
    if row.dtype.kind not in "fiub":
        raise CovcalError(
            f"{function.name} returns {type(row).__name__} of {row.dtype}: return numbers"
        )
    return row


def _wrong_shape(function: ImageFunction, returned: RowShape, wanted: Shape) -> CovcalError:
    return CovcalError(
        f"{function.name} returns an array of shape {shape_text(returned)} but one row of the "
        f"model's input has shape {shape_text(wanted)}: return one row, without the batch axis"
    )
