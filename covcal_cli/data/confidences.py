"""Turn tables with one confidence per row into tables of class probabilities.

Detectors, OCR and language models often return a prediction and its confidence, without the
probabilities of other classes. `confidence_stores` assigns the confidence to the predicted class,
and the rest in equal parts to the other classes. The probabilities of the other classes are
invented, so results must not depend on these probabilities (`FeatureFile.has_one_confidence`).

The classes are the distinct predictions and labels. If the source has no labels, `OTHER` is a
further class. In three cases, the classes are `RIGHT` and 19 classes for wrong answers:

- The table has no predictions.
- The predictions have too many distinct values, for example because they are free texts.
- The source has no labels, and some confidences are below 1/K, as in object detection.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from unicodedata import normalize

import numpy as np

from covcal_cli.arrays import AnyArray, Float64s, Rows
from covcal_cli.data.classes import is_plain_number, listed
from covcal_cli.data.labels import IN_CASE, LABEL_NAMES, differing_in_case
from covcal_cli.data.output_columns import CLASSES, CONFIDENCES
from covcal_cli.data.stores.store import Entry, Piece, Store, cut_utf8
from covcal_cli.errors import printable, shown
from covcal_cli.formats.features import EVENTS, PREDICTION
from covcal_cli.maths.output_form import ABOVE
from covcal_cli.maths.source_accuracy import RIGHT, WRONG

PREDICTIONS = (
    *("prediction", "predicted", "predicted_label", "predicted_class", "pred", "y_pred"),
    *("answer", "category_id"),
)
CORRECT = ("correct", "is_correct", "is_right", "matched", "is_match", "tp", "exact_match")
_INDEX = "label_index"  # Column of `covcal apply` with the class number of the prediction.
_BOX = "bbox"
OTHER = "another answer"
_MOST_CLASSES = 200
_LONGEST_PREDICTION = 240  # In bytes.
# Maximum share of confidences below a random guess, 1/K.
_BELOW_CHANCE = 0.01
# Minimum number of rows for checks of predictions.
_TELLING = 10
_NONE = -1.0  # Many tools write -1 for "no confidence".
_MOST_DECIMALS = 7
# The probability of the predicted class is at least (1 + _ABOVE_CHANCE) / K.
_ABOVE_CHANCE = 1e-4
ANSWERS = dict.fromkeys(("1", "1.0", "true", "yes", "right", "correct"), True)
ANSWERS |= dict.fromkeys(("0", "0.0", "false", "no", "wrong", "incorrect"), False)
_FLOAT = re.compile(r"([+-]?[0-9]+)\.0")
_MISSING = ("", "nan", "<na>", "none", "null", "na", "n/a")
_NEVER_NAMES = ("", "nan", "<na>")
# Invisible characters that spreadsheets and web pages add.
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\ufeff"))
# Values are percentages if the largest is above 10, and at least nine tenths are above 1.
_LEAST_PERCENTAGE, _FEW_SMALL = 10.0, 0.1


class _Columns:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.confidence = _one_of(store, CONFIDENCES)
        if self.confidence is None:
            raise store.error(
                "there is no column confidence, conf or score: add one confidence per row, or "
                "the probabilities of all classes"
            )
        self.prediction = _one_of(store, PREDICTIONS)
        label = _one_of(store, ("label",))
        others = [name for name in LABEL_NAMES if name != "label"]
        self.correct = _one_of(store, CORRECT)
        # Hugging Face pipelines and covcal apply call the prediction "label".
        has_truth = self.correct is not None or _one_of(store, others) is not None
        is_answer = has_truth or self.confidence == "score" or _INDEX in store.entries
        if self.prediction is None and is_answer:
            self.prediction, label = label, None
        self.label = label or _one_of(store, others)
        used = (self.confidence, self.prediction, self.correct, self.label)
        self.used = {name for name in used if name is not None}
        self.n = (*store.entries[self.confidence].shape, 0)[0]  # Number of rows in the file.
        for name in sorted(self.used):
            shape = store.entries[name].shape
            if shape not in ((self.n,), (self.n, 1)):
                raise store.error(
                    f"{name} has shape {list(shape)}, but {self.confidence} has {self.n} rows: "
                    f"give one {name} per row"
                )
        self.values = self._confidences(self.confidence)
        self.rows: Rows = np.flatnonzero(np.isfinite(self.values)).astype(np.int64)
        if len(self.rows) < min(1, len(self.values)):
            raise store.error(
                f"no row has a value in {self.confidence}: give one confidence per row"
            )
        self.values = self.values[self.rows]
        self.predictions = self._texts(self.prediction)
        self.labels = self._texts(self.label)
        if self.prediction is None and {_INDEX, CLASSES} <= {*store.entries}:
            self.predictions = self._texts(_INDEX, store.texts(CLASSES))

    def _texts(self, name: str | None, names: Sequence[str] = ()) -> list[str] | None:
        if name is None:
            return None
        texts = self.store.texts(name)
        if names:  # The column has class numbers instead of names.
            texts = [names[int(text)] for text in texts]
        cleaned = [_cleaned(texts[row]) for row in self.rows.tolist()]
        # Read "3.0" as the class "3", unless the column also contains integers such as "3".
        if any(map(is_plain_number, cleaned)):
            return cleaned
        return [match[1] if (match := _FLOAT.fullmatch(text)) else text for text in cleaned]

    def _confidences(self, name: str) -> Float64s:
        store = self.store
        if not store.entries[name].is_text:
            values = np.asarray(store.whole(name), dtype=np.float64).reshape(-1)
        else:
            values = np.array([self._number(name, *item) for item in enumerate(store.texts(name))])
        values = np.where(values == _NONE, np.nan, values)
        wrong = np.flatnonzero((values < 0) | (values > 100))
        if len(wrong):
            row = int(wrong[0])
            raise store.error(
                f"{name} of {store.place(row)} is {values[row]:g}: give confidences from 0 to "
                "1, or percentages. Leave the cell empty if a row has no confidence"
            )
        return values

    def _number(self, name: str, row: int, text: str) -> float:
        text = text.strip()
        if text.lower() in _MISSING:
            return np.nan
        number = re.fullmatch(r"([+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(%?)", text)
        if number is None:
            raise self.store.error(
                f"{name} of {self.store.place(row)} is {text[:40]!r}: give a number or a percentage"
            )
        return float(number[1]) / (100 if number[2] and float(number[1]) != _NONE else 1)

    @property
    def names(self) -> set[str]:
        return {*(self.predictions or ()), *(self.labels or ())} - {""}

    def is_right(self) -> list[bool | None]:
        by_label: list[bool | None] = [None] * len(self.rows)
        if self.labels is not None and self.predictions is not None:
            pairs = zip(self.predictions, self.labels, strict=True)
            by_label = [None if label == "" else label == answer for answer, label in pairs]
        if self.correct is None:
            return by_label
        texts = [text.strip().lower() for text in self.store.texts(self.correct)]
        for row in self.rows.tolist():
            if texts[row] not in ANSWERS and texts[row] not in _MISSING:
                raise self.store.error(
                    f"{self.correct} of {self.store.place(row)} is {texts[row][:40]!r}: write "
                    "1 for a right prediction and 0 for a wrong one"
                )
        right = [ANSWERS.get(texts[row]) for row in self.rows.tolist()]
        answers = [*zip(by_label, right, strict=True)]
        differ = [
            row
            for pair, row in zip(answers, self.rows.tolist(), strict=True)
            if None not in pair and pair[0] != pair[1]
        ]
        if differ:
            raise self.store.error(
                f"{self.correct} and {self.label} contradict each other in {len(differ)} of "
                f"{len(right)} rows, for example in {self.store.place(differ[0])}: keep only "
                "one of the two columns"
            )
        return [of_label if answer is None else answer for of_label, answer in answers]


class ConfidenceStore(Store):
    """A table of confidences, read as a table of probabilities."""

    is_table = True

    def __init__(self, columns: _Columns, names: tuple[str, ...], *, decimals: int) -> None:
        self._store, self._rows = columns.store, columns.rows
        self.path, self.is_typed = self._store.path, self._store.is_typed
        self._names, n = names, len(columns.rows)
        self._places = self._predicted(columns)
        self.notes = (*self._store.notes, *self._fitted(columns, decimals))
        self._own: dict[str, AnyArray] = {}
        labels = self._labels(columns)
        if labels is not None:
            self._own["label"] = np.array(labels, dtype=str)
        if self.is_event and columns.predictions is not None:
            texts, _ = cut_utf8(columns.predictions, n, _LONGEST_PREDICTION)
            self._own[f"group_{PREDICTION}"] = np.char.decode(texts, "utf-8")
        if len(self._store.entries.get(_BOX, Entry((), np.dtype(float))).shape) == 2:
            # A person who labels a detection must find the box in the image.
            boxes = self._store.whole(_BOX)[columns.rows].tolist()
            self._own[_BOX] = np.array([", ".join(f"{side:g}" for side in box) for box in boxes])
        self.entries = {
            name: replace(entry, shape=(n, *entry.shape[1:]))
            for name, entry in self._store.entries.items()
            if name not in columns.used
            and name.lower() not in (*LABEL_NAMES, *CORRECT, _INDEX)
            and entry.shape[:1] == (columns.n,)
        }
        self.entries |= {name: Entry((n,), values.dtype) for name, values in self._own.items()}
        shape = (n, len(names))
        self.entries["probabilities"] = Entry(shape, np.dtype(float), class_names=names)

    @property
    def is_event(self) -> bool:
        """Whether the classes mean "right answer" and "wrong answer"."""
        return self._names == EVENTS

    def whole(self, name: str) -> AnyArray:
        """Return a whole array."""
        return self._own[name] if name in self._own else self._store.whole(name)[self._rows]

    def texts(self, name: str) -> list[str]:
        """Return a whole array as texts."""
        if name in self._own:
            return list(map(str, self._own[name].tolist()))
        texts = self._store.texts(name)
        return [texts[row] for row in self._rows.tolist()]

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen rows of the named arrays."""
        for start in range(0, len(rows), max(1, size)):
            chosen = rows[start : start + size]
            arrays: dict[str, AnyArray] = {}
            if "probabilities" in names:
                arrays["probabilities"] = self._spread(chosen)
            if others := [name for name in names if name != "probabilities"]:
                pieces = self._store.pieces(others, self._rows[chosen], len(chosen))
                parts = [part for _, part in pieces]
                arrays |= {name: np.concatenate([part[name] for part in parts]) for name in others}
            yield chosen, arrays

    def place(self, row: int) -> str:
        """Describe the place of a row in the file."""
        return self._store.place(int(self._rows[row]))

    def _spread(self, rows: Rows) -> Float64s:
        confidences = self._confidences[rows]
        rest = (1 - confidences) / (len(self._names) - 1)
        spread = np.repeat(rest[:, None], len(self._names), axis=1)
        spread[np.arange(len(rows)), self._places[rows]] = confidences
        return spread

    def _predicted(self, columns: _Columns) -> Rows:
        if self.is_event or columns.predictions is None:
            return np.zeros(len(columns.rows), dtype=np.int64)
        place_of = {name: place for place, name in enumerate(self._names)}
        for row, name in zip(columns.rows.tolist(), columns.predictions, strict=True):
            if name not in place_of:
                value = repr(name[:40]) if name else "missing"
                raise columns.store.error(
                    f"{columns.prediction} of {columns.store.place(row)} is {value}: give a class "
                    "of the calibration"
                )
        return np.array([place_of[name] for name in columns.predictions], dtype=np.int64)

    def _labels(self, columns: _Columns) -> list[str] | None:
        right = columns.is_right()
        if columns.label is None and columns.correct is None:
            return None
        if self.is_event:
            return ["" if is_right is None else (WRONG, RIGHT)[is_right] for is_right in right]
        if columns.labels is not None:
            return columns.labels
        answers = columns.predictions or []
        pairs = zip(answers, right, strict=True)
        return ["" if r is None else answer if r else OTHER for answer, r in pairs]

    def _fitted(self, columns: _Columns, decimals: int) -> Iterator[str]:
        if columns.correct is None and columns.labels is not None and columns.predictions:
            known = {*columns.labels}
            alike = [
                (answer, label)
                for answer, label in zip(columns.predictions, columns.labels, strict=True)
                if label and answer not in known and _plain(answer) == _plain(label)
            ]
            if alike:
                answer, label = alike[0]
                yield (
                    f"in {len(alike)} rows, prediction and label differ only in case or "
                    f"punctuation ({shown(answer)} and {shown(label)}), so the predictions count "
                    "as wrong. If these predictions are right, spell them like the labels"
                )
        values, chance = columns.values, 1 / len(self._names)
        left_out = columns.n - len(values)
        if left_out:
            yield f"{left_out} rows without a confidence are left out"
        low = int((values < chance).sum())
        if low:
            yield (
                f"{low} of {len(values)} confidences are lower than a random guess among "
                f"{len(self._names)} answers, so covcal sets them to {chance:.2g}"
            )
        # A value that was rounded to 1 with d decimals is between 1 - 0.5 * 10^-d and 1.
        most = 1 - 0.25 * 10.0**-decimals
        high = int((values > most).sum())
        if high:
            yield (
                f"{high} of {len(values)} confidences were rounded to 1 ({decimals} "
                f"decimals), so covcal sets them to {most:.8g}"
            )
        self._confidences = np.clip(values, chance * (1 + _ABOVE_CHANCE), most)


def confidence_stores(
    stores: Mapping[str, Store], classes: Sequence[str] | None
) -> dict[str, Store]:
    """Convert tables of confidences to tables of class probabilities."""
    tables = {name: _Columns(store) for name, store in stores.items()}
    _drop_missing(tables.values(), classes or ())
    _bring_to_one_unit(tables)
    names = _names(tables, classes)
    decimals = max(_decimals(columns.values) for columns in tables.values())
    return {
        name: ConfidenceStore(columns, names, decimals=decimals) for name, columns in tables.items()
    }


def _names(tables: Mapping[str, _Columns], classes: Sequence[str] | None) -> tuple[str, ...]:
    if classes is not None:
        return tuple(classes)
    every = [*tables.values()]
    source = every[0]
    rename = f"If {source.confidence} is the probability of one class, rename it to prob_NAME"
    if "source" in tables and source.label is None and source.correct is None:
        matched = (
            " (for boxes: match the boxes with the annotations)"
            if _BOX in source.store.entries
            else ""
        )
        read = (
            " (its column label is read as the prediction)" if source.prediction == "label" else ""
        )
        raise source.store.error(
            f"the source does not say which predictions are right{read}: add a column correct "
            f"(1 or 0){matched}, or a column y_true with the right answers. {rename}"
        )
    if "source" in tables and source.correct is None and source.prediction is None:
        raise source.store.error(
            f"{source.label} holds the right answers, but the predictions are missing: add a "
            f"column prediction, or a column correct (1 or 0). {rename}"
        )
    _require_common_names(source)
    named = set().union(*(columns.names for columns in every))
    without = [columns for columns in every if columns.predictions is None]
    if 0 < len(without) < len(every):
        raise without[0].store.error(
            "only the other table has a column prediction: add the column to this table, too"
        )
    if without or not 1 <= len(named) <= _MOST_CLASSES:
        return EVENTS
    answers = set[str]().union(*(columns.predictions or () for columns in every)) - {""}
    if len(answers) == 2:
        for columns in every:
            _require_of_prediction(columns, sorted(answers))
    if any(columns.label is None and columns.correct is not None for columns in every):
        named.add(OTHER)
        low = [columns.values < 1 / len(named) for columns in every]
        if np.concatenate(low).mean() > _BELOW_CHANCE:
            return EVENTS
    if double := differing_in_case(named):
        raise source.store.error(
            f"the classes {listed(double)} {IN_CASE}: use one spelling for each class"
        )
    if len(named) < 2:
        named.add(OTHER)
    numbers = all(map(is_plain_number, named))
    return tuple(sorted(named, key=(lambda name: int(name)) if numbers else str))


def _require_of_prediction(columns: _Columns, classes: Sequence[str]) -> None:
    predictions = np.array(columns.predictions or ())
    parts = [columns.values[predictions == name] for name in classes]
    if min(map(len, parts)) < _TELLING or (columns.values < 0.5).mean() <= _BELOW_CHANCE:
        return
    low, high = sorted(range(2), key=lambda place: float(parts[place].mean()))
    if parts[low].max() <= parts[high].min():
        of_high = printable(classes[high])
        raise columns.store.error(
            f"{columns.confidence} seems to be the probability of {of_high} in every row: "
            f"rename the column to prob_{of_high}"
        )


def _cleaned(text: str) -> str:
    return normalize("NFC", " ".join(text.translate(_INVISIBLE).split()))


def _plain(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold())) or text


def _drop_missing(tables: Iterable[_Columns], classes: Iterable[str]) -> None:
    """Replace texts such as "none" by "", unless they are names of classes."""
    predicted, labels = (
        {text for columns in tables for text in getattr(columns, name) or ()}
        for name in ("predictions", "labels")
    )
    named = {*classes} | (predicted & labels)
    names = {text for text in named if text.lower() not in _NEVER_NAMES}
    missing = {text for text in predicted | labels if text.lower() in _MISSING} - names
    for columns in tables:
        for texts in (columns.predictions, columns.labels):
            if texts is not None:
                texts[:] = ["" if text in missing else text for text in texts]


def _require_common_names(columns: _Columns) -> None:
    answers, labels = ({*(texts or ())} - {""} for texts in (columns.predictions, columns.labels))
    if columns.correct is not None or len(columns.values) < _TELLING:
        return
    if answers and labels and not answers & labels:
        raise columns.store.error(
            f"no prediction ({listed(sorted(answers))}) is one of the labels "
            f"({listed(sorted(labels))}): use the same names for predictions and labels, or add "
            "a column correct"
        )


def _bring_to_one_unit(tables: Mapping[str, _Columns]) -> None:
    filled = [columns for columns in tables.values() if len(columns.values)]
    for columns in filled:
        values, name = columns.values, columns.confidence
        small, row = int((values <= 1).sum()), int(values.argmax())
        if values[row] <= 1 + ABOVE:
            columns.values = np.minimum(values, 1)
        elif values[row] <= _LEAST_PERCENTAGE or small > _FEW_SMALL * len(values):
            raise columns.store.error(
                f"{name} has values up to {values[row]:g} "
                f"({columns.store.place(int(columns.rows[row]))}), but {small} of "
                f"{len(values)} values are at most 1: give only confidences from 0 to 1, or "
                "only percentages"
            )
    shares = [columns for columns in filled if (columns.values <= 1).all()]
    if len(shares) == len(filled):
        return
    if shares:
        raise shares[0].store.error(
            f"{shares[0].confidence} has only values up to 1, but the other table has "
            "percentages: use one unit in both tables"
        )
    for columns in filled:
        columns.values = columns.values / 100


def _decimals(values: Float64s) -> int:
    for decimals in range(1, _MOST_DECIMALS):
        units = values * 10.0**decimals
        if (np.abs(units - np.rint(units)) < 1e-6).all():
            return decimals
    return _MOST_DECIMALS


def _one_of(store: Store, names: Sequence[str]) -> str | None:
    lower = {name.lower(): name for name in store.entries}
    return next((lower[name] for name in names if name in lower), None)
