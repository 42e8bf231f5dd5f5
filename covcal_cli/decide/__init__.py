"""Rows that can be accepted, with an estimate or a promise of their error; sets of classes."""
