"""Domains by the kind of their path."""

from pathlib import Path

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.domain import DomainData
from covcal_cli.inputs.parts import holds_parts, refuse_unnamed_parts
from covcal_cli.inputs.shards import holds_shards


def open_domain(path: Path) -> DomainData:
    """Open a domain by the kind of its path.

    Raises
    ------
    CovcalError
        If there is nothing to read, or nothing that covcal can read.
    """
    if not path.exists():
        raise CovcalError(
            f"{path} does not exist: give a folder of images or an .npz file, or .npy, .h5, .csv, "
            ".parquet or .tar"
        )
    if path.suffix.lower() == ".tar" or (path.is_dir() and holds_shards(path)):
        from covcal_cli.inputs.tar import TarData

        return TarData(path)
    if path.is_dir() and not holds_parts(path):
        from covcal_cli.inputs.folder import FolderData

        try:
            return FolderData(path)
        except CovcalError:
            refuse_unnamed_parts(path)
            raise
    from covcal_cli.inputs.arrays import ArrayData

    return ArrayData(path)
