"""The column ``domain`` of a table: which rows are the source's and which the target's."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.rowfacts import GROUP_PREFIX
from covcal_cli.inputs.store import Store

DOMAINS = ("source", "target")
_NAME = "domain"


def domain_of_rows(store: Store) -> NDArray[Any] | None:
    """Return the column ``domain`` in lower case, shape (n,); None where there is none."""
    # Without an axis it says of no row what it is: `apply` notes there which rows it was given.
    name = next((n for n, e in store.entries.items() if n.lower() == _NAME and e.shape), None)
    if name is None:
        return None
    values = store.whole(name).ravel().tolist()
    return np.array([str(value).strip().lower() for value in values], dtype=str)


def holds_both_domains(store: Store) -> bool:
    """Return whether a table has rows of the source and of the target in a column ``domain``."""
    rows = domain_of_rows(store)
    found = sorted(set(() if rows is None else rows.tolist()))
    other = [value for value in found if value not in DOMAINS]
    if other:
        raise CovcalError(
            f"{store.path}: domain holds {other[0]!r}: source and target are allowed; call the "
            f"column {GROUP_PREFIX}domain where it means something else"
        )
    return len(found) == len(DOMAINS)


def require_domain(store: Store, domain: str, other: Path | None, *, outputs: bool) -> None:
    """Refuse a table, given as a domain beside the `other`, of which rows are the other domain's.

    Where tables hold `outputs`, one may serve for both.
    """
    found = domain_of_rows(store)
    opposite = DOMAINS[1 - DOMAINS.index(domain)]
    if found is None or opposite not in found:
        return
    beside = "alone" if other is None else f"beside {other}"
    both = set(DOMAINS) <= set(found.tolist())
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
        f"{(found == opposite).sum()} of {len(found)} rows: {remedy}"
    )
