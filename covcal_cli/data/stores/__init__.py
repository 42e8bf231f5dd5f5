"""Files of named arrays with one row per example, one module per format."""
