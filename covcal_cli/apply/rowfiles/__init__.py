"""Files with one calibrated row each per line or entry: CSV, Parquet, NPZ and HDF5.

``appliedrows`` says what a row is, ``formats`` which ending means what; one module per format
writes blocks of rows as they come, in memory that does not grow with their number.
"""
