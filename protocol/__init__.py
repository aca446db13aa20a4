"""Messages and settings shared by clients and servers. Imported by both sides; imports neither."""

__version__ = "0.1.0"
"""Version of the distribution, recorded in the lineage of each model version."""
