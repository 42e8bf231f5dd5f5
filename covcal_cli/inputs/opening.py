"""Domains by the kind of their paths."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from covcal_cli.arrays import ModelInput
from covcal_cli.errors import CovcalError
from covcal_cli.inputs.agreement import agree
from covcal_cli.inputs.arrays import ArrayFile
from covcal_cli.inputs.domain import DomainData
from covcal_cli.inputs.folder import FolderData
from covcal_cli.inputs.parts import holds_parts, refuse_unnamed_parts
from covcal_cli.inputs.shards import holds_shards
from covcal_cli.inputs.tar import TarData


def open_domains(
    paths: Mapping[str, Path], wanted: Sequence[ModelInput]
) -> tuple[dict[str, DomainData], tuple[str, ...]]:
    """Open the domains that a model is to run on.

    Parameters
    ----------
    paths : mapping of str to Path
        By ``"source"`` and ``"target"``, one or both.
    wanted : sequence of ModelInput

    Returns
    -------
    dict of str to DomainData
    tuple of str
        What a user should know of columns that number the rows.

    Raises
    ------
    CovcalError
        If there is nothing to read, or nothing that covcal can read, or the rows are none of the
        model's, or two tables do not agree.
    """
    opened = {name: _opened(path, wanted) for name, path in paths.items()}
    tables = {name: one for name, one in opened.items() if isinstance(one, ArrayFile)}
    fed, notes = agree(tables, paths, wanted)
    return {
        name: fed[name] if isinstance(one, ArrayFile) else one for name, one in opened.items()
    }, notes


def _opened(path: Path, wanted: Sequence[ModelInput]) -> FolderData | TarData | ArrayFile:
    if not path.exists():
        raise CovcalError(
            f"{path} does not exist: give a folder of images or an .npz file, or .npy, .h5, .csv, "
            ".parquet or .tar"
        )
    if path.suffix.lower() == ".tar" or (path.is_dir() and holds_shards(path)):
        return TarData(path, wanted)
    if not path.is_dir() or holds_parts(path):
        return ArrayFile(path)
    try:
        return FolderData(path, wanted)
    except CovcalError:
        refuse_unnamed_parts(path)
        raise
