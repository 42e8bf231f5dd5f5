"""Accept predictions, or form prediction sets, with a limited error rate."""
