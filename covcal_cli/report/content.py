"""The content of a report, and the commands that lead to it; nothing is drawn here."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from shlex import quote

from covcal_cli.calibrate.estimate import Estimation
from covcal_cli.evaluate.evaluate import EvaluateSettings
from covcal_cli.evaluate.result import Evaluation
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.source_accuracy import SourceAccuracy

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
    rows: Mapping[str, str]  # per domain, its rows by split in words
    source_accuracy: SourceAccuracy | None  # of the classifier; None without labelled source rows
    settings: EvaluateSettings  # of what was measured
    networks: Path | None  # that were given for the calibrations
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
    attributes = content.attributes
    model = quote(attributes.get("model_name") or "MODEL")
    is_adapted = {"features_file", "preset", "members", "seed"} <= set(attributes)
    adapted = content.path.name if is_adapted else None
    features = attributes.get("features_file", content.path.name)
    seed = attributes.get("seed" if adapted is None else "extract_seed", "0")
    lines = [f"covcal extract {model} SOURCE TARGET -o {quote(features)}{_seed(seed)}"]
    if adapted is not None:
        lines.append(
            f"covcal adapt {quote(features)} -o {quote(adapted)} --preset {attributes['preset']} "
            f"--members {attributes['members']}{_seed(attributes['seed'])}"
        )
    file = quote(str(content.path))
    given = " ".join(
        f"-c {quote(f'{name}={document}' if name else str(document))}"
        for name, document in zip_longest(content.names, content.documents)
    )
    if content.networks is not None:
        given += f" --networks {quote(str(content.networks))}"
    for document, found in zip(content.documents, content.calibrations.values(), strict=True):
        lines.append(_calibrated(file, document, found))
    if content.evaluation is not None:
        asked = _asked(_OF_EVALUATE, content.settings, EvaluateSettings())
        lines.append(f"covcal evaluate {file} {given}{asked}")
    asked = _asked(_OF_REPORT, content.settings, MEASURES)
    lines.append(f"covcal report {file} {given} -o report.html{asked}")
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
    output = f"-o {quote(str(document))}{_seed(found.seed)}"
    if found.labelled_rows is not None:
        return f"covcal calibrate-labelled {file} --rows {found.labelled_rows.n} {output}"
    options = f"--method {found.method}"
    if found.loss != "brier":
        options += f" --loss {found.loss}"
    if found.max_weight != 1000:
        options += f" --max-weight {found.max_weight:g}"
    prior = found.target_prior["name"]
    if prior != "source":
        options += f" --target-prior {quote(str(prior))}"
    return f"covcal calibrate {file} {options} {output}"


def _seed(seed: object) -> str:
    return "" if str(seed) == "0" else f" --seed {seed}"
