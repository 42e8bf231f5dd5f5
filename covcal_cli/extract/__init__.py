"""From a classifier and two domains to features.h5, whole or part by part.

``plan.py`` opens, settles and proves everything, ``domain.py`` runs the rows of one domain, and
``parts.py`` keeps and joins them, for ``extraction.py`` and ``merging.py`` alike.
"""
