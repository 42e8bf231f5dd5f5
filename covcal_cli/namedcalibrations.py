"""Calibrations that are looked at together: their names, and the logits that each scales."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from covcal_cli.alignednetworks import AlignedNetworks
from covcal_cli.arrays import Floats, Rows
from covcal_cli.calibration import Calibration, read_calibration
from covcal_cli.calibrationfiles import networks_for
from covcal_cli.errors import CovcalError, UnusedOptionError
from covcal_cli.featurefile import Domain, FeatureFile, ForecasterName
from covcal_cli.forecasters import forecaster_logits

NONE = "none"
"""The classifier as it came."""


@dataclass(frozen=True)
class ScaledLogits:
    """Whose logits of a file a temperature scales."""

    forecaster: ForecasterName
    temperature: float
    networks: AlignedNetworks | None = None  # that make the logits where the file lacks them

    @property
    def reads(self) -> str:
        """What of a file its logits are made of."""
        if self.networks is not None:
            return "features"
        return "logits" if self.forecaster == "original" else "aligned_logits"

    @property
    def key(self) -> str:
        """What tells its logits from others'."""
        return self.forecaster if self.networks is None else self.networks.sha256

    def of(self, domain: Domain) -> Callable[[Rows], Floats]:
        """Return what gives these logits of a domain's rows, shape (m, K), a block at a time."""
        return lambda rows: forecaster_logits(domain, rows, self.forecaster, self.networks).T


def read_named(documents: Sequence[Path], networks: Path | None = None) -> dict[str, Calibration]:
    """Read calibrations, and name them by their method, or by their file where two share one.

    A calibration by none is ``none`` itself.

    Raises
    ------
    CovcalError
        If one cannot be read, or two files share method and stem.
    UnusedOptionError
        If `networks` are given and no calibration is of aligned logits.
    """
    calibrations = [read_calibration(document) for document in documents]
    if networks is not None and all(one.forecaster == "original" for one in calibrations):
        raise UnusedOptionError("--networks", "no calibration given has a use for it")
    methods = [calibration.method_used for calibration in calibrations]
    names: dict[str, Calibration] = {}
    for path, method, calibration in zip(documents, methods, calibrations, strict=True):
        name = path.stem if methods.count(method) > 1 and method != NONE else method
        if name in names or (name == NONE and method != NONE):
            raise CovcalError(f"two calibrations would be named {name!r}: rename {path}")
        names[name] = calibration
    return names


def scaled_logits(
    file: FeatureFile,
    calibrations: Mapping[str, Calibration],
    documents: Sequence[Path],
    networks: Path | None,
) -> dict[str, ScaledLogits]:
    """Return what every calibration scales in `file`, which each must fit.

    `documents` are their files, in the same order, as far as they have any; `networks` an adapted
    file for those of aligned logits, if it is not where they say.
    """
    found = {}
    for number, (name, calibration) in enumerate(calibrations.items()):
        document = documents[number] if number < len(documents) else Path("cal.json")
        given = networks if calibration.forecaster == "aligned" else None
        found[name] = ScaledLogits(
            calibration.forecaster,
            calibration.forecaster_temperature,
            networks_for(calibration, document, file, given),
        )
    return found
