"""What the operator runs: ingest, the round with its optimizer, Spark, the schedule. Never imported by a client."""
