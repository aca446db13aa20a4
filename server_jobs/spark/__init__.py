"""Spark for the operator's jobs: a Java, a session that starts fast, code for the executors, spark-submit."""
