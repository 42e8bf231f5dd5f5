"""A shift's features file and its adapted file per seed, made once and kept."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from reproduction.code import TRAINING, code_sha256

from benchmark.families import Case
from covcal_cli.adapt.adapt import adapt
from covcal_cli.adapt.settings import AdaptSettings
from covcal_cli.formats.features import FeatureFile

_CODE_SHA256 = code_sha256(*TRAINING)  # of the code as it was loaded


def features_file(case: Case, seed: int, folder: Path) -> Path:
    """Return the features file, made where it is not there yet."""
    stem = f"{case.shift}-draw{seed}" if case.redrawn else case.shift
    path = folder / "features" / f"{stem}.h5"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        case.make(path, seed)
    return path


def adapted_file(features: Path, seed: int, folder: Path) -> Path:
    """Return the adapted file by the default setting, trained where it is not there yet.

    Where only the logits are known nothing can be adapted, and the features file is returned.
    Its name holds a hash of the features, the setting, the seed and the code that trains.
    """
    with FeatureFile(features) as file:
        sha256, n_features = file.sha256(), file.require_source().n_features
    if n_features is None:
        return features
    settings = AdaptSettings().training(n_features)
    content = {"code": _CODE_SHA256, "features": sha256, "setting": asdict(settings), "seed": seed}
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path = folder / "adapted" / f"{features.stem}-seed{seed}-{key[:12]}.h5"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        adapt(features, path, AdaptSettings(seed=seed, device="cpu", threads=1))
    return path
