"""The forecaster whose logits a calibration scales, on every file that the calibration fits.

That is the classifier, or the aligned forecaster. An adapted file holds the aligned logits of its
own rows; on rows that were extracted later its networks compute them from phi(x) in NumPy.
`networks_for` gives them for a file that a calibration fits; `scaled_logits` brings several
calibrations, read and named by `read_named`, to one file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from covcal_cli.arrays import Float32s, Float64s, Floats, Labels, Rows
from covcal_cli.errors import CovcalError, UnusedOptionError
from covcal_cli.forecast.compatibility import AGAIN, require_fitting
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.features import Domain, FeatureFile
from covcal_cli.maths.networks import (
    Networks,
    aligned_logits,
    networks_sha256,
    read_networks,
    unfit,
)
from covcal_cli.maths.scaling import ForecasterName, Scaling
from covcal_cli.maths.softmax import Softmax, class_major, log_mean_softmax

NONE = "none"  # the name of the classifier as it came
UNSCALED = Scaling("original", 1.0)  # what it does to its logits


@dataclass(frozen=True)
class AlignedNetworks:
    """The arrays of ``/networks`` and where they come from."""

    path: Path  # the adapted file
    sha256: str  # of the arrays themselves, as ``networks_sha256`` of a calibration
    arrays: Networks

    @property
    def n_features(self) -> int:
        """Width d of the features that the networks take."""
        return len(self.arrays["projection/mean"])

    @property
    def n_members(self) -> int:
        """Members M of the forecaster."""
        return len(self.arrays["psi/weight_0"])

    def aligned_logits(self, domain: Domain, rows: Rows) -> Float32s:
        """Return the logits of every member, shape (M, m, K), of rows of `require_features`."""
        self.require_features(domain)
        return aligned_logits(self.arrays, domain.features(rows))

    def require_features(self, domain: Domain) -> None:
        """Refuse a domain without features, or with features of another width."""
        if domain.n_features is None:
            raise CovcalError(
                f"{domain.path}: /{domain.name}/features is missing, and the aligned networks need "
                "them: extract again with features"
            )
        if domain.n_features != self.n_features:
            raise CovcalError(
                f"{domain.path}: /{domain.name}/features has {domain.n_features} columns, but the "
                f"networks of {self.path} take {self.n_features}: pass the adapted file that was "
                "made from this model's features"
            )


def read_aligned_networks(path: Path) -> AlignedNetworks:
    """Read the networks of an adapted file, refusing any other."""
    with FeatureFile(path) as file:
        if not file.is_adapted:
            raise CovcalError(f"{path} holds no networks: name the file that covcal adapt made")
        if "networks" not in file.handle:
            raise CovcalError(f"{path}: /networks is missing: run covcal adapt again")
        arrays = read_networks(file.handle["networks"])
    damaged = unfit(arrays)
    if damaged is not None:
        raise CovcalError(
            f"{path}: /networks/{damaged} is missing, not finite or of a shape that fits no other: "
            "run covcal adapt again"
        )
    return AlignedNetworks(path, networks_sha256(arrays), arrays)


def forecaster_logits(
    domain: Domain,
    rows: Rows,
    forecaster: ForecasterName,
    networks: AlignedNetworks | None = None,
) -> Floats:
    """Return a forecaster's logits of `rows`, shape (m, K).

    The aligned forecaster's are those stored in the file, or those of `networks` on its features.
    """
    if networks is None or forecaster == "original":
        return domain.forecaster_logits(rows, forecaster)
    return log_mean_softmax(networks.aligned_logits(domain, rows)).T


# The networks of a calibration, on files that it fits.


def networks_for(
    calibration: Calibration,
    document: Path,
    file: FeatureFile,
    networks: Path | None = None,
    *,
    allow_other_preprocessing: bool = False,
) -> AlignedNetworks | None:
    """Return the networks that compute the aligned logits of `file`, or None if it needs none.

    A calibration of the classifier's own logits needs none, nor does an adapted file, which holds
    its aligned logits. The networks are those of the adapted file `networks`, or of the one that
    cal.json, the `document`, names. Other networks are refused, and what `require_fitting` refuses.
    """
    require_fitting(
        calibration, document, file, allow_other_preprocessing=allow_other_preprocessing
    )
    aligned = calibration.scaling.reads_aligned
    if aligned and not file.is_adapted:
        return fitted_networks(calibration, document, networks)
    if aligned and file.attributes.get("networks_sha256") != calibration.networks_sha256:
        raise CovcalError(f"{file.path} holds other aligned networks than the calibration: {AGAIN}")
    if networks is not None:
        why = "holds" if aligned else "needs no"
        raise CovcalError(f"{file.path} {why} aligned logits: leave --networks out")
    return None


def fitted_networks(
    calibration: Calibration, document: Path, networks: Path | None = None
) -> AlignedNetworks:
    """Return the networks that a calibration of aligned logits was fitted with, and no others."""
    path = networks or calibration.inputs[0].path
    if networks is None and calibration.inputs[0].is_outside:
        raise CovcalError(
            f"{document} was fitted with the networks of {path}, which is outside its folder: pass "
            f"--networks {path}"
        )
    if networks is None and not path.is_file():
        raise CovcalError(
            f"{document} was fitted with the networks of {path}, which is gone: pass --networks "
            "with the adapted file"
        )
    found = read_aligned_networks(path)
    if found.sha256 != calibration.networks_sha256:
        raise CovcalError(
            f"{path} holds other aligned networks than {document} was fitted with: pass --networks "
            "with that adapted file, or calibrate again"
        )
    return found


# Calibrations that are looked at together: their names, and the logits that each scales.


@dataclass(frozen=True)
class ScaledLogits:
    """What a calibration does to a file's logits, and what makes those that the file lacks."""

    scaling: Scaling
    networks: AlignedNetworks | None = None  # that make the aligned logits

    @property
    def reads(self) -> set[str]:
        """What of a file its logits are made of."""
        aligned = "aligned_logits" if self.networks is None else "features"
        return {"logits" if one == "original" else aligned for one in self.scaling.temperatures}

    @property
    def keys(self) -> dict[str, ForecasterName]:
        """The forecasters that it scales, in order, by what tells their logits from others'."""
        aligned = "aligned" if self.networks is None else self.networks.sha256
        return {one if one == "original" else aligned: one for one in self.scaling.temperatures}

    def prepared(self, domain: Domain, rows: Rows) -> tuple[Float64s, float]:
        """Return logits, (K, m), and the T whose softmax is the distribution of a domain's rows."""
        return self.scaling.prepared(self._blocks(domain, rows))

    def forecast(self, domain: Domain, rows: Rows) -> Softmax:
        """Return the calibrated distribution of a domain's rows, a block of them."""
        return self.scaling.forecast(self._blocks(domain, rows))

    def confidences(self, domain: Domain, rows: Rows) -> Iterator[tuple[Labels, Float64s]]:
        """Yield the classifier's labels and their calibrated probabilities, block by block."""
        for block in domain.blocks(rows, "logits", *self.reads):
            labels = domain.logits(block).argmax(axis=1)
            yield labels, self.scaling.confidence(self._blocks(domain, block), labels)

    def mean_confidence(self, domain: Domain, *splits: str) -> float:
        """Return the mean calibrated probability of the classifier's labels on rows of `splits`."""
        total = sum(
            float(values.sum())
            for rows in domain.split_blocks(*splits)
            for _, values in self.confidences(domain, rows)
        )
        return total / domain.count(*splits)

    def _blocks(self, domain: Domain, rows: Rows) -> list[Float64s]:
        return [
            class_major(forecaster_logits(domain, rows, one, self.networks))
            for one in self.scaling.temperatures
        ]


def split_names(given: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the files of calibrations given as ``FILE`` or ``NAME=FILE``, and their names.

    A calibration without a name has an empty one. A file that is there is one, whatever its name.
    """
    files, names = [], []
    for one in given:
        name, equals, rest = str(one).partition("=")
        has_name = bool(equals and name and rest) and "/" not in name and not one.exists()
        files.append(Path(rest) if has_name else one)
        names.append(name if has_name else "")
    return files, names


def read_named(
    documents: Sequence[Path], networks: Path | None = None, names: Sequence[str] = ()
) -> dict[str, Calibration]:
    """Read calibrations under their `names`, where those are given and not empty.

    Another is named by its method, or by its file where two share one. A calibration by none is
    ``none`` itself.

    Raises
    ------
    CovcalError
        If one cannot be read, or two have one name.
    UnusedOptionError
        If `networks` are given and no calibration is of aligned logits.
    """
    calibrations = [read_calibration(document) for document in documents]
    if networks is not None and not any(one.scaling.reads_aligned for one in calibrations):
        raise UnusedOptionError("--networks", "no calibration given has a use for it")
    methods = [calibration.method_used for calibration in calibrations]
    found: dict[str, Calibration] = {}
    for path, given, method, calibration in zip(
        documents, names or [""] * len(documents), methods, calibrations, strict=True
    ):
        name = given or (path.stem if methods.count(method) > 1 and method != NONE else method)
        if name in found or (name == NONE and method != NONE):
            raise CovcalError(
                f"two calibrations would be named {name!r}: rename {path}, or name it as in "
                f"-c NAME={path}"
            )
        found[name] = calibration
    return found


def scaled_logits(
    file: FeatureFile,
    calibrations: Mapping[str, Calibration],
    documents: Sequence[Path],
    networks: Path | None,
    *,
    allow_other_preprocessing: bool = False,
) -> dict[str, ScaledLogits]:
    """Return what every calibration scales in `file`, which each must fit (`require_fitting`).

    `documents` are their files, in the same order, as far as they have any; `networks` an adapted
    file for those of aligned logits, if it is not where they say.
    """
    found = {}
    for number, (name, calibration) in enumerate(calibrations.items()):
        document = documents[number] if number < len(documents) else Path("cal.json")
        given = networks if calibration.scaling.reads_aligned else None
        found[name] = ScaledLogits(
            calibration.scaling,
            networks_for(
                calibration,
                document,
                file,
                given,
                allow_other_preprocessing=allow_other_preprocessing,
            ),
        )
    return found
