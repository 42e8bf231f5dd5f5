"""Campaigns that try to break covcal: mutated inputs (`fuzz`), kills (`kills`) and odd
arguments of the Python API (`calls`).

    python -m tests.campaign.fuzz --count 10000
    python -m tests.campaign.kills --count 1000
    python -m tests.campaign.calls --count 2000

All print counts and end with 1 if anything was wrong; `pytest -m campaign` runs a part of each.
"""
