"""``covcal report``: one self-contained page about calibrations of a file.

``content.py`` gathers what is shown, ``verdict.py`` puts it into words, ``figures.py`` and
``tables.py`` draw parts, ``page.py`` lays them out, ``reporting.py`` does it all.
"""
