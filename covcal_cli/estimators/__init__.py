"""The target accuracy without target labels: one module per family, and the guards."""
