"""covcal: honest confidence for an existing classifier on unlabelled, shifted data.

The public Python API is `covcal_cli.api`; everything else is private. ``ARCHITECTURE.md`` in this
folder describes the packages and the rules of the code.
"""

__version__ = "0.1.0"
