"""Opens covcal's HDF5 files, and checks what the group of a domain must look like."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py

from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file

Fault = Callable[[str, str], CovcalError]
"""Makes the error for a dataset's name and what is wrong with it."""

_REQUIRED = ("logits", "labels", "split", "ids")
_ALIGNED = ("domain_logits", "aligned_logits", "aligned_domain_logits")
# Kind of number, and axes: n rows, K classes, d features, M members.
_DATASETS = {
    "logits": ("f", "nK"),
    "labels": ("iu", "n"),
    "split": ("u", "n"),
    "ids": ("S", "n"),
    "features": ("f", "nd"),
    "domain_logits": ("f", "n"),
    "aligned_logits": ("f", "MnK"),
    "aligned_domain_logits": ("f", "Mn"),
}
_KINDS = {"f": "floats", "iu": "integers", "u": "unsigned integers", "S": "fixed-length bytes"}


def open_hdf5(path: Path) -> Any:
    """Open a file for reading, or raise `CovcalError` that says what is wrong with it."""
    require_file(path, remedy="make it with covcal extract")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        text = str(error)
        if "truncated" in text:
            size = path.stat().st_size
            raise CovcalError(
                f"{path} is truncated ({size} bytes are left): copy it again or make it again"
            ) from error
        if "lock" in text:
            raise CovcalError(
                f"{path} is locked by another program, or its file system has no locks: wait, or "
                "set HDF5_USE_FILE_LOCKING=FALSE"
            ) from error
        raise CovcalError(
            f"{path} is not a readable HDF5 file: make it with covcal extract"
        ) from error


def checked_rows(group: Any, n_classes: int, fault: Fault) -> int:
    """Return the number of rows of a domain whose datasets all fit together.

    Parameters
    ----------
    group : h5py.Group
        The domain.
    n_classes : int
        Entries of ``/classes``.
    fault : callable

    Raises
    ------
    CovcalError
        If a dataset is missing, of another type or number of axes, or of another size.
    """
    for name in _REQUIRED:
        if name not in group:
            raise fault(name, "is missing: extract again")
    present = {name: known for name, known in _DATASETS.items() if name in group}
    for name, (kinds, axes) in present.items():
        _require_type(group[name], kinds, axes, name, fault)
    n = int(group["logits"].shape[0])
    for name, (_, axes) in present.items():
        sizes = dict(zip(axes, group[name].shape, strict=True))
        if sizes["n"] != n:
            raise fault(name, f"has {sizes['n']} rows but logits has {n}: extract again")
        if sizes.get("K", n_classes) != n_classes:
            raise fault(name, f"has {sizes['K']} columns but /classes has {n_classes}")
    members = {group[name].shape[0] for name in _ALIGNED[1:] if name in group}
    if len(members) > 1 or 0 in members:
        raise fault("aligned_domain_logits", "has other members than aligned_logits")
    return n


def require_aligned(group: Any, fault: Fault) -> None:
    """Refuse a domain that lacks what adapt adds."""
    for name in _ALIGNED:
        if name not in group:
            raise fault(name, "is missing: run covcal adapt again")


def _require_type(found: Any, kinds: str, axes: str, name: str, fault: Fault) -> None:
    if not isinstance(found, h5py.Dataset):
        raise fault(name, "is a group, not a dataset: extract again")
    if found.dtype.kind not in kinds or found.ndim != len(axes):
        raise fault(
            name,
            f"is {found.dtype} with {found.ndim} axes; {_KINDS[kinds]} with {len(axes)} "
            f"({', '.join(axes)}) are needed: extract again",
        )
