"""Find the data in optional packages."""

import gettext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from reproduction.datasets import MissingDataError

_REQUIREMENTS = "pip install -r examples/research/benchmark/requirements.txt"


def require_package(name: str, family: str) -> None:
    """Raise `MissingDataError`, with the remedy, if a package is not installed."""
    if find_spec(name) is None:
        raise MissingDataError(f"the family {family} needs the package {name}: {_REQUIREMENTS}")


def package(name: str) -> Any:
    """Import an optional package or one of its modules."""
    return import_module(name)


def folder_of(name: str) -> Path:
    """Return the folder of an installed package without importing the package."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise MissingDataError(f"the package {name} is not installed: {_REQUIREMENTS}")
    return Path(spec.submodule_search_locations[0])


def translations(catalogue: Path) -> dict[str, str]:
    """Return the translations in a compiled message catalogue, by English text."""
    with catalogue.open("rb") as file:
        catalogue_texts = gettext.GNUTranslations(file)
    # gettext has no public way to list the messages. Plural forms have tuples as keys.
    messages: dict[Any, str] = vars(catalogue_texts)["_catalog"]
    return {key: text for key, text in messages.items() if isinstance(key, str) and key and text}
