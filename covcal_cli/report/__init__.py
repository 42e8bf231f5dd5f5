"""``covcal report``: one self-contained page about calibrations of a file.

``content.py`` gathers what is shown, ``verdict.py`` puts it into words, ``tables.py`` and
``page.py`` draw it, and ``report.py`` does it all.
"""
