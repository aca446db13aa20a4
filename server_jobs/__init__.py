"""The operator's side: ingest, the round with its optimizer, Spark, the schedule. Never imported by a client."""
