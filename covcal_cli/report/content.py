"""The content of a report, and the commands that reproduce it."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from shlex import quote

from covcal_cli.calibrate.estimate import Estimation
from covcal_cli.evaluate.evaluate import EvaluateSettings
from covcal_cli.evaluate.result import Evaluation
from covcal_cli.files import as_word
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.decision import Decision
from covcal_cli.formats.features import FEATURES_FILE, ONE_TABLE, OPTIONS
from covcal_cli.maths.source_accuracy import SourceAccuracy
from covcal_cli.records import parsed_json

DEFAULTS = EvaluateSettings(resamples=1000)
# The options of ``covcal report`` and ``covcal evaluate``, by the setting that they change.
_REPORT_OPTIONS = {
    "split": "--split",
    "bins": "--bins",
    "resamples": "--bootstrap",
    "seed": "--seed",
}
_EVALUATE_OPTIONS = _REPORT_OPTIONS | {"predictions": "--predictions", "by": "--by"}


@dataclass(frozen=True)
class ReportContent:
    """Everything that a report shows."""

    path: Path  # the features or adapted file
    documents: tuple[Path, ...]  # the calibrations' files, in the order given
    calibrations: Mapping[str, Calibration]  # calibrations by name; the verdict is about the first
    evaluation: Evaluation | None  # None if no target row has a label
    estimation: Estimation | None  # None if the file has too few rows for an estimate
    attributes: Mapping[str, str]  # the root attributes of the file
    origins: Mapping[Path, Mapping[str, str]]  # the root attributes of other fitted files
    rows: Mapping[str, str]  # the row counts of each domain by split, in words
    source_accuracy: SourceAccuracy | None  # None without labelled source rows
    settings: EvaluateSettings
    networks: Path | None  # the file of --networks
    notes: tuple[str, ...]  # notes for the reader about the rows and the estimate
    decision: Decision | None = None
    decided: Path | None = None  # the file of the decision
    names: tuple[str, ...] = ()  # NAME of -c NAME=FILE, or empty, per document

    @property
    def name(self) -> str:
        """The calibration that the verdict is about."""
        return next(iter(self.calibrations))

    @property
    def reading(self) -> str | None:
        """The accuracy on the source in words, with a warning if it is suspicious."""
        if self.source_accuracy is None:
            return None
        doubt = self.source_accuracy.doubt
        return (
            f"The classifier gets {self.source_accuracy} right. Compare this with the accuracy "
            f"that you measured in training.{f' Warning: {doubt}.' if doubt else ''}"
        )

    @property
    def calibration(self) -> Calibration:
        """The calibration that the verdict is about."""
        return self.calibrations[self.name]


def commands(content: ReportContent) -> list[str]:
    """Return the commands that lead from the classifier to this report.

    Names that are not in any file appear in capitals.
    """
    # The file of the report and the files on which calibrations were fitted, each made once.
    fitted = [calibration.inputs[0].path for calibration in content.calibrations.values()]
    lines: dict[str, None] = {}
    for path in (content.path, *fitted):
        attributes = content.attributes if path == content.path else content.origins.get(path)
        if attributes is not None:
            lines |= dict.fromkeys(_extract_and_adapt(path, attributes))
    for document, calibration in zip(content.documents, content.calibrations.values(), strict=True):
        path = calibration.inputs[0].path
        same = path == content.path or path not in content.origins
        lines[_calibrate(as_word(content.path if same else path), document, calibration)] = None
    file = as_word(content.path)
    options = " ".join(
        f"-c {as_word(f'{name}={document}' if name else document)}"
        for name, document in zip_longest(content.names, content.documents)
    )
    if content.networks is not None:
        options += f" --networks {as_word(content.networks)}"
    if content.decided is not None:
        options += f" --decide {as_word(content.decided)}"
    if content.settings.allow_other_preprocessing:
        options += " --allow-other-preprocessing"
    if content.evaluation is not None:
        changed = _changed(_EVALUATE_OPTIONS, content.settings, EvaluateSettings())
        lines[f"covcal evaluate {file} {options}{changed}"] = None
    changed = _changed(_REPORT_OPTIONS, content.settings, DEFAULTS)
    return [*lines, f"covcal report {file} {options} -o report.html{changed}"]


def _extract_and_adapt(path: Path, attributes: Mapping[str, str]) -> list[str]:
    """Return the commands that make a features or adapted file with these attributes."""
    is_adapted = FEATURES_FILE in attributes
    features = path.parent / attributes[FEATURES_FILE] if is_adapted else path
    try:
        options = [str(option) for option in parsed_json(attributes[OPTIONS])]
    except (KeyError, ValueError, TypeError):  # an older version stored only the seed
        seed = attributes.get("extract_seed" if is_adapted else "seed", "0")
        options = [] if seed == "0" else ["--seed", seed]
    tables = {"--logits", "--probabilities", "--confidence"} & set(options)
    model = [] if tables else [attributes.get("model_name") or "MODEL"]
    if ONE_TABLE in attributes:
        data = ["TABLE"]
    else:
        alone = "target_rows" in attributes and "source_rows" not in attributes
        data = ["--target", "TARGET"] if alone else ["SOURCE", "TARGET"]
    words = ["covcal", "extract", *model, *data, "-o", str(features), *options]
    lines = [" ".join(map(quote, words))]
    if is_adapted:
        words = ["--preset", attributes["preset"], "--members", attributes["members"]]
        if "weight_decay" in attributes:
            words += ["--weight-decay", attributes["weight_decay"]]
        if attributes.get("threads", "1") != "1":
            words += ["--threads", attributes["threads"]]
        adapt = f"covcal adapt {as_word(features)} -o {as_word(path)}"
        lines.append(" ".join([adapt, *map(quote, words)]) + _seed(attributes["seed"]))
    return lines


def _changed(
    options: Mapping[str, str], settings: EvaluateSettings, defaults: EvaluateSettings
) -> str:
    """Return the options that turn a command's defaults into `settings`."""
    values = {option: getattr(settings, name) for name, option in options.items()}
    standard = {option: getattr(defaults, name) for name, option in options.items()}
    differing = (option for option in values if values[option] != standard[option])
    return "".join(f" {option} {quote(str(values[option]))}" for option in differing)


def _calibrate(file: str, document: Path, calibration: Calibration) -> str:
    output = f"-o {as_word(document)}{_seed(calibration.seed)}"
    if calibration.fit.get("at_limit"):  # the temperature is written only with --force
        output += " --force"
    loss = "" if calibration.loss == "brier" else f" --loss {calibration.loss}"
    if calibration.labelled_rows is not None:
        rows = calibration.labelled_rows
        labels = str(rows.n) if rows.design == "random" else rows.design
        return f"covcal calibrate {file} --labels {labels}{loss} {output}"
    options = f"--method {calibration.method}{loss}"
    if calibration.max_weight != 1000:
        options += f" --max-weight {calibration.max_weight!r}"
    prior = calibration.target_prior.name
    if prior != "source":
        options += f" --target-prior {quote(str(prior))}"
    return f"covcal calibrate {file} {options} {output}"


def _seed(seed: object) -> str:
    return "" if str(seed) == "0" else f" --seed {seed}"
