"""Rows that a person labelled: how they are drawn, their sheets, and estimates from them."""
