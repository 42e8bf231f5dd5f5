"""``covcal report``: one self-contained page about calibrations of a file.

``report.py`` collects the content and writes the page. ``verdict.py`` holds the content and puts it
into words, and ``tables.py`` and ``page.py`` draw it.
"""
