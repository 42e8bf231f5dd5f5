"""Data from elsewhere: folders, shards, arrays and tables, as batches in a stable order."""
