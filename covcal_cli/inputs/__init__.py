"""Data from elsewhere: image folders and arrays, as batches in a stable order.

``domain.py`` says what every kind of data offers and picks the module for a path.
"""
