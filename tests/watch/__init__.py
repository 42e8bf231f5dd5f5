"""Tests of `covcal_cli.watch`."""
