"""covcal's own files, which README.md specifies."""
