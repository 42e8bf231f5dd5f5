"""Methods that correct the log odds for the class frequencies of the target.

If only P(y) changes from p to q, the target's p(y | x) is proportional to q_y / p_y times the
source's (Saerens et al., Neural Computation 2002; Elkan, IJCAI 2001). So the probabilities are
softmax(z / T + b) with b_y = log(q_y / p_y). The frequencies p are those of the labelled source
validation rows, to which T_s is fitted. The user gives q. The classifier's label does not change,
even where another class becomes more probable.

| method    | T                                                                              |
|-----------|--------------------------------------------------------------------------------|
| prior     | T_s, the T of ``temp``                                                         |
| prior+cot | makes the mean target confidence COT's accuracy; it is never below T_s         |
"""

from dataclasses import replace

import numpy as np

from covcal_cli.calibrate.on_source import plain
from covcal_cli.calibrate.problem import MethodFit, Problem
from covcal_cli.estimators.guards import prior_reached, prior_rows, sentences_of_failed
from covcal_cli.estimators.matched_temperature import match_accuracy
from covcal_cli.maths.odds import probabilities
from covcal_cli.maths.scaling import ForecasterName, Scaling
from covcal_cli.maths.softmax import with_offsets
from covcal_cli.records import Guard


def alone(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Take T_s, and move the log odds by b."""
    fit = plain(problem, forecaster)
    guards = _guards(problem, forecaster, fit.scaling.temperature)
    return replace(
        fit,
        scaling=replace(fit.scaling, offsets=problem.prior_offsets),
        guards=(*guards, *fit.guards),
        warnings=(*sentences_of_failed(guards), *fit.warnings),
    )


def with_transport(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Move the log odds by b, and match COT's accuracy with a T of at least T_s."""
    logits, labels = problem.target_logits(forecaster), problem.inputs.target_predictions
    match = match_accuracy(logits, problem.cot.accuracy, labels, problem.prior_offsets)
    fit = plain(problem, forecaster)
    least = fit.scaling.temperature
    scaling = Scaling(forecaster, max(match.temperature, least), offsets=problem.prior_offsets)
    of_cot = (*problem.cot.guards, match.guard)
    of_prior = _guards(problem, forecaster, scaling.temperature)
    return replace(
        fit,
        scaling=scaling,
        matched=match.confidence if match.temperature >= least else None,
        loss=problem.loss_of(scaling),
        guards=(*of_cot, *of_prior, *fit.guards),
        warnings=(*sentences_of_failed((*of_cot, *of_prior)), *fit.warnings),
    )


def _guards(problem: Problem, forecaster: ForecasterName, temperature: float) -> tuple[Guard, ...]:
    """Check the source's class frequencies, and those of the corrected probabilities."""
    offsets = problem.prior_offsets
    moved = with_offsets(problem.target_logits(forecaster), temperature, offsets)
    counts = np.bincount(problem.validation.labels, minlength=len(offsets)) + 0.5
    prior = np.exp(offsets) * counts / counts.sum()
    return (
        prior_rows(float(prior @ counts**-0.5)),
        prior_reached(prior, probabilities(moved, temperature).mean(axis=1)),
    )
