"""Results as text: percent with two decimals on screen, fractions in JSON."""

from collections.abc import Sequence
from typing import Any

from covcal_cli.adapt.training import AdaptReport
from covcal_cli.cli import tables
from covcal_cli.formats.calibration import Calibration, Candidate
from covcal_cli.report.tables import Table


def adapt_summary(report: AdaptReport) -> str:
    """Return what ``covcal adapt`` trained: one line per member."""
    counts = report.counts
    rows = [
        [
            str(number),
            str(member.steps),
            member.stop_reason,
            f"{member.probe_accuracy:.3f}",
            f"{member.ess_share:.1%}",
            f"{member.mean_weight:.3f}",
            f"{member.domain_error:.3f}",
            f"{member.weighted_brier:.4f}",
            f"{member.target_agreement:.1%}",
        ]
        for number, member in enumerate(report.members)
    ]
    columns = (
        "member",
        "steps",
        "stopped by",
        "probe acc.",
        "ess",
        "mean w",
        "domain err.",
        "IW Brier",
        "agreement",
    )
    return "\n".join(
        [
            f"preset {report.preset}, seed {report.seed}, {report.device}, "
            f"{report.n_features} features -> {report.n_inputs} inputs of psi",
            f"train {counts['source train']} source + {counts['target train']} target rows, "
            f"validation {counts['source validation']} + {counts['target validation']}",
            tables.text(Table(columns, rows)),
        ]
    )


def calibration_summary(calibration: Calibration, *, verbose: bool) -> str:
    """Return what ``covcal calibrate`` found, in a few lines."""
    fit, estimates = calibration.fit, calibration.estimates
    temperature = calibration.forecaster_temperature
    lines = [
        ("method", calibration.method_used),
        ("reason", calibration.reason),
        ("T_f", f"{temperature:.4f} {_meaning(calibration)}"),
        (
            "fit",
            f"{fit['rows']} {_fitted_rows(calibration)}, {fit['errors']} errors, "
            f"{calibration.loss} {fit['loss_before']:.5f} -> {fit['loss']:.5f}",
        ),
    ]
    if calibration.discriminator_temperatures:
        values = ", ".join(f"{value:.4g}" for value in calibration.discriminator_temperatures)
        lines.append(("T_g", f"{values} ({calibration.discriminator} discriminator)"))
    if calibration.weights is not None:
        lines += _weight_lines(calibration.weights)
    if calibration.bound is not None:
        lines.append(("bound", _bound_line(calibration.bound)))
    if estimates["target_confidence"] is not None:
        lines.append(
            (
                "target",
                f"mean confidence {estimates['target_confidence_before']:.2%} -> "
                f"{estimates['target_confidence']:.2%} on {estimates['rows']} validation rows",
            )
        )
    if verbose:
        lines += [
            (f"input ({entry.role})", f"{entry.path} sha256 {entry.sha256}")
            for entry in calibration.inputs
        ]
    width = max(len(name) for name, _ in lines)
    shown = [f"{name:<{width}}  {text}" for name, text in lines]
    if calibration.candidates:
        shown += ["", _candidates(calibration.candidates)]
    return "\n".join(shown)


def _fitted_rows(calibration: Calibration) -> str:
    return "target rows" if calibration.used_target_labels else "source validation rows"


def _candidates(candidates: Sequence[Candidate]) -> str:
    """Return auto's candidates as a table that says which was chosen."""
    rows = [
        [
            candidate.method,
            f"{candidate.temperature:.4g}",
            *(
                "-" if value is None else f"{value:.2%}"
                for value in (
                    candidate.target_confidence,
                    candidate.estimated_accuracy,
                    candidate.expected_ece,
                )
            ),
            f"chosen: {candidate.why}" if candidate.chosen else candidate.why,
        ]
        for candidate in candidates
    ]
    columns = ("candidate", "T", "confidence", "est. accuracy", "expected ECE", "why")
    return tables.text(Table(columns, rows, texts=(0, 5)))


def _meaning(calibration: Calibration) -> str:
    temperature = calibration.forecaster_temperature
    learnt = calibration.forecaster == "aligned"
    whose = "the logits that adapt learnt" if learnt else "the classifier's logits"
    if temperature == 1:
        return f"(leaves {whose} as they are)"
    return f"({'softens' if temperature > 1 else 'sharpens'} {whose})"


def _weight_lines(health: Any) -> list[tuple[str, str]]:
    return [
        (
            "weights",
            f"worth {health['ess']:.1f} of {health['n']} rows ({health['ess_share']:.1%}), "
            f"{health['ess_fit']:.1f} in the fit; mean {health['mean_weight']:.3f}, "
            f"{health['clipped_share']:.1%} at the limit, "
            f"largest share {health['largest_share']:.1%}",
        ),
        (
            "domains",
            f"AUC {health['domain_auc']:.3f} (0.5: alike), "
            f"squared error {health['discriminator_error']:.3f} (0.25: chance)",
        ),
    ]


def _bound_line(bound: Any) -> str:
    text = (
        f"weighted error {bound['weighted_error']:.4f} + {bound['factor']:.3g} x "
        f"discriminator error {bound['discriminator_error']:.4f} = {bound['bound']:.4g}"
    )
    return text + (" (1 or more: says nothing)" if bound["vacuous"] else "")
