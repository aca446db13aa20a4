"""Server side of fedping: ingest, rounds and their optimizers, Spark, and schedules. Clients never import it."""
