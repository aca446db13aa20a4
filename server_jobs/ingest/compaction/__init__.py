"""From the journal to Parquet: rolled segments in, one file a partition out, each ping once."""
