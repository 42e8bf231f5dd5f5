"""``covcal report``: one self-contained page about calibrations of a file.

``content.py`` holds the content, ``verdict.py`` puts it into words, ``tables.py`` and ``page.py``
draw it, and ``report.py`` gathers and writes it.
"""
