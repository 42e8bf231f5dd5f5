"""``covcal report``: one self-contained page about calibrations of a file.

``report.py`` collects the content and writes the page. ``content.py`` holds the content,
``verdict.py`` puts it into words, and ``tables.py`` and ``page.py`` draw it.
"""
