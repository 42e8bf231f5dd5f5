"""Choose and check every setting of an extraction before the model runs."""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from covcal_cli import __version__
from covcal_cli.arrays import UNKNOWN_LABEL, Float32s, Inputs, Labels, ModelInput
from covcal_cli.classifiers.classifier import Classifier, OpenedClassifier, Outputs, Results
from covcal_cli.classifiers.open import open_classifier
from covcal_cli.classifiers.proof import SIGMOIDS, Proof
from covcal_cli.data.classes import ClassMap, choose_classes, listed, missing_classes, read_classes
from covcal_cli.data.confidences import OTHER
from covcal_cli.data.domain import Batch, DomainData, ImagePipeline
from covcal_cli.data.outputs import OutputTable, open_outputs
from covcal_cli.data.preprocessing.configs import found_preprocessing, load_preprocessing
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.data.rows import (
    GROUP_PREFIX,
    Fractions,
    RowNumbers,
    SplitHashes,
    check_fractions,
    hashed_split,
)
from covcal_cli.errors import CovcalError, shown
from covcal_cli.extract.domain import BatchRunner, DomainExtraction, prove
from covcal_cli.extract.parts import Config
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.formats.features import (
    DOMAINS,
    EVENTS,
    FEATURE_COLUMNS,
    LABELS,
    ONE_CONFIDENCE,
    ONE_TABLE,
    OPTIONS,
    SOURCE_FRACTIONS,
    columns_text,
)
from covcal_cli.formats.writer import Attribute

_BATCH_BYTES = 16 << 20
_NAMES_AT_ONCE = 1 << 14
_MOST_THREADS = 256
_BATCH_RANGE = (16, 256)
_MOST_ROWS_OF_NUMBERS = 2048  # Rows of numbers are small, so large batches are faster.
_COMPARED_ROWS = 16  # Number of rows to compare in two runs of the model.
_LARGEST_BATCH = 4 << 30  # Bytes of a batch of images; three batches are in memory at a time.
_NO_IMAGES = "none: the model gets the rows unchanged"
_SHOWN_CLASSES = 8
NO_SHIFT = (
    "there is no shift between source and target. Unless this is only a test, give different data"
)
# Descriptions of how the output is read. The keys are values of `Classifier.tail`.
_READINGS = {
    None: "covcal ran no row, so it does not know whether the model gives logits or probabilities",
    "none": "its output is read as logits",
    "softmax": "its output is the softmax of the logits",
    "log_softmax": "its output is the log-softmax of the logits",
    "sigmoid": "its output is the sigmoid of the logits",
    "argmax": "its output is the class of the highest logit",
}


@dataclass(frozen=True)
class ExtractPlan:
    """An open classifier, open data, and all settings."""

    settings: ExtractSettings
    opened: OpenedClassifier
    classes: ClassMap
    pipeline: ImagePipeline | None  # Converts images to model inputs; None without images.
    runner: BatchRunner  # The runner of the checked classifier.
    threads: int
    domains: Mapping[str, DomainExtraction]  # The source first.
    warnings: tuple[str, ...]
    origin: str | None  # A note on the origin of the preprocessing.
    remarks: tuple[str, ...]  # Notes on the columns of tables.

    @property
    def classifier(self) -> Classifier:
        """The classifier, checked on a first batch."""
        return self.runner.classifier

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user."""
        several = self.settings.multilabel
        on_model = (*self.classifier.notes, *self.classifier.proof.remarks)
        on_model = tuple(note for note in on_model if not (several and note == SIGMOIDS))
        missing = None
        target = self.domains.get("target")
        if target is not None and not len(target.data.ids):
            missing = f"{target.data.path} has no rows: covcal watch records an empty period"
        elif target is not None and not several and self.classes.names != EVENTS:
            missing = missing_classes(target.data.path, target.labels, self.classes)
        on_settings = (self.origin, self.classes.note, self.runner.note)
        return once(*on_model, *on_settings, *self.remarks, missing)

    @property
    def widths(self) -> dict[str, int]:
        """The number of columns of each array in the features file."""
        features = self.classifier.n_features
        widths = {} if features is None else {"features": features}
        return {**widths, "logits": self.classifier.n_classes}

    def fractions(self, domain: str) -> Fractions:
        """Return the share of rows for each split, for data without splits."""
        return self.settings.fractions_of(domain, trained=_is_trained(self.settings, self.opened))

    def preprocessing(self) -> str:
        """Describe the preprocessing of images in one line."""
        return self.pipeline.describe() if self.pipeline else _NO_IMAGES

    def reading(self) -> str:
        """Describe how the output is read, and what the features are."""
        classifier, outputs = self.classifier, self.settings.outputs
        if outputs is not None:
            read = f"none, the tables hold {outputs}"
            if self.settings.multilabel:
                read += " of independent labels"
            if outputs == "confidence":
                read += " in one prediction per row"
        elif classifier.outputs.are_logged and not self.settings.multilabel:
            read = "its output is probabilities, and covcal uses their logarithms as logits"
        else:
            read = _READINGS[classifier.tail]
        if classifier.n_features is None:
            return f"{read}; no features"
        kind = "features"
        if classifier.weight is not None:
            kind = "features: the input of the model's last layer"
        return f"{read}; {classifier.n_features} {kind}"

    def attributes(self) -> dict[str, Attribute]:
        """Return the root attributes of the features file."""
        settings, classifier = self.settings, self.classifier
        data = [domain.data for domain in self.domains.values()]
        # Source and target may be rows of one table with a column ``domain``.
        is_one_table = len({of_domain.path for of_domain in data}) < len(data)
        fed = (getattr(of_domain, "feature_columns", ()) for of_domain in data)
        columns = next(filter(None, fed), ())
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
            **({ONE_TABLE: 1} if is_one_table else {}),
            **({LABELS: json.dumps(self.classes.names)} if settings.multilabel else {}),
            **({FEATURE_COLUMNS: columns_text(columns)} if columns else {}),
            **{f"{name}_rows": settings.selection.describe() for name in self.domains},
            **{
                f"{name}_ids": "integers"
                for name, domain in self.domains.items()
                if domain.data.ids_are_integers
            },
        }

    def config(self) -> Config:
        """Return all settings that change the extracted numbers, by option name."""
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
    """Return the number of classes and the first few names, as text."""
    if tuple(classes) == EVENTS:
        return (
            "covcal uses the classes 'right' and 'wrong', because each row has only one confidence"
        )
    listed = ", ".join(classes[:_SHOWN_CLASSES])
    more = len(classes) - _SHOWN_CLASSES
    rest = f", and {more} more" if more > 0 else ""
    return f"{len(classes)}: {listed}{rest}"


def prepare(
    model: str | Path | None, source: Path | None, target: Path | None, settings: ExtractSettings
) -> ExtractPlan:
    """Open the classifier and the data, choose all settings, and check the last layer.

    Arguments and errors are the same as in `covcal_cli.extract.extract.extract`.
    """
    if settings.fractions is not None:
        check_fractions(settings.fractions)
    if any(value is not None and value < 1 for value in (settings.batch, settings.threads)):
        raise CovcalError("batch and threads must be at least 1")
    if source is None and target is None:
        raise CovcalError("the source and the target are missing: give at least one path")
    if settings.multilabel and settings.selection.shard is not None:
        raise CovcalError("--multilabel does not work with --shard: leave out --shard")
    # The class names come from --classes, else from the model, else from the data.
    threads = min(settings.threads or available_cores(), _MOST_THREADS)
    opened, data, remarks = _opened(model, source, target, settings, threads)
    if isinstance(opened, TableClassifier):
        settings = replace(settings, outputs=opened.kind)
    named = read_classes(settings.classes, opened.n_classes) if settings.classes else None
    classes = choose_classes(
        named,
        opened.class_names,
        list(data.values()),
        opened.n_classes,
        "the model" if settings.outputs is None else "the columns",
    )
    if classes.is_assumed and "source" not in data:
        classes = replace(classes, whose="the target")
    # The order of the names comes from the source's table.
    if settings.multilabel and classes.whose == "the source":
        classes = replace(classes, is_assumed=True)
    pipeline, origin, warnings = _image_pipeline(data, opened, settings, model)
    # A batch that is larger than the data would waste memory.
    size = settings.batch or _batch_size(opened, pipeline)
    size = min(size, max(1, *(len(domain.ids) for domain in data.values())))
    _require_fitting(size, pipeline)

    domains, hashes = {}, SplitHashes(settings.seed)
    for name, domain in data.items():
        chosen = settings.selection.chosen(domain.ids, settings.seed)
        if name == "target" and (warning := _without_classes(domain, classes)):
            warnings.append(warning)
            labels = np.full(len(domain.ids), UNKNOWN_LABEL, dtype=np.int64)
        else:
            labels = domain.labels(classes)
        if name == "source":
            _require_labelled(domain, labels, classes, several=settings.multilabel)
        split = domain.given_split
        if split is None:
            fractions = settings.fractions_of(name, trained=_is_trained(settings, opened))
            split = hashed_split(domain.split_names, fractions, settings.seed, hashes)
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
    if source is not None and target is not None and is_one_place(source, target):
        warnings.append(f"{target} is both the source and the target, so {NO_SHIFT}")
    are_independent = settings.multilabel and settings.outputs is None
    # The user's batch size may be the only size that the model accepts.
    few = size if settings.batch else min(size, _COMPARED_ROWS)
    runner = _proved(opened, domains, size, few, classes, are_independent=are_independent)
    runner.classifier.outputs.are_independent |= are_independent
    return ExtractPlan(
        settings=settings,
        opened=opened,
        classes=classes,
        pipeline=pipeline,
        runner=runner,
        threads=threads,
        domains=domains,
        warnings=once(*warnings),
        origin=origin,
        remarks=remarks,
    )


def _is_trained(settings: ExtractSettings, opened: OpenedClassifier) -> bool:
    if isinstance(opened, TableClassifier):
        return opened.n_features is not None
    return settings.phi != "none"


def _proved(
    opened: OpenedClassifier,
    domains: Mapping[str, DomainExtraction],
    size: int,
    few: int,
    classes: ClassMap,
    *,
    are_independent: bool,
) -> BatchRunner:
    runner = None
    for domain in domains.values():
        with ExitStack() as stack:
            batches = stack.enter_context(closing(domain.batches(domain.rows)))
            first = next(batches, None)
            if first is None or not len(first.rows):
                continue
            runner, results = prove(opened, first.inputs, size, few)
            # With several labels, these results are not converted correctly, so run the rows again.
            if results is not None and not are_independent:
                domain.begun = batches, (Batch({}, first.rows, first.skipped), results)
                stack.pop_all()
            break
    if runner is None:
        runner, _ = prove(opened, None, size)
    n_scores, n_classes = runner.classifier.n_classes, len(classes.names)
    if n_scores != n_classes:
        raise CovcalError(
            f"{runner.classifier.name} gives {n_scores} scores per row, but its last linear "
            f"layer has {n_classes} classes: export the model with a declared output shape"
        )
    return runner


def available_cores() -> int:
    """Return the number of CPU cores for this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _without_classes(target: DomainData, classes: ClassMap) -> str | None:
    if not target.holds_images or not target.path.is_dir():
        return None
    from covcal_cli.data.folder import FolderData

    folders = target.class_folders or ()
    if not isinstance(target, FolderData) or not folders:
        return None
    if any(classes.index(folder) is not None for folder in folders):
        return None
    return (
        f"{target.path}: the folders ({listed(folders)}) are not named like classes, so the "
        "rows have no labels. To use folders as classes, rename the folders"
    )


def _require_labelled(
    data: DomainData, labels: Labels, classes: ClassMap, *, several: bool
) -> None:
    if not len(data.ids):
        raise CovcalError(f"{data.path} has no rows, but a source needs labelled rows")
    present = np.flatnonzero(np.bincount(labels[labels != UNKNOWN_LABEL]))
    if len(present) == 0:
        remedy = (
            "add a column label_NAME with 1 or 0 for each label" if several else data.way_to_label
        )
        raise CovcalError(
            f"{data.path} has no labels, but a source needs labels: {remedy}. The path "
            "of a target comes second"
        )
    if several:
        lacking = [
            name
            for name, values in zip(classes.names, labels.T, strict=True)
            if not {0, 1} <= {*np.unique(values).tolist()}
        ]
        if lacking:
            raise CovcalError(
                f"all labelled rows of {data.path} have the same value for {listed(lacking)}: "
                "leave out the outputs of these labels, or give more rows"
            )
    elif len(present) == 1:
        raise CovcalError(
            f"all labelled rows of {data.path} have one class ({classes.names[present[0]]}): "
            "give a source with several classes"
        )


def _opened(
    model: str | Path | None,
    source: Path | None,
    target: Path | None,
    settings: ExtractSettings,
    threads: int,
) -> tuple[OpenedClassifier, Mapping[str, DomainData], tuple[str, ...]]:
    if settings.outputs is not None or model is None:
        if model is not None or target is None:
            raise CovcalError(
                "tables of outputs need a target and no model: give the path of the target, and "
                "leave out the model"
            )
        tables = open_outputs(
            source,
            target,
            settings.outputs,
            settings.classes,
            settings.keep,
            settings.choices,
            multilabel=settings.multilabel,
        )
        _require_kept(tables, settings.keep)
        return TableClassifier(list(tables.values())), tables, ()
    if settings.choices:
        raise CovcalError(
            "--choices is only for logs of a language model: leave out --choices or the MODEL"
        )
    from covcal_cli.data.open import open_domains

    classifier = open_classifier(model, settings, threads)
    named = {"source": source, "target": target}
    paths = {name: path for name, path in named.items() if path is not None}
    domains, remarks = open_domains(
        paths, classifier.inputs, settings.keep, multilabel=settings.multilabel
    )
    _require_kept(domains, settings.keep)
    return classifier, domains, remarks


def _require_kept(domains: Mapping[str, DomainData], keep: Sequence[str]) -> None:
    groups = [name for domain in domains.values() for name in domain.columns]
    lacking = [name for name in keep if name.removeprefix(GROUP_PREFIX) not in groups]
    if lacking:
        paths = " and ".join(dict.fromkeys(str(domain.path) for domain in domains.values()))
        raise CovcalError(
            f"there is no column {shown(lacking[0])} to keep in {paths}: name another column "
            "with one value per row"
        )


def _image_pipeline(
    domains: Mapping[str, DomainData],
    classifier: OpenedClassifier,
    settings: ExtractSettings,
    model: str | Path | None,
) -> tuple[ImagePipeline | None, str | None, list[str]]:
    options = settings.preprocessing
    images = {name: data.holds_images for name, data in domains.items()}
    if not any(images.values()):
        if settings.preprocess is not None:
            raise CovcalError(
                "the rows already have the shape of the model's input and are not "
                "preprocessed: leave out --preprocess"
            )
        if not options.is_default:
            raise CovcalError(
                "the rows already have the shape of the model's input and are not "
                "preprocessed: leave out --size, --scale, --mean, --std, --color, --layout "
                "and --resample"
            )
        return None, None, []
    base, origin = base_preprocessing(classifier, settings, model)
    wanted = classifier.inputs[0]
    try:
        pipeline = base.overridden_by(options).resolve(wanted.shape, wanted.dtype)
    except CovcalError as error:
        raise CovcalError(f"{classifier.name}: {error}") from error
    warnings = [
        f"the {name} is used unchanged, but the images of the other domain are preprocessed: "
        f"check that the {name} was prepared in the same way"
        for name, needed in images.items()
        if not needed
    ]
    return pipeline, origin, warnings


def base_preprocessing(
    classifier: OpenedClassifier, settings: ExtractSettings, model: str | Path | None
) -> tuple[Preprocessing, str | None]:
    """Return the default preprocessing, and a note on its origin or None."""
    path = Path(model) if model is not None and Path(model).is_file() else None
    if settings.preprocess is not None:
        return load_preprocessing(
            settings.preprocess, metadata=classifier.metadata, model=path
        ), None
    of_model = found_preprocessing(classifier.metadata, path)
    if of_model is not None:
        preprocessing, origin = of_model
        return preprocessing, (
            f"images are preprocessed as {origin} says. To skip preprocessing, pass "
            "--preprocess none"
        )
    if settings.preprocessing.is_default:
        return Preprocessing(), (
            "you gave no preprocessing, so images are only resized: check that training did "
            "the same"
        )
    return Preprocessing(), None


def _listing(data: DomainData) -> str:
    """Return a hash of the row ids, and of the size and time of the file."""
    digest = hashlib.sha256()
    if data.path.is_file():
        state = data.path.stat()
        digest.update(f"{state.st_size} {state.st_mtime_ns}\n".encode())
    if isinstance(data.ids, RowNumbers):
        digest.update(f"{len(data.ids)} row numbers".encode())
        return digest.hexdigest()
    for start in range(0, len(data.ids), _NAMES_AT_ONCE):
        names = data.ids[start : start + _NAMES_AT_ONCE]
        digest.update("\n".join([*names, ""]).encode())
    return digest.hexdigest()


def _require_fitting(size: int, pipeline: ImagePipeline | None) -> None:
    if pipeline is None:
        return
    needed = size * math.prod(pipeline.row_shape) * np.dtype(pipeline.dtype).itemsize
    if needed > _LARGEST_BATCH:
        raise CovcalError(
            f"a batch of {size} images of shape {list(pipeline.row_shape)} takes "
            f"{needed / 1e9:.0f} GB: pass a smaller --size or --batch"
        )


def _batch_size(classifier: OpenedClassifier, pipeline: ImagePipeline | None) -> int:
    if pipeline is None:
        elements = sum(
            math.prod(size or 1 for size in value.shape[1:]) for value in classifier.inputs
        )
    else:
        elements = math.prod(pipeline.row_shape)
    fewest, most = _BATCH_RANGE
    shapes = [(len(entry.shape), entry.dtype.kind) for entry in classifier.inputs]
    if pipeline is None and all(shape == (2, "f") for shape in shapes):
        most = _MOST_ROWS_OF_NUMBERS
    fitting = _BATCH_BYTES // max(1, elements * classifier.inputs[0].dtype.itemsize)
    return min(most, max(fewest, 1 << max(0, fitting.bit_length() - 1)))


class TableClassifier(Classifier):
    """A classifier whose outputs are in a table."""

    name, sha256 = "logits", ""
    logits_tensor = "logits"
    tail: str | None = "none"
    notes: tuple[str, ...] = ()
    # Opening a table converts its numbers to logits.
    outputs = Outputs("the table", None, is_single=False, has_layer=False)
    fixed_batch: int | None = None
    weight: Float32s | None = None
    bias: Float32s | None = None

    def __init__(self, tables: Sequence[OutputTable]) -> None:
        table = tables[0]
        self.kind = kind = table.kind
        self.n_classes: int = table.n_classes
        self.n_features: int | None = table.n_features
        self.class_names: tuple[str, ...] | None = table.class_names
        self.inputs: tuple[ModelInput, ...] = (
            ModelInput("logits", (None, table.n_classes), np.dtype(np.float32)),
        )
        self.metadata: Mapping[str, str] = {}
        self.features_tensor: str | None = None if table.n_features is None else "features"
        noun = "confidences" if kind == "confidence" else kind
        self.notes = (
            f"a table does not name its model: use this calibration only with {noun} of the same "
            "classifier",
            *(note for opened in tables for note in opened.index_notes),
        )
        self.proof = Proof()
        # With two classes, one probability determines the probability of the other class.
        is_open = table.n_classes > 2 or OTHER in (table.class_names or ())
        if kind == "confidence" and is_open:
            self.tail = ONE_CONFIDENCE

    def prove(self, batch: Inputs | None, few: int | None = None) -> "TableClassifier":
        """Return this classifier, because a table has no layer to check."""
        del batch, few
        return self

    def run(self, batch: Inputs) -> Results:
        """Return features, if there are any, and logits."""
        return batch.get("features"), batch["logits"]

    def describe(self) -> str:
        """Describe the tables in one line."""
        outputs = "logits" if self.kind == "logits" else "probabilities"
        features = "no" if self.n_features is None else self.n_features
        return (
            f"none, because the table has {outputs} ({self.n_classes} classes, {features} features)"
        )


def once(*texts: str | None) -> tuple[str, ...]:
    """Remove empty and repeated texts."""
    return tuple(dict.fromkeys(text for text in texts if text))


def is_one_place(source: Path, target: Path) -> bool:
    """Return whether two paths are the same file or folder, also through links."""
    return source.exists() and target.exists() and source.samefile(target)
