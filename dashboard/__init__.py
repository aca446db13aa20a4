"""The page to watch a study, read its results and run experiments: a process of its own, beside ingest or alone."""
