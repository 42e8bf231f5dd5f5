"""The plan of an extraction: all that is decided and checked before the first row is run.

``extract`` and ``extract --dry-run`` start from the same plan.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from covcal_cli import __version__
from covcal_cli.arrays import UNKNOWN_LABEL, Labels
from covcal_cli.classifiers.classifier import Classifier, OpenedClassifier
from covcal_cli.classifiers.open import open_classifier
from covcal_cli.data.classes import ClassMap, choose_classes, missing_classes, read_classes
from covcal_cli.data.domain import DomainData, ImagePipeline
from covcal_cli.data.outputs import open_outputs
from covcal_cli.data.preprocessing.configs import found_preprocessing, load_preprocessing
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.data.splits import Fractions, check_fractions, hashed_split
from covcal_cli.errors import CovcalError
from covcal_cli.extract.domain import BatchRunner, DomainExtraction, prove
from covcal_cli.extract.doubts import doubt_on_place, once
from covcal_cli.extract.parts import Config
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.extract.table import TableClassifier
from covcal_cli.formats.features import (
    DOMAINS,
    FEATURE_COLUMNS,
    ONE_TABLE,
    OPTIONS,
    SOURCE_FRACTIONS,
    columns_text,
)
from covcal_cli.formats.writer import Attribute

_BATCH_BYTES = 16 << 20
_MOST_THREADS = 256
_BATCH_RANGE = (16, 256)
_LARGEST_BATCH = 4 << 30  # bytes of images; three batches are in memory
_AS_THEY_ARE = "none: the rows go in as they are"
_SHOWN_CLASSES = 8
# How the output is read, by what makes it of the logits (`Classifier.tail`).
_READINGS = {
    None: "no row was run, so nothing shows what its output is",
    "none": "its output is read as logits",
    "softmax": "its output is the softmax of the logits",
    "log_softmax": "its output is the log-softmax of the logits",
    "sigmoid": "its output is the sigmoid of the logits",
    "argmax": "its output is the class of the highest logit",
}


@dataclass(frozen=True)
class ExtractPlan:
    """An open classifier, open data, and everything that follows from both."""

    settings: ExtractSettings
    opened: OpenedClassifier
    classes: ClassMap
    pipeline: ImagePipeline | None  # what is done to images; None where there are none
    runner: BatchRunner  # of the classifier, proved
    threads: int
    domains: Mapping[str, DomainExtraction]  # source first
    warnings: tuple[str, ...]  # what a user should look into
    origin: str | None  # of the preprocessing, unless the user gave all of it
    remarks: tuple[str, ...]  # what a user should know of the columns of tables

    @property
    def classifier(self) -> Classifier:
        """The classifier, proved on a first batch."""
        return self.runner.classifier

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know."""
        of_model = (*self.classifier.notes, *self.classifier.proof.remarks)
        missing = None
        if (target := self.domains.get("target")) is not None:
            missing = missing_classes(target.data.path, target.labels, self.classes)
        settled = (self.origin, self.classes.note, self.runner.note)
        return once(*of_model, *settled, *self.remarks, missing)

    @property
    def widths(self) -> dict[str, int]:
        """Columns of each array to be written per row."""
        features = self.classifier.n_features
        found = {} if features is None else {"features": features}
        return {**found, "logits": self.classifier.n_classes}

    def fractions(self, domain: str) -> Fractions:
        """Return the shares of train, validation and test in a domain without splits."""
        return self.settings.fractions_of(domain, trained=_is_trained(self.settings, self.opened))

    @property
    def is_one_table(self) -> bool:
        """Whether source and target are rows of one table, told apart by a column."""
        return len({one.data.path for one in self.domains.values()}) < len(self.domains)

    def preprocessing(self) -> str:
        """Return what is done to every image, in one line."""
        return self.pipeline.describe() if self.pipeline else _AS_THEY_ARE

    def reading(self) -> str:
        """Return what the output is read as, and which features are kept, in plain words."""
        classifier, outputs = self.classifier, self.settings.outputs
        if outputs is not None:
            read = f"none, the tables hold {outputs}"
        elif classifier.outputs.are_logged:
            read = "its output is probabilities, so logits are their logarithms"
        else:
            read = _READINGS[classifier.tail]
        if classifier.n_features is None:
            return f"{read}; no features"
        kind = "features"
        if classifier.weight is not None:
            kind = "features, what its last layer reads"
        return f"{read}; {classifier.n_features} {kind}"

    def attributes(self) -> dict[str, Attribute]:
        """Return the root attributes of the features file that are known beforehand."""
        settings, classifier = self.settings, self.classifier
        fed = self._fed_columns()
        return {
            "covcal_version": __version__,
            "model_name": classifier.name,
            "model_sha256": self.opened.sha256,
            "features_tensor": classifier.features_tensor or "",
            "logits_tensor": classifier.logits_tensor,
            "preprocessing": self.pipeline.to_json() if self.pipeline else json.dumps(None),
            "fractions": json.dumps(list(self.fractions("target"))),
            "seed": settings.seed,
            **(
                {SOURCE_FRACTIONS: json.dumps(list(self.fractions("source")))}
                if "source" in self.domains and settings.fractions is None
                else {}
            ),
            OPTIONS: json.dumps(settings.options(), ensure_ascii=False),
            **({ONE_TABLE: 1} if self.is_one_table else {}),
            **({FEATURE_COLUMNS: columns_text(fed)} if fed else {}),
            **{f"{name}_rows": settings.selection.describe() for name in self.domains},
            **{
                f"{name}_ids": "integers"
                for name, one in self.domains.items()
                if one.data.ids_are_integers
            },
        }

    def _fed_columns(self) -> tuple[str, ...]:
        if self.settings.outputs is not None:  # tables of outputs are read without Pillow
            return ()
        from covcal_cli.data.open import fed_columns

        return fed_columns({name: one.data for name, one in self.domains.items()})

    def config(self) -> Config:
        """Return what the numbers depend on, by names that a user knows."""
        settings = self.settings
        return {
            "covcal": __version__,
            "model": self.opened.sha256,
            "features": self.classifier.features_tensor,
            "logits": self.classifier.logits_tensor,
            "classes": "; ".join(self.classes.names),
            "preprocessing": self.pipeline.to_json() if self.pipeline else None,
            "--fractions": json.dumps([self.fractions(name) for name in DOMAINS]),
            "--seed": settings.seed,
            "--batch": self.runner.size,
            "--threads": self.threads,
            "--providers": ",".join(settings.providers),
            "rows": settings.selection.describe(),
            "--shard": str(settings.selection.shard or "none"),
            **{name: _listing(domain.data) for name, domain in self.domains.items()},
        }


def class_list(classes: Sequence[str]) -> str:
    """Return how many classes there are, and the names of the first."""
    shown = ", ".join(classes[:_SHOWN_CLASSES])
    more = len(classes) - _SHOWN_CLASSES
    return f"{len(classes)}: {shown}{f', and {more} more' if more > 0 else ''}"


def prepare(
    model: str | Path | None, source: Path | None, target: Path | None, settings: ExtractSettings
) -> ExtractPlan:
    """Open the classifier and the data, settle what will be done, and prove it on a first batch.

    The arguments are those of `covcal_cli.extract.extract.extract`, and so is what is refused.
    """
    if settings.fractions is not None:
        check_fractions(settings.fractions)
    if any(value is not None and value < 1 for value in (settings.batch, settings.threads)):
        raise CovcalError("batch and threads must be at least 1")
    if source is None and target is None:
        raise CovcalError("there is neither a source nor a target: give at least one")
    # Open the classifier, and the data as its inputs; then classes go by the first who names them.
    threads = min(settings.threads or available_cores(), _MOST_THREADS)
    opened, data, remarks = _opened(model, source, target, settings, threads)
    asked = read_classes(settings.classes, opened.n_classes) if settings.classes else None
    classes = choose_classes(
        asked,
        opened.class_names,
        list(data.values()),
        opened.n_classes,
        "the model" if settings.outputs is None else "the columns",
    )
    if classes.is_assumed and "source" not in data:
        classes = replace(classes, whose="the target")
    # Settle what is done to images; a preprocessing file may lie beside the model's.
    pipeline, origin, warnings = _image_pipeline(data, opened, settings, model)
    # More rows than there are would only take memory.
    size = settings.batch or _batch_size(opened, pipeline)
    size = min(size, max(1, *(len(one.ids) for one in data.values())))
    _require_fitting(size, pipeline)

    # Choose the rows of each domain, whose labels must fit the classes, and split them.
    domains = {}
    for name, domain in data.items():
        chosen = settings.selection.chosen(domain.ids, settings.seed)
        labels = domain.labels(classes) if name == "target" else _source_labels(domain, classes)
        split = domain.given_split
        if split is None:
            fractions = settings.fractions_of(name, trained=_is_trained(settings, opened))
            split = hashed_split(domain.split_names, fractions, settings.seed)
        domains[name] = DomainExtraction(
            name,
            domain,
            labels,
            split,
            rows=settings.selection.of_shard(chosen),
            chosen=len(chosen),
            pipeline=pipeline,
            size=size,
            threads=threads,
            skip_unreadable=settings.skip_unreadable,
            has_chosen_fractions=settings.fractions is not None,
        )
    # Prove the last linear layer on the first rows that can be read.
    runner = _proved(opened, domains, size, classes)
    return ExtractPlan(
        settings=settings,
        opened=opened,
        classes=classes,
        pipeline=pipeline,
        runner=runner,
        threads=threads,
        domains=domains,
        warnings=once(*warnings, doubt_on_place(source, target)),
        origin=origin,
        remarks=remarks,
    )


def _is_trained(settings: ExtractSettings, opened: OpenedClassifier) -> bool:
    """Return whether there will be features, on which adapt and the discriminator train."""
    if isinstance(opened, TableClassifier):
        return opened.n_features is not None
    return settings.phi != "none"


def _proved(
    opened: OpenedClassifier,
    domains: Mapping[str, DomainExtraction],
    size: int,
    classes: ClassMap,
) -> BatchRunner:
    """Run a first batch, which proves the head and shows whether rows influence each other."""
    first = None
    for domain in domains.values():
        with closing(domain.batches(domain.rows[:size])) as batches:
            first = next((batch.inputs for batch in batches if len(batch.rows)), None)
        if first is not None:
            break
    runner = prove(opened, first, size)
    found, known = runner.classifier.n_classes, len(classes.names)
    if found != known:
        raise CovcalError(
            f"{runner.classifier.name} gives {found} scores per row, and its last linear layer "
            f"has {known} classes: export it with the shape of its output declared"
        )
    return runner


def available_cores() -> int:
    """Return the cores that this process may use, which a container can make fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _source_labels(data: DomainData, classes: ClassMap) -> Labels:
    """Return the labels of a source, refusing one that shows nothing about confidence."""
    labels = data.labels(classes)
    known = np.unique(labels[labels != UNKNOWN_LABEL])
    if len(known) == 0:
        raise CovcalError(
            f"{data.path} has no labels, and the source needs them: {data.way_to_label}"
        )
    if len(known) == 1:
        raise CovcalError(
            f"{data.path} has rows of one class only ({classes.names[known[0]]}), which shows "
            "nothing about confidence: give a source with several classes"
        )
    return labels


def _opened(
    model: str | Path | None,
    source: Path | None,
    target: Path | None,
    settings: ExtractSettings,
    threads: int,
) -> tuple[OpenedClassifier, Mapping[str, DomainData], tuple[str, ...]]:
    if settings.outputs is not None:
        if model is not None or target is None:
            raise CovcalError("tables of outputs need a target and no model")
        tables = open_outputs(source, target, settings.outputs, settings.classes)
        return TableClassifier(list(tables.values()), settings.outputs), tables, ()
    from covcal_cli.data.open import open_domains

    if model is None:
        raise CovcalError("there is no model: give one, or say that the data holds logits")
    classifier = open_classifier(
        model,
        weights=settings.weights,
        output=settings.model_output,
        phi=settings.phi,
        threads=threads,
        providers=settings.providers,
        trusted=settings.trust_model,
    )
    named = {"source": source, "target": target}
    paths = {name: path for name, path in named.items() if path is not None}
    return classifier, *open_domains(paths, classifier.inputs)


def _image_pipeline(
    domains: Mapping[str, DomainData],
    classifier: OpenedClassifier,
    settings: ExtractSettings,
    model: str | Path | None,
) -> tuple[ImagePipeline | None, str | None, list[str]]:
    """Return the one pipeline for all images, where it comes from, and what to look into.

    It is None where there are no images; so is the note on its origin where the user gave all of
    it.
    """
    asked = settings.preprocessing
    images = {name: data.holds_images for name, data in domains.items()}
    if not any(images.values()):
        if settings.preprocess is not None:
            raise CovcalError(
                "--preprocess was given, and the rows already have the model's own shape: drop it"
            )
        if not asked.is_default:
            raise CovcalError(
                "preprocessing was asked for, and the rows already have the model's own shape: "
                "drop --size, --scale, --mean, --std, --color, --layout and --resample"
            )
        return None, None, []
    base, origin = base_preprocessing(classifier, settings, model)
    wanted = classifier.inputs[0]
    try:
        pipeline = base.overridden_by(asked).resolve(wanted.shape, wanted.dtype)
    except CovcalError as error:
        raise CovcalError(f"{classifier.name}: {error}") from error
    warnings = [
        f"the {name} goes in as it is, while images are preprocessed: make sure that it was "
        "prepared in the same way"
        for name, needed in images.items()
        if not needed
    ]
    return pipeline, origin, warnings


def base_preprocessing(
    classifier: OpenedClassifier, settings: ExtractSettings, model: str | Path | None
) -> tuple[Preprocessing, str | None]:
    """Return the preprocessing that flags override, and a note on it where the user named none.

    It is the one that is named, or that `model` brings along, maybe in a file beside its own.
    """
    path = Path(model) if model is not None and Path(model).is_file() else None
    if settings.preprocess is not None:
        found = load_preprocessing(settings.preprocess, metadata=classifier.metadata, model=path)
        return found, None
    brought = found_preprocessing(classifier.metadata, path)
    if brought is not None:
        found, origin = brought
        return found, f"preprocessing as {origin} says; --preprocess none leaves it out"
    if settings.preprocessing.is_default:
        return Preprocessing(), (
            "no preprocessing was given: it follows the shape of the model's input alone; compare "
            "the line input with what training did"
        )
    return Preprocessing(), None


def _listing(data: DomainData) -> str:
    """Return a digest of which rows there are, and of a single file's size and age."""
    digest = hashlib.sha256()
    if data.path.is_file():
        state = data.path.stat()
        digest.update(f"{state.st_size} {state.st_mtime_ns}\n".encode())
    for name in data.ids:
        digest.update(name.encode() + b"\n")
    return digest.hexdigest()


def _require_fitting(size: int, pipeline: ImagePipeline | None) -> None:
    """Refuse batches of images that no memory holds."""
    if pipeline is None:  # rows that are there already
        return
    needed = size * math.prod(pipeline.row_shape) * np.dtype(pipeline.dtype).itemsize
    if needed > _LARGEST_BATCH:
        raise CovcalError(
            f"{size} images of shape {list(pipeline.row_shape)} at a time take "
            f"{needed / 1e9:.0f} GB: pass a smaller --size or --batch"
        )


def _batch_size(classifier: OpenedClassifier, pipeline: ImagePipeline | None) -> int:
    if pipeline is None:
        elements = sum(math.prod(size or 1 for size in one.shape[1:]) for one in classifier.inputs)
    else:
        elements = math.prod(pipeline.row_shape)
    fewest, most = _BATCH_RANGE
    fitting = _BATCH_BYTES // max(1, elements * classifier.inputs[0].dtype.itemsize)
    return min(most, max(fewest, 1 << max(0, fitting.bit_length() - 1)))
