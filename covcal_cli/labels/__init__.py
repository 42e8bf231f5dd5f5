"""Rows that a person labelled: how they were drawn, their sheets, and what they tell."""
