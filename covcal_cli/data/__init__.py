"""Read data of other tools (folders, shards, arrays, tables) in batches and in a stable order."""
