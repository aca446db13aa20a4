"""The dashboard: web pages for watching studies, reading their results and running experiments.

It is a process of its own, which runs next to ingest or alone.
"""
