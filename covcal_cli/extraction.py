"""``covcal extract``: from a classifier and two domains to features.h5, batch by batch.

The rows of a domain keep a stable order, and nothing that changes from run to run is written, so
the same input gives the same bytes. Features and logits are never all in memory at once.
"""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covcal_cli import __version__
from covcal_cli.domainextraction import DomainExtraction, DomainReport
from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import FEATURES_SCHEMA, UNKNOWN_LABEL
from covcal_cli.featurewriter import HDF5Writer
from covcal_cli.files import atomic_output, check_output
from covcal_cli.inputs.classes import ClassMap, classes_from_folders, numbered_classes
from covcal_cli.inputs.domain import DomainData, open_domain
from covcal_cli.inputs.preprocessing import ImagePipeline, Preprocessing
from covcal_cli.inputs.splits import DEFAULT_FRACTIONS, Fractions, check_fractions, hashed_split
from covcal_cli.models.classifier import Classifier, open_classifier
from covcal_cli.progress import Progress, ProgressCallback

__all__ = ["DomainReport", "ExtractReport", "Preprocessing", "Progress", "extract"]

_BATCH_BYTES = 16 << 20
_BATCH_RANGE = (16, 256)
_AS_THEY_ARE = "none: the rows go in as they are"


@dataclass(frozen=True)
class ExtractReport:
    """What extraction found and wrote.

    Attributes
    ----------
    output : Path
        The file written.
    head : str
        The last linear layer and its proof, in one line.
    preprocessing : str
        What was done to every image, in one line.
    classes : tuple of str
        Class names in the order of the logits.
    domains : tuple of DomainReport
        Source first.
    source_accuracy : float or None
        Share of labelled source rows that the classifier gets right; None without a source. The
        target's is for ``covcal evaluate`` alone.
    warnings : tuple of str
        What a user should look into, one line each.
    """

    output: Path
    head: str
    preprocessing: str
    classes: tuple[str, ...]
    domains: tuple[DomainReport, ...]
    source_accuracy: float | None
    warnings: tuple[str, ...]


def extract(
    model: Path,
    source: Path | None,
    target: Path | None,
    output: Path,
    *,
    preprocessing: Preprocessing | None = None,
    fractions: Fractions = DEFAULT_FRACTIONS,
    seed: int = 0,
    batch: int | None = None,
    threads: int | None = None,
    model_output: str | None = None,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> ExtractReport:
    """Run a classifier over one or two domains and write features, logits, labels and splits.

    Parameters
    ----------
    model : Path
        The classifier, an ONNX file.
    source, target : Path or None
        A folder of images or an ``.npz`` file each; one of them may be missing.
    output : Path
        The features file to write.
    preprocessing : Preprocessing, optional
        What to do to images; what it leaves open comes from the model's input.
    fractions : tuple of float
        Shares of train, validation and test where the data has no splits of its own.
    seed : int
        Seed of those splits.
    batch : int, optional
        Rows per run of the model; by default a power of two from 16 to 256 that keeps its input
        within 16 MiB.
    threads : int, optional
        Threads for the model and for decoding each; all available cores by default.
    model_output : str, optional
        The model's output that holds the classes, where it has several.
    force : bool
        Replace `output` if it exists.
    progress : callable, optional
        Called with a `Progress` after every batch.

    Raises
    ------
    CovcalError
        If the model, the data or the output cannot be used; an existing file is left untouched.
    """
    inputs = [path for path in (model, source, target) if path is not None]
    check_output(output, force=force, inputs=inputs)
    check_fractions(fractions)
    if any(value is not None and value < 1 for value in (batch, threads)):
        raise CovcalError("batch and threads must be at least 1")
    cores = threads or available_cores()
    classifier = open_classifier(model, output=model_output, threads=cores)
    named = {"source": source, "target": target}
    domains = {name: open_domain(path) for name, path in named.items() if path is not None}
    if not domains:
        raise CovcalError("there is neither a source nor a target: give at least one")
    classes = _classes(domains, classifier.n_classes)
    pipeline, notes = _pipeline(domains, classifier, preprocessing or Preprocessing())
    rows = batch or _batch_size(classifier, pipeline)
    runs = {
        name: DomainExtraction(
            name,
            data,
            labels=_labels(name, data, classes),
            split=_split(data, fractions, seed),
            n_classes=classifier.n_classes,
        )
        for name, data in domains.items()
    }
    attributes: dict[str, str | int | float] = {
        "covcal_version": __version__,
        "model_name": classifier.name,
        "model_sha256": classifier.sha256,
        "features_tensor": classifier.features_tensor or "",
        "logits_tensor": classifier.logits_tensor,
        "preprocessing": pipeline.to_json() if pipeline else json.dumps(None),
        "fractions": json.dumps(list(fractions)),
        "seed": seed,
    }
    with (
        atomic_output(output, force=force) as partial,
        HDF5Writer(
            partial, schema=FEATURES_SCHEMA, classes=classes.names, attributes=attributes
        ) as writer,
    ):
        for run in runs.values():
            run.write(writer, classifier, pipeline, batch=rows, threads=cores, progress=progress)
        if classifier.weight is not None and classifier.bias is not None:
            writer.write("head/weight", classifier.weight)
            writer.write("head/bias", classifier.bias)
        writer.complete(tail=str(classifier.tail), affine_error=float(classifier.affine_error or 0))
    warnings = [text for run in runs.values() for text in run.warnings()]
    return ExtractReport(
        output=output,
        head=classifier.describe(),
        preprocessing=pipeline.describe() if pipeline else _AS_THEY_ARE,
        classes=classes.names,
        domains=tuple(run.report() for run in runs.values()),
        source_accuracy=runs["source"].accuracy if "source" in runs else None,
        warnings=(*notes, *warnings),
    )


def available_cores() -> int:
    """Return the cores that this process may use, which a container can make fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _classes(domains: dict[str, DomainData], count: int) -> ClassMap:
    """Return the model's classes as the source names them, or the target where it is alone."""
    first = next(iter(domains.values()))
    if not first.class_folders:
        return numbered_classes(count)
    return classes_from_folders(first.path, first.class_folders, count)


def _labels(name: str, data: DomainData, classes: ClassMap) -> NDArray[np.int64]:
    labels = data.labels(classes)
    if name == "source":
        known = np.unique(labels[labels != UNKNOWN_LABEL])
        if len(known) == 0:
            raise CovcalError(
                f"{data.path} has no labels, and the source needs them: put its images in class "
                "folders, or add y to the .npz"
            )
        if len(known) == 1:
            raise CovcalError(
                f"{data.path} has rows of one class only ({classes.names[known[0]]}), which shows "
                "nothing about confidence: give a source with several classes"
            )
    return labels


def _split(data: DomainData, fractions: Fractions, seed: int) -> NDArray[np.uint8]:
    if data.given_split is not None:
        return data.given_split
    return hashed_split(data.split_names, fractions, seed)


def _batch_size(classifier: Classifier, pipeline: ImagePipeline | None) -> int:
    if pipeline is None:
        elements = math.prod(size or 1 for size in classifier.inputs[0].shape[1:])
    else:
        elements = math.prod(pipeline.size) * len(pipeline.mean)
    fewest, most = _BATCH_RANGE
    fitting = _BATCH_BYTES // (elements * classifier.inputs[0].dtype.itemsize)
    return min(most, max(fewest, 1 << max(0, fitting.bit_length() - 1)))


def _pipeline(
    domains: dict[str, DomainData], classifier: Classifier, asked: Preprocessing
) -> tuple[ImagePipeline | None, list[str]]:
    """Return the one pipeline for all images, if there are any, and what to tell the user."""
    wanted = classifier.inputs[0]
    images = {name: data.holds_images(classifier.inputs) for name, data in domains.items()}
    if not any(images.values()):
        if not asked.is_default:
            raise CovcalError(
                "preprocessing was asked for, and the rows already have the model's own shape: "
                "drop --size, --scale, --mean, --std, --color, --layout and --resample"
            )
        return None, []
    try:
        pipeline = asked.resolve(wanted.shape, wanted.dtype)
    except CovcalError as error:
        raise CovcalError(f"{classifier.name}: {error}") from error
    notes = [
        f"the {name} goes in as it is, while images are preprocessed: make sure that it was "
        "prepared in the same way"
        for name, needed in images.items()
        if not needed
    ]
    return pipeline, notes
