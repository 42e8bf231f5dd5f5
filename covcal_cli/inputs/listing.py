"""Names in a message: as many as a line takes, and how many more there are."""

from collections.abc import Sequence

_SHOWN = 12


def listed(names: Sequence[str]) -> str:
    """Return names between commas; of very many, the first and the number of the others."""
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
