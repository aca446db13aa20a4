"""Spark for the operator's jobs: Java, a fast-starting session, code for executors, and spark-submit."""
