"""Whether a features file has the classes that a calibration was made for, in the same order."""

from collections.abc import Sequence
from pathlib import Path

from covcal_cli.errors import CovcalError


def require_same_classes(
    path: Path, found: Sequence[str], expected: Sequence[str], *, remedy: str, same_model: bool
) -> None:
    """Refuse classes of another number, name or order.

    Parameters
    ----------
    path : Path
        The features file, for messages.
    found, expected : sequence of str
        Its classes, and the calibration's.
    remedy : str
        What to do about other classes.
    same_model : bool
        Whether both come from one model, or from tables, of which no model is known. The same
        names in another order can then be put right.

    Raises
    ------
    CovcalError
        Naming the file and the first class that differs.
    """
    if len(found) != len(expected):
        raise CovcalError(
            f"{path} has {len(found)} classes, the calibration {len(expected)}: {remedy}"
        )
    for index, (name, wanted) in enumerate(zip(found, expected, strict=True)):
        if name == wanted:
            continue
        differs = f"(class {index} is {name}, not {wanted})"
        if same_model and sorted(found) == sorted(expected):
            raise CovcalError(
                f"{path} has the classes of the calibration in another order {differs}: extract it "
                "again with --classes and the calibration's .json, which names them in order"
            )
        raise CovcalError(f"{path} has other class names than the calibration {differs}: {remedy}")
