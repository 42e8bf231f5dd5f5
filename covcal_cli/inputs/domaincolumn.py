"""The column ``domain`` of a table: which rows are the source's and which the target's."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.appliedfile import open_outputs_store
from covcal_cli.inputs.rowfacts import GROUP_PREFIX
from covcal_cli.inputs.store import Store

DOMAINS = ("source", "target")
_NAME = "domain"


def holds_both_domains(path: Path) -> bool:
    """Return whether a table has rows of the source and of the target in a column ``domain``.

    Raises
    ------
    CovcalError
        If it cannot be read, or the column holds anything else.
    """
    if not path.exists():
        raise CovcalError(f"{path} does not exist: give a table of logits or probabilities")
    store = open_outputs_store(path)
    if _column_name(store) is None:
        return False
    found = sorted(set(domain_of_rows(store).tolist()))
    other = [value for value in found if value not in DOMAINS]
    if other:
        raise CovcalError(
            f"{path}: domain holds {other[0]!r}: source and target are allowed; call the column "
            f"{GROUP_PREFIX}domain where it means something else"
        )
    return len(found) == len(DOMAINS)


def domain_of_rows(store: Store) -> NDArray[Any]:
    """Return the column ``domain`` in lower case, shape (n,).

    Raises
    ------
    CovcalError
        If there is none.
    """
    name = _column_name(store)
    if name is None:
        raise CovcalError(
            f"{store.path} has no column domain with source and target in it: give two tables"
        )
    found = [str(value).strip().lower() for value in store.whole(name).ravel().tolist()]
    return np.array(found, dtype=str)


def require_domain(store: Store, domain: str, other: Path | None, *, outputs: bool) -> None:
    """Refuse a table that says of some rows that they are of the other domain.

    Parameters
    ----------
    store : Store
        The table.
    domain : {"source", "target"}
        What all of its rows were given as.
    other : Path or None
        The data given as the other domain, if any.
    outputs : bool
        Whether the table holds a classifier's outputs, where one table may serve for both.

    Raises
    ------
    CovcalError
        Naming both files.
    """
    if _column_name(store) is None:
        return
    found = domain_of_rows(store)
    opposite = DOMAINS[1 - DOMAINS.index(domain)]
    contrary = np.flatnonzero(found == opposite)
    if not len(contrary):
        return
    beside = "alone" if other is None else f"beside {other}"
    both = len(set(found.tolist()) & set(DOMAINS)) == len(DOMAINS)
    if not both and other is not None:
        remedy = "give it in the other place, or drop the column"
    elif outputs and both:
        remedy = "give this one table alone, or drop the column"
    elif outputs:
        remedy = f"give it as the {opposite} with a {domain} beside it, or drop the column"
    else:
        remedy = f"save the rows of each domain as a table of their own, or call it {GROUP_PREFIX}"
        remedy += "domain"
    raise CovcalError(
        f"{store.path} is given as the {domain} {beside}, and its column domain says {opposite} of "
        f"{len(contrary)} of {len(found)} rows: {remedy}"
    )


def _column_name(store: Store) -> str | None:
    # Without an axis it says of no row what it is: `apply` notes there which rows it was given.
    return next((n for n, e in store.entries.items() if n.lower() == _NAME and e.shape), None)
