"""The screens of a calibration: the answer in a few lines, and all details."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from covcal_cli.errors import printable
from covcal_cli.maths.odds import in_percent, interval

if TYPE_CHECKING:
    from covcal_cli.formats.calibration import Calibration, Candidate
    from covcal_cli.records import Guard

_NAMES = 18  # width of the names at the start of lines
_SHOWN_OFFSETS = 5
_CLOSE = 0.01  # a smaller difference between confidence and accuracy is called about right


def answer(calibration: "Calibration", verdict: str = "") -> str:
    """Return the answer for the user: accuracy, confidence, temperature, reason and checks."""
    from covcal_cli.calibrate.methods import checks_of

    facts = {
        "Verdict": verdict,
        "Target accuracy": _accuracy(calibration),
        "Confidence": _confidence(calibration),
        "Temperature": _temperature(calibration),
        "Reason": calibration.reason if calibration.method_used != calibration.method else "",
        "Checks": checks(checks_of(calibration)[0], calibration.warnings),
    }
    lines = (f"{name:<{_NAMES}}{text}" for name, text in facts.items() if text)
    return "\n".join(map(printable, lines))


def details(calibration: "Calibration") -> str:
    """Return the fit, the weights, the candidates and the checks."""
    from covcal_cli.calibrate.methods import checks_of
    from covcal_cli.cli import tables

    facts = {"Fit": _fit(calibration)}
    if calibration.class_offsets:
        facts["Class offsets"] = _offsets(calibration)
    if calibration.labelled_rows is not None:
        facts["ECE"] = _label_error(calibration.estimates["labelled"])
    if calibration.discriminator_temperatures:
        values = ", ".join(f"{value:.4g}" for value in calibration.discriminator_temperatures)
        many = " (one per ensemble member)" if "," in values else ""
        facts["Domain classifier"] = f"{calibration.discriminator}, temperature {values}{many}"
    if calibration.weights is not None:
        facts |= _weights(calibration.weights)
    if calibration.bound is not None:
        minimised = "which T minimises" if calibration.loss == "brier" else "at T"
        error = calibration.bound["weighted_error"]
        facts["Theorem 1"] = f"weighted error {error:.4f}, {minimised}, in half Brier scores"
    parts = [tables.aligned(facts)]
    if calibration.candidates:
        parts.append(_candidates(calibration.candidates))
    used, unused = checks_of(calibration)
    if used:
        parts.append(_listed("Checks:", used))
    if unused:
        heading = f"Checks of importance weights, which {calibration.method_used} does not use:"
        parts.append(_listed(heading, unused))
    return "\n\n".join(parts)


def _listed(heading: str, guards: Sequence["Guard"]) -> str:
    """Return a line per check: its result, its name and its sentence."""
    from covcal_cli.cli import tables

    names = {f"{'passed' if guard.passed else 'failed'}  {guard.name}": guard for guard in guards}
    lines = tables.aligned({name: guard.sentence for name, guard in names.items()})
    return f"{heading}\n{lines}"


def _accuracy(calibration: "Calibration") -> str:
    """Return the accuracy on the target and on the source."""
    estimates, source = _estimates(calibration), calibration.source_accuracy
    by = f"by {calibration.labelled_rows.n} labels" if calibration.labelled_rows else "estimated"
    text = "not estimated; run covcal estimate for it"
    if "accuracy" in estimates:
        ends = interval(estimates["accuracy_low"], estimates["accuracy_high"])
        text = f"{in_percent(estimates['accuracy'])} % {by} ({ends})"
    elif calibration.candidates:
        text = "not estimated"
    return text if source is None else f"{text}; {in_percent(source.share)} % on the source"


def _estimates(calibration: "Calibration") -> Mapping[str, Any]:
    """Return the estimated accuracy and its interval, from labels if there are any."""
    by_labels: Mapping[str, Any] | None = calibration.estimates.get("labelled")
    return calibration.estimates if by_labels is None else by_labels


def _confidence(calibration: "Calibration") -> str:
    """Return the mean confidence before and after, and its distance from the accuracy."""
    before, after = calibration.target_confidence
    if before is None or after is None:
        return ""
    text = f"{in_percent(before)} % before, {in_percent(after)} % after calibration"
    accuracy = _estimates(calibration).get("accuracy")
    if accuracy is None:
        return text
    gap = before - accuracy
    if abs(gap) < _CLOSE:
        return f"{text}: it was about right"
    points = round(100 * abs(gap))
    text += f": it was too {'high' if gap > 0 else 'low'} by about {points} points"
    rest = after - accuracy
    if abs(rest) > max(_CLOSE, abs(gap) / 2):
        text += f", and still is by {round(100 * abs(rest))}"
    return text


def _temperature(calibration: "Calibration") -> str:
    values = [f"{value:.3g}" for value in calibration.scaling.temperatures.values()]
    text = " and ".join(values)
    if calibration.labelled_rows is not None:
        return (
            f"{text}, and {calibration.confidence_offset:+.2f} on the log odds of the confidence, "
            f"fitted to {calibration.labelled_rows.n} labels"
        )
    offsets = " with class offsets" if calibration.class_offsets else ""
    chosen = "" if calibration.method == calibration.method_used else " (chosen by auto)"
    return f"{text}{offsets}, method {calibration.method_used}{chosen}"


def checks(guards: Sequence["Guard"], warnings: Sequence[str] = ()) -> str:
    """Return the number of passed checks, and each failed check with its consequence.

    If a failed check has its own warning, only its name is shown.
    """
    if not guards:
        return ""
    failed = []
    for guard in guards:
        _, _, advice = guard.sentence.partition("; ")
        if not guard.passed:
            told = not advice or guard.sentence in warnings
            failed.append(guard.name if told else f"{guard.name} ({advice})")
    if not failed:
        return f"all {len(guards)} passed" if len(guards) > 1 else "passed"
    return f"{len(guards) - len(failed)} of {len(guards)} passed; failed: {', '.join(failed)}"


def _fit(calibration: "Calibration") -> str:
    fit = calibration.fit
    labels = calibration.used_target_labels
    rows = "target rows" if labels else "source validation rows"
    rises = fit["loss"] > fit["loss_before"] and not labels
    why = " (rises because T is not fitted to the source)" if rises else ""
    return (
        f"{fit['rows']} {rows}, {fit['errors']} errors; {calibration.loss} loss "
        f"{fit['loss_before']:.5f} -> {fit['loss']:.5f}{why}"
    )


def _offsets(calibration: "Calibration") -> str:
    """Return the class offsets; with many classes, only the largest."""
    pairs = zip(calibration.classes, calibration.class_offsets, strict=True)
    largest = sorted(pairs, key=lambda pair: -abs(pair[1]))
    text = ", ".join(f"{name} {value:+.2f}" for name, value in largest[:_SHOWN_OFFSETS])
    return f"log odds moved by {text}{', ...' if len(largest) > _SHOWN_OFFSETS else ''}"


def _label_error(estimates: Mapping[str, Any]) -> str:
    ends = interval(estimates["ece_low"], estimates["ece_high"])
    return f"{100 * estimates['ece']:.1f} % by labels ({ends}), each row left out of its fit"


def _weights(health: Mapping[str, Any]) -> dict[str, str]:
    return {
        "Weights": (
            f"effective sample size {health['ess']:.1f} of {health['n']} rows, "
            f"{health['ess_fit']:.1f} in the fit; mean {health['mean_weight']:.3f}, "
            f"{health['clipped_share']:.1%} cut at the limit; largest single weight: "
            f"{health['largest_share']:.1%} of the total"
        ),
        "Domains": (
            f"a classifier separates source from target with AUC {health['domain_auc']:.3f} "
            f"(0.5 = indistinguishable) and squared error {health['discriminator_error']:.3f} "
            "(0.25 = chance)"
        ),
    }


def _candidates(candidates: "Sequence[Candidate]") -> str:
    """Return auto's candidates as a table, with the choice and the reasons."""
    from covcal_cli.cli import tables
    from covcal_cli.maths.odds import percent
    from covcal_cli.maths.softmax import shown_temperatures
    from covcal_cli.report.tables import Table

    rows = [
        [
            candidate.method,
            shown_temperatures(candidate.temperature, candidate.aligned_temperature, 4),
            percent(candidate.target_confidence),
            percent(candidate.estimated_accuracy),
            "matched" if candidate.matched else percent(candidate.expected_ece),
            candidate.why,
        ]
        for candidate in candidates
    ]
    columns = ("candidate", "T", "confidence", "est. accuracy", "difference", "why")
    return tables.text(Table(columns, rows, texts=(0, 5)))
