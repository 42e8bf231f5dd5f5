"""Choose which predictions to accept, and prediction sets, at a limited error rate."""
