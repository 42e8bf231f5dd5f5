"""What a calibration is made of: the files it was computed from, the methods it chose from."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Input:
    """A file that a result was computed from.

    Attributes
    ----------
    role : str
        ``"features"`` or ``"adapted"``.
    path : Path
        Where it lay.
    sha256 : str
    """

    role: str
    path: Path
    sha256: str


@dataclass(frozen=True)
class Candidate:
    """A method that ``auto`` looked at.

    Attributes
    ----------
    method : str
    temperature : float
        Its T_f.
    target_confidence : float or None
        Mean confidence on target training and validation rows.
    estimated_accuracy : float or None
        The target accuracy by `labelfree.combined`, the same for all.
    expected_ece : float or None
        The distance between the two.
    chosen : bool
    why : str
        Why it was chosen or was not, in a few words.
    """

    method: str
    temperature: float
    target_confidence: float | None
    estimated_accuracy: float | None
    expected_ece: float | None
    chosen: bool
    why: str
