"""Campaigns that try to break covcal: mutated inputs (`fuzz`) and kills (`kills`).

    python -m tests.campaign.fuzz --count 10000
    python -m tests.campaign.kills --count 1000

Both print counts and end with 1 if anything was wrong; `pytest -m campaign` runs a part of each.
"""
