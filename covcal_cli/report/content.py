"""The content of a report, and the commands that lead to it; nothing is drawn here."""

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
from covcal_cli.formats.features import FEATURES_FILE, ONE_TABLE, OPTIONS
from covcal_cli.maths.source_accuracy import SourceAccuracy
from covcal_cli.records import parsed_json

MEASURES = EvaluateSettings(resamples=1000)  # of a report, unless others are asked for
# The options of ``covcal report`` by what they set, and those of ``covcal evaluate``.
_OF_REPORT = {"split": "--split", "bins": "--bins", "resamples": "--bootstrap", "seed": "--seed"}
_OF_EVALUATE = _OF_REPORT | {"predictions": "--predictions", "by": "--by"}


@dataclass(frozen=True)
class ReportContent:
    """Everything that a report shows."""

    path: Path  # of the features or adapted file
    documents: tuple[Path, ...]  # the calibrations' files, in the order given
    calibrations: Mapping[str, Calibration]  # by name; the verdict is about the first
    evaluation: Evaluation | None  # None where the target rows have no labels
    estimation: Estimation | None  # None where the file has too little for an estimate
    attributes: Mapping[str, str]  # where the file comes from, as its root attributes say
    origins: Mapping[Path, Mapping[str, str]]  # the same of other files that a calibration is of
    rows: Mapping[str, str]  # per domain, its rows by split in words
    source_accuracy: SourceAccuracy | None  # of the classifier; None without labelled source rows
    settings: EvaluateSettings  # of what was measured
    networks: Path | None  # that were given for the calibrations
    notes: tuple[str, ...]  # what a reader should know of the rows and of the estimate
    names: tuple[str, ...] = ()  # that were given to the calibrations; an empty one was not

    @property
    def name(self) -> str:
        """The calibration that the verdict is about."""
        return next(iter(self.calibrations))

    @property
    def reading(self) -> str | None:
        """How the classifier does on its own data, in one sentence, with a doubt that it raises."""
        if self.source_accuracy is None:
            return None
        doubt = self.source_accuracy.doubt
        plain = f"The classifier gets {self.source_accuracy} right"
        return f"{plain}: is that what training measured?" + (
            f" Warning: {doubt}." if doubt else ""
        )

    @property
    def calibration(self) -> Calibration:
        """The calibration that the verdict is about."""
        return self.calibrations[self.name]


def commands(content: ReportContent) -> list[str]:
    """Return the commands that lead from the classifier to this report, as one would type them.

    Names that no file keeps are in capitals.
    """
    # The files that were reported on and that calibrations were fitted on, each made once.
    fitted = [found.inputs[0].path for found in content.calibrations.values()]
    lines: dict[str, None] = {}
    for path in (content.path, *fitted):
        attributes = content.attributes if path == content.path else content.origins.get(path)
        if attributes is not None:
            lines |= dict.fromkeys(_made(path, attributes))
    for document, found in zip(content.documents, content.calibrations.values(), strict=True):
        path = found.inputs[0].path
        same = path == content.path or path not in content.origins
        lines[_calibrated(as_word(content.path if same else path), document, found)] = None
    file = as_word(content.path)
    given = " ".join(
        f"-c {as_word(f'{name}={document}' if name else document)}"
        for name, document in zip_longest(content.names, content.documents)
    )
    if content.networks is not None:
        given += f" --networks {as_word(content.networks)}"
    if content.settings.allow_other_preprocessing:
        given += " --allow-other-preprocessing"
    if content.evaluation is not None:
        asked = _asked(_OF_EVALUATE, content.settings, EvaluateSettings())
        lines[f"covcal evaluate {file} {given}{asked}"] = None
    asked = _asked(_OF_REPORT, content.settings, MEASURES)
    return [*lines, f"covcal report {file} {given} -o report.html{asked}"]


def _made(path: Path, attributes: Mapping[str, str]) -> list[str]:
    """Return the commands that make a features or adapted file of these attributes."""
    is_adapted = FEATURES_FILE in attributes
    features = path.parent / attributes[FEATURES_FILE] if is_adapted else path
    try:
        options = [str(option) for option in parsed_json(attributes[OPTIONS])]
    except (KeyError, ValueError, TypeError):  # of an older version, which kept the seed alone
        seed = attributes.get("extract_seed" if is_adapted else "seed", "0")
        options = [] if seed == "0" else ["--seed", seed]
    tables = {"--logits", "--probabilities"} & set(options)
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


def _asked(
    options: Mapping[str, str], settings: EvaluateSettings, defaults: EvaluateSettings
) -> str:
    """Return the options that make `settings` of a command's defaults."""
    values = {option: getattr(settings, name) for name, option in options.items()}
    usual = {option: getattr(defaults, name) for name, option in options.items()}
    changed = (option for option in values if values[option] != usual[option])
    return "".join(f" {option} {quote(str(values[option]))}" for option in changed)


def _calibrated(file: str, document: Path, found: Calibration) -> str:
    output = f"-o {as_word(document)}{_seed(found.seed)}"
    if found.fit.get("at_limit"):  # which is not written without
        output += " --force"
    loss = "" if found.loss == "brier" else f" --loss {found.loss}"
    if found.labelled_rows is not None:
        rows = found.labelled_rows
        labels = str(rows.n) if rows.design == "random" else rows.design
        return f"covcal calibrate {file} --labels {labels}{loss} {output}"
    options = f"--method {found.method}{loss}"
    if found.max_weight != 1000:
        options += f" --max-weight {found.max_weight!r}"
    prior = found.target_prior.name
    if prior != "source":
        options += f" --target-prior {quote(str(prior))}"
    return f"covcal calibrate {file} {options} {output}"


def _seed(seed: object) -> str:
    return "" if str(seed) == "0" else f" --seed {seed}"
