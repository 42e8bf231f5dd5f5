"""``covcal extract``: from a classifier and two domains to features.h5, batch by batch.

The rows of a domain keep a stable order, and nothing that changes from run to run is written, so
the same input gives the same bytes. Batches go to a spool beside the output (``spool.py``), and
from there to the output when all are done: features and logits are never all in memory at once, and
a killed run can go on.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np

from covcal_cli.extract.batching import BatchRunner
from covcal_cli.extract.domaindoubts import is_one_place, warning_on_rows
from covcal_cli.extract.domainextraction import DomainReport
from covcal_cli.extract.outputstatistics import significant
from covcal_cli.extract.plan import ExtractPlan, prepare
from covcal_cli.extract.settings import ExtractSettings, SettingsGiven
from covcal_cli.extract.spool import Spool, open_spool
from covcal_cli.featurefile import FEATURES_SCHEMA
from covcal_cli.featurewriter import HDF5Writer
from covcal_cli.files import atomic_output, check_output
from covcal_cli.inputs.preprocessing import Preprocessing
from covcal_cli.models.classifier import Classifier
from covcal_cli.progress import Progress, ProgressCallback

__all__ = ["DomainReport", "ExtractReport", "Preprocessing", "Progress", "extract"]


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
    notes : tuple of str
        What a user should know, one line each.
    has_features : bool
        Whether features were written, without which nothing can be adapted.
    """

    output: Path
    head: str
    preprocessing: str
    classes: tuple[str, ...]
    domains: tuple[DomainReport, ...]
    source_accuracy: float | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()
    has_features: bool = True


def extract(
    model: str | Path | None,
    source: Path | None,
    target: Path | None,
    output: Path,
    *,
    force: bool = False,
    resume: bool = False,
    progress: ProgressCallback | None = None,
    **settings: Unpack[SettingsGiven],
) -> ExtractReport:
    """Run a classifier over one or two domains and write features, logits, labels and splits.

    Parameters
    ----------
    model : str, Path or None
        The classifier: a file, or ``module:function``. None for tables of a classifier's outputs.
    source, target : Path or None
        The data; one of them may be missing.
    output : Path
        The features file to write.
    force : bool
        Replace `output` if it exists.
    resume : bool
        Go on with a run of the same settings that was killed or interrupted.
    progress : callable, optional
        Called with a `Progress` after every batch.
    **settings
        The attributes of `covcal_cli.extract.settings.ExtractSettings`.

    Raises
    ------
    CovcalError
        If the model, the data or the output cannot be used; an existing file is left untouched.
    """
    given = [path for path in (model, source, target) if path is not None]
    check_output(output, force=force, inputs=[Path(path) for path in given])
    plan = prepare(model, source, target, ExtractSettings(**settings))
    with atomic_output(output, force=force) as partial:
        spool, note = open_spool(output, plan.config(), resume=resume)
        try:
            runner = plan.prove()
            doubts = _run(plan, runner, spool, partial, progress)
        except KeyboardInterrupt:
            raise  # the spool stays for --resume
        except BaseException:
            if not resume:
                spool.remove()
            raise
    spool.remove()
    domains = plan.domains
    return ExtractReport(
        output=output,
        head=runner.classifier.describe(),
        preprocessing=plan.preprocessing(),
        classes=plan.classes.names,
        domains=tuple(domain.report() for domain in domains.values()),
        source_accuracy=domains["source"].accuracy() if "source" in domains else None,
        warnings=(
            *plan.warnings,
            *(text for domain in domains.values() for text in domain.warnings()),
            *doubts,
        ),
        notes=(*plan.notes(runner), *([note] if note else [])),
        has_features=runner.classifier.n_features is not None,
    )


def _run(
    plan: ExtractPlan,
    runner: BatchRunner,
    spool: Spool,
    partial: Path,
    progress: ProgressCallback | None,
) -> list[str]:
    """Write every row, and return what both domains together say against the run."""
    widths, classifier = runner.widths, runner.classifier
    with ExitStack() as stack:
        spools = {name: stack.enter_context(spool.domain(name, widths)) for name in plan.domains}
        for name, domain in plan.domains.items():
            domain.run(
                spools[name],
                runner,
                plan.classifier.inputs,
                plan.pipeline,
                threads=plan.threads,
                progress=progress,
            )
        with HDF5Writer(
            partial,
            schema=FEATURES_SCHEMA,
            classes=plan.classes.names,
            attributes=plan.attributes(classifier),
        ) as writer:
            for name, domain in plan.domains.items():
                domain.write(writer, spools[name], classifier)
            _write_head(writer, classifier)
            _write_shard(writer, plan)
            doubts = _doubts(writer, plan)
            _complete(writer, plan, classifier)
    return doubts


def _doubts(writer: HDF5Writer, plan: ExtractPlan) -> list[str]:
    paths = {name: domain.data.path for name, domain in plan.domains.items()}
    if len(paths) < 2 or is_one_place(paths["source"], paths["target"]):
        return []  # one place for both is either asked for, by a column domain, or said already
    doubt = warning_on_rows(writer.handle, paths)
    return [doubt] if doubt else []


def _write_head(writer: HDF5Writer, classifier: Classifier) -> None:
    weight, bias = classifier.weight, classifier.bias
    if weight is not None and bias is not None:
        writer.write("head/weight", weight)
        writer.write("head/bias", bias)


def _write_shard(writer: HDF5Writer, plan: ExtractPlan) -> None:
    """Keep what ``merge`` needs to put the rows of a shard in their place."""
    if plan.settings.selection.shard is None:
        return
    for name, domain in plan.domains.items():
        skipped = np.array([row for row, _ in domain.skipped], dtype=np.int64)
        writer.write(f"shard/{name}/rows", domain.kept)
        writer.write(f"shard/{name}/skipped", skipped)
        writer.write(f"shard/{name}/chosen", np.int64(domain.chosen))


def _complete(writer: HDF5Writer, plan: ExtractPlan, classifier: Classifier) -> None:
    statistics = [domain.statistics for domain in plan.domains.values()]
    largest = max(entry.largest_logit for entry in statistics)
    difference = max(entry.affine_difference for entry in statistics)
    shard = plan.settings.selection.shard
    marked = {} if shard is None else {"shard": str(shard)}
    writer.complete(
        tail=str(classifier.tail),
        **proof_attributes(difference, largest),
        **marked,
    )


def proof_attributes(difference: float, largest: float) -> dict[str, float]:
    """Return the attributes that hold the proof of the head.

    Parameters
    ----------
    difference, largest : float
        Largest ``|phi W^T + b - logits|`` and ``|logit|`` over all rows of a file. Both are kept,
        because those of a merged file follow from those of its parts.
    """
    rounded = significant(difference)
    return {
        "affine_difference": rounded,
        "largest_logit": largest,
        "affine_error": significant(rounded / largest) if largest else rounded,
    }
