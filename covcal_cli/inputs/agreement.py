"""What two domains given as tables must agree on: whose the rows are, and the feature columns."""

from collections.abc import Mapping, Sequence

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.arrays import ArrayData
from covcal_cli.inputs.domain import DomainData
from covcal_cli.inputs.domaincolumn import require_domain
from covcal_cli.inputs.rowfacts import GROUP_PREFIX
from covcal_cli.modelinput import ModelInput


def agree(domains: Mapping[str, DomainData], wanted: Sequence[ModelInput]) -> None:
    """Let the tables of both domains mean the same, or refuse them.

    A column ``domain`` must not contradict the place of its table. Feature columns that go into
    the model side by side go by name: in the source's order in both domains.

    Parameters
    ----------
    domains : mapping of str to DomainData
        By ``"source"`` and ``"target"``, one or both.
    wanted : sequence of ModelInput
        The inputs of the model.

    Raises
    ------
    CovcalError
        If a table holds rows of the other domain, or the feature columns have other names.
    """
    tables = {name: data for name, data in domains.items() if isinstance(data, ArrayData)}
    for name, table in tables.items():
        others = [data.path for other, data in domains.items() if other != name]
        require_domain(table.store, name, others[0] if others else None, outputs=False)
    if len(tables) == 2:
        _agree_on_columns(tables["source"], tables["target"], wanted)


def _agree_on_columns(source: ArrayData, target: ArrayData, wanted: Sequence[ModelInput]) -> None:
    ours, theirs = source.feature_columns(wanted), target.feature_columns(wanted)
    if ours is None or theirs is None or ours == theirs:
        return
    if set(ours) == set(theirs):
        remark = (
            f"{target.path} has its columns in another order than {source.path}: they go by name, "
            f"in the order of {source.path.name}"
        )
        target.order_columns(ours, remark)
        return
    lacking = [name for name in ours if name not in theirs]
    extra = [name for name in theirs if name not in ours]
    parts = []
    if lacking:
        texts = " as numbers" if lacking[0] in target.store.entries else ""
        parts.append(f"{target.path} lacks {lacking[0]}{texts}, which {source.path} has")
    if extra:
        texts = " as numbers" if extra[0] in source.store.entries else ""
        parts.append(
            f"has {extra[0]}, which it lacks{texts}"
            if lacking
            else f"{target.path} has {extra[0]}, which {source.path} lacks{texts}"
        )
    more = len(lacking) + len(extra) - len(parts)
    beyond = f" ({more} more columns differ)" if more else ""
    raise CovcalError(
        f"{' and '.join(parts)}{beyond}: give both the same feature columns, and call a column "
        f"that is no feature {GROUP_PREFIX}NAME"
    )
