"""Evaluate several labels together: mean, worst label and gates.

``ece=0.05`` is a limit for each label. ``ece:macro=0.05`` is a limit for the mean over labels. The
interval of the mean is the average of the labels' intervals, and is valid even for dependent
labels. The gates of all labels share one error probability.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from covcal_cli.errors import UnlabelledError
from covcal_cli.evaluate.gates import Assessment, GateResult, Gates, result_of_limit
from covcal_cli.evaluate.limits import Limit, verdict_on
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.evaluate.result import Verdict, metrics_document
from covcal_cli.multilabel import for_each_label
from covcal_cli.records import of_labels

_LISTED = 10
MACRO = "macro"


@dataclass(frozen=True)
class LabelAssessments:
    """The evaluations of all labels on the same rows."""

    labels: Mapping[str, Assessment]
    limits: Sequence[Limit]
    macro_limits: Sequence[Limit]
    notes: Sequence[str] = ()

    @property
    def calibrations(self) -> list[str]:
        """The names of the calibrations, ``none`` first."""
        of_each = [list(assessment.evaluation.metrics) for assessment in self._all]
        return [name for name in of_each[0] if all(name in names for names in of_each)]

    @property
    def _all(self) -> list[Assessment]:
        return list(self.labels.values())

    def values(self, calibration: str, metric: str) -> dict[str, float]:
        """Return the values of a metric, by label."""
        values = {
            label: assessment.evaluation.metrics[calibration].value(metric)
            for label, assessment in self.labels.items()
        }
        return {label: value for label, value in values.items() if value is not None}

    def mean(self, calibration: str, metric: str) -> float | None:
        """Return the mean of a metric over labels, or None."""
        values = self.values(calibration, metric)
        return fmean(values.values()) if values else None

    def worst(self, calibration: str, metric: str) -> tuple[str, float] | None:
        """Return the label with the worst value of a metric, and this value."""
        values, better = self.values(calibration, metric), METRICS[metric].better
        if not values or better == "neither":
            return None
        choose = min if better == "higher" else max
        return choose(values.items(), key=lambda item: item[1])

    @property
    def verdicts(self) -> list[Verdict]:
        """For each limit on the mean over labels: whether each calibration exceeds it."""
        verdicts = []
        for limit in self.macro_limits:
            of_limit = [
                verdict
                for assessment in self._all
                for verdict in assessment.verdicts
                if (verdict.metric, verdict.limit, verdict.by) == (limit.metric, limit.limit, None)
            ]
            for name in dict.fromkeys(verdict.calibration for verdict in of_limit):
                same = [verdict for verdict in of_limit if verdict.calibration == name]
                ends = [(v.low, v.high) for v in same if v.low is not None and v.high is not None]
                interval = (fmean(e[0] for e in ends), fmean(e[1] for e in ends)) if ends else None
                subject = f"{name} (mean of {len(same)} labels)"
                value = fmean(verdict.value for verdict in same)
                verdicts.append(verdict_on(limit, subject, value, interval))
        return verdicts

    @property
    def gates(self) -> list[GateResult]:
        """The results of all gates. Gates on single labels come before gates on the mean."""
        results = [
            gate_of_label(label, gate)
            for label, assessment in self.labels.items()
            for gate in self._of_label(assessment).gates
        ]
        level, n = self._all[0].level, min(a.evaluation.n for a in self._all)
        return results + [result_of_limit(verdict, level, n) for verdict in self.verdicts]

    def document(self, path: Path) -> dict[str, Any]:
        """Return the content of metrics.json at `path`."""
        documents = {}
        for label, assessment in self.labels.items():
            verdicts = self._of_label(assessment).verdicts
            evaluation = assessment.evaluation
            documents[label] = metrics_document(evaluation, verdicts, assessment.changes)
        names, metrics = self.calibrations, list(METRICS)
        worst = {name: {m: self.worst(name, m) for m in metrics} for name in names}
        return of_labels(
            documents,
            path,
            macro={name: {metric: self.mean(name, metric) for metric in metrics} for name in names},
            worst={
                name: {
                    metric: {"label": pair[0], "value": pair[1]}
                    for metric, pair in of_metrics.items()
                    if pair is not None
                }
                for name, of_metrics in worst.items()
            },
            limits=self.verdicts,
        )

    def _of_label(self, assessment: Assessment) -> Assessment:
        asked = {(limit.metric, limit.limit, limit.by) for limit in self.limits}
        verdicts = [v for v in assessment.verdicts if (v.metric, v.limit, v.by) in asked]
        return replace(assessment, verdicts=verdicts)


def gate_of_label(label: str, gate: GateResult) -> GateResult:
    """Add the label's name to the result of a gate."""
    sentence = f"{label}: {gate.sentence}"
    return replace(gate, subject=f"{label}, {gate.subject}", sentence=sentence)


def assess_labels(
    labels: Sequence[str], gates: Gates, assess_one: Callable[..., Assessment]
) -> LabelAssessments:
    """Evaluate every label. The function `assess_one` evaluates one label."""
    every = [limit for limit in gates.limits if limit.by != MACRO]
    macro = [limit for limit in gates.limits if limit.by == MACRO]
    limits = dict.fromkeys((*every, *(replace(limit, by=None) for limit in macro)))
    of_label = replace(gates, limits=tuple(limits), shared_by=len(labels))
    notes: list[str] = []
    missing: list[UnlabelledError] = []

    def assess() -> Assessment | None:
        try:
            return assess_one(gates=of_label, tell=notes.append)
        except UnlabelledError as error:
            missing.append(error)
            return None

    results = for_each_label(labels, assess)
    assessments = {name: result for name, result in results.items() if result is not None}
    if not assessments:
        raise missing[0]
    if missing:
        without = [name for name, result in results.items() if result is None]
        listed = ", ".join(without[:_LISTED]) + (", ..." if len(without) > _LISTED else "")
        notes.append(
            f"{len(without)} of {len(labels)} labels are not measured, because the target has "
            f"no values for them: {listed}"
        )
    return LabelAssessments(assessments, every, macro, list(dict.fromkeys(notes)))
