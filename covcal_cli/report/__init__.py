"""``covcal report``: one self-contained page about calibrations of a file.

``report.py`` collects what is shown and writes the page. ``verdict.py`` puts it into words, and
``tables.py`` and ``page.py`` draw it.
"""
