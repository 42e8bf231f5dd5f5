"""Whether a table was fed to the model column by column as the calibration's own was.

A model reads columns by position, so the same table with its columns in another order gives other
numbers. `extract` writes down which columns went in, and cal.json keeps it.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from covcal_cli.errors import CovcalError

ATTRIBUTE = "feature_columns"
_LONGEST = 60_000  # an HDF5 attribute holds 64 KiB


def columns_text(names: Sequence[str]) -> str:
    """Return the names of feature columns as one text for a file's attribute.

    Very many names are replaced by their number and sha256, which tells others as well.
    """
    text = json.dumps(list(names), ensure_ascii=False)
    if len(text.encode()) <= _LONGEST:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps([f"{len(names)} columns", f"sha256 {digest}"])


def read_columns(text: object) -> tuple[str, ...]:
    """Return what `columns_text` made into text; nothing where nothing is known."""
    return tuple(map(str, json.loads(text))) if isinstance(text, str) and text else ()


def require_same_columns(path: Path, found: Sequence[str], expected: Sequence[str]) -> None:
    """Refuse a table that was fed other columns than the calibration's, or in another order.

    Parameters
    ----------
    path : Path
        The features file, for messages.
    found, expected : sequence of str
        Its feature columns, and the calibration's; empty where no table was fed.

    Raises
    ------
    CovcalError
        Naming the file and the first column that differs.
    """
    if not found or not expected or tuple(found) == tuple(expected):
        return
    lacking = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    if not lacking and not extra:
        place = next(i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b)
        raise CovcalError(
            f"{path} was extracted with its feature columns in another order than the "
            f"calibration's (column {place} is {found[place]}, not {expected[place]}), which the "
            "model takes for other features: write the table's columns in that order, or extract "
            "it with the source beside it, which goes by name"
        )
    has = [f"lacks {lacking[0]}"] if lacking else []
    has += [f"has {extra[0]}"] if extra else []
    raise CovcalError(
        f"{path} was extracted with other feature columns than the calibration's (it "
        f"{' and '.join(has)}): give the columns that the model was calibrated on"
    )
