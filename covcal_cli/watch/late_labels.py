"""Labels that arrive late, as a CSV with the columns ``id`` and ``label``.

They are joined to the rows of watched periods by id. If ids are repeated in several periods, the
CSV needs a column ``period`` too.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, AnyArray, Integers, Labels, Rows
from covcal_cli.data.classes import named_classes
from covcal_cli.data.labels import RowLabels
from covcal_cli.data.stores.csv import CSVStore
from covcal_cli.errors import CovcalError, shown
from covcal_cli.files import require_file
from covcal_cli.formats.features import FeatureFile
from covcal_cli.formats.writer import utf8

_REMEDY = "give a CSV with the columns id and label"


@dataclass
class LateLabels:
    """The lines of a CSV of labels, and the periods that they were joined to."""

    path: Path
    ids: AnyArray  # (m,), UTF-8 bytes
    texts: AnyArray  # (m,), class names or numbers
    periods: AnyArray | None  # (m,), the column ``period``, if there is one
    joined: dict[int, str] = field(default_factory=dict)  # the period of each joined line

    def of_rows(self, file: FeatureFile, period: str, rows: Rows) -> tuple[Rows, Labels]:
        """Return the rows of a period that have a label here, ascending, and their labels.

        Raises
        ------
        CovcalError
            If an id belongs to several rows, or a label is not a class.
        """
        ids = file.require_target().id_bytes(rows)
        wanted = np.arange(len(self.ids))
        if self.periods is not None:
            wanted = np.flatnonzero(self.periods == period)
        near = np.flatnonzero(np.isin(ids, self.ids[wanted]))
        order = wanted[np.argsort(self.ids[wanted], kind="stable")]
        lines: Integers = order[np.searchsorted(self.ids[order], ids[near])]
        for line, count in Counter(lines.tolist()).items():
            other = self.joined.setdefault(line, period)
            if count > 1 or other != period:
                where = f"in {period}" if count > 1 else f"in {other} and in {period}"
                raise CovcalError(
                    f"{self.path}: several rows have the id {self._id(line)}, {where}: add a "
                    "column period with the name of the row's period, or use unique ids"
                )
        classes = named_classes(file.classes)
        texts = RowLabels(self.texts, self.path, "label", texts_are_numbers=True)
        labels = texts.indices(classes)[lines]
        labelled = labels != UNKNOWN_LABEL
        return rows[near[labelled]], labels[labelled]

    @property
    def notes(self) -> list[str]:
        """Return a note on the lines that no period has."""
        missing = sorted(set(range(len(self.ids))) - set(self.joined))
        if not missing:
            return []
        return [
            f"{self.path}: {len(missing)} of {len(self.ids)} ids are in no watched period (first: "
            f"{self._id(missing[0])})"
        ]

    def require_any(self) -> None:
        """Raise `CovcalError` if no line was joined to a period."""
        if not self.joined:
            raise CovcalError(
                f"{self.path}: no watched period has a row with the id {self._id(0)} or another "
                "id of this file: give the ids that covcal extract wrote, or the files to watch"
            )

    def _id(self, line: int) -> str:
        return shown(self.ids[line].decode("utf-8", "replace"))


def read_late_labels(path: Path) -> LateLabels:
    """Read a CSV of labels.

    Raises
    ------
    CovcalError
        If a column is missing, or an id is there twice.
    """
    require_file(path, remedy=_REMEDY)
    store = CSVStore(path, as_texts=True)
    for name in ("id", "label"):
        if name not in store.entries:
            raise CovcalError(f"{path} has no column {name}: {_REMEDY}")
    ids, texts = store.texts("id"), [text.strip() for text in store.texts("label")]
    periods = store.texts("period") if "period" in store.entries else None
    keys = list(zip(ids, periods or [""] * len(ids), strict=True))
    twice = next((key for key, count in Counter(keys).items() if count > 1), None)
    if twice is not None:
        raise CovcalError(f"{path}: id {shown(twice[0])} is there twice: keep one of the lines")
    return LateLabels(
        path, utf8(ids), np.array(texts), None if periods is None else np.array(periods)
    )
