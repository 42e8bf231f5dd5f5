"""``covcal extract`` and ``covcal merge``: from a classifier and two domains to features.h5.

``plan.py`` opens and settles everything, ``domainextraction.py`` runs one domain into ``spool.py``,
``domainwriter.py`` makes HDF5 of it, ``extraction.py`` does it all; ``merging.py`` joins shards.
"""
