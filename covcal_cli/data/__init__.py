"""Read folders, shards, arrays and tables in batches and in a stable order."""
