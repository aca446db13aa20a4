"""The web pages to watch a study, read its results and run experiments: a separate process, next to ingest or alone."""
