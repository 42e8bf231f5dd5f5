"""Measure the time of ``covcal adapt`` on random data with the size of MNIST and USPS.

    python examples/research/benchmark_adapt.py [--threads 1] [--preset default] [--features 84]

The script prints wall-clock and processor seconds. ``covcal adapt`` reads the file, trains all
networks on 50 000 + 6 198 rows, and applies the networks to all 62 298 rows.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from covcal_cli.adapt.adapt import adapt
from covcal_cli.adapt.settings import AdaptSettings
from covcal_cli.formats.features import FEATURES_SCHEMA
from covcal_cli.formats.writer import HDF5Writer, utf8

SIZES = {"source": (50_000, 10_000, 10_000), "target": (6_198, 1_093, 2_007)}
CLASSES, LATENT = 10, 24


def write_features(path: Path, n_features: int, share: float) -> None:
    """Write a features file with simulated rows. The target is moved along eight directions."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, LATENT)) * 1.5
    mixing = rng.normal(size=(LATENT + 8, n_features)) / np.sqrt(LATENT)
    head = rng.normal(size=(CLASSES, n_features)) / np.sqrt(n_features)
    names = [str(number) for number in range(CLASSES)]
    with HDF5Writer(path, schema=FEATURES_SCHEMA, classes=names, attributes={"seed": 0}) as writer:
        for domain, full in SIZES.items():
            sizes = [int(size * share) for size in full]
            n = sum(sizes)
            labels = rng.integers(CLASSES, size=n)
            nuisance = rng.normal(size=(n, 8)) + (2.5 if domain == "target" else 0.0)
            latent = np.hstack([centres[labels] + rng.normal(size=(n, LATENT)), nuisance])
            features = np.maximum(latent @ mixing, 0).astype(np.float32)
            writer.write(f"{domain}/features", features)
            writer.write(f"{domain}/logits", (features @ head.T).astype(np.float32))
            writer.write(f"{domain}/labels", labels)
            writer.write(f"{domain}/split", np.repeat([0, 1, 2], sizes).astype(np.uint8))
            writer.write(f"{domain}/ids", utf8([str(row) for row in range(n)]))
        writer.complete()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--members", type=int)
    parser.add_argument("--features", type=int, default=84)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of the rows to use (for a short trial)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        features = Path(folder) / "features.h5"
        write_features(features, options.features, options.share)
        wall, processor = time.perf_counter(), time.process_time()
        report = adapt(
            features,
            Path(folder) / "adapted.h5",
            AdaptSettings(
                preset=options.preset,
                members=options.members,
                threads=options.threads,
                device=options.device,
            ),
        )
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(f"{wall:.2f} s wall, {processor:.2f} s processor, {options.threads} thread(s)")
    for number, member in enumerate(report.members):
        print(
            f"Network {number} was trained for {member.steps} steps ({member.stop_reason}). A "
            f"probe separates the domains with accuracy {member.probe_accuracy:.3f}. The "
            f"effective sample size is {member.ess_share:.1%} of the rows, and the mean weight is "
            f"{member.mean_weight:.2f}"
        )


if __name__ == "__main__":
    main()
