"""Rows that a person labels: drawing them, their CSV or page, and estimates from the labels."""
