"""The aligned forecaster's networks, read from an adapted file to run on other files' features.

An adapted file holds the aligned logits of its own rows. On rows that were extracted later they are
computed from phi(x) in NumPy, as `networks` describes.
"""

from dataclasses import dataclass
from pathlib import Path

from covcal_cli.arrays import Float32s, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import Domain, FeatureFile
from covcal_cli.maths.networks import Networks, aligned_logits, networks_sha256, read_networks


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
        """Return the logits of every member, shape (M, m, K) float32, of rows with features.

        Raises
        ------
        CovcalError
            If the domain holds no features, or others than the networks take.
        """
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
    """Read the networks of an adapted file.

    Raises
    ------
    CovcalError
        If `path` is no adapted file, or holds no networks.
    """
    with FeatureFile(path) as file:
        if not file.is_adapted:
            raise CovcalError(f"{path} holds no networks: name the file that covcal adapt made")
        if "networks" not in file.handle:
            raise CovcalError(f"{path}: /networks is missing: run covcal adapt again")
        arrays = read_networks(file.handle["networks"])
    return AlignedNetworks(path, networks_sha256(arrays), arrays)
