"""covcal: honest confidence for an existing classifier on unlabelled, shifted data.

The package is a library under a command line. Data flows one way: files, arrays, mathematics,
result, file or screen. Start at ``methods.py`` for what is computed, at ``featurefile.py`` for the
files, and at ``cli/app.py`` for the commands.
"""

__version__ = "0.1.0"
