"""``covcal extract``: from a classifier and two domains to features.h5, batch by batch.

The rows of a domain keep a stable order, and nothing that changes from run to run is written, so
the same input gives the same bytes. Batches go to files beside the output (``parts.py``), and from
there to the output when all are done: features and logits are never all in memory at once, and a
killed run can go on.
"""

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from covcal_cli.extract.domain import DomainReport, proof_attributes
from covcal_cli.extract.doubts import doubt_on_rows, is_one_place
from covcal_cli.extract.parts import DomainSpool, open_spool
from covcal_cli.extract.plan import ExtractPlan, prepare
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.files import atomic_output, check_output
from covcal_cli.formats.features import FEATURES_SCHEMA
from covcal_cli.formats.writer import HDF5Writer
from covcal_cli.progress import ProgressCallback

_DEFAULTS = ExtractSettings()


@dataclass(frozen=True)
class ExtractReport:
    """What extraction found and wrote."""

    output: Path
    head: str  # the last linear layer and its proof, in one line
    preprocessing: str  # what was done to every image, in one line
    classes: tuple[str, ...]  # in the order of the logits
    domains: tuple[DomainReport, ...]  # source first
    # The share of labelled source rows that the classifier gets right; None without a source. The
    # target's is for ``covcal evaluate`` alone.
    source_accuracy: float | None
    warnings: tuple[str, ...]  # what a user should look into, one line each
    notes: tuple[str, ...]  # what a user should know, one line each
    has_features: bool  # without which nothing can be adapted


def extract(
    model: str | Path | None,
    source: Path | None,
    target: Path | None,
    output: Path,
    settings: ExtractSettings = _DEFAULTS,
    *,
    force: bool = False,
    resume: bool = False,
    progress: ProgressCallback | None = None,
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
    settings : ExtractSettings
        How to extract.
    force : bool
        Replace `output` if it exists.
    resume : bool
        Go on with a run of the same settings that was killed or interrupted.
    progress : callable, optional
        Called with a `Progress` after every batch.

    Raises
    ------
    CovcalError
        If the model, the data or the output cannot be used; an existing file is left untouched.
    """
    given = [path for path in (model, source, target) if path is not None]
    check_output(output, force=force, inputs=[Path(path) for path in given])
    plan = prepare(model, source, target, settings)
    with atomic_output(output, force=force) as partial:
        folder, note = open_spool(output, plan.config(), resume=resume)
        try:
            doubt = _run(plan, folder, partial, progress)
        except Exception:  # after Ctrl-C the parts stay for --resume
            if not resume:
                shutil.rmtree(folder, ignore_errors=True)
            raise
    shutil.rmtree(folder, ignore_errors=True)
    domains = plan.domains
    return ExtractReport(
        output=output,
        head=plan.classifier.describe(),
        preprocessing=plan.preprocessing(),
        classes=plan.classes.names,
        domains=tuple(domain.report() for domain in domains.values()),
        source_accuracy=domains["source"].accuracy() if "source" in domains else None,
        warnings=(
            *plan.warnings,
            *(text for domain in domains.values() for text in domain.warnings()),
            *([doubt] if doubt else []),
        ),
        notes=(*plan.notes, *([note] if note else [])),
        has_features=plan.classifier.n_features is not None,
    )


def _run(
    plan: ExtractPlan, folder: Path, partial: Path, progress: ProgressCallback | None
) -> str | None:
    """Write every row, and return what both domains together say against the run."""
    classifier, domains, shard = plan.classifier, plan.domains, plan.settings.selection.shard
    with ExitStack() as stack:
        # Every row is run first, so that all of them are kept if the run is stopped.
        spools = {
            name: stack.enter_context(DomainSpool(folder, name, plan.widths)) for name in domains
        }
        for name, domain in domains.items():
            domain.run(spools[name], plan.runner, progress)
        # Only then is the file written, in one go.
        writer = stack.enter_context(
            HDF5Writer(
                partial,
                schema=FEATURES_SCHEMA,
                classes=plan.classes.names,
                attributes=plan.attributes(),
            )
        )
        for name, domain in domains.items():
            domain.write(writer, spools[name], classifier)
        if classifier.weight is not None and classifier.bias is not None:
            writer.write("head/weight", classifier.weight)
            writer.write("head/bias", classifier.bias)
        if shard is not None:
            for domain in domains.values():
                domain.write_shard(writer)
        paths = {name: domain.data.path for name, domain in domains.items()}
        doubt = None
        # One place for both is either asked for, by a column domain, or said already.
        if len(paths) == 2 and not is_one_place(paths["source"], paths["target"]):
            doubt = doubt_on_rows(writer.handle, paths)
        statistics = [domain.statistics for domain in domains.values()]
        writer.complete(
            tail=str(classifier.tail),
            **proof_attributes(
                max(entry.affine_difference for entry in statistics),
                max(entry.largest_logit for entry in statistics),
            ),
            **({} if shard is None else {"shard": str(shard)}),
        )
    return doubt
