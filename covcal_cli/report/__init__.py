"""Write the page of ``covcal report`` about calibrations of a file.

``report.py`` collects the content and writes the page. ``verdict.py`` states the conclusions in
sentences, and ``tables.py`` and ``page.py`` draw the rest.
"""
