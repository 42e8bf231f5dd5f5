"""covcal: honest confidence for an existing classifier on unlabelled, shifted data.

The public Python API is `covcal_cli.api`; everything else is private. ``ARCHITECTURE.md``, beside
this file, says where each thing stands and which rules hold everywhere.
"""

__version__ = "0.1.0"
