"""Target accuracy without target labels: one module per estimator, and the guards.

`evidence` is what they all share and `reading` reads it; `panel` runs them all and `combined` makes
one of them; nothing here reads a target label.
"""
