"""Read data from elsewhere (folders, shards, arrays, tables), in batches and in a stable order."""
