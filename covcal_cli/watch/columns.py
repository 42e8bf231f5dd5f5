"""Measure the drift of the columns that ``covcal extract`` kept.

Numbers are compared with the Kolmogorov-Smirnov test and the population stability index (PSI) of
ten bins. Categories are compared with the chi-square test and the PSI. Another chi-square test
compares the share of missing values. The p-values are corrected for the number of tests in a period
(Bonferroni). Dates, identifiers and texts that are nearly all different are not compared.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from covcal_cli.arrays import AnyArray, Float64s, Floats, Rows
from covcal_cli.formats.features import Domain
from covcal_cli.watch.period import ColumnDrift
from covcal_cli.watch.reference import ColumnSketch, quantiles

_MOST_COLUMNS = 20
_MOST_CATEGORIES = 30  # Maximum number of categories of a compared column.
_MOST_NUMBERS = 10  # A column with at most this many different numbers is compared as categories.
_LONGEST = 60  # Maximum number of characters of a category's name.
_LEAST_ROWS = 30  # Minimum number of values in the period and in the reference.
_LEAST_SHARE = 1e-4  # The PSI uses this value instead of smaller shares.
_LEAST_EXPECTED = 5.0  # Minimum expected count in the chi-square test.
_TENTHS = np.arange(1, 10) / 10
_TERMS = 100  # Number of terms in the Kolmogorov series.
_NEW = 3  # Maximum number of new categories to name.
# A name such as id, image_id, userID or uuid.
_IDENTIFIER = re.compile(r"(.*[\W_])?(id|ids|uuid|guid|ID|Id|IDS|UUID|GUID)|.*[a-z](Id|ID)")
_DATE = re.compile(r"\d{4}-(\d\d|W\d\d|Q\d)(\D.*)?", re.ASCII)


def sketches_of(domain: Domain, rows: Rows) -> tuple[ColumnSketch, ...]:
    """Summarise every column of a domain that can be compared."""
    sketches = (sketch(name, domain.column(name, rows)) for name in domain.columns)
    return tuple(column for column in sketches if column is not None)[:_MOST_COLUMNS]


def sketch(name: str, values: AnyArray) -> ColumnSketch | None:
    """Summarise the values of a column; return None if the column cannot be compared."""
    present = _present(values)
    if len(present) < _LEAST_ROWS:
        return None
    if values.dtype.kind != "S" and _identifies(name, values):
        return None
    missing = 1 - len(present) / len(values)
    different, counts = np.unique(present, return_counts=True)
    if present.dtype.kind == "f" and len(different) > _MOST_NUMBERS:
        return ColumnSketch(name, len(values), missing, quantiles(present))
    if len(different) > _MOST_CATEGORIES:
        return None
    texts = _texts(different)
    if all(map(_DATE.fullmatch, texts)) or len(set(texts)) < len(texts):
        return None
    shares = tuple((counts / len(present)).tolist())
    return ColumnSketch(name, len(values), missing, None, tuple(texts), shares)


def _identifies(name: str, values: AnyArray) -> bool:
    """Return whether a column of numbers holds ids: ascending numbers, or a name such as "id"."""
    numbers = values[np.isfinite(values)]
    is_counter = bool((np.diff(numbers) > 0).all())
    is_named = _IDENTIFIER.fullmatch(name) is not None
    is_whole = bool((numbers == np.floor(numbers)).all())
    return (is_counter or is_named) and is_whole and len(np.unique(numbers)) > _MOST_CATEGORIES


def drifts(sketches: Sequence[ColumnSketch], domain: Domain, rows: Rows) -> tuple[ColumnDrift, ...]:
    """Return the drift of every summarised column.

    A missing column counts as a column without values.
    """
    names = set(domain.columns)
    if not any(column.name in names for column in sketches):
        return ()
    nothing = np.zeros(len(rows), dtype="S1")
    compared = [
        drift
        for column in sketches
        for drift in drift_of(
            column, domain.column(column.name, rows) if column.name in names else nothing
        )
    ]
    return corrected(compared, len(compared))


def corrected(columns: Iterable[ColumnDrift], tests: int) -> tuple[ColumnDrift, ...]:
    """Multiply the p-values by the number of tests (Bonferroni)."""
    return tuple(replace(column, p=min(1.0, column.p * tests)) for column in columns)


def drift_of(before: ColumnSketch, values: AnyArray) -> Iterator[ColumnDrift]:
    """Yield the drift of one column, or nothing if there are too few rows.

    Texts in a column of numbers count as missing values. If most values are missing, only the share
    of missing values is compared.
    """
    if min(len(values), before.valued) < _LEAST_ROWS:
        return
    present = _present(values)
    if before.quantiles is not None and present.dtype.kind == "S":
        present = present[:0]
    lost, lost_before = len(values) - len(present), before.rows - before.valued
    of_missing = chi_square([lost_before, before.valued], [lost, len(present)])
    new: dict[str, float] = {}
    if len(present) < _LEAST_ROWS:
        statistic, p, index, measure, now, usually = 0.0, 1.0, 0.0, "", "", ""
    elif before.quantiles is not None:
        usual = before.quantiles.values
        statistic = ks_statistic(usual, present)
        p = ks_p(statistic, before.valued, len(present))
        edges = np.unique(np.quantile(usual, _TENTHS, method="inverted_cdf"))
        index = psi(*(_parts(part, edges) for part in (usual, present)))
        measure, now, usually = _of_numbers(usual, present)
    else:
        different, counts = np.unique(present, return_counts=True)
        usual_shares = dict(zip(before.categories, before.shares, strict=True))
        shares = dict.fromkeys(_texts(different), 0.0)
        for name, count in zip(_texts(different), counts.tolist(), strict=True):
            shares[name] += count / len(present)
        names = list(usual_shares | shares)
        both = [
            np.array([part.get(name, 0.0) for name in names]) for part in (usual_shares, shares)
        ]
        statistic = float(np.abs(both[0] - both[1]).max())
        p = chi_square(both[0] * before.valued, both[1] * len(present))
        index = psi(*both)
        new = {name: share for name, share in shares.items() if name not in usual_shares}
        measure, now, usually = _of_shares(usual_shares, shares)
    yield ColumnDrift(
        name=before.name,
        rows=len(values),
        psi=index,
        statistic=statistic,
        p=min(1.0, 2 * min(p, of_missing)),
        missing=lost / len(values),
        missing_before=before.missing,
        new=min(1.0, math.fsum(new.values())),
        new_categories=tuple(sorted(new, key=lambda name: -new[name])[:_NEW]),
        measure=measure,
        now=now,
        before=usually,
    )


def _present(values: AnyArray) -> AnyArray:
    if values.dtype.kind == "S":
        stripped: AnyArray = np.char.strip(values)
        return np.asarray(stripped[stripped != b""])
    with np.errstate(over="ignore"):
        numbers: AnyArray = values.astype(np.float32)
    return numbers[np.isfinite(numbers)]


def _texts(values: AnyArray) -> list[str]:
    if values.dtype.kind != "S":
        return [f"{value:.7g}" for value in values.tolist()]
    return [value.decode("utf-8", "replace")[:_LONGEST] for value in values.tolist()]


def _of_numbers(usual: Floats, present: Floats) -> tuple[str, str, str]:
    """Return "median", and the medians of the period and the reference as text.

    If both texts are equal, return "middle half" and the quartiles instead.
    """
    medians = [f"{float(np.median(part)):.3g}" for part in (present, usual)]
    if medians[0] != medians[1]:
        return "median", medians[0], medians[1]
    halves = [
        " to ".join(f"{float(end):.3g}" for end in np.quantile(part, (0.25, 0.75)))
        for part in (present, usual)
    ]
    return "middle half", halves[0], halves[1]


def _of_shares(usual: Mapping[str, float], shares: Mapping[str, float]) -> tuple[str, str, str]:
    name = max(usual, key=lambda name: abs(shares.get(name, 0.0) - usual[name]))
    now, before = (f"{100 * part.get(name, 0.0):.0f} %" for part in (shares, usual))
    return f"share of {name}", now, before


def psi(before: Floats, now: Floats) -> float:
    """Return the population stability index of two lists of shares: sum (q - p) log(q / p)."""
    p, q = (np.maximum(np.asarray(part, dtype=np.float64), _LEAST_SHARE) for part in (before, now))
    return max(0.0, float(((q - p) * np.log(q / p)).sum()))


def _parts(values: Floats, edges: Floats) -> Float64s:
    places = np.searchsorted(edges, values, side="left")
    return np.asarray(np.bincount(places, minlength=len(edges) + 1) / len(values))


def ks_statistic(first: Floats, second: Floats) -> float:
    """Return the Kolmogorov-Smirnov statistic of two samples."""
    points = np.concatenate([first, second])
    levels = [
        np.searchsorted(np.sort(part), points, side="right") / len(part) for part in (first, second)
    ]
    return float(np.abs(levels[0] - levels[1]).max())


def ks_p(statistic: float, n: int, m: int) -> float:
    """Return the approximate p-value of the Kolmogorov-Smirnov test of two samples.

    Small samples are corrected as in Stephens, "Use of the Kolmogorov-Smirnov, Cramer-von Mises and
    related statistics without extensive tables", 1970.
    """
    root = math.sqrt(n * m / (n + m))
    size = (root + 0.12 + 0.11 / root) * statistic
    if size < 0.2:  # here p is 1 (to ten digits), and the series would converge slowly
        return 1.0
    terms = ((-1) ** (j - 1) * math.exp(-2 * j * j * size * size) for j in range(1, _TERMS + 1))
    return min(1.0, max(0.0, 2 * math.fsum(terms)))


def chi_square(before: Sequence[float] | Floats, now: Sequence[float] | Floats) -> float:
    """Return the p-value of Pearson's chi-square test for two lists of counts.

    Categories with an expected count below 5 are joined. With two categories, Yates's correction is
    used.
    """
    table = np.array([before, now], dtype=np.float64)
    table = table[:, table.sum(axis=0) > 0]
    totals, rows = table.sum(axis=0), table.sum(axis=1)
    is_rare = totals * rows.min() / totals.sum() < _LEAST_EXPECTED
    if is_rare.sum() > 1:
        table = np.column_stack([table[:, ~is_rare], table[:, is_rare].sum(axis=1)])
    freedom = table.shape[1] - 1
    if freedom < 1:
        return 1.0
    expected = np.outer(rows, table.sum(axis=0)) / rows.sum()
    off = np.abs(table - expected)
    if freedom == 1:
        off = np.maximum(0.0, off - 0.5)
    return chi_square_tail(float((off**2 / expected).sum()), freedom)


def chi_square_tail(value: float, freedom: int) -> float:
    """Return the probability that a chi-square variable exceeds `value`."""
    half, odd = value / 2, freedom % 2
    tail = math.erfc(math.sqrt(half)) if odd else 0.0
    if half <= 0:
        return 1.0
    powers = (i + odd / 2 for i in range((freedom + 1) // 2) if i + odd / 2 < freedom / 2)
    terms = (math.exp(k * math.log(half) - half - math.lgamma(k + 1)) for k in powers)
    return min(1.0, tail + math.fsum(terms))
